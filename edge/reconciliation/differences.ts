import { and, eq, inArray, lte, sql } from 'drizzle-orm';
import type { BranchStatus } from '../../shared/branch/branch-status.ts';
import type { Result } from '../../shared/protocol/operations.ts';
import type { Database } from '../database/database.ts';
import { jobs, projectBranches, projects } from '../database/schema.ts';
import { OPEN_STATUSES } from '../jobs/job-store.ts';

export type Inventory = Result<'host.inventory'>;
export type HostedBranch = Inventory['branches'][number];

export interface RecordedBranch {
  id: string;
  projectId: string;
  tenantId: string;
  status: BranchStatus;
}

/** What the records say of one host. */
export interface HostRecords {
  branches: RecordedBranch[];
  /** `stale`: the host is not known to obey the access as it should be by now: another revision, or a branch's end. */
  projects: { id: string; accessRevision: number; stale: boolean }[];
  /** What open jobs are about: theirs to resolve. */
  inWork: { projectId: string; branchId: string | null }[];
}

/** Where host and records differ. */
export interface Differences {
  /** On the host, known to no record and no job. */
  orphans: HostedBranch[];
  orphanedProjects: string[];
  /** On record, though not on the host. */
  missing: RecordedBranch[];
  /** On record as failed, and whole on the host. */
  foundAgain: RecordedBranch[];
  /** Projects whose access the host has in an older revision than it once obeyed. */
  outdatedAccess: string[];
  /** Projects whose access the host has in a newer revision than was ever wanted: the records have gone back. */
  overtakenAccess: { id: string; hostRevision: number }[];
  /** Projects that have work left. */
  toWake: string[];
}

/** Statuses in which a record may have something on the host. A project under deletion has a job that drops it. */
const CLAIMING = ['creating', 'active', 'expired', 'deleting', 'failed'] as const;

/** Access revision of each of the host's projects that it is known to have obeyed, by project id. */
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
    eq(projectBranches.status, 'active'),
    lte(projectBranches.expiresAt, now),
  )})`;
  const [branches, projectRows, inWork] = await db.batch([
    db
      .select({
        id: projectBranches.id,
        projectId: projectBranches.projectId,
        tenantId: projectBranches.tenantId,
        status: projectBranches.status,
      })
      .from(projectBranches)
      .innerJoin(projects, eq(projects.id, projectBranches.projectId))
      .where(and(eq(projects.hostId, hostId), inArray(projectBranches.status, CLAIMING))),
    db
      .select({
        id: projects.id,
        accessRevision: projects.accessRevision,
        stale: sql<boolean>`access_applied < access_revision or ${overdue}`.mapWith(Boolean),
      })
      .from(projects)
      .where(eq(projects.hostId, hostId)),
    db
      .selectDistinct({ projectId: jobs.projectId, branchId: jobs.branchId })
      .from(jobs)
      .where(and(eq(jobs.hostId, hostId), inArray(jobs.status, OPEN_STATUSES))),
  ]);
  return { branches, projects: projectRows, inWork };
}

/**
 * @param obeyed as read before the inventory was taken: a revision that came since is no loss
 * @param records as read after it
 */
export function differencesBetween(
  inventory: Inventory,
  obeyed: ReadonlyMap<string, number>,
  records: HostRecords,
): Differences {
  const onRecord = new Set(records.projects.map(({ id }) => id));
  const branchesInWork = new Set(records.inWork.flatMap(({ branchId }) => branchId ?? []));
  const projectsInWork = new Set(records.inWork.map(({ projectId }) => projectId));
  const ready = readyBranches(inventory);

  // A failed creation has dropped what it made, so a whole database of a failed record was missing for a while:
  // its disk was not mounted, or the agent looked at another server. It is somebody's data.
  const known = new Set(
    records.branches.filter(({ id, status }) => status !== 'failed' || ready.has(id)).map(({ id }) => id),
  );
  const isNobodys = ({ branch_id }: HostedBranch) => !known.has(branch_id) && !branchesInWork.has(branch_id);
  const held = [...inventory.projects, ...inventory.branches].map(({ project_id }) => project_id);
  // The host may have lost its rules (restored from an older backup): it gets all again, passwords too, and these
  // end every session. So a revision that is only waiting for it doesn't count.
  const outdatedAccess = inventory.projects
    .filter(({ project_id, access_revision }) => access_revision < (obeyed.get(project_id) ?? 0))
    .map(({ project_id }) => project_id);
  const wanted = new Map(records.projects.map(({ id, accessRevision }) => [id, accessRevision]));
  const overtakenAccess = inventory.projects
    .filter(({ project_id, access_revision }) => access_revision > (wanted.get(project_id) ?? Infinity))
    .map(({ project_id, access_revision }) => ({ id: project_id, hostRevision: access_revision }));
  const stale = records.projects.filter((project) => project.stale).map(({ id }) => id);

  return {
    orphans: inventory.branches.filter((branch) => onRecord.has(branch.project_id) && isNobodys(branch)),
    orphanedProjects: [...new Set(held)].filter((id) => !onRecord.has(id) && !projectsInWork.has(id)),
    missing: records.branches.filter(
      ({ id, status }) => (status === 'active' || status === 'expired') && !ready.has(id),
    ),
    foundAgain: records.branches.filter(
      ({ id, status }) => status === 'failed' && ready.has(id) && !branchesInWork.has(id),
    ),
    outdatedAccess,
    overtakenAccess,
    toWake: [
      ...new Set([...projectsInWork, ...stale, ...outdatedAccess, ...overtakenAccess.map(({ id }) => id)]),
    ],
  };
}

/** Ids of the branches whose databases are whole. */
export const readyBranches = ({ branches }: Inventory): Set<string> =>
  new Set(branches.filter(({ state }) => state === 'ready').map(({ branch_id }) => branch_id));
