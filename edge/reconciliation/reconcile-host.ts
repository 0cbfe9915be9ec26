import { and, eq, lt, sql } from 'drizzle-orm';
import type { Params } from '../../shared/protocol/operations.ts';
import { closeWithProject, nextAccessRevision } from '../access/send-access.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import { isAllowed, transition } from '../branches/branch.ts';
import { reserveRenameOnHost } from '../branches/rename-branch.ts';
import { type Coordinators, coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { type Database, type DatabaseBinding, isOneOf, openDatabase } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents, hosts, projectBranches, projects, snapshots } from '../database/schema.ts';
import { type CallHost, type HostLinks, hostCaller } from '../hosts/host-client.ts';
import { logEvent } from '../log.ts';
import { repairNames } from '../projects/dns-names.ts';
import { readSettings } from '../settings.ts';
import { checkFollow, followsOn } from '../sources/record.ts';
import {
  type Differences,
  differencesBetween,
  endedResets,
  type HostedBranch,
  type HostedSnapshot,
  type Inventory,
  leftoversAmong,
  type RecordedBranch,
  readAppliedRevisions,
  readRecords,
  readyBranches,
} from './differences.ts';
import { continueDrain } from './drain-host.ts';
import { type InventoryReading, openInventory, readExpected } from './read-inventory.ts';
import { reconcileSnapshots } from './reconcile-snapshots.ts';

/**
 * Makes the databases of deleted branches what a host was to keep of them. A host that was restored from a
 * backup has them as branches again, and the deletion can still be undone.
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
      logEvent('reconcile.unresolved', { branch_id, snapshot_id, reason: String(error) });
      waiting.add(snapshot_id);
    }
  }
  return { others: orphans.filter((orphan) => !isKept(orphan)), waiting };
}

/** Records that the database of a branch is missing. */
export async function markLost(db: Database, branch: RecordedBranch, now: Date): Promise<void> {
  const thisBranch = eq(projectBranches.id, branch.id);
  const marked = await guardedWrite(db, {
    decides: [auditEvents, eventOf('branch.lost', branch, now)],
    require: [[isAllowed('lost', thisBranch), 'BRANCH_NOT_ACTIVE']],
    rest: (isWritten) => [transition(db, 'lost', and(thisBranch, isWritten), now)],
  });
  if (marked.ok) logEvent('reconcile.branch_lost', { branch_id: branch.id });
}

/** Records that the database of a lost branch is available again. */
export async function markFound(db: Database, branch: RecordedBranch, now: Date): Promise<void> {
  const thisBranch = eq(projectBranches.id, branch.id);
  const marked = await guardedWrite(db, {
    decides: [auditEvents, eventOf('branch.found', branch, now)],
    require: [[isAllowed('found', thisBranch), 'BRANCH_NOT_ACTIVE']],
    rest: (isWritten) => [
      closeWithProject(db, branch.projectId, isWritten),
      transition(db, 'found', and(thisBranch, isWritten), now),
    ],
  });
  if (marked.ok) logEvent('reconcile.branch_found', { branch_id: branch.id });
}

const eventOf = (name: 'branch.lost' | 'branch.found', branch: RecordedBranch, now: Date) =>
  auditEvent(name, noActor(branch.tenantId), { projectId: branch.projectId, branchId: branch.id }, now);

/**
 * Compares the databases on a host with its records and resolves every difference. Runs after each handshake
 * and every few minutes. Differences in the scope of an open job are left to the job, which is woken.
 * @param admit called with false, which blocks the host, while it runs another cluster than the recorded one,
 *   because all recorded databases would seem lost. Returns whether this changes anything.
 * @returns false if something is left to another reconciliation
 */
