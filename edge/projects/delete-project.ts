import { and, eq, inArray, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { transition } from '../branches/branch.ts';
import type { Actor } from '../database/column-types.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, type JobRow, jobs, projectBranches, projects } from '../database/schema.ts';
import { saga } from '../jobs/saga.ts';

const DELETABLE = ['creating', 'active', 'failed'] as const;

/** Marks the project and its branches as being deleted and opens the job, in one batch. */
export async function markProjectDeleting(
  db: Database,
  job: JobRow,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const deletable = and(
    eq(projects.id, job.projectId),
    eq(projects.tenantId, job.tenantId),
    inArray(projects.status, DELETABLE),
  );
  const stillThere = sql`exists (select 1 from ${projects} where ${deletable})`;
  const about = { id: job.id, projectId: job.projectId };
  const results = await inOneBatch(db, [
    insertIf(db, auditEvents, auditEvent('project.deleted', job.input.actor, about, now), stillThere),
    insertIf(db, jobs, job, stillThere),
    transition(db, 'delete_project', and(eq(projectBranches.projectId, job.projectId), stillThere), now),
    db.update(projects).set({ status: 'deleting', updatedAt: now }).where(deletable),
  ]);
  if (hasChanged(results.at(-1))) return ok(job);
  const [left] = await db
    .select({ status: projects.status })
    .from(projects)
    .where(and(eq(projects.id, job.projectId), eq(projects.tenantId, job.tenantId)));
  return fail({ code: left ? 'PROJECT_NOT_ACTIVE' : 'NOT_FOUND' });
}

/** Drops all databases and logins of the project, then deletes its record with those of its branches. */
export const deleteProjectJob = saga({
  steps: [
    [
      {
        name: 'drop',
        run: ({ job, callHost }) => callHost('project.drop', { job_id: job.id, project_id: job.projectId }),
      },
    ],
  ],
  load: async () => ({}),
  complete: ({ db, job }) => [db.delete(projects).where(eq(projects.id, job.projectId))],
});

export interface ProjectDeletion {
  /** ID of the deletion job. */
  id: string;
  projectId: string;
  hostId: string;
  actor: Actor;
}
