import { createHash } from 'node:crypto';
import { BRANCH_ROLES, loginName } from '../../shared/branch/login.ts';
import type { HostDescription } from '../../shared/protocol/host-description.ts';
import { digestGroups, groupOf, type Holdings } from '../../shared/protocol/inventory-digest.ts';
import { RESTORED_LOGINS_MAX } from '../../shared/protocol/inventory-operations.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { VERSION } from '../../shared/version.ts';
import { type ExaminedHost, examine } from '../maintenance/examine.ts';
import type { Source } from '../measurement/disk-usage.ts';
import { readDrillsSince } from '../past/drills.ts';
import { readBranches, readResets } from '../postgres/branches.ts';
import { inTransaction, type Pool } from '../postgres/connect.ts';
import { closeToPublic } from '../postgres/databases.ts';
import { withLocks } from '../postgres/locks.ts';
import { readProjectExtensions } from '../postgres/project-extensions.ts';
import { ensureQueryLogins, restoreLogins } from '../postgres/roles.ts';
import { dropUnusedRoles } from '../postgres/unused-roles.ts';
import { readSnapshots } from '../snapshots/snapshot-databases.ts';
import { diskSize, freeBytes } from '../volumes/volumes.ts';

/** What it takes to describe a host. */
export interface InventoryHost extends ExaminedHost {
  sessions: Pool;
  /** As the running agent last measured it; null where it is not measured. */
  diskUsage: { largest: () => Source | null };
  spares: { count: number };
  known: KnownInventory;
}

/**
 * Lists what the host holds. Because the reconciler calls it regularly, it also retries roles that could not
 * be dropped earlier, restores passwords and settings that logins changed, makes the query logins of branches of an earlier release, and closes databases that were restored by
 * hand.
 */
export async function takeInventory(
  host: InventoryHost,
): Promise<Holdings & { system_identifier: string; free_bytes: number }> {
  host.known.beginReading();
  await withLocks(host.sessions, [], async (session) => {
    await closeToPublic(session);
    await dropUnusedRoles(session);
    await ensureQueryLogins(session);
    await inTransaction(session, () => restoreLogins(session));
  });
  const [holdings, cluster, free_bytes] = await Promise.all([
    readHoldings(host),
    host.postgres.query<{ system_identifier: string }>(
      'SELECT system_identifier::text FROM pg_control_system()',
    ),
    freeBytes(host.settings.PGDATA_DIR),
  ]);
  host.known.endReading(free_bytes);
  return { system_identifier: cluster.rows[0]?.system_identifier ?? '', free_bytes, ...holdings };
}

/** Every project, branch and snapshot on this host. */
async function readHoldings({ postgres }: InventoryHost): Promise<Holdings> {
  const [projects, branches, snapshots] = await Promise.all([
    postgres.query<{ project_id: string; access_revision: number; tenant: string | null }>(
      'SELECT project_id, access_revision, tenant FROM project ORDER BY project_id',
    ),
    readBranches(postgres),
    readSnapshots(postgres),
  ]);
  return {
    projects: projects.rows.map(({ tenant, ...project }) => ({
      ...project,
      ...(tenant === null && { needs_tenant: true as const }),
    })),
    branches,
    snapshots,
  };
}

/** Versions, disk and backups of this host, and a sentence for each fault of its set-up. */
export async function describeHost(host: InventoryHost): Promise<HostDescription> {
  const [{ findings, postgresVersion, poolerVersion, backup, certificateNames }, disk_bytes] =
    await Promise.all([examine(host), diskSize(host.settings.PGDATA_DIR)]);
  return {
    agent_version: VERSION,
    postgres_version: postgresVersion,
    pooler_version: poolerVersion,
    clone_method: host.cloneMethod,
    disk_bytes,
    largest_source: host.diskUsage.largest(),
    spares: host.spares.count,
    last_backup_at: backup.lastBackupAt?.toISOString() ?? null,
    last_archived_at: backup.lastArchivedAt?.toISOString() ?? null,
    recoverable_from: (await host.past.copies())[0]?.ended_at ?? null,
    // One copy from before the window stays.
    past_hours: host.past.hours === 0 ? null : host.past.hours + host.settings.BASE_COPY_HOURS,
    drills_since: (await readDrillsSince(host))?.toISOString() ?? null,
    certificate_names: certificateNames,
    project_extensions: (await readProjectExtensions(host.settings, host.postgres)).offered,
    warnings: findings.map(({ sentence }) => sentence),
  };
}

