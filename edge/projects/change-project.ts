import { and, eq, gte, ne, or, sql } from 'drizzle-orm';
import { nextSnapshotAt, type SnapshotSchedule } from '../../shared/branch/snapshot.ts';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { Actor } from '../database/column-types.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projects } from '../database/schema.ts';
import { hasRoomOn } from '../hosts/host.ts';
import type { Settings } from '../settings.ts';
import { type ProjectView, projectViews } from '../tenancy/project-access.ts';
import { hasQuotaFor, type TenantUsage, tenantQuotaReached, tenantUsage } from '../tenancy/tenant-caps.ts';

/** The fields that a project's users may change. */
interface ProjectChange {
  name?: string | undefined;
  storage_quota_gib?: number | undefined;
  /** Null: none. */
  snapshot_schedule?: SnapshotSchedule | null | undefined;
}

/** The audit events of a change: one for each field that gets another value. */
const EVENTS = {
  'project.renamed': (from: ProjectView, to: ProjectChange) => [from.name, to.name],
  'project.quota.changed': (from: ProjectView, to: ProjectChange) => [
    from.storageQuotaGib,
    to.storage_quota_gib,
  ],
  'project.snapshot_schedule.changed': (from: ProjectView, to: ProjectChange) => [
    from.snapshotSchedule,
    to.snapshot_schedule,
  ],
} as const;

/** The first scheduled snapshot comes one interval after the change. */
const scheduled = (snapshotSchedule: SnapshotSchedule | null | undefined, now: Date) =>
  snapshotSchedule === undefined
    ? {}
    : { snapshotSchedule, snapshotDueAt: snapshotSchedule && nextSnapshotAt(snapshotSchedule, now) };

/**
 * Changes the project and audits the change, in one batch.
 * A quota can always be lowered, also above the limit of the tenant or beyond the room of the host.
 * @returns the changed project, or NOT_FOUND, PROJECT_NOT_ACTIVE, QUOTA_ABOVE_SELF_SERVICE_CAP, TENANT_QUOTA_REACHED,
 * HOST_FULL
 */
export async function changeProject(
  db: Database,
  settings: Settings,
  project: ProjectView,
  change: ProjectChange,
  actor: Actor,
): Promise<Result<ProjectView, Failure>> {
  const { name, storage_quota_gib: storageQuotaGib, snapshot_schedule: snapshotSchedule } = change;
  const { id: projectId, storageQuotaCapGib: limit } = project;
  if (project.status === 'deleting') return fail({ code: 'PROJECT_NOT_ACTIVE' });
  const isWithinCap = storageQuotaGib === undefined || storageQuotaGib <= limit;
  if (!isWithinCap) return fail({ code: 'QUOTA_ABOVE_SELF_SERVICE_CAP', fields: { limit } });
  const now = new Date();
  const ofTenant = and(eq(projects.id, projectId), eq(projects.tenantId, actor.tenantId));
  const usage = tenantUsage(settings, actor.tenantId, projectId);
  const wantedGib = storageQuotaGib ?? 0;
  const isLower = gte(projects.storageQuotaGib, wantedGib);
  const isPromisable = or(isLower, hasQuotaFor(usage, wantedGib));
  const hasRoom = or(isLower, hasRoomOn(settings, project.hostId, projectId, wantedGib));
  const changeable = and(
    ofTenant,
    ne(projects.status, 'deleting'),
    storageQuotaGib === undefined
      ? undefined
      : and(gte(projects.storageQuotaCapGib, storageQuotaGib), isPromisable, hasRoom),
  );
  const events = (Object.keys(EVENTS) as (keyof typeof EVENTS)[]).flatMap((event) => {
    const [from, to] = EVENTS[event](project, change);
    if (to === undefined || JSON.stringify(to) === JSON.stringify(from)) return [];
    return auditEvent(event, actor, { projectId, metadata: { from, to } }, now);
  });
  const results = await inOneBatch(db, [
    ...events.map((event) =>
      insertIf(db, auditEvents, event, sql`exists (select 1 from ${projects} where ${changeable})`),
    ),
    // Only the requested fields, so that a concurrent change of another field is not reverted.
    db
      .update(projects)
      .set({ name, storageQuotaGib, ...scheduled(snapshotSchedule, now), updatedAt: now })
      .where(changeable),
    projectViews(db).where(ofTenant),
    db
      .select({ isPromisable: sql<number>`${isPromisable}`, hasRoom: sql<number>`${hasRoom}`, ...usage })
      .from(projects)
      .where(ofTenant),
  ]);
  const [current] = results.at(-2) as ProjectView[];
  const [promise] = results.at(-1) as (TenantUsage & { isPromisable: number; hasRoom: number })[];
  if (!current || !promise) return fail({ code: 'NOT_FOUND' });
  if (!promise.isPromisable) return fail(tenantQuotaReached(promise));
  if (!promise.hasRoom) return fail({ code: 'HOST_FULL' });
  // The cap was lowered, or the project deleted, in between.
  if (!hasChanged(results.at(-3))) return changeProject(db, settings, current, change, actor);
  return ok(current);
}
