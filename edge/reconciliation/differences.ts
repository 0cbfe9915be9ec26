import { and, eq, gt, inArray, lt, lte, or, sql } from 'drizzle-orm';
import type { BranchStatus } from '../../shared/branch/branch-status.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { atTheirEnd, atTheirLeasesEnd } from '../branches/branch-ends.ts';
import { isMove, isOpenJob } from '../database/conditions.ts';
import { type Database, isOneOf } from '../database/database.ts';
import { eventOutbox } from '../database/event-schema.ts';
import { KEPT_MS, moves } from '../database/move-schema.ts';
import { jobs, networkRules, projectBranches, projects, snapshots } from '../database/schema.ts';
import { branchIdsOf } from '../jobs/job-store.ts';
import { logEvent } from '../log.ts';

export type Inventory = MethodResult<'host.inventory'>;
export type HostedBranch = Inventory['branches'][number];
export type HostedSnapshot = NonNullable<Inventory['snapshots']>[number];

export interface RecordedBranch {
  id: string;
  projectId: string;
  tenantId: string;
  status: BranchStatus;
  databaseName: string;
}

export interface HostRecords {
  branches: RecordedBranch[];
  /**
   * `stale`: the coordinator has work. The wanted access is not known to be in effect, because of a newer revision or
   * an end that has come, or events are not published.
   */
  projects: { id: string; accessRevision: number; stale: boolean }[];
  /** The subjects of open jobs, whose differences the jobs resolve. */
  inWork: { projectId: string; branchIds: string[] }[];
}

/** The differences between a host and its records. */
export interface Differences {
  /** On the host, without a record or an open job. */
  orphans: HostedBranch[];
  orphanedProjects: string[];
  /** Recorded as existing, but not on the host. */
  missing: RecordedBranch[];
  /** Recorded as failed, but complete on the host. */
  foundAgain: RecordedBranch[];
  /** Complete on the host, under another name than on record: one side was restored to before a rename. */
  misnamed: RecordedBranch[];
  /** Projects for which the host has an older access revision than was once in effect. */
  outdatedAccess: string[];
  /**
   * Projects for which the host has a newer access revision than recorded: the records were restored from a
   * backup.
   */
  overtakenAccess: { id: string; hostRevision: number }[];
  /** Projects whose tenant the host does not know, because an agent of an earlier release made them. */
  withoutTenant: string[];
  /** Projects with remaining work. */
  toWake: string[];
}

/** After this time the leftovers of a move are dropped, whatever the other host reports. */
const KEPT_AT_MOST_MS = 30 * KEPT_MS;

/** Statuses in which a branch can have a database. A project under deletion has a job that drops them. */
const CLAIMING = ['creating', 'active', 'expired', 'deleting', 'failed'] as const;

/** The access revision known to be in effect on the host, by project id. */
export async function readAppliedRevisions(db: Database, hostId: string): Promise<Map<string, number>> {
  const rows = await db
    .select({ id: projects.id, applied: projects.accessApplied })
    .from(projects)
    .where(eq(projects.hostId, hostId));
  return new Map(rows.map(({ id, applied }) => [id, applied]));
}

