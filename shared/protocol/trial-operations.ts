import { z } from 'zod';
import { BRANCH_ROLES } from '../branch/login.ts';
import { QUERY_PARAMETERS_MAX } from '../limits.ts';
import { RowDifference, SchemaDifference } from './difference-operations.ts';
import { Id, operation } from './operation.ts';
import { BusyWait, Milliseconds, Source } from './operation-fields.ts';
import { DANGERS, LockLimits, RehearsedTable } from './rehearsal-operations.ts';
import { QueryResults } from './row-operations.ts';
import { Scalar } from './tables.ts';

const Wait = z.int().min(0).max(25_000);

/** A table that the statements locked, wrote again or dropped. */
const TriedTable = RehearsedTable.omit({ rows_before: true, rows_after: true });

const Difference = { rows: RowDifference, schema: SchemaDifference };

export const TrialReport = z.strictObject({
  /** `failed`: PostgreSQL refused a statement. `timed_out`: the statements took too long. Neither leaves a change. */
  outcome: z.enum(['succeeded', 'failed', 'timed_out']),
  error: z
    .strictObject({
      message: z.string(),
      sqlstate: z.string().nullable(),
      /** Index of the statement; null: the only one, or the commit. */
      statement: z.int().nonnegative().nullable(),
    })
    .nullable(),
  /** One for each statement; empty unless they succeeded. */
  results: z.array(QueryResults.element),
  /** Null: not compared, and `problems` says why. */
  rows: Difference.rows.nullable(),
  schema: Difference.schema.nullable(),
  tables: z.array(TriedTable),
  dangers: z.array(z.strictObject({ kind: z.enum(DANGERS), schema: z.string(), name: z.string() })),
  limits: LockLimits,
  /** Tables that were not watched, because the database has too many. */
  unwatched_tables: z.int().nonnegative(),
  problems: z.array(z.string()),
  /** Some part was cut to the size of a report. */
  has_more: z.boolean(),
  /** Of the statements, and of the copy, the statements and the comparison together. */
  statements_ms: Milliseconds,
  total_ms: Milliseconds,
});
export type TrialReport = z.output<typeof TrialReport>;

/** Null while the trial is running. */
const Report = TrialReport.nullable();

/** The operations that try statements on a copy which nobody else sees. */
export const TRIAL_OPERATIONS = {
  'try.run': operation({
    summary: 'Run statements on a copy of a branch or of a snapshot, drop it, and report what they did',
    params: z.strictObject({
      /** A repeated call with the same id gets the same report. */
      try_id: Id,
      project_id: Id,
      /** Whose copy it is: its settings are those of the copy. */
      branch_id: Id,
      source: Source,
      busy_wait: BusyWait,
      role: z.enum(BRANCH_ROLES),
      sql: z.string(),
      /** Of a text with one statement. */
      params: z.array(Scalar.nullable()).max(QUERY_PARAMETERS_MAX),
      limits: LockLimits,
      /** Milliseconds to wait for the report. */
      wait: Wait,
    }),
    result: z.strictObject({ report: Report }),
    deadline: 45_000,
    concurrent: true,
  }),

  'try.read': operation({
    summary: 'Read the report of a trial that took longer',
    params: z.strictObject({ try_id: Id, wait: Wait }),
    /** `known`: the agent that began the trial runs, and has kept its report, which it does for an hour. */
    result: z.strictObject({ known: z.boolean(), report: Report }),
    deadline: 45_000,
    concurrent: true,
  }),
} as const;
