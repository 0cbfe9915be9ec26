import { and, desc, eq, inArray, type SQL, sql } from 'drizzle-orm';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import type { Actor, Tried } from '../database/column-types.ts';
import { onActiveBranch } from '../database/conditions.ts';
import type { Database } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { maskingPolicies } from '../database/masking-schema.ts';
import { type BranchRow, type JobRow, jobs, type SnapshotRow, snapshots } from '../database/schema.ts';
import { newJob } from '../jobs/job-store.ts';
import { HostLostError, saga } from '../jobs/saga.ts';

/** A request waits for the report for so long, and a call of its job too. Milliseconds. */
export const TRIAL_WAIT_MS = 25_000;
/** The copy, 30 s of statements, and two comparisons. Milliseconds. */
const PATIENCE_MS = 5 * 60_000;

/** The newest masked snapshot of the branch by the present policy: nothing is masked for a trial. */
export const readyMasked = (db: Database, projectId: string, branchId: SQL) =>
  db
    .select()
    .from(snapshots)
    .where(
      and(
        eq(snapshots.branchId, branchId),
        eq(snapshots.projectId, projectId),
        eq(snapshots.status, 'ready'),
        eq(snapshots.data, 'masked'),
        inArray(snapshots.kind, ['manual', 'schedule', 'masked']),
        sql`${snapshots.maskingVersion} = (select max(version) from ${maskingPolicies} where ${eq(maskingPolicies.projectId, projectId)})`,
      ),
    )
    .orderBy(desc(snapshots.takenAt), desc(snapshots.id))
    .limit(1);

/** What is copied, for the host and for the report. */
export const triedSource = (
  branch: BranchRow,
  masked: SnapshotRow | null,
): { database: string } & Pick<Tried, 'source'> =>
  masked
    ? {
        database: snapshotDatabaseName(masked.id),
        source: {
          kind: 'snapshot',
          id: masked.id,
          name: masked.name,
          data: masked.data,
          taken_at: masked.takenAt.toISOString(),
        },
      }
    : {
        database: branch.databaseName,
        source: { kind: 'branch', id: branch.id, name: branch.branchName, data: branch.data, taken_at: null },
      };

/** A trial that its host has begun, and that takes longer than its request. */
export interface TrialRequest {
  /** Of the trial and of its job. */
  id: string;
  branch: BranchRow;
  tried: Tried;
  hostId: string;
  actor: Actor;
}

/** Opens the job that waits for the report. @returns or BRANCH_NOT_ACTIVE */
export async function reserveTrial(
  db: Database,
  { id, branch, tried, hostId, actor }: TrialRequest,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const about = { id, projectId: branch.projectId, hostId, actor };
  const job = newJob('branch.try', { branchId: branch.id, tried }, about, now);
  const written = await guardedWrite(db, {
    decides: [jobs, job],
    require: onActiveBranch(branch, actor.tenantId),
  });
  return written.ok ? ok(job) : written;
}

/**
 * The host runs the trial whatever becomes of this job, and leaves nothing of it, so nothing is to be undone. It keeps the
 * report too: the gateway stores no value of a row.
 */
export const trialJob = saga<'branch.try', null[]>({
  steps: [
    [
      {
        name: 'try',
        run: async ({ job, callHost }) => {
          for (let isOver = false; !isOver; ) {
            const { known, report } = await callHost('try.read', { try_id: job.id, wait: TRIAL_WAIT_MS });
            if (!known) throw new HostLostError('the agent was restarted, which ends its trials');
            isOver = report !== null;
          }
        },
      },
    ],
  ],
  patience: () => PATIENCE_MS,
  load: async () => [],
  complete: () => [],
  undo: { run: async () => {}, record: () => [] },
});
