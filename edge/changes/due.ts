import { and, eq, lte, sql } from 'drizzle-orm';
import { auditEvent, inTenantOfProject, noActor } from '../audit/audit-event.ts';
import { type ChangeRow, changes } from '../database/change-schema.ts';
import { type Database, inOneBatch, insertIf, isThere } from '../database/database.ts';
import { auditEvents, projectBranches, projects } from '../database/schema.ts';
import { logEvent } from '../log.ts';
import { mayApply } from './approvals.ts';
import { reserveApplication } from './reserve.ts';
import { changeState } from './states.ts';

const dueIn = (projectId: string) => and(eq(changes.projectId, projectId), eq(changes.state, 'scheduled'));

/** Failures that pass by themselves: the change is tried again for this time after it was due. */
const PASSING = new Set(['PROJECT_BUSY', 'HOST_BUSY', 'PROJECT_MOVING']);
const LATE_MS = 900_000;
const AGAIN_MS = 5_000;

/** Opens the jobs of the project's changes that are due. One that may not begin stops. */
export async function applyDueChanges(
  db: Database,
  projectId: string,
  now: Date,
  beforeWriting: () => void,
): Promise<void> {
  const due = await db
    .select({ change: changes, branch: projectBranches, hostId: projects.hostId })
    .from(changes)
    .innerJoin(projects, eq(projects.id, changes.projectId))
    .innerJoin(
      projectBranches,
      and(eq(projectBranches.projectId, changes.projectId), eq(projectBranches.isDefault, true)),
    )
    .where(and(dueIn(projectId), lte(changes.dueAt, now)))
    .orderBy(changes.dueAt);
  for (const { change, branch, hostId } of due) {
    beforeWriting();
    const { options, applier, dueAt, tenantId, createdBy } = change;
    if (!options || !dueAt) continue;
    const request = {
      jobId: crypto.randomUUID(),
      snapshotId: crypto.randomUUID(),
      change,
      branch,
      options,
      dueAt: null,
      hostId,
      actor: applier ?? noActor(tenantId),
      createdBy: applier?.userId ?? createdBy,
      // The person who has scheduled it can have been removed since. A trust outlives the person who made it.
      require:
        applier?.userId && applier.machine?.type !== 'workload'
          ? [[mayApply(change.id, applier.userId), 'FORBIDDEN'] as const]
          : [],
    };
    const reserved = await reserveApplication(db, request, now);
    if (reserved.ok) continue;
    const { code } = reserved.failure;
    const isPassing = PASSING.has(code) && now.getTime() - dueAt.getTime() < LATE_MS;
    logEvent('change.not_applied', { project_id: projectId, change_id: change.id, code });
    if (!isPassing) await stopDue(db, change, code, now);
  }
}

const stopDue = (db: Database, { id, projectId, tenantId, applier }: ChangeRow, code: string, now: Date) => {
  const isDue = and(eq(changes.id, id), eq(changes.state, 'scheduled'));
  const metadata = { change_id: id, error: code };
  const event = auditEvent('change.stopped', applier ?? noActor(tenantId), { projectId, metadata }, now);
  return inOneBatch(db, [
    insertIf(db, auditEvents, event, isThere(changes, isDue)),
    inTenantOfProject(db, projectId, [event.id]),
    changeState(db, 'stop', isDue, {
      application: { reason: 'not_allowed', error: null, steps: [], at: now.toISOString() },
      updatedAt: now,
    }),
  ]);
};

/** When the project's next scheduled change is due, in Unix milliseconds; infinite without one. */
export async function nextDueChange(db: Database, projectId: string, now: Date): Promise<number> {
  const [found] = await db
    .select({ at: sql<number | null>`min(${changes.dueAt})` })
    .from(changes)
    .where(dueIn(projectId));
  const at = found?.at ?? Number.POSITIVE_INFINITY;
  return at <= now.getTime() ? now.getTime() + AGAIN_MS : at;
}