export async function reconcileHost(
  env: DatabaseBinding & HostLinks & Coordinators,
  hostId: string,
  admit: (admitted: boolean) => boolean,
): Promise<boolean> {
  const db = openDatabase(env.DB);
  const callHost = hostCaller(env, hostId);
  const applied = await readAppliedRevisions(db, hostId);
  // The inventory is read before the records. A record is written before the host creates anything, so a
  // database that is missing from the later records is an orphan.
  const reading = await openInventory(callHost);
  if (!(await isKnownCluster(db, hostId, reading, admit))) return false;
  const inventory = await reading.complete(() => readExpected(db, hostId));
  await recordState(db, hostId, reading);
  await recordRestoredLogins(db, hostId, reading, new Date());
  const found = differencesBetween(inventory, applied, await readRecords(db, hostId, new Date()));
  const leftovers = await leftoversAmong(db, hostId, found);
  const resets = await endedResets(db, hostId, reading.resets);

  await forgetAppliedAccess(db, found.outdatedAccess);
  await overtakeAccess(db, found.overtakenAccess);
  await renewAccess(db, found.withoutTenant);
  await renameAgain(db, hostId, found.misnamed);
  return settle(hostId, [
    resolveOrphans(),
    ...leftovers.projectIds.map((id) => dropProject(callHost, id, inventory)),
    ...resets.map((reset) => dropClone(callHost, reset)),
    ...found.toWake.map((id) => coordinatorOf(env, id).wake()),
    ...(await followsOn(db, hostId)).map((follow) => checkFollow(db, callHost, follow)),
    repairNames(db, readSettings(env), hostId),
    continueDrain(env, hostId),
    markChanged(env, db, callHost, hostId, inventory, found),
  ]);

  /** Snapshots come after the databases that are kept again, which would count as lost. */
  async function resolveOrphans(): Promise<boolean> {
    const { others, waiting } = await keepDeleted(
      db,
      callHost,
      leftovers.branches,
      inventory.snapshots ?? [],
    );
    return settle(hostId, [
      ...others.map((held) => dropOrphan(callHost, held)),
      reconcileSnapshots(db, callHost, hostId, inventory, waiting),
    ]);
  }
}

/**
 * One failure stops no other work.
 * @returns false if something failed, or has left something to another reconciliation
 */
async function settle(hostId: string, work: Promise<unknown>[]): Promise<boolean> {
  const outcomes = await Promise.allSettled(work);
  for (const outcome of outcomes) {
    if (outcome.status === 'rejected')
      logEvent('reconcile.unresolved', { host_id: hostId, reason: String(outcome.reason) });
  }
  return outcomes.every((outcome) => outcome.status === 'fulfilled' && outcome.value !== false);
}

/** Columns that the host does not report stay as they were. */
async function recordState(
  db: Database,
  hostId: string,
  { free_bytes: freeBytes, description }: InventoryReading,
): Promise<void> {
  const state = {
    ...(freeBytes !== null && { freeBytes }),
    ...(description && { description, describedAt: new Date() }),
  };
  if (Object.keys(state).length > 0) await db.update(hosts).set(state).where(eq(hosts.id, hostId));
}

/**
 * Notifies tenants of logins that had changed themselves, by audit events. A login that is reported again has
 * the same event, and a host can only report branches of its own.
 */
export async function recordRestoredLogins(
  db: Database,
  hostId: string,
  { restored_logins: restored }: Pick<InventoryReading, 'restored_logins'>,
  now: Date,
): Promise<void> {
  if (restored.length === 0) return;
  const [branches, known] = await db.batch([
    db
      .select({
        id: projectBranches.id,
        projectId: projectBranches.projectId,
        tenantId: projectBranches.tenantId,
      })
      .from(projectBranches)
      .innerJoin(projects, eq(projects.id, projectBranches.projectId))
      .where(
        and(
          eq(projects.hostId, hostId),
          isOneOf(
            projectBranches.id,
            restored.map(({ branch_id }) => branch_id),
          ),
        ),
      ),
    db
      .select({ id: auditEvents.id })
      .from(auditEvents)
      .where(
        isOneOf(
          auditEvents.id,
          restored.map(({ id }) => id),
        ),
      ),
  ]);
  const recorded = new Set(known.map(({ id }) => id));
  const rows = restored.flatMap(({ id, branch_id, role, password, settings }) => {
    const branch = branches.find((one) => one.id === branch_id);
    if (!branch || recorded.has(id)) return [];
    const about = { id, projectId: branch.projectId, branchId: branch.id };
    const metadata = { role, password, settings };
    return [auditEvent('branch.login.restored', noActor(branch.tenantId), { ...about, metadata }, now)];
  });
  for (const row of rows) await db.insert(auditEvents).values(row).onConflictDoNothing();
}

/**
 * The `system_identifier` of the cluster that the host's records describe: the first one seen, until an
 * operator accepts another (`docs/decisions/reconciliation.md`).
 */
export async function clusterOnRecord(db: Database, hostId: string, seen: string): Promise<string | null> {
  const [host] = await db
    .update(hosts)
    .set({ systemIdentifier: sql`coalesce(${hosts.systemIdentifier}, ${seen})` })
    .where(eq(hosts.id, hostId))
    .returning({ systemIdentifier: hosts.systemIdentifier });
  return host?.systemIdentifier ?? null;
}

