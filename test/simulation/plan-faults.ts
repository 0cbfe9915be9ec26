import type { Method } from '../../shared/protocol/operations.ts';
import type { Victim } from '../support/stack/crash.ts';
import type { Random } from './random.ts';
import {
  type Actor,
  type Fault,
  type Form,
  hostsIn,
  type OperationKind,
  STEPS,
  type Strike,
  type StrikeKind,
} from './schedule.ts';

/** Weights of the parts as victims. */
const VICTIMS: Record<Victim, number> = {
  agent: 6,
  gateway: 5,
  postgres: 4,
  postmaster: 2,
  pgbouncer: 3,
  idp: 1,
};

const KINDS: Record<StrikeKind, number> = {
  kill: 9,
  freeze: 5,
  cut: 3,
  half_open: 3,
  slow: 2,
  duplicate: 3,
  disk_full: 1,
  keys_away: 1,
  clock: 2,
  partition: 0,
  switch: 0,
  lose: 0,
};

const KINDS_OF_STANDBY: Record<StrikeKind, number> = {
  ...KINDS,
  disk_full: 0,
  partition: 6,
  switch: 14,
  lose: 10,
};
/** Each begins when the hosts are well. */
const ALONE: StrikeKind[] = ['switch', 'lose'];

/** With two database hosts, whose data is on no small disk. */
const KINDS_OF_TWO_HOSTS: Record<StrikeKind, number> = { ...KINDS, disk_full: 0, partition: 8 };

const part = (random: Random) => random.weighted(VICTIMS);

/** Offsets of the host's clock from the gateway's. Beyond 300 s the gateway refuses the host. */
const CLOCKS_AHEAD_S = [-240, -120, -30, 30, 120, 240];

/** The number of a host; draws nothing if there is one, so that its schedules do not depend on what several hosts need. */
const host = (random: Random, hosts: number) => (hosts > 1 ? random.int(1, hosts) : 1);

/** Draws the duration and victim of each kind. */
const STRIKES: { [Kind in StrikeKind]: (random: Random, hosts: number) => Strike } = {
  kill: (random, hosts) => ({
    kind: 'kill',
    part: part(random),
    ms: random.int(0, 800),
    host: host(random, hosts),
  }),
  freeze: (random, hosts) => ({
    kind: 'freeze',
    part: part(random),
    ms: random.int(100, 1500),
    host: host(random, hosts),
  }),
  cut: () => ({ kind: 'cut', ms: 0 }),
  half_open: (random) => ({ kind: 'half_open', ms: random.int(200, 1500) }),
  slow: (random) => ({ kind: 'slow', ms: random.int(300, 1500), delay_ms: random.int(5, 150) }),
  duplicate: (random) => ({ kind: 'duplicate', ms: random.int(300, 2000) }),
  disk_full: (random) => ({ kind: 'disk_full', ms: random.int(300, 1200) }),
  keys_away: (random) => ({ kind: 'keys_away', ms: random.int(300, 1200) }),
  partition: (random, hosts) => ({
    kind: 'partition',
    ms: random.int(500, 6000),
    host: host(random, hosts),
    silent: random.chance(50),
  }),
  switch: (random) => ({ kind: 'switch', ms: random.int(0, 1000) }),
  lose: (random) => ({ kind: 'lose', ms: random.int(0, 1000) }),
  clock: (random) => ({ kind: 'clock', ms: random.int(500, 2000), ahead_s: random.pick(CLOCKS_AHEAD_S) }),
};

const CREATION: Method[] = ['branch.prepare', 'branch.clone', 'branch.finalize', 'branch.prove'];

const RESET: Method[] = ['reset.clone', 'reset.swap'];

/** Calls of the host that each kind of operation causes. */
const METHODS: Partial<Record<OperationKind, Method[]>> = {
  create_project: CREATION,
  create_branch: CREATION,
  create_batch: CREATION,
  lease_branch: CREATION,
  delete_branch: ['branch.keep'],
  restore_branch: CREATION,
  take_snapshot: ['snapshot.take'],
  branch_snapshot: CREATION,
  reset_to_parent: RESET,
  reset_to_snapshot: RESET,
  delete_project: ['project.drop'],
  add_rule: ['access.apply'],
  remove_rule: ['access.apply'],
  rotate: ['access.apply'],
  move_project: [
    ...(['move.admit', 'transfer.copy', 'follow.start', 'move.compare'] as const),
    ...(['move.close', 'follow.cutover', 'move.release'] as const),
  ],
};

/** Numbers of the steps that these users' operations cause. */
function stepsOf(actors: Actor[]): number[] {
  const methods = new Set(
    actors.flatMap(({ groups }) => groups.flat().flatMap(({ kind }) => METHODS[kind] ?? [])),
  );
  return STEPS.flatMap(({ method }, index) => (methods.has(method) ? [index + 1] : []));
}

/**
 * Half of the faults strike at a saga's step, the others after a delay; some strike two parts at the same
 * time. Moves come late in a schedule, so with two hosts the delays are longer.
 */
export function planFaults(random: Random, actors: Actor[], most: number, form: Form): Fault[] {
  const hosts = hostsIn(form);
  const longest = hosts > 1 ? 6_000 : 700;
  const kinds = form.standby ? KINDS_OF_STANDBY : hosts > 1 ? KINDS_OF_TWO_HOSTS : KINDS;
  return Array.from({ length: random.int(1, most) }, () => {
    const when = random.chance(50)
      ? { step: random.pick(stepsOf(actors)) }
      : { after_ms: random.int(0, longest) };
    const strikes = Array.from({ length: random.chance(20) ? 2 : 1 }, () =>
      STRIKES[random.weighted(kinds)](random, hosts),
    );
    const alone = strikes.find(({ kind }) => ALONE.includes(kind));
    return alone ? { when: { after_ms: random.int(500, 8_000) }, strikes: [alone] } : { when, strikes };
  });
}
