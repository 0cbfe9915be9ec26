import { expect, test } from 'vitest';
import { NIGHTLY, NIGHTLY_OF_TWO_HOSTS, NIGHTLY_WITH_STANDBY } from './fixed.ts';
import { planSchedule } from './plan.ts';
import { Schedule, STEPS, TWO_HOSTS, WITH_STANDBY } from './schedule.ts';

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

const OF_TWO_HOSTS = Array.from({ length: 300 }, (_, seed) => planSchedule(seed, 'full', TWO_HOSTS));
const short = (seed: number) => planSchedule(seed, 'short');
/** Steps that happen with one host. */
const OF_ONE_HOST = STEPS.filter(({ method }) => !/^(move|transfer|follow)\./.test(method));
const OPERATIONS = [
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
];
const STRIKES = [
  'clock',
  'cut',
  'disk_full',
  'duplicate',
  'freeze',
  'half_open',
  'keys_away',
  'kill',
  'slow',
];
const kindsOf = (items: { kind: string }[]) => [...new Set(items.map(({ kind }) => kind))].sort();

const faultsOf = (schedules: Schedule[]) => schedules.flatMap((schedule) => schedule.faults);
const strikesOf = (schedules: Schedule[]) => faultsOf(schedules).flatMap((fault) => fault.strikes);
const operationsOf = (schedules: Schedule[]) =>
  schedules.flatMap(({ actors }) => actors.flatMap(({ groups }) => groups.flat()));

test.each([
  ['many', SCHEDULES, OF_ONE_HOST],
  [
    'those of the night',
    NIGHTLY.map(short),
    OF_ONE_HOST.filter(({ method }) => !/^(snapshot|reset)\./.test(method)),
  ],
])('every kind of operation, every fault, every part and every step occurs in %s', (_, schedules, spots) => {
  const strikes = strikesOf(schedules);
  expect(kindsOf(operationsOf(schedules))).toEqual(OPERATIONS);
  expect(kindsOf(strikes)).toEqual(STRIKES);
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

test('with two hosts projects move, each host is cut off, and every step of a move is struck', () => {
  const strikes = strikesOf(OF_TWO_HOSTS);
  expect(kindsOf(operationsOf(OF_TWO_HOSTS))).toEqual([...OPERATIONS, 'move_project'].sort());
  expect(kindsOf(strikes)).toEqual([...STRIKES.filter((kind) => kind !== 'disk_full'), 'partition'].sort());
  const cut = strikes.flatMap((strike) =>
    strike.kind === 'partition' ? [`${strike.host} ${strike.silent}`] : [],
  );
  expect(new Set(cut).size).toBe(2 * 2);
  const struck = strikes.flatMap((strike) => ('part' in strike ? [`${strike.host} ${strike.part}`] : []));
  expect(new Set(struck).size).toBe(2 * 6);
  const steps = faultsOf(OF_TWO_HOSTS).flatMap(({ when }) => ('step' in when ? [when.step] : []));
  for (const [at, spot] of STEPS.entries()) if (!OF_ONE_HOST.includes(spot)) expect(steps).toContain(at + 1);
});

test('those of the night with two hosts strike moves, and cut off both hosts', () => {
  const schedules = NIGHTLY_OF_TWO_HOSTS.map((seed) => planSchedule(seed, 'short', TWO_HOSTS));
  for (const schedule of schedules) expect(kindsOf(operationsOf([schedule]))).toContain('move_project');
  const hosts = strikesOf(schedules).flatMap((strike) => (strike.kind === 'partition' ? [strike.host] : []));
  expect(new Set(hosts).size).toBe(2);
  const methods = faultsOf(schedules).flatMap(({ when }) =>
    'step' in when ? [STEPS[when.step - 1]?.method] : [],
  );
  expect(methods.filter((method) => /^(move|transfer|follow)\./.test(method ?? '')).length).toBeGreaterThan(
    3,
  );
});

test('with a standby it takes the place of its primary, alone among the strikes of a fault', () => {
  const schedules = Array.from({ length: 60 }, (_, seed) => planSchedule(seed, 'full', WITH_STANDBY));
  const strikes = strikesOf(schedules);
  expect(kindsOf(operationsOf(schedules))).toEqual([...OPERATIONS, 'set_durability'].sort());
  expect(kindsOf(strikes)).toEqual(
    [...STRIKES.filter((kind) => kind !== 'disk_full'), 'lose', 'partition', 'switch'].sort(),
  );
  for (const fault of faultsOf(schedules))
    if (fault.strikes.some(({ kind }) => kind === 'lose' || kind === 'switch'))
      expect(fault.strikes).toHaveLength(1);
});

test('those of the night with a standby have planned switches and lost primaries', () => {
  const schedules = NIGHTLY_WITH_STANDBY.map((seed) => planSchedule(seed, 'short', WITH_STANDBY));
  expect(kindsOf(strikesOf(schedules))).toEqual(expect.arrayContaining(['lose', 'switch']));
});
