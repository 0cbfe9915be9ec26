import { z } from 'zod';
import { LIFESPANS } from '../../shared/branch/lifespan.ts';
import type { Method } from '../../shared/protocol/operations.ts';
import type { Victim } from '../support/stack/crash.ts';
import type { Spot } from '../support/stack/link-proxy.ts';

/**
 * A complete plan of one run: the operations of each user in order, and the faults with their times.
 * Resources have names, because their ids are not known yet. A schedule can be stored as JSON and replayed.
 */

/**
 * The steps of every saga, and `access.apply`: those of a branch in the order of its life, those of its history, and those of
 * a move.
 */
const METHODS = [
  'branch.prepare',
  'branch.clone',
  'branch.finalize',
  'branch.prove',
  'access.apply',
  'branch.keep',
  'project.drop',
  'snapshot.take',
  'reset.clone',
  'reset.swap',
  'move.admit',
  'transfer.copy',
  'follow.start',
  'move.compare',
  'move.close',
  'follow.cutover',
  'move.release',
] as const satisfies Method[];

/** Messages at which a fault can strike, numbered from 1: the call of a step and its reply. */
export const STEPS: readonly Spot[] = METHODS.flatMap((method) => [
  { method, side: 'call' as const },
  { method, side: 'reply' as const },
]);

/** Database hosts of a stage. */
const HOSTS_MAX = 2;

const Name = z.string().regex(/^[a-z][a-z0-9-]*$/);
const Milliseconds = z.int().min(0).max(30_000);

/** A project's initial branch, and the rule for the simulator's own address. */
export const MAIN = 'main';
export const HOME = 'home';

/**
 * Whether the client retries until there is a definite response, and how many clients send the same key
 * concurrently.
 */
const manner = { persists: z.boolean(), copies: z.int().min(1).max(2) };
const ofProject = { project: Name, ...manner };
const ofBranch = { branch: Name, ...ofProject };
/** Whether the client names the branch, as the reset of a protected one needs. */
const confirmed = { confirms: z.boolean() };
const ofRow = { row: z.int().min(1), ...ofBranch };

const Operation = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('create_project'), ...ofProject }),
  z.strictObject({ kind: z.literal('delete_project'), ...ofProject }),
  z.strictObject({ kind: z.literal('make_table'), ...ofProject }),
  z.strictObject({
    kind: z.literal('create_branch'),
    ...ofBranch,
    source: Name,
    /** The host keeps a snapshot of a source that nobody writes to for a while. */
    rest_ms: Milliseconds.default(0),
  }),
  z.strictObject({
    kind: z.literal('create_batch'),
    ...ofProject,
    source: Name,
    branches: z.array(Name).min(2).max(3),
  }),
  z.strictObject({ kind: z.literal('lease_branch'), ...ofBranch, source: Name }),
  z.strictObject({ kind: z.literal('renew_lease'), ...ofBranch }),
  z.strictObject({ kind: z.literal('delete_branch'), ...ofBranch }),
  z.strictObject({ kind: z.literal('restore_branch'), ...ofBranch }),
  z.strictObject({
    kind: z.literal('take_snapshot'),
    ...ofBranch,
    snapshot: Name,
    /** How many clones of it the host keeps ready. */
    spares: z.int().min(0).max(3).default(0),
  }),
  z.strictObject({
    kind: z.literal('branch_snapshot'),
    ...ofProject,
    snapshot: Name,
    /** More than one are a batch. */
    branches: z.array(Name).min(1).max(3),
    /** Spares are made at idle moments, so some requests wait for one. */
    rest_ms: Milliseconds,
  }),
  z.strictObject({ kind: z.literal('reset_to_parent'), ...ofBranch, source: Name, ...confirmed }),
  z.strictObject({ kind: z.literal('reset_to_snapshot'), ...ofBranch, snapshot: Name, ...confirmed }),
  z.strictObject({ kind: z.literal('protect_branch'), ...ofBranch, protect: z.boolean() }),
  z.strictObject({ kind: z.literal('add_rule'), ...ofProject, rule: Name, cidr: z.string() }),
  z.strictObject({ kind: z.literal('remove_rule'), ...ofProject, rule: Name }),
  z.strictObject({ kind: z.literal('rotate'), ...ofBranch }),
  z.strictObject({ kind: z.literal('set_lifespan'), ...ofBranch, lifespan: z.enum(LIFESPANS) }),
  z.strictObject({ kind: z.literal('write_by_sql'), ...ofRow, value: z.string() }),
  z.strictObject({ kind: z.literal('write_by_api'), ...ofRow, value: z.string() }),
  z.strictObject({ kind: z.literal('delete_by_api'), ...ofRow }),
  z.strictObject({
    kind: z.literal('move_project'),
    ...ofProject,
    /** Otherwise a project with snapshots stays. */
    drops_snapshots: z.boolean(),
  }),
  z.strictObject({
    kind: z.literal('set_durability'),
    ...ofProject,
    durability: z.enum(['async', 'sync']),
  }),
  z.strictObject({ kind: z.literal('move_tenant'), ...manner, to: Name }),
]);
export type Operation = z.output<typeof Operation>;
export type OperationKind = Operation['kind'];
export type OperationOf<Kind extends OperationKind> = Extract<Operation, { kind: Kind }>;

