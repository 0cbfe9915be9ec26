import { z } from 'zod';
import { SchemaDifference } from './difference-operations.ts';
import { Database, Id, operation } from './operation.ts';

const Count = z.int().nonnegative();
const Timestamp = z.iso.datetime();

/** What a lock and a table must be at least, so that holding an ACCESS EXCLUSIVE lock on it is a danger. */
export const LockLimits = z.strictObject({ lock_ms: Count, table_bytes: Count });

const Rows = z.strictObject({
  count: Count,
  /** False: estimated from PostgreSQL's statistics. */
  exact: z.boolean(),
});

export const RehearsedTable = z.strictObject({
  schema: z.string(),
  name: z.string(),
  /** Before, with TOAST and without indexes. */
  bytes: Count,
  /** By mode, as in `pg_locks`; weaker modes than `ShareUpdateExclusiveLock` are not listed. */
  locks: z.array(z.strictObject({ mode: z.string(), longest_ms: Count })),
  rewritten: z.boolean(),
  dropped: z.boolean(),
  /** Null: unknown. Of a partitioned table, the rows of its partitions. */
  rows_before: Rows.nullable(),
  rows_after: Rows.nullable(),
});
export type RehearsedTable = z.output<typeof RehearsedTable>;

export const DANGERS = ['lock', 'rewrite', 'rows_lost'] as const;

/** The tables of which something is to be reported, and what became of the schema. */
const Report = z.strictObject({
  verdict: z.enum(['safe', 'danger']),
  dangers: z.array(z.strictObject({ kind: z.enum(DANGERS), schema: z.string(), name: z.string() })),
  tables: z.array(RehearsedTable),
  /** Tables that were not watched, because the database has too many. */
  unwatched_tables: Count,
  /** How often locks were sampled, and the longest time between two samples. */
  samples: Count,
  longest_gap_ms: Count,
  /** Not exact: everything that the host wrote meanwhile, for all of its databases. */
  wal: z.strictObject({ bytes: Count, exact: z.boolean() }),
  schema: SchemaDifference,
});
export type RehearsalReport = z.output<typeof Report>;

/** The report of a change: its statements are known, so only the objects of the schema are listed. */
export const ChangeReport = Report.omit({ schema: true, samples: true, longest_gap_ms: true }).extend({
  changes: SchemaDifference.shape.changes,
});
export type ChangeReport = z.output<typeof ChangeReport>;

export const Rehearsal = z.strictObject({
  state: z.enum(['running', 'finished']),
  started_at: Timestamp,
  finished_at: Timestamp.nullable(),
  limits: LockLimits,
  /** Null while it is running. */
  report: Report.nullable(),
});
export type Rehearsal = z.output<typeof Rehearsal>;

const Branch = { branch_id: Id, database: Database };

/** The operations that watch what a migration does to a branch. */
export const REHEARSAL_OPERATIONS = {
  'rehearsal.start': operation({
    summary: 'Record the tables and the schema of a branch, and sample its locks from now on',
    params: z.strictObject({ ...Branch, limits: LockLimits }),
    result: Rehearsal,
    deadline: 30_000,
    concurrent: true,
  }),

  'rehearsal.read': operation({
    summary: 'Report the rehearsal of a branch; null if there is none',
    params: z.strictObject(Branch),
    result: z.strictObject({ rehearsal: Rehearsal.nullable() }),
    deadline: 15_000,
    concurrent: true,
  }),

  'rehearsal.finish': operation({
    summary: 'End the sampling, and report what has become of the branch; null without a rehearsal',
    params: z.strictObject(Branch),
    result: z.strictObject({ rehearsal: Rehearsal.nullable() }),
    deadline: 45_000,
    concurrent: true,
  }),
} as const;
