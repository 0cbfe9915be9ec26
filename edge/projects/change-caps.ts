import { eq, sql } from 'drizzle-orm';
import { z } from 'zod';
import { DEFAULT_BRANCH_LIMIT, RAISED_BRANCH_LIMIT } from '../../shared/project/project-status.ts';
import { StorageQuotaGib } from '../../shared/project/storage-quota.ts';
import { type AppContext, connectingIp, databaseOf } from '../app-env.ts';
import { noActor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projects } from '../database/schema.ts';
import { found } from './project-access.ts';
import type { ProjectRow } from './project-resource.ts';

/** Caps that hold what a project's users may choose by themselves (spec section 8). */
export const ProjectCaps = z
  .strictObject({
    project_id: z.uuid(),
    branch_limit: z.int().min(DEFAULT_BRANCH_LIMIT).max(RAISED_BRANCH_LIMIT),
    storage_quota_cap_gib: StorageQuotaGib,
  })
  .meta({ id: 'ProjectCaps' });

export const CapsChange = ProjectCaps.omit({ project_id: true })
  .partial()
  .refine((change) => Object.keys(change).length > 0, 'change at least one field')
  .meta({ example: { branch_limit: 20 } });

/**
 * Changes the caps and records it, in one batch. Lowered below what the project has, a cap takes nothing away.
 * @throws ApiError NOT_FOUND
 */
export async function changeCaps(
  c: AppContext,
  projectId: string,
  change: z.output<typeof CapsChange>,
): Promise<z.output<typeof ProjectCaps>> {
  const db = databaseOf(c);
  const theProject = eq(projects.id, projectId);
  const project = found(await db.select().from(projects).where(theProject));
  const from = { branch_limit: project.branchLimit, storage_quota_cap_gib: project.storageQuotaCapGib };
  const to = {
    branch_limit: change.branch_limit ?? from.branch_limit,
    storage_quota_cap_gib: change.storage_quota_cap_gib ?? from.storage_quota_cap_gib,
  };
  const now = new Date();
  const actor = { ...noActor(project.tenantId), ip: connectingIp(c), requestId: c.var.requestId };
  const event = auditEvent('project.caps.changed', actor, { projectId, metadata: { from, to } }, now);
  const answers = await inOneBatch(db, [
    insertIf(db, auditEvents, event, sql`exists (select 1 from ${projects} where ${theProject})`),
    db
      .update(projects)
      .set({
        // Only what is asked for: a change of the other cap at the same time is not undone.
        branchLimit: change.branch_limit,
        storageQuotaCapGib: change.storage_quota_cap_gib,
        updatedAt: now,
      })
      .where(theProject)
      .returning(),
  ]);
  const changed = found(answers.at(-1) as ProjectRow[]);
  return {
    project_id: projectId,
    branch_limit: changed.branchLimit,
    storage_quota_cap_gib: changed.storageQuotaCapGib,
  };
}
