import { and, eq, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { withdrawAccess } from '../access/send-access.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import type { Actor } from '../database/column-types.ts';
import { inActiveProject, isUnmoving } from '../database/conditions.ts';
import { type Database, insertIf, isThere, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import {
  auditEvents,
  type BranchRow,
  branchCredentials,
  type JobOf,
  type JobRow,
  jobs,
  networkRules,
  projectBranches,
  projects,
  type SnapshotRow,
  snapshots,
} from '../database/schema.ts';
import { newJob } from '../jobs/job-store.ts';
import { saga } from '../jobs/saga.ts';
import type { Settings } from '../settings.ts';
import { branchRecord, isAllowed, transition, whereAllowed } from './branch.ts';
import { atTheirEnd, atTheirLeasesEnd } from './branch-ends.ts';
import { dropJob } from './drop-snapshots.ts';
import { type Keeping, keepingOf, keepStatements } from './kept-branch.ts';

/** Why the service deletes a branch that no user deletes. */
export interface ServiceDeletion {
  event: 'delete' | 'retire';
  /** A condition of the branch that must still be true. */
  due: SQL;
  /** The reason in the audit event. */
  reason: 'lease_ended' | 'expired';
}

interface DeletionOptions {
  service?: ServiceDeletion;
  /** How its database is kept; by default it is not. */
  kept?: Keeping | null;
  /** Statements for what a branch that is being restored was kept as. */
  purging?: (condition: SQL) => Statement[];
}

/** What a deletion decides on, or records of the branch. */
const DECISIVE = [
  'status',
  'protected',
  'leaseSeconds',
  'branchName',
  'databaseName',
  'data',
  'keepTables',
  'maskingVersion',
  'checkedAt',
] as const satisfies readonly (keyof BranchRow)[];

/** The branch, if it is still as it was read. */
const asRead = (branch: BranchRow): SQL | undefined =>
  and(
    eq(projectBranches.id, branch.id),
    ...DECISIVE.map((name) => {
      const column = projectBranches[name];
      return sql`${column} is ${sql.param(branch[name], column)}`;
    }),
  );

/**
 * Marks the branch as deleted and opens the job that drops its database, in one batch. Its children lose
 * their parent (specification 2.2).
 * @param branch as it was read before
 * @returns or NOT_FOUND, BRANCH_PROTECTED; HOST_BUSY if it has changed since
 */
export async function markBranchDeleted(
  db: Database,
  job: JobOf<'branch.delete'>,
  branch: BranchRow,
  now: Date,
  { service, kept = null, purging = () => [] }: DeletionOptions = {},
): Promise<Result<Deleted, Failure>> {
  const { branchId } = job;
  const transitionName = service?.event ?? 'delete';
  const thisBranch = and(eq(projectBranches.id, branchId), service?.due);
  if (branch.isDefault || branch.protected) return fail({ code: 'BRANCH_PROTECTED' });

  if (kept) job.input = { ...job.input, snapshotId: kept.snapshotId };
  const event = auditEvent(
    'branch.deleted',
    job.input.actor,
    {
      id: job.id,
      projectId: job.projectId,
      branchId,
      metadata: {
        branch_name: branch.branchName,
        database: branch.databaseName,
        ...(service && { reason: service.reason }),
        ...(kept && { restorable_until: kept.until.toISOString() }),
        record: branchRecord(branch),
      },
    },
    now,
  );
  // A branch that was being restored has one, too.
  const until = sql<Date>`(select expires_at from ${snapshots} where ${and(eq(snapshots.branchId, branchId), eq(snapshots.kind, 'deleted'))})`;
  const isNotKept = sql`${until} is null`;
  const written = await guardedWrite(db, {
    decides: [jobs, job],
    require: [
      ...inActiveProject(job.projectId, job.tenantId),
      isUnmoving(job.projectId),
      [isAllowed(transitionName, thisBranch), 'NOT_FOUND'],
      [isThere(projectBranches, asRead(branch)), 'HOST_BUSY'],
    ],
    rest: (isWritten) => [
      insertIf(db, auditEvents, event, isWritten),
      withdrawAccess(db, job.projectId, isWritten),
      ...purging(isWritten),
      ...(kept ? keepStatements(db, branch, kept, isWritten, now) : []),
      db.delete(networkRules).where(and(eq(networkRules.branchId, branchId), isWritten)),
      db.delete(branchCredentials).where(and(eq(branchCredentials.branchId, branchId), isWritten, isNotKept)),
      db
        .update(projectBranches)
        .set({ parentBranchId: null })
        .where(and(eq(projectBranches.parentBranchId, branchId), isWritten)),
      transition(db, transitionName, and(thisBranch, isWritten), now, until),
    ],
    returns: db
      .select({ isPending: sql`access_applied < access_revision`.mapWith(Boolean) })
      .from(projects)
      .where(eq(projects.id, job.projectId)),
  });
  if (!written.ok) return written;
  const isAccessPending = written.value.some(({ isPending }) => isPending);
  return ok({ job, restorableUntil: kept?.until ?? null, isAccessPending });
}

/** Opens the deletion that a user asks for. */
export async function deleteBranch(
  db: Database,
  settings: Settings,
  deletion: BranchDeletion,
  now: Date,
): Promise<Result<Deleted, Failure>> {
  const { id, status } = deletion.branch;
  // Of the others, one that is being restored has a kept database.
  if (status === 'active' || status === 'expired') {
    const deleted = await deleteAsRead(db, settings, deletion, [], now);
    if (deleted.ok || deleted.failure.code !== 'HOST_BUSY') return deleted;
  }
  const [[branch], keptOnes] = await db.batch([
    db.select().from(projectBranches).where(eq(projectBranches.id, id)),
    db
      .select()
      .from(snapshots)
      .where(and(eq(snapshots.branchId, id), eq(snapshots.kind, 'deleted'))),
  ]);
  if (!branch) return fail({ code: 'NOT_FOUND' });
  return deleteAsRead(db, settings, { ...deletion, branch }, keptOnes, now);
}

/** @param keptOnes databases that the branch had when it was deleted before */
function deleteAsRead(
  db: Database,
  settings: Settings,
  { branch, purge, ...deletion }: BranchDeletion,
  keptOnes: readonly SnapshotRow[],
  now: Date,
): Promise<Result<Deleted, Failure>> {
  const job = newJob('branch.delete', { branchId: branch.id }, deletion, now);
  if (!purge) return markBranchDeleted(db, job, branch, now, { kept: keepingOf(settings, branch, now) });
  const { hostId, actor } = deletion;
  const purging = (condition: SQL) =>
    keptOnes.flatMap((kept) => [
      insertIf(db, jobs, dropJob(kept, { hostId, actor, createdBy: actor.userId }, now), condition),
      db.delete(snapshots).where(and(eq(snapshots.id, kept.id), condition)),
    ]);
  return markBranchDeleted(db, job, branch, now, { purging });
}

interface Deletion {
  database: string;
  kept: MethodResult<'branch.keep'> | null;
}

/**
 * Specification 3.1: the underlying database is dropped after the branch is deleted, or kept so that it can
 * be restored.
 */
export const deleteBranchJob = saga<'branch.delete', Deletion | 'gone'>({
  steps: [
    [
      {
        name: 'drop',
        run: async ({ job, callHost }, subject) => {
          if (subject === 'gone') return;
          const identity = {
            job_id: job.id,
            project_id: job.projectId,
            branch_id: job.branchId,
            database: subject.database,
          };
          const { snapshotId: snapshot_id } = job.input;
          if (snapshot_id === undefined) await callHost('branch.drop', { ...identity, made_by: null });
          else subject.kept = await callHost('branch.keep', { ...identity, snapshot_id, made_by: null });
        },
      },
    ],
  ],
  load: async ({ db, job }) => {
    const [branch] = await db
      .select({ database: projectBranches.databaseName })
      .from(projectBranches)
      .where(eq(projectBranches.id, job.branchId));
    return branch ? { ...branch, kept: null } : 'gone';
  },
  complete: ({ db, job }, subject) => {
    const { snapshotId } = job.input;
    if (subject === 'gone' || snapshotId === undefined) return [];
    const thisOne = eq(snapshots.id, snapshotId);
    if (subject.kept?.kept)
      return [
        db.update(snapshots).set({ status: 'ready', sizeBytes: subject.kept.size_bytes }).where(thisOne),
      ];
    // The branch had no database.
    const { branchId } = job;
    return [
      db.delete(snapshots).where(thisOne),
      db.delete(branchCredentials).where(eq(branchCredentials.branchId, branchId)),
      db.update(projectBranches).set({ deletesAt: null }).where(eq(projectBranches.id, branchId)),
    ];
  },
});

const REASONS: readonly (Omit<ServiceDeletion, 'due'> & { due: (now: Date) => SQL })[] = [
  { reason: 'lease_ended', event: 'delete', due: atTheirLeasesEnd },
  { reason: 'expired', event: 'retire', due: atTheirEnd },
];

/**
 * Deletes the project's branches whose leases have ended, and those that have been expired for
 * `EXPIRED_RETENTION_SECONDS`: marks them and opens the jobs that drop their databases. A branch whose lease
 * is renewed, or that is revived, at the same time stays. So does a protected one.
 * @param beforeWriting called before the first job of each reason is written
 */
export async function retireBranches(
  db: Database,
  projectId: string,
  now: Date,
  beforeWriting: () => void,
): Promise<void> {
  for (const { reason, event, due } of REASONS) {
    const deletion = { reason, event, due: due(now) };
    const dueRows = await db
      .select({ branch: projectBranches, hostId: projects.hostId })
      .from(projectBranches)
      .innerJoin(projects, and(eq(projects.id, projectBranches.projectId), eq(projects.status, 'active')))
      .where(whereAllowed(event, and(eq(projectBranches.projectId, projectId), deletion.due)));
    if (dueRows.length > 0) beforeWriting();
    for (const { branch, hostId } of dueRows) {
      const { id: branchId, tenantId, createdBy } = branch;
      const about = { id: crypto.randomUUID(), projectId, hostId, actor: noActor(tenantId), createdBy };
      const job = newJob('branch.delete', { branchId }, about, now);
      await markBranchDeleted(db, job, branch, now, { service: deletion });
    }
  }
}

export interface BranchDeletion {
  /** ID of the deletion job. */
  id: string;
  projectId: string;
  hostId: string;
  actor: Actor;
  /** As the request has read it. */
  branch: BranchRow;
  /** The database is dropped immediately. */
  purge: boolean;
}

/** The job of a deletion; `restorableUntil` null: the database is dropped. */
export interface Deleted {
  job: JobRow;
  restorableUntil: Date | null;
  /** Whether the host does not have the project's access yet. */
  isAccessPending: boolean;
}