async function isKnownCluster(
  db: Database,
  hostId: string,
  { system_identifier: seen }: InventoryReading,
  admit: (admitted: boolean) => boolean,
): Promise<boolean> {
  const onRecord = await clusterOnRecord(db, hostId, seen);
  const isKnown = seen === onRecord;
  if (admit(isKnown)) {
    logEvent(isKnown ? 'host.known_cluster' : 'host.another_cluster', {
      host_id: hostId,
      system_identifier: seen,
      on_record: onRecord,
      ...(!isKnown && { advice: ANOTHER_CLUSTER }),
    });
  }
  return isKnown;
}

const ANOTHER_CLUSTER =
  'This host runs another PostgreSQL cluster than the recorded one. It gets no work, and nothing on it is changed. ' +
  'Start the recorded cluster, or accept this one as described in docs/decisions/reconciliation.md.';

/** A branch of this id that was restored meanwhile was made by another job, and is not dropped. */
async function dropOrphan(callHost: CallHost, held: HostedBranch): Promise<void> {
  logEvent('reconcile.drop_orphan', { branch_id: held.branch_id, database: held.database });
  const { project_id, branch_id, database, made_by } = held;
  const job_id = crypto.randomUUID();
  await callHost('branch.drop', { job_id, project_id, branch_id, database, made_by });
}

/** A project that has moved here since the inventory has a newer access, and stays. */
async function dropProject(callHost: CallHost, projectId: string, { projects }: Inventory): Promise<void> {
  logEvent('reconcile.drop_project', { project_id: projectId });
  const held = projects.find(({ project_id }) => project_id === projectId);
  await callHost('project.drop', {
    job_id: crypto.randomUUID(),
    project_id: projectId,
    ...(held && { up_to_revision: Math.max(0, held.access_revision) }),
  });
}

async function dropClone(callHost: CallHost, reset: Params<'reset.cancel'>): Promise<void> {
  logEvent('reconcile.drop_reset', { job_id: reset.job_id, branch_id: reset.branch_id });
  await callHost('reset.cancel', reset);
}

async function forgetAppliedAccess(db: Database, projectIds: string[]): Promise<void> {
  for (const id of projectIds)
    await db.update(projects).set({ accessApplied: -1 }).where(eq(projects.id, id));
}

/** A new revision brings the host the tenant, and no password again, which would end sessions. */
async function renewAccess(db: Database, projectIds: string[]): Promise<void> {
  const isApplied = sql`access_applied = access_revision`;
  for (const id of projectIds) await nextAccessRevision(db, id, isApplied);
}

/** The records decide the name, and the job of the coordinator that is woken gives it to the database. */
async function renameAgain(db: Database, hostId: string, misnamed: readonly RecordedBranch[]): Promise<void> {
  for (const { id } of misnamed) {
    logEvent('reconcile.rename', { host_id: hostId, branch_id: id });
    await reserveRenameOnHost(db, id, hostId, new Date());
  }
}

/** Raises the recorded revision above the host's, because the host accepts only newer revisions. */
async function overtakeAccess(db: Database, ahead: Differences['overtakenAccess']): Promise<void> {
  for (const { id, hostRevision } of ahead) {
    await db
      .update(projects)
      .set({ accessRevision: hostRevision + 1, accessApplied: -1 })
      .where(and(eq(projects.id, id), lt(projects.accessRevision, hostRevision)));
  }
}

/**
 * Records which branches are lost or there again, if a second inventory of the same cluster confirms it:
 * since the first one, a branch may have been created, or its creation undone. Wakes the coordinators,
 * because a found branch can expire.
 * @returns false after a second inventory, because what has changed on the host since the first one is not
 *   compared
 */
async function markChanged(
  env: DatabaseBinding & HostLinks & Coordinators,
  db: Database,
  callHost: CallHost,
  hostId: string,
  first: Inventory,
  { missing, foundAgain }: Differences,
): Promise<boolean> {
  const changed = [...missing, ...foundAgain];
  if (changed.length === 0) return true;
  const second = await openInventory(callHost);
  if (second.system_identifier !== first.system_identifier) return false;
  const ready = readyBranches(await second.list(changed.map(({ projectId }) => projectId)));
  const lost = missing.filter(({ id }) => !ready.has(id));
  const found = foundAgain.filter(({ id }) => ready.has(id));
  await settle(hostId, [
    ...lost.map((branch) => markLost(db, branch, new Date())),
    ...found.map((branch) => markFound(db, branch, new Date())),
  ]);
  const projectIds = new Set([...lost, ...found].map(({ projectId }) => projectId));
  await settle(
    hostId,
    [...projectIds].map((id) => coordinatorOf(env, id).wake()),
  );
  return false;
}
