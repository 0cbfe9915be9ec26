import { z } from 'zod';
import { BRANCH_DATA } from '../../shared/masking.ts';
import { Finding, Forecast, MainChange, STOP_REASONS } from '../../shared/protocol/change-operations.ts';
import { ChangeReport } from '../../shared/protocol/rehearsal-operations.ts';
import { sha256 } from '../crypto/encoding.ts';
import type { ChangeRow } from '../database/change-schema.ts';
import { CHANGE_STATES, type ChangePlan } from '../database/column-types.ts';
import type { ProjectRow } from '../database/schema.ts';

/** A change as the API shows it. */

const Timestamp = z.iso.datetime();
const Milliseconds = z.number().nonnegative();

const Lock = z.strictObject({ schema: z.string(), name: z.string(), mode: z.string() });

const StatementError = z.strictObject({
  statement: z.int().positive().meta({ description: 'Its `position`.' }),
  sqlstate: z.string().nullable(),
  message: z.string().nullable().meta({
    description: 'Of PostgreSQL. Null for those who get masked data only: it can quote a row.',
  }),
});

const Statement = z.strictObject({
  position: z.int().positive().meta({ description: 'From 1.' }),
  sql: z.string(),
  step: z.int().positive().meta({
    description: 'Statements with the same step are one transaction.',
  }),
  alone: z.boolean().meta({ description: 'It runs without a transaction, as PostgreSQL requires.' }),
  leaves: z.string().meta({ description: 'What an interruption in the middle of it leaves.' }),
  findings: z.array(Finding).meta({ description: 'Safer forms of the statement.' }),
  rehearsed: z
    .strictObject({
      duration_ms: Milliseconds,
      locks: z.array(Lock).meta({
        description:
          'Locks of its step that block writers, on objects that were there before, the strongest first.',
      }),
    })
    .nullable()
    .meta({ description: 'Null: it was not rehearsed.' }),
  applied: z.boolean(),
});

const Approval = z.strictObject({
  user_id: z.uuid(),
  email: z.string(),
  approved_at: Timestamp,
  counts: z.boolean().meta({ description: 'It is of the present plan.' }),
});

const Rehearsal = ChangeReport.extend({
  data: z.enum(BRANCH_DATA).meta({ description: 'What the clone had of `main`.' }),
  rehearsed_at: Timestamp,
  duration_ms: Milliseconds.meta({ description: 'Of all statements together.' }),
  paused_ms: Milliseconds.meta({
    description: 'For which the pooled clients of `main` waited while it was cloned.',
  }),
  error: StatementError.nullable().meta({ description: 'Null: every statement ran.' }),
  forecast: z.array(Forecast).meta({
    description:
      'What each strong lock would have waited for in `main` in the last 14 days, by samples of each second: until everybody had released the table who held it. Hours are in UTC. Empty: nothing was sampled, or no lock is strong.',
  }),
});

const Summary = z.strictObject({
  id: z.uuid(),
  project_id: z.uuid(),
  state: z.enum(CHANGE_STATES).meta({
    description:
      '`planned`: to be rehearsed. `stopped`: its application has ended early, and can be continued. `failed`: PostgreSQL refused a statement. `applied_with_differences`: every statement ran, and the schema of `main` is another one than that of the rehearsed clone.',
  }),
  stale: z.boolean().meta({
    description:
      'The schema of `main` was another one than that of the plan when it was last compared. Rehearse the change to plan it again.',
  }),
  source: z
    .strictObject({ branch_id: z.uuid(), branch_name: z.string() })
    .nullable()
    .meta({ description: 'The branch that it was made from, which may be deleted by now.' }),
  digest: z.string().meta({ description: 'Of the plan. An approval counts for one digest.' }),
  statement_count: z.int(),
  applied_count: z.int().meta({ description: 'Statements that are applied to `main`.' }),
  longest_lock_ms: Milliseconds.nullable().meta({
    description:
      'The longest time that a step held a lock that blocks writers, when it was rehearsed: what `budget_ms` has to allow. Null: not rehearsed.',
  }),
  approvals_required: z.int(),
  approvals: z.array(Approval),
  application: z
    .strictObject({
      lock_timeout_ms: z.int(),
      attempts: z.int(),
      budget_ms: z.int(),
      accept_outage: z.boolean(),
      at: Timestamp.nullable().meta({ description: 'When a scheduled change is due.' }),
      ended_at: Timestamp.nullable(),
      reason: z
        .enum([...STOP_REASONS, 'not_allowed'])
        .nullable()
        .meta({
          description:
            'Why it stopped or failed. `not_allowed`: when it was due, it could not begin, for instance because it lacked an approval.',
        }),
      error: StatementError.nullable(),
    })
    .nullable()
    .meta({ description: 'Null: nobody has applied it.' }),
  safety_snapshot_id: z.uuid().nullable().meta({
    description: 'What `main` held before the first statement, for 24 hours: an undo goes back to it.',
  }),
  paused_ms: z.int().nullable().meta({
    description: 'For which the pooled clients of `main` waited while that snapshot was taken.',
  }),
  job_id: z.uuid().nullable().meta({ description: 'The last job of the change.' }),
  created_by: z.uuid(),
  created_at: Timestamp,
  updated_at: Timestamp,
});

export const ChangeSummary = Summary.meta({ id: 'ChangeSummary' });

