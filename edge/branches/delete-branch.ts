import { and, eq, type SQL } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { withdrawAccess } from '../access/access-revision.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, branchCredentials, jobs, networkRules, projectBranches } from '../database/schema.ts';
import type { JobRow } from '../jobs/job-store.ts';
import { saga } from '../jobs/saga.ts';
import { isAllowed, transition, whereAllowed } from './branch-transition.ts';

/** Why the service deletes a branch that no user deletes. */
export interface ServiceDeletion {
  event: 'delete' | 'retire';
  /** A condition of the branch that must still be true. */
  due: SQL;
  /** As the audit event says it. */
  reason: 'lease_ended' | 'expired';
}

/**
 * Marks the branch as deleted and opens the job that drops its database, in one batch. Its children lose their parent
 * (specification 2.2).
 */
export async function markBranchDeleted(
  db: Database,
  job: JobRow,
  now: Date,
  service?: ServiceDeletion,
): Promise<Result<JobRow, Failure>> {
  const branchId = job.branchId ?? '';
  const transitionName = service?.event ?? 'delete';
  const thisBranch = and(
    eq(projectBranches.id, branchId),
    eq(projectBranches.projectId, job.projectId),
    eq(projectBranches.tenantId, job.tenantId),
    service?.due,
  );
  const [branch] = await db.select().from(projectBranches).where(whereAllowed(transitionName, thisBranch));
  if (!branch) return fail({ code: 'NOT_FOUND' });
  if (branch.protected || branch.isDefault) return fail({ code: 'BRANCH_PROTECTED' });

  const stillThere = isAllowed(transitionName, thisBranch);
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
      },
    },
    now,
  );
  const results = await inOneBatch(db, [
    insertIf(db, auditEvents, event, stillThere),
    insertIf(db, jobs, job, stillThere),
    withdrawAccess(db, job.projectId, stillThere),
    db.delete(networkRules).where(and(eq(networkRules.branchId, branchId), stillThere)),
    db.delete(branchCredentials).where(and(eq(branchCredentials.branchId, branchId), stillThere)),
    db
      .update(projectBranches)
      .set({ parentBranchId: null })
      .where(and(eq(projectBranches.parentBranchId, branchId), stillThere)),
    transition(db, transitionName, thisBranch, now),
  ]);
  return hasChanged(results.at(-1)) ? ok(job) : fail({ code: 'NOT_FOUND' });
}

/** Specification 3.1: the underlying database is dropped after the branch is deleted. */
export const deleteBranchJob = saga<{ database: string } | 'gone'>({
  steps: [
    [
      {
        name: 'drop',
        run: async ({ job, callHost }, subject) =>
          subject === 'gone' ||
          callHost('branch.drop', {
            job_id: job.id,
            project_id: job.projectId,
            branch_id: job.branchId ?? '',
            database: subject.database,
          }),
      },
    ],
  ],
  load: async ({ db, job }) => {
    const [branch] = await db
      .select({ database: projectBranches.databaseName })
      .from(projectBranches)
      .where(eq(projectBranches.id, job.branchId ?? ''));
    return branch ?? 'gone';
  },
  complete: () => [],
});
