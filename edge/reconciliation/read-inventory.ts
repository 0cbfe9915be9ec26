import { and, eq, inArray } from 'drizzle-orm';
import type { HostDescription } from '../../shared/protocol/host-description.ts';
import {
  type Compared,
  digestGroups,
  groupOf,
  type Holdings,
} from '../../shared/protocol/inventory-digest.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { sha256 } from '../crypto/encoding.ts';
import type { Database } from '../database/database.ts';
import { projectBranches, projects, snapshots } from '../database/schema.ts';
import { type CallHost, HostCallError } from '../hosts/host-client.ts';
import type { Inventory } from './differences.ts';

/** The beginning of an inventory; the rest is read only from a host that runs the recorded cluster. */
export interface InventoryReading {
  system_identifier: string;
  free_bytes: number | null;
  description: HostDescription | null;
  /** The jobs of resets whose clones are not swapped in. */
  resets: string[];
  /** Logins that had changed themselves. */
  restored_logins: MethodResult<'inventory.digest'>['restored_logins'];
  /**
   * Reads the inventory of the host. Groups of projects that are as expected are not transferred: they hold what was expected.
   * @param readExpected called after the host was read
   */
  complete: (readExpected: () => Promise<Expected>) => Promise<Inventory>;
  /** The inventory of these projects, and perhaps of others. */
  list: (projectIds: readonly string[]) => Promise<Inventory>;
}

/** The inventory of a host without differences, by the records. */
export type Expected = Pick<Holdings, 'projects' | 'snapshots'> & {
  branches: (Compared['branches'][number] & { database: string; made_by: null })[];
};

/** @throws HostCallError */
export async function openInventory(callHost: CallHost): Promise<InventoryReading> {
  let digest: MethodResult<'inventory.digest'>;
  try {
    digest = await callHost('inventory.digest', {});
  } catch (error) {
    if (!(error instanceof HostCallError && error.code === 'HOST_UPGRADE_REQUIRED')) throw error;
    const whole = await callHost('host.inventory', {});
    const unknown = { description: null, resets: [], restored_logins: [] };
    return { ...whole, ...unknown, complete: async () => whole, list: async () => whole };
  }
  const { groups: held, ...host } = digest;
  return {
    ...host,
    async complete(readExpected) {
      const expected = await readExpected();
      const wanted = await digestGroups(expected, sha256);
      const isSame = (group: string) =>
        wanted[group]?.count === held[group]?.count && wanted[group]?.hash === held[group]?.hash;
      const differing = [...new Set([...Object.keys(wanted), ...Object.keys(held)])].filter(
        (group) => !isSame(group),
      );
      const listed = await listGroups(callHost, differing);
      const isElsewhere = ({ project_id }: { project_id: string }) => isSame(groupOf(project_id));
      return {
        ...host,
        projects: [...expected.projects.filter(isElsewhere), ...listed.projects],
        branches: [...expected.branches.filter(isElsewhere), ...listed.branches],
        snapshots: [...expected.snapshots.filter(isElsewhere), ...listed.snapshots],
      };
    },
    list: async (projectIds) => ({
      ...host,
      ...(await listGroups(callHost, [...new Set(projectIds.map(groupOf))])),
    }),
  };
}

/**
 * Projects, branches and snapshots that a host may list: ten times those of a large one. One that an attacker has
 * taken over could list pages until the isolate has no memory.
 */
const ENTRIES_MAX = 200_000;

/** Pages of the groups; none of them is asked for what it does not have. @throws Error for a host that lies */
async function listGroups(callHost: CallHost, groups: string[]): Promise<Holdings> {
  const listed: Holdings = { projects: [], branches: [], snapshots: [] };
  if (groups.length === 0) return listed;
  let after: string | null = null;
  let entries = 0;
  do {
    const page: MethodResult<'inventory.list'> = await callHost('inventory.list', { groups, after });
    listed.projects.push(...page.projects);
    listed.branches.push(...page.branches);
    listed.snapshots.push(...page.snapshots);
    if (page.next !== null && after !== null && page.next <= after)
      throw new Error('the host repeats a page of its inventory');
    // An empty page counts too.
    entries += 1 + page.projects.length + page.branches.length + page.snapshots.length;
    if (entries > ENTRIES_MAX) throw new Error(`the host lists more than ${ENTRIES_MAX} entries`);
    after = page.next;
  } while (after !== null);
  return listed;
}

/** The inventory of a host that does not differ from the records; open jobs make differences. */
export async function readExpected(db: Database, hostId: string): Promise<Expected> {
  const onHost = eq(projects.hostId, hostId);
  const [projectRows, branches, taken] = await db.batch([
    db
      .select({ project_id: projects.id, access_revision: projects.accessApplied })
      .from(projects)
      .where(onHost),
    db
      .select({
        project_id: projectBranches.projectId,
        branch_id: projectBranches.id,
        database: projectBranches.databaseName,
      })
      .from(projectBranches)
      .innerJoin(projects, eq(projects.id, projectBranches.projectId))
      .where(and(onHost, inArray(projectBranches.status, ['active', 'expired']))),
    db
      .select({
        project_id: snapshots.projectId,
        snapshot_id: snapshots.id,
        independent: snapshots.independent,
      })
      .from(snapshots)
      .innerJoin(projects, eq(projects.id, snapshots.projectId))
      .where(and(onHost, eq(snapshots.status, 'ready'))),
  ]);
  return {
    projects: projectRows,
    branches: branches.map((branch) => ({ ...branch, state: 'ready' as const, made_by: null })),
    snapshots: taken.map((snapshot) => ({ ...snapshot, ready: true })),
  };
}