const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');

/**
 * The newest reports of logins that had changed themselves, in turn of each project: otherwise a tenant with ten branches could
 * push out those of another one.
 */
async function readRestoredLogins(
  postgres: Pool,
): Promise<MethodResult<'inventory.digest'>['restored_logins']> {
  const { rows } = await postgres.query<{
    id: string;
    branch_id: string;
    login: string;
    password: boolean;
    settings: string[];
  }>(
    `SELECT id, branch_id, login, password, restored_login.settings[1:100] AS settings
     FROM restored_login JOIN branch USING (branch_id)
     ORDER BY row_number() OVER (PARTITION BY project_id ORDER BY restored_at DESC), restored_at DESC
     LIMIT ${RESTORED_LOGINS_MAX}`,
  );
  return rows.flatMap(({ login, settings, ...row }) => {
    const role = BRANCH_ROLES.find((role) => loginName(row.branch_id, role) === login);
    return role ? [{ ...row, role, settings: settings.map((name) => name.slice(0, 200)) }] : [];
  });
}

/** The inventory, short enough for a host with any number of databases. */
export async function digestInventory(host: InventoryHost): Promise<MethodResult<'inventory.digest'>> {
  const { system_identifier, free_bytes, ...holdings } = await takeInventory(host);
  return {
    system_identifier,
    free_bytes,
    // A pooler that is away must not prevent the reconciliation.
    description: await describeHost(host).catch(() => null),
    resets: await readResets(host.postgres),
    restored_logins: await readRestoredLogins(host.postgres),
    groups: await digestGroups(holdings, sha256),
  };
}

/** A page ends with the project that fills it; the largest project has some hundred entries. */
const PAGE_ENTRIES = 2_000;

export const listInventory = async (
  host: InventoryHost,
  params: Params<'inventory.list'>,
): Promise<MethodResult<'inventory.list'>> => pageOf(await readHoldings(host), params);

export function pageOf(
  holdings: Holdings,
  { groups, after }: Params<'inventory.list'>,
  pageEntries = PAGE_ENTRIES,
): MethodResult<'inventory.list'> {
  const wanted = new Set(groups);
  const sizes = new Map<string, number>();
  for (const { project_id } of [...holdings.projects, ...holdings.branches, ...holdings.snapshots])
    sizes.set(project_id, (sizes.get(project_id) ?? 0) + 1);
  const rest = [...sizes.keys()]
    .filter((id) => wanted.has(groupOf(id)) && (after === null || id > after))
    .sort();
  const page = new Set<string>();
  let entries = 0;
  for (const id of rest) {
    page.add(id);
    entries += sizes.get(id) ?? 0;
    if (entries >= pageEntries) break;
  }
  const isOnPage = ({ project_id }: { project_id: string }) => page.has(project_id);
  return {
    projects: holdings.projects.filter(isOnPage),
    branches: holdings.branches.filter(isOnPage),
    snapshots: holdings.snapshots.filter(isOnPage),
    next: page.size < rest.length ? ([...page].at(-1) ?? null) : null,
  };
}

/** What the gateway knows of this host, by the inventory that was last read for it. */
export class KnownInventory {
  readonly #leastChange: number;
  #freeBytes: number | null = null;
  #isOutdated = false;

  /**
   * @param leastChange of the free space that matters, in bytes: on a nearly full disk every statement halves
   *   or doubles it
   */
  constructor(leastChange: number) {
    this.#leastChange = leastChange;
  }

  /**
   * Called before an inventory is read, so that the gateway does not count as knowing what changes meanwhile.
   */
  beginReading(): void {
    this.#isOutdated = false;
  }

  /** @param freeBytes as the inventory reports them */
  endReading(freeBytes: number): void {
    this.#freeBytes = freeBytes;
  }

  /** Called after a change of what the host holds that no operation of the gateway made. */
  outdate(): void {
    this.#isOutdated = true;
  }

  /**
   * Whether the gateway has to read the inventory again: something has changed, or half of the free space was
   * used or has become free. It places projects by this space.
   */
  isOutdated(freeBytes: number): boolean {
    if (this.#isOutdated) return true;
    if (this.#freeBytes === null) return false;
    const [less = 0, more = 0] = [freeBytes, this.#freeBytes].sort((a, b) => a - b);
    return less < more / 2 && more - less >= this.#leastChange;
  }
}
