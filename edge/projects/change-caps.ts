import { eq, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { DEFAULT_BRANCH_LIMIT, HIGHEST_BRANCH_LIMIT } from '../../shared/project/project-status.ts';
import { StorageQuotaGib } from '../../shared/project/storage-quota.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { type AuditActor, noActor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projects } from '../database/schema.ts';
import type { Settings } from '../settings.ts';
import type { ProjectRow } from './project-resource.ts';

/** Caps on what a project's users may choose themselves (specification 8). */
export const ProjectCaps = z
  .strictObject({
    project_id: z.uuid(),
    branch_limit: z.int().min(DEFAULT_BRANCH_LIMIT).max(HIGHEST_BRANCH_LIMIT).meta({
      description: 'Branches without a lease, up to the setting `BRANCH_LIMIT_MAX`.',
      example: 20,
    }),
    leased_branch_limit: z.int().min(0).max(HIGHEST_BRANCH_LIMIT).meta({
      description: 'Branches with a lease, up to the setting `BRANCH_LIMIT_MAX`.',
      example: 20,
    }),
    storage_quota_cap_gib: StorageQuotaGib,
  })
  .meta({ id: 'ProjectCaps' });

export const CapsChange = ProjectCaps.omit({ project_id: true })
  .partial()
  .refine((change) => Object.keys(change).length > 0, 'change at least one field')
  .meta({ example: { branch_limit: 20 } });

/**
 * Changes the caps and audits the change, in one batch. A cap below what the project already has removes nothing.
 * @param request of the operator, for the audit row
 */
export async function changeCaps(
  db: Database,
  settings: Settings,
  projectId: string,
  change: z.output<typeof CapsChange>,
  request: Pick<AuditActor, 'ip' | 'requestId'>,
): Promise<Result<z.output<typeof ProjectCaps>, Failure>> {
  const theProject = eq(projects.id, projectId);
  const [project] = await db.select().from(projects).where(theProject);
  if (!project) return fail({ code: 'NOT_FOUND' });
  const max = settings.BRANCH_LIMIT_MAX;
  const tooHigh = LIMITS.find((name) => (change[name] ?? 0) > max);
  if (tooHigh) {
    const details = [{ path: tooHigh, message: `must be at most ${max} (setting BRANCH_LIMIT_MAX)` }];
    return fail({ code: 'VALIDATION_FAILED', fields: { details } });
  }
  const from = capsOf(project, settings);
  const to = { ...from, ...change };
  const now = new Date();
  const actor = { ...noActor(project.tenantId), ...request };
  const event = auditEvent('project.caps.changed', actor, { projectId, metadata: { from, to } }, now);
  const results = await inOneBatch(db, [
    insertIf(db, auditEvents, event, sql`exists (select 1 from ${projects} where ${theProject})`),
    db
      .update(projects)
      .set({
        // Only the requested fields, so that a concurrent change of the other cap is not reverted.
        branchLimit: change.branch_limit,
        leasedBranchLimit: change.leased_branch_limit,
        storageQuotaCapGib: change.storage_quota_cap_gib,
        updatedAt: now,
      })
      .where(theProject)
      .returning(),
  ]);
  const [changed] = results.at(-1) as ProjectRow[];
  if (!changed) return fail({ code: 'NOT_FOUND' });
  return ok({ project_id: projectId, ...capsOf(changed, settings) });
}

const LIMITS = ['branch_limit', 'leased_branch_limit'] as const;

const capsOf = (
  project: ProjectRow,
  settings: Settings,
): Omit<z.output<typeof ProjectCaps>, 'project_id'> => ({
  branch_limit: project.branchLimit,
  leased_branch_limit: project.leasedBranchLimit ?? settings.LEASED_BRANCH_LIMIT,
  storage_quota_cap_gib: project.storageQuotaCapGib,
});
