import { expect, test } from 'vitest';
import { planSchedule } from './plan.ts';
import { Schedule, STEPS } from './schedule.ts';

const SCHEDULES = Array.from({ length: 200 }, (_, seed) => planSchedule(seed));

test('one seed gives one schedule, other seeds others', () => {
  const some = SCHEDULES.slice(0, 20);
  expect(some.map(({ seed }) => planSchedule(seed))).toEqual(some);
  const texts = SCHEDULES.map((schedule) => JSON.stringify({ ...schedule, seed: 0 }));
  expect(new Set(texts).size).toBe(SCHEDULES.length);
});

test('a schedule can be kept as JSON', () => {
  expect(SCHEDULES.map((schedule) => Schedule.parse(JSON.parse(JSON.stringify(schedule))))).toEqual(
    SCHEDULES,
  );
});

const kindsOf = (items: { kind: string }[]) => [...new Set(items.map(({ kind }) => kind))].sort();

test('every kind of operation, every fault, every part and every step has its turn', () => {
  const operations = SCHEDULES.flatMap(({ actors }) => actors.flatMap(({ groups }) => groups.flat()));
  const faults = SCHEDULES.flatMap((schedule) => schedule.faults);
  const strikes = faults.flatMap((fault) => fault.strikes);
  expect(kindsOf(operations)).toEqual([
    'add_rule',
    'create_branch',
    'create_project',
    'delete_branch',
    'delete_by_api',
    'delete_project',
    'make_table',
    'move_tenant',
    'remove_rule',
    'rotate',
    'set_lifespan',
    'write_by_api',
    'write_by_sql',
  ]);
  expect(kindsOf(strikes)).toEqual([
    'cut',
    'disk_full',
    'duplicate',
    'freeze',
    'half_open',
    'keys_away',
    'kill',
    'slow',
  ]);
  const parts = new Set(
    strikes.flatMap((strike) => ('part' in strike ? [`${strike.kind} ${strike.part}`] : [])),
  );
  expect(parts.size).toBe(2 * 6);
  const steps = new Set(faults.flatMap(({ when }) => ('step' in when ? [when.step] : [])));
  expect(steps.size).toBe(STEPS.length);
});
