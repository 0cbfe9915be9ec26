import { z } from 'zod';
import { Id } from './operation.ts';

/** Tables in a report, and additions of which a host remembers the statements. */
const FOLLOWED_TABLES_MAX = 1000;
const ADDITIONS_MAX = 50;
const STATEMENT_MAX = 4000;

const FOLLOW_STATES = ['following', 'stopped', 'absent'] as const;

/**
 * Why replication into a branch is stopped. `schema`: the schemas differ by more than an addition. `apply`: PostgreSQL refuses a
 * change here. `slot`: the source has dropped the slot, or the WAL that it kept. `quota`: no room is left. `source`: the source refuses
 * the connection.
 */
const FOLLOW_PROBLEMS = ['schema', 'apply', 'slot', 'quota', 'source'] as const;

export const FollowProblem = z.strictObject({
  code: z.enum(FOLLOW_PROBLEMS),
  /** Without values of rows. */
  message: z.string(),
  /** As SQL names it; null: no single one. */
  table: z.string().nullable(),
  /** Statements for the branch, or for the source, after which `follow.resume` continues; null: none is known. */
  statement: z.string().nullable(),
});
export type FollowProblem = z.output<typeof FollowProblem>;

const Bytes = z.int().nonnegative();

const FollowedTable = z.strictObject({
  schema: z.string(),
  table: z.string(),
  /** A table that was added at the source is copied first. */
  state: z.enum(['waiting', 'copying', 'following']),
  /** As PostgreSQL estimates them. */
  rows: z.int().nonnegative(),
  percent: z.int().min(0).max(100),
});

export const FollowStatus = z.strictObject({
  /** `absent`: the branch follows nothing. */
  state: z.enum(FOLLOW_STATES),
  tables: z.array(FollowedTable).max(FOLLOWED_TABLES_MAX),
  /** WAL of the source that the branch has not applied; null while the source cannot be read. */
  lag_bytes: Bytes.nullable(),
  /** Seconds since the source was where the branch is; 0 when it is level. Null if it is not known. */
  lag_seconds: z.number().nonnegative().nullable(),
  /** WAL that the slot keeps at the source, and its bound; null: without a bound, or not known. */
  slot_bytes: Bytes.nullable(),
  keep_bytes: Bytes.nullable(),
  problem: FollowProblem.nullable(),
});
export type FollowStatus = z.output<typeof FollowStatus>;

/** Something that was added at the source, and was added here by itself. */
const FollowAddition = z.strictObject({
  id: Id,
  /** By the host's clock, ISO 8601 UTC. */
  at: z.iso.datetime(),
  statement: z.string().max(STATEMENT_MAX),
});

/** A branch that follows: after each change, and once a minute while it follows. Afterwards once. */
export const FollowReport = z.strictObject({
  project_id: Id,
  branch_id: Id,
  /** By the host's clock, ISO 8601 UTC. */
  observed_at: z.iso.datetime(),
  state: z.enum(FOLLOW_STATES),
  problem: FollowProblem.nullable(),
  /** The slot keeps half of the WAL that the source lets it keep. */
  slot_warning: z.boolean(),
  lag_bytes: Bytes.nullable(),
  lag_seconds: z.number().nonnegative().nullable(),
  slot_bytes: Bytes.nullable(),
  keep_bytes: Bytes.nullable(),
  /** Those of the last hour. The same one is in several reports, and has one id. */
  additions: z.array(FollowAddition).max(ADDITIONS_MAX),
});
export type FollowReport = z.output<typeof FollowReport>;
