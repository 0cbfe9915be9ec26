import { and, eq, gte, sql } from 'drizzle-orm';
import type { z } from 'zod';
import { type AppContext, actorOf, databaseOf } from '../app-env.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { changesOf, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projects } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { coordinatorOf } from './coordinator-stub.ts';
import { found, inProject, projectViews } from './project-access.ts';
import { type Project, type ProjectView, toProjectResponse } from './project-resource.ts';

/** What a project's users may change by themselves. */
interface ProjectChange {
  name?: string | undefined;
  storage_quota_gib?: number | undefined;
}

/** The audit events of a change: one for each field that gets another value. */
const EVENTS = {
  'project.renamed': (from: ProjectView, to: ProjectChange) => [from.name, to.name],
  'project.quota.changed': (from: ProjectView, to: ProjectChange) => [
    from.storageQuotaGib,
    to.storage_quota_gib,
  ],
} as const;

/**
 * Changes the project and records it, in one batch; by a new quota its storage is then judged at once.
 * @throws ApiError NOT_FOUND, QUOTA_ABOVE_SELF_SERVICE_CAP
 */
export async function changeProject(
  c: AppContext,
  projectId: string,
  change: ProjectChange,
): Promise<z.output<typeof Project>> {
  const [project] = await inProject(c, projectId, () => []);
  // Only what is asked for is written: a change of another field at the same time is not undone.
  const { name, storage_quota_gib: storageQuotaGib } = change;
  const limit = project.storageQuotaCapGib;
  const isWithinCap = storageQuotaGib === undefined || storageQuotaGib <= limit;
  if (!isWithinCap) throw new ApiError('QUOTA_ABOVE_SELF_SERVICE_CAP', { limit });
  const db = databaseOf(c);
  const now = new Date();
  const changeable = and(
    eq(projects.id, projectId),
    eq(projects.tenantId, c.var.principal.tenantId),
    storageQuotaGib === undefined ? undefined : gte(projects.storageQuotaCapGib, storageQuotaGib),
  );
  const events = (Object.keys(EVENTS) as (keyof typeof EVENTS)[]).flatMap((event) => {
    const [from, to] = EVENTS[event](project, change);
    if (to === undefined || to === from) return [];
    return auditEvent(event, actorOf(c), { projectId, metadata: { from, to } }, now);
  });
  const answers = await inOneBatch(db, [
    ...events.map((event) =>
      insertIf(db, auditEvents, event, sql`exists (select 1 from ${projects} where ${changeable})`),
    ),
    db.update(projects).set({ name, storageQuotaGib, updatedAt: now }).where(changeable),
    projectViews(db).where(eq(projects.id, projectId)),
  ]);
  // The cap was lowered or the project went in between: looking again tells which.
  if (changesOf(answers.at(-2)) === 0) return changeProject(c, projectId, change);
  const changed = found(answers.at(-1) as ProjectView[]);
  if (storageQuotaGib === undefined) return toProjectResponse(changed);
  const verdict = await coordinatorOf(c.env, projectId).monitor.evaluate(projectId);
  const storage = verdict && { storageUsedBytes: verdict.used, storageState: verdict.state };
  return toProjectResponse({ ...changed, ...storage });
}