export async function readRecords(db: Database, hostId: string, now: Date): Promise<HostRecords> {
  const overdue = sql`exists (select 1 from ${projectBranches} where ${and(
    eq(projectBranches.projectId, projects.id),
    or(atTheirEnd(now), atTheirLeasesEnd(now)),
  )})`;
  const unpublished = sql`exists (select 1 from ${eventOutbox} where ${eventOutbox.projectId} = ${projects.id})`;
  const expired = sql`exists (select 1 from ${snapshots} where ${and(
    eq(snapshots.projectId, projects.id),
    eq(snapshots.status, 'ready'),
    lte(snapshots.expiresAt, now),
  )})`;
  const ended = sql`exists (select 1 from ${networkRules} where ${and(
    eq(networkRules.projectId, projects.id),
    lte(networkRules.expiresAt, now),
  )})`;
  const [branches, projectRows, inWork, moving, kept] = await db.batch([
    db
      .select({
        id: projectBranches.id,
        projectId: projectBranches.projectId,
        tenantId: projectBranches.tenantId,
        status: projectBranches.status,
        databaseName: projectBranches.databaseName,
      })
      .from(projectBranches)
      .innerJoin(projects, eq(projects.id, projectBranches.projectId))
      .where(and(eq(projects.hostId, hostId), inArray(projectBranches.status, CLAIMING))),
    db
      .select({
        id: projects.id,
        accessRevision: projects.accessRevision,
        stale: sql<boolean>`access_applied < access_revision or ${overdue} or ${unpublished}
          or coalesce(${projects.snapshotDueAt} <= ${now.getTime()}, 0) or ${expired} or ${ended}`.mapWith(
          Boolean,
        ),
      })
      .from(projects)
      .where(eq(projects.hostId, hostId)),
    db
      .select({ projectId: jobs.projectId, branchId: jobs.branchId, input: jobs.input })
      .from(jobs)
      .where(and(eq(jobs.hostId, hostId), isOpenJob)),
    // The job belongs to the former host.
    db
      .select({ projectId: moves.projectId })
      .from(moves)
      .innerJoin(jobs, eq(jobs.id, moves.jobId))
      .where(and(eq(moves.toHostId, hostId), isOpenJob)),
    // A later move replaces the row of the one that has left databases here, and not its job.
    db
      .select({ projectId: jobs.projectId })
      .from(jobs)
      .innerJoin(projects, eq(projects.id, jobs.projectId))
      .where(
        and(
          isMove,
          eq(jobs.hostId, hostId),
          eq(jobs.status, 'succeeded'),
          gt(jobs.updatedAt, new Date(now.getTime() - KEPT_AT_MOST_MS)),
          // Until the other host has opened it, and has all of it: these may be the only copies.
          or(
            gt(jobs.updatedAt, new Date(now.getTime() - KEPT_MS)),
            lt(projects.accessApplied, projects.accessRevision),
            sql`exists (select 1 from ${projectBranches} where ${projectBranches.projectId} = ${projects.id} and ${projectBranches.status} = 'failed')`,
          ),
        ),
      ),
  ]);
  return {
    branches,
    projects: projectRows,
    inWork: [
      ...inWork.map((job) => ({ projectId: job.projectId, branchIds: branchIdsOf(job) })),
      ...[...moving, ...kept].map(({ projectId }) => ({ projectId, branchIds: [] })),
    ],
  };
}

/**
 * @param applied `readAppliedRevisions`, read before the inventory; a revision applied since then counts as
 *   no loss
 * @param records read after the inventory
 */
export function differencesBetween(
  inventory: Inventory,
  applied: ReadonlyMap<string, number>,
  records: HostRecords,
): Differences {
  const onRecord = new Set(records.projects.map(({ id }) => id));
  const branchesInWork = new Set(records.inWork.flatMap(({ branchIds }) => branchIds));
  const projectsInWork = new Set(records.inWork.map(({ projectId }) => projectId));
  const ready = readyBranches(inventory);

  // A failed creation drops its database, so a complete database of a failed record was only missing
  // temporarily (an unmounted disk, another server) and contains user data.
  const known = new Set(
    records.branches.filter(({ id, status }) => status !== 'failed' || ready.has(id)).map(({ id }) => id),
  );
  // A database that was not listed was as recorded when the host was read, so a job has deleted it since. Nothing is
  // dropped without the job that made it: a restored branch has the same id.
  const isOrphan = ({ branch_id, made_by }: HostedBranch) =>
    made_by !== null && !known.has(branch_id) && !branchesInWork.has(branch_id);
  const held = [...inventory.projects, ...inventory.branches, ...(inventory.snapshots ?? [])].map(
    ({ project_id }) => project_id,
  );
  // A host restored from an older backup gets all rules and passwords again, which ends every session. A
  // revision that is merely pending is therefore not counted here.
  const outdatedAccess = inventory.projects
    .filter(({ project_id, access_revision }) => access_revision < (applied.get(project_id) ?? 0))
    .map(({ project_id }) => project_id);
  const wanted = new Map(records.projects.map(({ id, accessRevision }) => [id, accessRevision]));
  const overtakenAccess = inventory.projects
    .filter(({ project_id, access_revision }) => access_revision > (wanted.get(project_id) ?? Infinity))
    .map(({ project_id, access_revision }) => ({ id: project_id, hostRevision: access_revision }));
  const withoutTenant = inventory.projects
    .filter(({ project_id, needs_tenant }) => needs_tenant && onRecord.has(project_id))
    .map(({ project_id }) => project_id);
  const names = new Map(
    inventory.branches
      .filter(({ state }) => state === 'ready')
      .map(({ branch_id, database }) => [branch_id, database]),
  );
  const stale = records.projects.filter((project) => project.stale).map(({ id }) => id);

  const misnamed = records.branches.filter(
    ({ id, status, databaseName }) =>
      (status === 'active' || status === 'expired') &&
      !branchesInWork.has(id) &&
      (names.get(id) ?? databaseName) !== databaseName,
  );

  return {
    orphans: inventory.branches.filter((branch) => onRecord.has(branch.project_id) && isOrphan(branch)),
    orphanedProjects: [...new Set(held)].filter((id) => !onRecord.has(id) && !projectsInWork.has(id)),
    missing: records.branches.filter(
      ({ id, status }) => (status === 'active' || status === 'expired') && !ready.has(id),
    ),
    foundAgain: records.branches.filter(
      ({ id, status }) => status === 'failed' && ready.has(id) && !branchesInWork.has(id),
    ),
    misnamed,
    outdatedAccess,
    overtakenAccess,
    withoutTenant,
    toWake: [
      ...new Set([
        ...projectsInWork,
        ...stale,
        ...misnamed.map(({ projectId }) => projectId),
        ...outdatedAccess,
        ...overtakenAccess.map(({ id }) => id),
        ...withoutTenant,
      ]),
    ],
  };
}

