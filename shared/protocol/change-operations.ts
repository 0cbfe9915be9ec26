import { z } from 'zod';
import { Database, Id, operation } from './operation.ts';
import { BusyWait, Milliseconds, Source } from './operation-fields.ts';
import { ChangeReport } from './rehearsal-operations.ts';

/** Operations on a change: statements for `main`, tried on a clone of it, and then run in `main` itself. */

export const CHANGE_STEPS_MAX = 500;
/** Characters of all statements of a change. */
export const CHANGE_SQL_MAX = 262_144;

const Count = z.int().nonnegative();
/** SHA-256 of a schema, hexadecimal: databases with the same one have the same schema. */
const SchemaDigest = z.string().regex(/^[0-9a-f]{64}$/);

/** A safer form of a statement, by a rule of `agent/changes/lint.ts`. */
export const Finding = z.strictObject({ rule: z.string(), message: z.string(), instead: z.string() });
export type Finding = z.output<typeof Finding>;

/** Statements that take effect together: one, or those between `begin` and `commit`. */
export const ChangeStep = z.strictObject({
  statements: z
    .array(z.strictObject({ sql: z.string(), findings: z.array(Finding) }))
    .min(1)
    .max(CHANGE_STEPS_MAX),
  /** Not within a transaction, which PostgreSQL refuses. */
  alone: z.boolean(),
  /** A setting of the session, for the steps after it. */
  sets: z.boolean(),
  /** State that an interruption in the middle of the step leaves. */
  leaves: z.string(),
});
export type ChangeStep = z.output<typeof ChangeStep>;

/** A lock that a step held on an object that was there before. */
const HeldLock = z.strictObject({ schema: z.string(), name: z.string(), mode: z.string() });

/** Effects of a step on the clone. */
export const RehearsedStep = z.strictObject({
  duration_ms: Milliseconds,
  /** Modes stronger than `ShareUpdateExclusiveLock`, the strongest first. */
  locks: z.array(HeldLock),
  /** The schema afterwards, of a step that runs alone; null for the others. */
  schema: SchemaDigest.nullable(),
});
export type RehearsedStep = z.output<typeof RehearsedStep>;

/** Longest waits of a lock: for half of the time, and for 95 % of it. */
const Wait = z.strictObject({ p50: Milliseconds, p95: Milliseconds });
/** An hour of the day, in UTC. */
const ForecastHour = z.strictObject({
  days: z.enum(['weekdays', 'weekend']),
  hour: z.int().min(0).max(23),
  wait_ms: Wait,
});
/** How long a lock of the change would have waited in `main` in the last 14 days. */
export const Forecast = z.strictObject({
  schema: z.string(),
  name: z.string(),
  mode: z.string(),
  wait_ms: Wait,
  /** Sessions that used the table within a minute, at most: so many would have queued behind the lock. */
  waiting_sessions: Count,
  /** `application_name` of the sessions that it would have waited for, the most frequent first. */
  behind: z.array(z.string()).max(20),
  rests_on_days: Count,
  worst: ForecastHour,
  quietest: ForecastHour,
});
export type Forecast = z.output<typeof Forecast>;

/** `statement` counts from 1 over all steps. */
const StatementError = z.strictObject({
  statement: z.int().positive(),
  sqlstate: z.string().nullable(),
  message: z.string(),
});

/** Why a change stopped before its end. */
export const STOP_REASONS = [
  /** The schema of `main` is another one than that of the plan. */
  'stale',
  /** A lock was not free within `lock_timeout`, at every attempt. */
  'lock_timeout',
  /** A statement took longer than its budget. */
  'over_budget',
  /** The safety snapshot could not be taken, because a transaction stayed open. */
  'source_busy',
  /** The session of a statement ended, or nobody knows what an interrupted statement has left. */
  'interrupted',
  /** PostgreSQL refused a statement. */
  'refused',
] as const;
export type StopReason = (typeof STOP_REASONS)[number];

