import { and, eq } from 'drizzle-orm';
import { type Database, isOneOf } from '../database/database.ts';
import { snapshots } from '../database/snapshot-schema.ts';
import type { CallHost } from '../hosts/host-client.ts';
import { logEvent } from '../log.ts';
import type { HostedBranch, HostedSnapshot } from './differences.ts';

/**
 * Makes the databases of deleted branches what a host was to keep of them. A host that was restored from a backup has
 * them as branches again, and the deletion can still be undone.
 * @param held snapshots of the host
 * @returns the other branches, and what could not be kept now, which must not count as lost
 */
export async function keepDeleted(
  db: Database,
  callHost: CallHost,
  orphans: readonly HostedBranch[],
  held: readonly HostedSnapshot[],
): Promise<{ others: HostedBranch[]; waiting: ReadonlySet<string> }> {
  const waiting = new Set<string>();
  if (orphans.length === 0) return { others: [], waiting };
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
  const isKept = ({ branch_id, state }: HostedBranch) => keeping.has(branch_id) && state === 'ready';
  for (const { project_id, branch_id, database, made_by } of orphans.filter(isKept)) {
    const snapshot_id = keeping.get(branch_id) ?? '';
    logEvent('reconcile.keep_deleted', { branch_id, snapshot_id });
    const identity = { job_id: crypto.randomUUID(), project_id, branch_id, database };
    try {
      await callHost('branch.keep', { ...identity, snapshot_id, made_by });
    } catch (error) {
      logEvent('reconcile.failed', { branch_id, snapshot_id, reason: String(error) });
      waiting.add(snapshot_id);
    }
  }
  return { others: orphans.filter((orphan) => !isKept(orphan)), waiting };
}