/** The ids of the branches whose databases are complete. */
export const readyBranches = ({ branches }: Inventory): Set<string> =>
  new Set(branches.filter(({ state }) => state === 'ready').map(({ branch_id }) => branch_id));

const ADVICE =
  'No job refers to it, so it is not dropped: the records may have been restored from an older backup. ' +
  'See docs/decisions/reconciliation.md.';

const logUntraced = (hostId: string, found: Record<string, string>) =>
  logEvent('reconcile.stranger', { host_id: hostId, ...found, advice: ADVICE });

/**
 * The orphans that can be dropped, because a job created them. A job that the retention has deleted leaves a stranger. The others may be user
 * data that is missing from the records, so they are only logged, at each reconciliation.
 */
export async function leftoversAmong(
  db: Database,
  hostId: string,
  { orphans, orphanedProjects }: Pick<Differences, 'orphans' | 'orphanedProjects'>,
): Promise<{ branches: HostedBranch[]; projectIds: string[] }> {
  const projectIds = [...orphanedProjects, ...orphans.map(({ project_id }) => project_id)];
  if (projectIds.length === 0) return { branches: [], projectIds: [] };
  const traces = await db
    .select({ projectId: jobs.projectId, branchId: jobs.branchId, input: jobs.input })
    .from(jobs)
    .where(isOneOf(jobs.projectId, projectIds));
  const traced = new Set(traces.flatMap((job) => [job.projectId, ...branchIdsOf(job)]));

  const untraced = [
    ...orphans
      .filter(({ branch_id }) => !traced.has(branch_id))
      .map(({ project_id, branch_id, database }) => ({ project_id, branch_id, database })),
    ...orphanedProjects.filter((id) => !traced.has(id)).map((project_id) => ({ project_id })),
  ];
  for (const orphan of untraced) logUntraced(hostId, orphan);
  return {
    branches: orphans.filter(({ branch_id }) => traced.has(branch_id)),
    projectIds: orphanedProjects.filter((id) => traced.has(id)),
  };
}

/**
 * The resets and imports whose clones can be dropped, because their jobs have ended; an ended job does not run again.
 * @param jobIds read from the host before
 */
export async function endedResets(
  db: Database,
  hostId: string,
  jobIds: string[],
): Promise<Params<'reset.cancel'>[]> {
  if (jobIds.length === 0) return [];
  const found = await db
    .select({
      job_id: jobs.id,
      project_id: jobs.projectId,
      // A move copies one branch after another under its own id.
      branch_id: sql<string>`coalesce(${jobs.branchId}, json_extract(${jobs.input}, '$.branchIds[0]'))`,
      snapshot_id: sql<string>`coalesce(json_extract(${jobs.input}, '$.snapshotId'), ${jobs.id})`,
      isOpen: sql<boolean>`${isOpenJob}`.mapWith(Boolean),
    })
    .from(jobs)
    .where(
      and(isOneOf(jobs.id, jobIds), inArray(jobs.kind, ['branch.reset', 'branch.import', 'project.move'])),
    );
  const known = new Set(found.map(({ job_id }) => job_id));
  for (const job_id of jobIds.filter((id) => !known.has(id))) logUntraced(hostId, { job_id });
  return found.filter(({ isOpen }) => !isOpen).map(({ isOpen: _, ...reset }) => reset);
}
