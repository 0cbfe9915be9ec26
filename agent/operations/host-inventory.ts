import type { Holdings } from '../../shared/protocol/inventory-digest.ts';
import { freeBytes } from '../guard/volumes.ts';
import type { Host } from '../host.ts';
import { inTransaction } from '../postgres/connect.ts';
import { closeToPublic } from '../postgres/database-settings.ts';
import { withLocks } from '../postgres/locks.ts';
import { readBranches } from '../postgres/read-branches.ts';
import { dropUnusedRoles, restoreLogins } from '../postgres/roles.ts';
import { readSnapshots } from '../snapshots/snapshot-databases.ts';

/**
 * Lists what the host holds. Because the reconciler calls it regularly, it also retries roles that could not be dropped
 * earlier, restores passwords that logins changed, and closes databases that were restored by hand.
 */
export async function takeInventory(
  host: Host,
): Promise<Holdings & { system_identifier: string; free_bytes: number }> {
  host.known.beginReading();
  await withLocks(host.sessions, [], async (session) => {
    await closeToPublic(session);
    await dropUnusedRoles(session);
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
export async function readHoldings({ postgres }: Host): Promise<Holdings> {
  const [projects, branches, snapshots] = await Promise.all([
    postgres.query<Holdings['projects'][number]>(
      'SELECT project_id, access_revision FROM project ORDER BY project_id',
    ),
    readBranches(postgres),
    readSnapshots(postgres),
  ]);
  return { projects: projects.rows, branches, snapshots };
}
