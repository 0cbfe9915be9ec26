import { and, eq, inArray, sql } from 'drizzle-orm';
import type { BranchStatus } from '../../shared/branch/branch-status.ts';
import type { Result } from '../../shared/protocol/operations.ts';
import type { Database } from '../database/database.ts';
import { jobs, projectBranches, projects } from '../database/schema.ts';
import { OPEN_STATUSES } from '../jobs/job-store.ts';

export type Inventory = Result<'host.inventory'>;
export type HeldBranch = Inventory['branches'][number];

export interface RecordedBranch {
  id: string;
  projectId: string;
  tenantId: string;
  status: BranchStatus;
  expiresAt: Date | null;
}

/** What the records say of one host. */
export interface HostRecords {
  branches: RecordedBranch[];
  /** `stale`: the host is not known to obey the wanted revision of the project's rules. */
  projects: { id: string; wanted: number; stale: boolean }[];
  /** What open jobs are about: theirs to resolve. */
  inWork: { projectId: string; branchId: string | null }[];
}

/** Where host and records differ. */
export interface Differences {
  /** On the host, known to no record and no job. */
  orphans: HeldBranch[];
  orphanedProjects: string[];
  /** On record, though not on the host. */
  missing: RecordedBranch[];
  /** On record as failed, and whole on the host. */
  foundAgain: RecordedBranch[];
  /** Projects whose rules the host has in an older revision than it once had. */
  outdatedRules: string[];
  /** Projects that have work left. */
  toWake: string[];
}

/** Statuses in which a record may have something on the host. A project under deletion has a job that drops it. */
const CLAIMING = ['creating', 'active', 'expired', 'deleting', 'failed'] as const;

export async function readRecords(db: Database, hostId: string): Promise<HostRecords> {
  const [branches, projectRows, inWork] = await db.batch([
    db
      .select({
        id: projectBranches.id,
        projectId: projectBranches.projectId,
        tenantId: projectBranches.tenantId,
        status: projectBranches.status,
        expiresAt: projectBranches.expiresAt,
      })
      .from(projectBranches)
      .innerJoin(projects, eq(projects.id, projectBranches.projectId))
      .where(and(eq(projects.hostId, hostId), inArray(projectBranches.status, CLAIMING))),
    db
      .select({
        id: projects.id,
        wanted: projects.accessRevision,
        stale: sql<boolean>`access_applied < access_revision`.mapWith(Boolean),
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

/** @param inventory taken before the records were read */
export function differencesBetween(inventory: Inventory, records: HostRecords): Differences {
  const wanted = new Map(records.projects.map((project) => [project.id, project.wanted]));
  const branchesInWork = new Set(records.inWork.flatMap(({ branchId }) => branchId ?? []));
  const projectsInWork = new Set(records.inWork.map(({ projectId }) => projectId));
  const ready = readyBranches(inventory);

  // A failed creation has dropped what it made, so a whole database of a failed record was missing for a while:
  // its disk was not mounted, or the agent looked at another server. It is somebody's data.
  const known = new Set(
    records.branches.filter(({ id, status }) => status !== 'failed' || ready.has(id)).map(({ id }) => id),
  );
  const isNobodys = ({ branch_id }: HeldBranch) => !known.has(branch_id) && !branchesInWork.has(branch_id);
  const held = [...inventory.projects, ...inventory.branches].map(({ project_id }) => project_id);
  // The host may have lost its rules (restored from an older backup): it gets them again.
  const outdatedRules = inventory.projects
    .filter(({ project_id, access_revision }) => access_revision < (wanted.get(project_id) ?? 0))
    .map(({ project_id }) => project_id);
  const stale = records.projects.filter((project) => project.stale).map(({ id }) => id);

  return {
    orphans: inventory.branches.filter((branch) => wanted.has(branch.project_id) && isNobodys(branch)),
    orphanedProjects: [...new Set(held)].filter((id) => !wanted.has(id) && !projectsInWork.has(id)),
    missing: records.branches.filter(
      ({ id, status }) => (status === 'active' || status === 'expired') && !ready.has(id),
    ),
    foundAgain: records.branches.filter(
      ({ id, status }) => status === 'failed' && ready.has(id) && !branchesInWork.has(id),
    ),
    outdatedRules,
    toWake: [...new Set([...projectsInWork, ...stale, ...outdatedRules])],
  };
}

/** Ids of the branches whose databases are whole. */
export const readyBranches = ({ branches }: Inventory): Set<string> =>
  new Set(branches.filter(({ state }) => state === 'ready').map(({ branch_id }) => branch_id));
