import { and, eq, inArray } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { transition } from '../branches/branch.ts';
import type { Actor } from '../database/column-types.ts';
import { isOfTenant } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents, type JobRow, jobs, projectBranches, projects } from '../database/schema.ts';
import { saga } from '../jobs/saga.ts';
import { stopFollowing } from '../sources/end.ts';
import { givesNames, removeName } from './dns-names.ts';

const DELETABLE = ['creating', 'active', 'failed'] as const;

/** Marks the project and its branches as being deleted and opens the job, in one batch. */
export async function markProjectDeleting(
  db: Database,
  job: JobRow,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const thisProject = eq(projects.id, job.projectId);
  const deletable = and(thisProject, inArray(projects.status, DELETABLE));
  const about = { id: job.id, projectId: job.projectId };
  const event = auditEvent('project.deleted', job.input.actor, about, now);
  const written = await guardedWrite(db, {
    decides: [jobs, job],
    require: [
      [isOfTenant(projects, job.projectId, job.tenantId), 'NOT_FOUND'],
      [isThere(projects, deletable), 'PROJECT_NOT_ACTIVE'],
    ],
    rest: (isWritten) => [
      insertIf(db, auditEvents, event, isWritten),
      transition(db, 'delete_project', and(eq(projectBranches.projectId, job.projectId), isWritten), now),
      db.update(projects).set({ status: 'deleting', updatedAt: now }).where(and(thisProject, isWritten)),
    ],
  });
  return written.ok ? ok(job) : written;
}

/** Drops all databases and logins of the project and its name, then deletes its record with those of its branches. */
export const deleteProjectJob = saga<'project.delete', object>({
  steps: [
    [
      {
        name: 'drop',
        run: async (context) => {
          const { job, callHost } = context;
          await stopFollowing(context);
          await callHost('project.drop', { job_id: job.id, project_id: job.projectId });
        },
      },
      {
        name: 'name',
        when: (_job, settings) => givesNames(settings),
        run: ({ db, job, settings }) => removeName(db, settings, job.projectId),
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
