import { and, eq, lt } from 'drizzle-orm';
import { type Database, openDatabase } from '../database/database.ts';
import { projects } from '../database/schema.ts';
import type { Env } from '../env.ts';
import { type CallHost, hostCaller } from '../hosts/host-client.ts';
import { logEvent } from '../log.ts';
import { coordinatorOf } from '../projects/coordinator-stub.ts';
import {
  type Differences,
  differencesBetween,
  type HostedBranch,
  type Inventory,
  type RecordedBranch,
  readAppliedRevisions,
  readRecords,
  readyBranches,
} from './differences.ts';
import { clusterOnRecord } from './known-cluster.ts';
import { leftoversAmong } from './leftovers.ts';
import { markFound, markLost } from './mark-branch.ts';

/**
 * Compares what a host holds with what is on record and resolves every difference; runs when the host has
 * linked up and every few minutes. What a job is still working on is the job's to resolve: it is woken.
 * @param admit told whether the host may be given work: not while it runs another cluster than the one on
 *   record, whose databases would all seem gone. Returns whether that is news.
 */
export async function reconcileHost(
  env: Env,
  hostId: string,
  admit: (admitted: boolean) => boolean,
): Promise<void> {
  const db = openDatabase(env.DB);
  const callHost = hostCaller(env, hostId);
  const obeyed = await readAppliedRevisions(db, hostId);
  // Before the records: a record is written before the host is asked for anything, so what the host holds and
  // the later look at the records does not know is nobody's.
  const inventory = await callHost('host.inventory', {});
  if (!(await isKnownCluster(db, hostId, inventory, admit))) return;
  const found = differencesBetween(inventory, obeyed, await readRecords(db, hostId, new Date()));
  const leftovers = await leftoversAmong(db, hostId, found);

  await forgetAppliedAccess(db, found.outdatedAccess);
  await overtakeAccess(db, found.overtakenAccess);
  const outcomes = await Promise.allSettled([
    ...leftovers.branches.map((held) => dropOrphan(callHost, held)),
    ...leftovers.projectIds.map((id) => dropProject(callHost, id)),
    ...found.foundAgain.map((branch) => takeBack(env, db, branch)),
    ...found.toWake.map((id) => coordinatorOf(env, id).wake(id)),
    markLostAfterSecondLook(db, callHost, inventory, found.missing),
  ]);
  for (const outcome of outcomes) {
    if (outcome.status === 'rejected')
      logEvent('reconcile.failed', { host_id: hostId, reason: String(outcome.reason) });
  }
}

async function isKnownCluster(
  db: Database,
  hostId: string,
  { system_identifier: seen }: Inventory,
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
  'This host runs another PostgreSQL cluster than the one on record. Nothing on it is touched and it gets no work. ' +
  'Start the cluster on record, or accept this one: docs/decisions/0015-another-cluster.md says how.';

async function dropOrphan(callHost: CallHost, held: HostedBranch): Promise<void> {
  logEvent('reconcile.drop_orphan', { branch_id: held.branch_id, database: held.database });
  const { project_id, branch_id, database } = held;
  await callHost('branch.drop', { job_id: crypto.randomUUID(), project_id, branch_id, database });
}

async function dropProject(callHost: CallHost, projectId: string): Promise<void> {
  logEvent('reconcile.drop_project', { project_id: projectId });
  await callHost('project.drop', { job_id: crypto.randomUUID(), project_id: projectId });
}

/** The coordinator then sees to its end, be it past or to come. */
async function takeBack(env: Env, db: Database, branch: RecordedBranch): Promise<void> {
  await markFound(db, branch, new Date());
  await coordinatorOf(env, branch.projectId).wake(branch.projectId);
}

async function forgetAppliedAccess(db: Database, projectIds: string[]): Promise<void> {
  for (const id of projectIds)
    await db.update(projects).set({ accessApplied: -1 }).where(eq(projects.id, id));
}

/** The next revision is newer than the host's, which takes no other. */
async function overtakeAccess(db: Database, ahead: Differences['overtakenAccess']): Promise<void> {
  for (const { id, hostRevision } of ahead) {
    await db
      .update(projects)
      .set({ accessRevision: hostRevision + 1, accessApplied: -1 })
      .where(and(eq(projects.id, id), lt(projects.accessRevision, hostRevision)));
  }
}

/** A second look rules out a fresh branch; it counts only if the same cluster answers. */
async function markLostAfterSecondLook(
  db: Database,
  callHost: CallHost,
  first: Inventory,
  missing: RecordedBranch[],
): Promise<void> {
  if (missing.length === 0) return;
  const second = await callHost('host.inventory', {});
  if (second.system_identifier !== first.system_identifier) return;
  const ready = readyBranches(second);
  for (const branch of missing.filter(({ id }) => !ready.has(id))) await markLost(db, branch, new Date());
}