export const Change = Summary.extend({
  statements: z.array(Statement),
  not_modelled: z.array(z.string()).meta({
    description: 'Differences between the branch and `main` that no statement expresses.',
  }),
  base: z.enum(['kept', 'gone']).nullable().meta({
    description:
      'Whether it is known what `main` was like when the branch was made. Null: the statements were given.',
  }),
  main_changes: z.array(MainChange).meta({
    description:
      'What `main` has got since the branch was made, which statements of the difference can undo. 200 at most.',
  }),
  rehearsal: Rehearsal.nullable(),
}).meta({ id: 'Change' });

export const digestOf = ({ steps, schema }: ChangePlan): Promise<string> =>
  sha256(JSON.stringify([schema, steps.map(({ statements }) => statements.map(({ sql }) => sql))]));

/** The first step that held a strong lock for longer; null if none did. @returns its place, from 0, and the time */
export function overBudget({ plan, rehearsal }: Pick<ChangeRow, 'plan' | 'rehearsal'>, budgetMs: number) {
  const at = (rehearsal?.steps ?? []).findIndex(
    ({ locks, duration_ms }) => locks.length > 0 && duration_ms > budgetMs,
  );
  if (at === -1) return null;
  return { statement: firstOf(plan, at), duration_ms: Math.ceil(rehearsal?.steps[at]?.duration_ms ?? 0) };
}

/** The position of the first statement of a step. */
const firstOf = ({ steps }: ChangePlan, at: number): number =>
  steps.slice(0, at).reduce((sum, { statements }) => sum + statements.length, 0) + 1;

/** Approvals that a change needs: at least one if its author does not get the data of `main`. */
const approvalsRequired = (
  { changeApprovals, maskedOnly }: Pick<ProjectRow, 'changeApprovals' | 'maskedOnly'>,
  { authorSeesData }: Pick<ChangeRow, 'authorSeesData'>,
): number => Math.max(changeApprovals, maskedOnly && !authorSeesData ? 1 : 0);

type ErrorOf = z.output<typeof StatementError>;
const errorFor = (
  error: (Omit<ErrorOf, 'message'> & { message: string }) | null,
  seesData: boolean,
): ErrorOf | null => error && { ...error, message: seesData ? error.message : null };

/** @param seesData whether the caller may see the data of `main` */
export function toSummary(
  row: ChangeRow,
  project: Pick<ProjectRow, 'changeApprovals' | 'maskedOnly'>,
  seesData: boolean,
): z.output<typeof Summary> {
  const { plan, rehearsal, options, application } = row;
  const locked = (rehearsal?.steps ?? []).flatMap(({ locks, duration_ms }) =>
    locks.length > 0 ? [duration_ms] : [],
  );
  return {
    id: row.id,
    project_id: row.projectId,
    state: row.state,
    stale: row.stale,
    source:
      row.sourceBranchId && row.sourceName
        ? { branch_id: row.sourceBranchId, branch_name: row.sourceName }
        : null,
    digest: row.digest,
    statement_count: firstOf(plan, plan.steps.length) - 1,
    applied_count: firstOf(plan, row.done) - 1,
    longest_lock_ms: rehearsal && !rehearsal.error ? Math.ceil(Math.max(0, ...locked)) : null,
    approvals_required: approvalsRequired(project, row),
    approvals: row.approvals.map(({ user_id, email, digest, at }) => ({
      user_id,
      email,
      approved_at: at,
      counts: digest === row.digest,
    })),
    application: options && {
      ...options,
      at: row.dueAt?.toISOString() ?? null,
      ended_at: application?.at ?? null,
      reason: application?.reason ?? null,
      error: errorFor(application?.error ?? null, seesData),
    },
    safety_snapshot_id: row.snapshotId,
    paused_ms: row.pausedMs,
    job_id: row.jobId,
    created_by: row.createdBy,
    created_at: row.createdAt.toISOString(),
    updated_at: row.updatedAt.toISOString(),
  };
}

export function toChange(
  row: ChangeRow,
  project: Pick<ProjectRow, 'changeApprovals' | 'maskedOnly'>,
  seesData: boolean,
): z.output<typeof Change> {
  const { plan, rehearsal } = row;
  let position = 0;
  const statements = plan.steps.flatMap(({ statements: ofStep, alone, leaves }, at) => {
    const rehearsed = rehearsal?.steps[at];
    return ofStep.map(({ sql, findings }) => {
      position += 1;
      return {
        position,
        sql,
        step: at + 1,
        alone,
        leaves,
        findings,
        rehearsed: rehearsed ? { duration_ms: rehearsed.duration_ms, locks: rehearsed.locks } : null,
        applied: at < row.done,
      };
    });
  });
  return {
    ...toSummary(row, project, seesData),
    statements,
    not_modelled: plan.notModelled,
    base: plan.base,
    main_changes: plan.mainChanges,
    rehearsal: rehearsal && toRehearsal(rehearsal, seesData),
  };
}

function toRehearsal(
  { report, steps, error, forecast, data, at, paused_ms }: NonNullable<ChangeRow['rehearsal']>,
  seesData: boolean,
): z.output<typeof Rehearsal> {
  return {
    ...report,
    data,
    rehearsed_at: at,
    duration_ms: steps.reduce((sum, { duration_ms }) => sum + duration_ms, 0),
    paused_ms,
    // An error on masked data quotes masked data.
    error: errorFor(error, seesData || data !== 'full'),
    forecast,
  };
}
