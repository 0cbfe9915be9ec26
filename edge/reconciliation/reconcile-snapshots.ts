import { and, eq, inArray, sql } from 'drizzle-orm';
import type { Params } from '../../shared/protocol/operations.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import { forgetDeletedBranch, isUnused } from '../branches/drop-snapshots.ts';
import { OPEN_STATUSES } from '../database/conditions.ts';
import { type Database, isOneOf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import {
  auditEvents,
  jobs,
  projectBranches,
  projects,
  type SnapshotRow,
  snapshots,
} from '../database/schema.ts';
import type { CallHost } from '../hosts/host-client.ts';
import { logEvent } from '../log.ts';
import { type HostedSnapshot, type Inventory, readyBranches } from './differences.ts';
import { openInventory } from './read-inventory.ts';

/** Statuses of a branch that has a database, or has lost it. */
const EXISTING = ['active', 'expired', 'failed'] as const;

/**
 * Resolves the differences between the snapshots on a host and their records. Those of open jobs are left to
 * the jobs. An agent that does not report its snapshots has lost none.
 * @param inventory read before the records: a snapshot is recorded before the host makes it
 * @param waiting snapshots that the host does not have yet
 * @returns false if something is left to another reconciliation
 */
export async function reconcileSnapshots(
  db: Database,
  callHost: CallHost,
  hostId: string,
  inventory: Inventory,
  waiting: ReadonlySet<string>,
): Promise<boolean> {
  const { snapshots: held } = inventory;
  if (held === null) return true;
  const recorded = await db
    .select({ snapshot: snapshots })
    .from(snapshots)
    .innerJoin(projects, and(eq(projects.id, snapshots.projectId), eq(projects.hostId, hostId)));
  const records = new Map(recorded.map(({ snapshot }) => [snapshot.id, snapshot]));
  await dropOrphans(
    db,
    callHost,
    held.filter(({ snapshot_id }) => !records.has(snapshot_id)),
    readyBranches(inventory),
  );
  const separated = held.filter(
    ({ snapshot_id, independent }) => independent && records.get(snapshot_id)?.independent === false,
  );
  const ids = separated.map(({ snapshot_id }) => snapshot_id);
  if (ids.length > 0) await db.update(snapshots).set({ independent: true }).where(isOneOf(snapshots.id, ids));
  const expected = [...records.values()].filter(({ id }) => !waiting.has(id));
  return markMissing(db, callHost, inventory, expected);
}

/**
 * Drops those that a job once made. The others may be missing from restored records, so they are only logged.
 * So are those of a branch that the host has lost: a restored host can have the kept database of a branch
 * that was restored from it since, and nothing else of that branch.
 */
async function dropOrphans(
  db: Database,
  callHost: CallHost,
  orphans: HostedSnapshot[],
  ready: ReadonlySet<string>,
): Promise<void> {
  if (orphans.length === 0) return;
  const ids = JSON.stringify(orphans.map(({ snapshot_id }) => snapshot_id));
  const traces = await db
    .select({
      id: sql<string>`wanted.value`,
      status: jobs.status,
      /** Null unless the branch is on record. */
      branchId: projectBranches.id,
    })
    .from(jobs)
    .innerJoin(
      sql`json_each(${ids}) as wanted`,
      sql`wanted.value in (json_extract(${jobs.input}, '$.snapshotId'), json_extract(${jobs.input}, '$.prepared.snapshotId'))`,
    )
    .leftJoin(
      projectBranches,
      and(eq(projectBranches.id, jobs.branchId), inArray(projectBranches.status, EXISTING)),
    );
  for (const { project_id, snapshot_id } of orphans) {
    const ofSnapshot = traces.filter(({ id }) => id === snapshot_id);
    const isOpen = ofSnapshot.some(({ status }) => OPEN_STATUSES.some((open) => open === status));
    if (isOpen) continue;
    const isNeeded = ofSnapshot.some(({ branchId }) => branchId !== null && !ready.has(branchId));
    const isTraced = ofSnapshot.length > 0 && !isNeeded;
    logEvent(isTraced ? 'reconcile.drop_snapshot' : 'reconcile.strange_snapshot', {
      project_id,
      snapshot_id,
    });
    if (isTraced) await dropSnapshot(callHost, { project_id, snapshot_id });
  }
}

/**
 * Removes the records of snapshots that the host has lost, or has dropped because its disk was full. That of
 * a branch which is being restored stays until the restoration has ended.
 */
async function markMissing(
  db: Database,
  callHost: CallHost,
  first: Inventory,
  records: readonly SnapshotRow[],
): Promise<boolean> {
  const missingIn = (inventory: Inventory, wanted: readonly SnapshotRow[]) => {
    if (inventory.snapshots === null) return [];
    const ready = new Set(
      inventory.snapshots.flatMap(({ snapshot_id, ready }) => (ready ? [snapshot_id] : [])),
    );
    return wanted.filter(({ id, status }) => status === 'ready' && !ready.has(id));
  };
  const missing = missingIn(first, records);
  if (missing.length === 0) return true;
  // A snapshot that was completed since the first inventory is not missing.
  const second = await openInventory(callHost);
  if (second.system_identifier !== first.system_identifier) return false;
  const present = await second.list(missing.map(({ projectId }) => projectId));
  for (const snapshot of missingIn(present, missing)) {
    const about = { project_id: snapshot.projectId, snapshot_id: snapshot.id };
    const isRemoved = await markLost(db, snapshot, new Date()).catch((error) => {
      logEvent('reconcile.unresolved', { ...about, reason: String(error) });
      return false;
    });
    // The host may have a remainder of it.
    if (isRemoved) await dropSnapshot(callHost, about);
  }
  // Snapshots that have changed on the host since the first inventory were not compared.
  return false;
}

/** Never throws: one that cannot be dropped now is no reason to leave the others. */
async function dropSnapshot(callHost: CallHost, snapshot: Params<'snapshot.drop'>): Promise<void> {
  await callHost('snapshot.drop', snapshot).catch((error) =>
    logEvent('reconcile.unresolved', { ...snapshot, reason: String(error) }),
  );
}

/** @returns whether its record was removed */
async function markLost(db: Database, snapshot: SnapshotRow, now: Date): Promise<boolean> {
  const { id, projectId, branchId, branchName, kind, tenantId } = snapshot;
  const thisOne = and(eq(snapshots.id, id), eq(snapshots.status, 'ready'), isUnused);
  const metadata = { snapshot_id: id, branch_name: branchName, kind, reason: 'missing_on_host' };
  const name = kind === 'deleted' ? 'branch.purged' : 'snapshot.lost';
  const event = auditEvent(name, noActor(tenantId), { projectId, branchId, metadata }, now);
  const { ok: isRemoved } = await guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere(snapshots, thisOne), 'NOT_FOUND']],
    rest: (isWritten) => [
      ...forgetDeletedBranch(db, snapshot, isWritten),
      db.delete(snapshots).where(and(eq(snapshots.id, id), isWritten)),
    ],
  });
  if (isRemoved) logEvent('reconcile.snapshot_lost', { snapshot_id: id, kind });
  return isRemoved;
}
