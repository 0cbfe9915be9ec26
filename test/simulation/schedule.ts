import { z } from 'zod';
import { LIFESPANS } from '../../shared/branch/lifespan.ts';
import type { Method } from '../../shared/protocol/operations.ts';
import type { Victim } from '../support/stack/crash.ts';
import type { Spot } from '../support/stack/link-proxy.ts';

/**
 * All that one run does, decided before it begins: who does what in which order, what fails, and when. Things go by
 * names, because their ids are not known yet. A schedule can be kept as JSON and run again.
 */

/** The steps of every saga and the one change that is none, in the order of a branch's life. */
const METHODS = [
  'branch.prepare',
  'branch.clone',
  'branch.finalize',
  'branch.prove',
  'access.apply',
  'branch.drop',
  'project.drop',
] as const satisfies Method[];

/** Places where a step can be caught, numbered from 1: its call on the way to the host, its reply on the way back. */
export const STEPS: readonly Spot[] = METHODS.flatMap((method) => [
  { method, side: 'call' as const },
  { method, side: 'reply' as const },
]);

const Name = z.string().regex(/^[a-z][a-z0-9-]*$/);
const Milliseconds = z.int().min(0).max(30_000);

/** The branch that a project comes with, and the rule that lets the simulator's own address into a project. */
export const MAIN = 'main';
export const HOME = 'home';

/** Whether its client asks again until there is an answer, and how many clients ask at once under the same key. */
const manner = { persists: z.boolean(), copies: z.int().min(1).max(2) };
const ofProject = { project: Name, ...manner };
const ofBranch = { branch: Name, ...ofProject };
const ofRow = { row: z.int().min(1), ...ofBranch };

const Operation = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('create_project'), ...ofProject }),
  z.strictObject({ kind: z.literal('delete_project'), ...ofProject }),
  z.strictObject({ kind: z.literal('make_table'), ...ofProject }),
  z.strictObject({ kind: z.literal('create_branch'), ...ofBranch, source: Name }),
  z.strictObject({ kind: z.literal('delete_branch'), ...ofBranch }),
  z.strictObject({ kind: z.literal('add_rule'), ...ofProject, rule: Name, cidr: z.string() }),
  z.strictObject({ kind: z.literal('remove_rule'), ...ofProject, rule: Name }),
  z.strictObject({ kind: z.literal('rotate'), ...ofBranch }),
  z.strictObject({ kind: z.literal('set_lifespan'), ...ofBranch, lifespan: z.enum(LIFESPANS) }),
  z.strictObject({ kind: z.literal('write_by_sql'), ...ofRow, value: z.string() }),
  z.strictObject({ kind: z.literal('write_by_api'), ...ofRow, value: z.string() }),
  z.strictObject({ kind: z.literal('delete_by_api'), ...ofRow }),
  z.strictObject({ kind: z.literal('move_tenant'), ...manner, to: Name }),
]);
export type Operation = z.output<typeof Operation>;
export type OperationKind = Operation['kind'];
export type OperationOf<Kind extends OperationKind> = Extract<Operation, { kind: Kind }>;

/** One user of one tenant: groups one after the other, the operations of a group side by side. */
const Actor = z.strictObject({
  name: Name,
  tenant: Name,
  /** Of its tokens' moments, before the gateway's clock if negative. */
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

/** `ms`: how long it lasts. */
const lasting = { ms: Milliseconds };
const Strike = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('kill'), ...lasting, part: z.enum(VICTIMS) }),
  z.strictObject({ kind: z.literal('freeze'), ...lasting, part: z.enum(VICTIMS) }),
  z.strictObject({ kind: z.literal('cut'), ...lasting }),
  z.strictObject({ kind: z.literal('half_open'), ...lasting }),
  z.strictObject({ kind: z.literal('slow'), ...lasting, delay_ms: Milliseconds }),
  z.strictObject({ kind: z.literal('duplicate'), ...lasting }),
  z.strictObject({ kind: z.literal('disk_full'), ...lasting }),
  z.strictObject({ kind: z.literal('keys_away'), ...lasting }),
  z.strictObject({ kind: z.literal('clock'), ...lasting, ahead_s: z.int() }),
]);
export type Strike = z.output<typeof Strike>;
export type StrikeKind = Strike['kind'];
export type StrikeOf<Kind extends StrikeKind> = Extract<Strike, { kind: Kind }>;

/** Faults come one after the other: each when the one before is over. */
const Fault = z.strictObject({
  when: z.union([
    z.strictObject({ after_ms: Milliseconds }),
    z.strictObject({ step: z.int().min(1).max(STEPS.length) }),
  ]),
  /** All at the same moment. */
  strikes: z.array(Strike).min(1),
});
export type Fault = z.output<typeof Fault>;

export const Schedule = z.strictObject({
  seed: z.int().min(0),
  actors: z.array(Actor),
  faults: z.array(Fault),
});
export type Schedule = z.output<typeof Schedule>;
