import { and, eq } from 'drizzle-orm';
import { type Database, isOneOf } from '../database/database.ts';
import { snapshots } from '../database/snapshot-schema.ts';
import { type CallHost, HostCallError } from '../hosts/host-client.ts';
import { logEvent } from '../log.ts';
import type { HostedBranch, HostedSnapshot } from './differences.ts';

/**
 * Makes the databases of deleted branches what a host was to keep of them. A host that was restored from a backup has
 * them as branches again, and the deletion can still be undone.
 * @param held snapshots of the host
 * @returns the other branches
 * @throws HostCallError; what is kept would otherwise count as lost
 */
export async function keepDeleted(
  db: Database,
  callHost: CallHost,
  orphans: readonly HostedBranch[],
  held: readonly HostedSnapshot[],
): Promise<HostedBranch[]> {
  if (orphans.length === 0) return [];
  const ids = orphans.map(({ branch_id }) => branch_id);
  const wanted = await db
    .select({ snapshotId: snapshots.id, branchId: snapshots.branchId })
    .from(snapshots)
    .where(
      and(eq(snapshots.kind, 'deleted'), eq(snapshots.status, 'ready'), isOneOf(snapshots.branchId, ids)),
    );
  const kept = new Set(held.map(({ snapshot_id }) => snapshot_id));
  const keeping = new Map(
    wanted
      .filter(({ snapshotId }) => !kept.has(snapshotId))
      .map(({ branchId, snapshotId }) => [branchId, snapshotId]),
  );
  for (const { project_id, branch_id, database, state } of orphans) {
    const snapshot_id = keeping.get(branch_id);
    if (snapshot_id === undefined || state !== 'ready') continue;
    logEvent('reconcile.keep_deleted', { branch_id, snapshot_id });
    const identity = { job_id: crypto.randomUUID(), project_id, branch_id, database };
    await callHost('branch.keep', { ...identity, snapshot_id }).catch((error) => {
      // An agent of the last release does not report its snapshots, so this one does not count as lost.
      if (!(error instanceof HostCallError && error.code === 'HOST_UPGRADE_REQUIRED')) throw error;
    });
  }
  return orphans.filter(({ branch_id, state }) => !(keeping.has(branch_id) && state === 'ready'));
}