/** One user of one tenant. Groups run in sequence, the operations of a group concurrently. */
const Actor = z.strictObject({
  name: Name,
  tenant: Name,
  /** Offset of its tokens' timestamps from the gateway's clock, in seconds. */
  ahead_s: z.int().default(0),
  groups: z.array(z.array(Operation)),
});
export type Actor = z.output<typeof Actor>;

const VICTIMS = [
  'agent',
  'gateway',
  'postgres',
  'postmaster',
  'pgbouncer',
  'idp',
] as const satisfies Victim[];

const duration = { ms: Milliseconds };
/** The number of the database host; parts that no host has ignore it. */
const onHost = { host: z.int().min(1).max(HOSTS_MAX).default(1) };
const Strike = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('kill'), ...duration, ...onHost, part: z.enum(VICTIMS) }),
  z.strictObject({ kind: z.literal('freeze'), ...duration, ...onHost, part: z.enum(VICTIMS) }),
  z.strictObject({ kind: z.literal('cut'), ...duration }),
  z.strictObject({ kind: z.literal('half_open'), ...duration }),
  z.strictObject({
    kind: z.literal('partition'),
    ...duration,
    ...onHost,
    /** Whether its connections stay open and carry nothing. */
    silent: z.boolean(),
  }),
  // The standby takes the place of its primary, which is its standby afterwards.
  z.strictObject({ kind: z.literal('switch'), ...duration }),
  z.strictObject({ kind: z.literal('lose'), ...duration }),
  z.strictObject({ kind: z.literal('slow'), ...duration, delay_ms: Milliseconds }),
  z.strictObject({ kind: z.literal('duplicate'), ...duration }),
  z.strictObject({ kind: z.literal('disk_full'), ...duration }),
  z.strictObject({ kind: z.literal('keys_away'), ...duration }),
  z.strictObject({ kind: z.literal('clock'), ...duration, ahead_s: z.int() }),
]);
export type Strike = z.output<typeof Strike>;
export type StrikeKind = Strike['kind'];
export type StrikeOf<Kind extends StrikeKind> = Extract<Strike, { kind: Kind }>;

/** Faults run in sequence: each starts after the previous one is over. */
const Fault = z.strictObject({
  when: z.union([
    z.strictObject({ after_ms: Milliseconds }),
    z.strictObject({ step: z.int().min(1).max(STEPS.length) }),
  ]),
  /** All start at the same time. */
  strikes: z.array(Strike).min(1),
});
export type Fault = z.output<typeof Fault>;

export const Schedule = z.strictObject({
  seed: z.int().min(0),
  /** Database hosts of its stage: projects move between two. */
  hosts: z.int().min(1).max(HOSTS_MAX).default(1),
  /** Whether the host has a standby, as the second one of its stage. */
  standby: z.boolean().default(false),
  actors: z.array(Actor),
  faults: z.array(Fault),
});
export type Schedule = z.output<typeof Schedule>;
/** What a schedule needs of its stage. */
export type Form = Pick<Schedule, 'hosts' | 'standby'>;
export const ONE_HOST: Form = { hosts: 1, standby: false };
export const TWO_HOSTS: Form = { hosts: 2, standby: false };
export const WITH_STANDBY: Form = { hosts: 1, standby: true };

/** How many hosts its stage has, with the standby. */
export const hostsIn = ({ hosts, standby }: Form): number => hosts + (standby ? 1 : 0);
