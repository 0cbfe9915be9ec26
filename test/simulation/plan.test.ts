import { expect, test } from 'vitest';
import { NIGHTLY } from './fixed.ts';
import { planSchedule } from './plan.ts';
import { Schedule, STEPS } from './schedule.ts';

const SCHEDULES = Array.from({ length: 300 }, (_, seed) => planSchedule(seed));

test('one seed gives one schedule, other seeds others', () => {
  const some = SCHEDULES.slice(0, 20);
  expect(some.map(({ seed }) => planSchedule(seed))).toEqual(some);
  const texts = SCHEDULES.map((schedule) => JSON.stringify({ ...schedule, seed: 0 }));
  expect(new Set(texts).size).toBe(SCHEDULES.length);
});

test('a schedule can be stored as JSON', () => {
  expect(SCHEDULES.map((schedule) => Schedule.parse(JSON.parse(JSON.stringify(schedule))))).toEqual(
    SCHEDULES,
  );
});

const short = (seed: number) => planSchedule(seed, 'short');
const kindsOf = (items: { kind: string }[]) => [...new Set(items.map(({ kind }) => kind))].sort();

test.each([
  ['many', SCHEDULES, STEPS],
  [
    'those of the night',
    NIGHTLY.map(short),
    STEPS.filter(({ method }) => !/^(snapshot|reset)\./.test(method)),
  ],
])('every kind of operation, every fault, every part and every step occurs in %s', (_, schedules, spots) => {
  const operations = schedules.flatMap(({ actors }) => actors.flatMap(({ groups }) => groups.flat()));
  const faults = schedules.flatMap((schedule) => schedule.faults);
  const strikes = faults.flatMap((fault) => fault.strikes);
  expect(kindsOf(operations)).toEqual([
    'add_rule',
    'branch_snapshot',
    'create_batch',
    'create_branch',
    'create_project',
    'delete_branch',
    'delete_by_api',
    'delete_project',
    'lease_branch',
    'make_table',
    'move_tenant',
    'protect_branch',
    'remove_rule',
    'renew_lease',
    'reset_to_parent',
    'reset_to_snapshot',
    'restore_branch',
    'rotate',
    'set_lifespan',
    'take_snapshot',
    'write_by_api',
    'write_by_sql',
  ]);
  expect(kindsOf(strikes)).toEqual([
    'clock',
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
  // The first, because another one may come too late for its step.
  const steps = new Set(
    schedules.flatMap(({ faults: [fault] }) => (fault && 'step' in fault.when ? [fault.when.step] : [])),
  );
  for (const spot of spots) expect(steps).toContain(STEPS.indexOf(spot) + 1);
  const hosts = strikes.flatMap((strike) => (strike.kind === 'clock' ? [Math.sign(strike.ahead_s)] : []));
  expect(new Set(hosts)).toEqual(new Set([1, -1]));
  const tokens = schedules.flatMap(({ actors }) => actors.map(({ ahead_s }) => Math.sign(ahead_s)));
  expect(new Set(tokens)).toEqual(new Set([1, 0, -1]));
});
