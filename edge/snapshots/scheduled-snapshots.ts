import { and, desc, eq, lte, sql } from 'drizzle-orm';
import { nextSnapshotAt } from '../../shared/branch/snapshot.ts';
import { noActor } from '../audit/actor.ts';
import type { Database } from '../database/database.ts';
import { projectBranches, projects } from '../database/schema.ts';
import { snapshots } from '../database/snapshot-schema.ts';
import { logEvent } from '../log.ts';
import type { Settings } from '../settings.ts';
import { reserveSnapshot } from './take-snapshot.ts';

/** Opens the job of the project's scheduled snapshot, if it is due. The next one is due one interval from now. */
export async function takeScheduledSnapshot(
  db: Database,
  settings: Pick<Settings, 'SNAPSHOT_LIMIT'>,
  projectId: string,
  now: Date,
  beforeWriting: () => void,
): Promise<void> {
  const isDue = and(
    eq(projects.id, projectId),
    eq(projects.status, 'active'),
    lte(projects.snapshotDueAt, now),
  );
  const [project] = await db.select().from(projects).where(isDue);
  if (!project?.snapshotSchedule) return;
  beforeWriting();
  const [[main], [before]] = await db.batch([
    db
      .select()
      .from(projectBranches)
      .where(and(eq(projectBranches.projectId, projectId), eq(projectBranches.isDefault, true))),
    db
      .select({ id: snapshots.id })
      .from(snapshots)
      .where(and(eq(snapshots.projectId, projectId), eq(snapshots.kind, 'schedule')))
      .orderBy(desc(snapshots.takenAt))
      .limit(1),
  ]);
  const snapshotDueAt = nextSnapshotAt(project.snapshotSchedule, now);
  const advance = db.update(projects).set({ snapshotDueAt }).where(isDue);
  if (!main) {
    await advance;
    return;
  }
  const reserved = await reserveSnapshot(
    db,
    settings,
    {
      jobId: crypto.randomUUID(),
      snapshotId: crypto.randomUUID(),
      branch: main,
      name: null,
      kind: 'schedule',
      ttlSeconds: null,
      ...(before && { unlessSameAs: before.id }),
      hostId: project.hostId,
      actor: noActor(project.tenantId),
      createdBy: project.createdBy,
      keyUse: null,
    },
    now,
    {
      // Another call may have taken it since.
      isDue: sql`exists (select 1 from ${projects} where ${isDue})`,
      advance,
    },
  );
  if (!reserved.ok)
    logEvent('snapshot.not_scheduled', { project_id: projectId, code: reserved.failure.code });
}

/** When the project's next scheduled snapshot is due, in Unix milliseconds; infinite without a schedule. */
export async function nextScheduled(db: Database, projectId: string): Promise<number> {
  const [project] = await db
    .select({ at: projects.snapshotDueAt })
    .from(projects)
    .where(and(eq(projects.id, projectId), eq(projects.status, 'active')));
  return project?.at?.getTime() ?? Number.POSITIVE_INFINITY;
}
