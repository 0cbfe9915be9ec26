import { and, eq, lte, type SQL, sql } from 'drizzle-orm';
import { CHECKPOINTS_OF_BRANCH, CHECKPOINTS_OF_PROJECT } from '../../shared/branch/snapshot.ts';
import type { Failure } from '../../shared/failures.ts';
import { quotaBytes } from '../../shared/project/storage-quota.ts';
import { ok, type Result } from '../../shared/result.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import type { Actor, AuditActor } from '../database/column-types.ts';
import { isOpenJob } from '../database/conditions.ts';
import { type Database, insertIf, isThere, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import {
  auditEvents,
  branchCredentials,
  type JobRow,
  jobs,
  projectBranches,
  projects,
  type SnapshotRow,
  snapshots,
} from '../database/schema.ts';
import { newJob } from '../jobs/job-store.ts';
import { saga } from '../jobs/saga.ts';
import type { Settings } from '../settings.ts';

/** Why the service deletes a snapshot that no user deletes. */
type Reason = 'expired' | 'replaced' | 'too_much_kept' | 'branch_deleted';

/**
 * A deleted branch that is being restored is cloned from its kept database, and needs its passwords. An undo
 * is cloned from its checkpoint.
 */
export const isUnused = sql`not (kind = 'deleted' and exists (
  select 1 from ${projectBranches} where ${projectBranches.id} = ${snapshots.branchId} and ${projectBranches.status} = 'creating'))
  and not (kind in ('checkpoint', 'safety') and exists (
  select 1 from ${jobs} where ${isOpenJob} and json_extract(${jobs.input}, '$.undo.checkpoint_id') = ${snapshots.id}))`;

/** A checkpoint whose branch has no database any more. */
const isOrphaned = sql`kind = 'checkpoint' and exists (
  select 1 from ${projectBranches} where ${projectBranches.id} = ${snapshots.branchId} and ${projectBranches.status} in ('deleted', 'failed'))`;

/** Of a project that has moved, whose host has none of these databases: they cannot be restored any more. */
export const forgetSnapshots = (db: Database, projectId: string, condition: SQL): Statement[] => {
  const ofDeleted = sql`(select branch_id from ${snapshots} where project_id = ${projectId} and kind = 'deleted')`;
  return [
    db.delete(branchCredentials).where(and(sql`${branchCredentials.branchId} in ${ofDeleted}`, condition)),
    db
      .update(projectBranches)
      .set({ deletesAt: null })
      .where(
        and(sql`${projectBranches.id} in ${ofDeleted}`, eq(projectBranches.status, 'deleted'), condition),
      ),
    db.delete(snapshots).where(and(eq(snapshots.projectId, projectId), condition)),
  ];
};

/** What remains of a deleted branch goes with its database. */
export const forgetDeletedBranch = (
  db: Database,
  { kind, branchId }: SnapshotRow,
  condition: SQL,
): Statement[] =>
  kind === 'deleted'
    ? [
        db.delete(branchCredentials).where(and(eq(branchCredentials.branchId, branchId), condition)),
        db
          .update(projectBranches)
          .set({ deletesAt: null })
          .where(and(eq(projectBranches.id, branchId), eq(projectBranches.status, 'deleted'), condition)),
      ]
    : [];

/** The job that drops the database of a snapshot. */
export const dropJob = (
  { id: snapshotId, projectId }: Pick<SnapshotRow, 'id' | 'projectId'>,
  about: { hostId: string; actor: AuditActor; createdBy: string },
  now: Date,
) =>
  newJob(
    'snapshot.delete',
    { branchId: null, snapshotId },
    { id: crypto.randomUUID(), projectId, ...about },
    now,
  );

/** Deletes the record and opens the job that drops the database, in one batch. */
export async function deleteSnapshot(
  db: Database,
  snapshot: SnapshotRow,
  job: JobRow,
  now: Date,
  reason?: Reason,
): Promise<Result<JobRow, Failure>> {
  const { id, projectId, branchId, branchName, kind } = snapshot;
  const thisOne = and(eq(snapshots.id, id), eq(snapshots.tenantId, job.tenantId), isUnused);
  const metadata = { snapshot_id: id, branch_name: branchName, kind, ...(reason && { reason }) };
  const name = kind === 'deleted' ? 'branch.purged' : 'snapshot.deleted';
  const event = auditEvent(name, job.input.actor, { id: job.id, projectId, branchId, metadata }, now);
  const written = await guardedWrite(db, {
    decides: [jobs, job],
    require: [[isThere(snapshots, thisOne), 'NOT_FOUND']],
    rest: (isWritten) => [
      insertIf(db, auditEvents, event, isWritten),
      ...forgetDeletedBranch(db, snapshot, isWritten),
      db.delete(snapshots).where(and(eq(snapshots.id, id), isWritten)),
    ],
  });
  return written.ok ? ok(job) : written;
}

export const dropSnapshotJob = saga<'snapshot.delete', object>({
  steps: [
    [
      {
        name: 'drop',
        run: ({ job, callHost }) =>
          callHost('snapshot.drop', { project_id: job.projectId, snapshot_id: job.input.snapshotId }),
      },
    ],
  ],
  load: async () => ({}),
  complete: () => [],
});

/**
 * A kept branch or state, newest first, with the bytes and the number of those that are as new or newer.
 * `counted` is the number of snapshots under the project's limit, if it is one.
 */
const ranked = (projectId: string) => sql`(
  select id, kind, row_number() over (partition by kind, branch_id order by taken_at desc, id) as place,
         count(*) over (partition by kind in ('manual', 'schedule')) as counted,
         row_number() over (partition by kind order by taken_at, id desc) as oldest,
         count(*) over (partition by kind in ('safety', 'deleted'), kind = 'checkpoint' order by taken_at desc, id) as newest,
         sum(iif(kind = 'checkpoint', coalesce(own_bytes, iif(independent, size_bytes, 0)), size_bytes))
           over (partition by kind in ('safety', 'deleted'), kind = 'checkpoint' order by taken_at desc, id) as bytes
  from ${snapshots} where project_id = ${projectId} and status = 'ready') as ranked`;

/**
 * Deletes the snapshots whose time is over, scheduled ones beyond the number that is kept, the oldest
 * scheduled one if a new one was taken at the project's limit, and what deletions and resets have left behind
 * beyond the project's storage quota, except for the newest: it does not count against the quota, so it must
 * not be a way around it. A limit that was lowered by exactly one also costs the oldest scheduled snapshot of
 * a project that was at the limit. Checkpoints beyond the number of a branch or a project, or beyond the storage
 * quota by the bytes that are theirs alone, go too, and so do those of deleted branches.
 */
export async function retireSnapshots(
  db: Database,
  { SNAPSHOT_LIMIT }: Pick<Settings, 'SNAPSHOT_LIMIT'>,
  projectId: string,
  now: Date,
  beforeWriting: () => void,
): Promise<void> {
  const [project] = await db.select().from(projects).where(eq(projects.id, projectId));
  if (project?.status !== 'active') return;
  const quota = quotaBytes(project.storageQuotaGib);
  const among = (condition: SQL) =>
    sql`${snapshots.id} in (select ranked.id from ${ranked(projectId)} where ${condition})`;
  const reasons: Record<Reason, SQL | undefined> = {
    expired: lte(snapshots.expiresAt, now),
    // A reservation at the limit exceeds it by one. A limit that was lowered by more costs no snapshots.
    replaced: among(
      sql`(kind = 'masked' and place > 1) or kind = 'schedule' and (place > ${project.snapshotSchedule?.keep ?? SNAPSHOT_LIMIT}
          or (counted = ${SNAPSHOT_LIMIT + 1} and oldest = 1 and place > 1))`,
    ),
    too_much_kept: among(
      sql`newest > 1 and ((kind in ('safety', 'deleted') and (bytes > ${quota} or newest > ${SNAPSHOT_LIMIT}))
        or (kind = 'checkpoint' and (bytes > ${quota} or newest > ${CHECKPOINTS_OF_PROJECT} or place > ${CHECKPOINTS_OF_BRANCH})))`,
    ),
    branch_deleted: isOrphaned,
  };
  for (const [reason, due] of Object.entries(reasons) as [Reason, SQL | undefined][]) {
    const rows = await db
      .select()
      .from(snapshots)
      .where(and(eq(snapshots.projectId, projectId), eq(snapshots.status, 'ready'), isUnused, due));
    if (rows.length > 0) beforeWriting();
    for (const row of rows) {
      const { hostId, createdBy } = project;
      const about = { hostId, actor: noActor(row.tenantId), createdBy };
      await deleteSnapshot(db, row, dropJob(row, about, now), now, reason);
    }
  }
}

/** When the next snapshot of the project expires, in Unix milliseconds; infinite if none does. */
export async function nextExpiry(db: Database, projectId: string): Promise<number> {
  const [found] = await db
    .select({ at: sql<number | null>`min(iif(${isOrphaned}, 0, ${snapshots.expiresAt}))` })
    .from(snapshots)
    .where(and(eq(snapshots.projectId, projectId), eq(snapshots.status, 'ready'), isUnused));
  return found?.at ?? Number.POSITIVE_INFINITY;
}

export interface SnapshotDeletion {
  snapshot: SnapshotRow;
  hostId: string;
  actor: Actor;
}