export const AppliedChange = z.strictObject({
  /** Null: every step was applied. */
  reason: z.enum(STOP_REASONS).nullable(),
  error: StatementError.nullable(),
  /** Steps that are applied, those of earlier calls included. */
  done: Count,
  /** Schema of `main` now. */
  schema: SchemaDigest,
  /** Steps of this call, in order. */
  steps: z.array(
    z.strictObject({ step: z.int().positive(), attempts: z.int().positive(), duration_ms: Milliseconds }),
  ),
});
export type AppliedChange = z.output<typeof AppliedChange>;

/** Change of an object of `main` since the branch was made, with its kind and name as PostgreSQL writes them. */
export const MainChange = z.strictObject({
  kind: z.string(),
  identity: z.string(),
  change: z.enum(['added', 'changed', 'dropped']),
});
export type MainChange = z.output<typeof MainChange>;

const Main = { project_id: Id, branch_id: Id, database: Database };

export const CHANGE_OPERATIONS = {
  'change.plan': operation({
    summary:
      'Divide SQL into the steps of a change, and read the schema that they begin with and what main has got since',
    params: z.strictObject({
      ...Main,
      sql: z.string().max(CHANGE_SQL_MAX),
      /** Database of the branch that the statements come from; null: they were given. */
      branch: Database.nullable(),
    }),
    result: z.strictObject({
      steps: z.array(ChangeStep).max(CHANGE_STEPS_MAX),
      schema: SchemaDigest,
      /** Since the branch was made; null: not known. */
      main_changes: z.array(MainChange).max(200).nullable(),
    }),
    deadline: 30_000,
    concurrent: true,
  }),

  'change.rehearse': operation({
    summary: 'Run the steps of a change on a clone of main, which is dropped afterwards',
    params: z.strictObject({
      ...Main,
      job_id: Id,
      /** Source of the clone: the database of `main`, or a masked snapshot of it. */
      source: Source,
      busy_wait: BusyWait,
      steps: z.array(ChangeStep).max(CHANGE_STEPS_MAX),
    }),
    result: z.strictObject({
      /** Null: every statement ran. */
      error: StatementError.nullable(),
      /** Before and after the steps. */
      schema_before: SchemaDigest,
      schema_after: SchemaDigest,
      /** Steps that ran. */
      steps: z.array(RehearsedStep),
      report: ChangeReport,
      /** By table, the longest wait first; empty without a sample. */
      forecast: z.array(Forecast),
      /** For which pooled clients of `main` were held while it was cloned. */
      paused_ms: Milliseconds,
    }),
    deadline: 900_000,
    concurrent: true,
  }),

  'change.apply': operation({
    summary: 'Run the steps of a change in main, from the first that is not applied yet',
    params: z.strictObject({
      ...Main,
      job_id: Id,
      change_id: Id,
      steps: z.array(ChangeStep.extend({ is_bounded: z.boolean(), schema: SchemaDigest.nullable() })),
      /** Steps that an earlier job has applied, and the schema that it has left. */
      done: Count,
      schema: SchemaDigest,
      lock_timeout_ms: z.int().positive(),
      attempts: z.int().positive(),
      /** Longest time of a bounded step; null: no limit. */
      budget_ms: z.int().positive().nullable(),
    }),
    result: AppliedChange,
    deadline: 930_000,
    concurrent: true,
  }),

  'change.settle': operation({
    summary: 'End the statement of a change that was abandoned, and say how far it is',
    params: z.strictObject({ ...Main, job_id: Id, change_id: Id, done: Count }),
    result: z.strictObject({ done: Count, schema: SchemaDigest }),
    deadline: 60_000,
    concurrent: true,
  }),

  'change.schema': operation({
    summary: 'Read the schema of main, for a comparison with that of a plan',
    params: z.strictObject(Main),
    result: z.strictObject({ schema: SchemaDigest }),
    deadline: 30_000,
    concurrent: true,
  }),
} as const;
