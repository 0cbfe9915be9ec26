import { eq } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { branchCredentials, jobs, projectBranches, snapshots } from '../../../edge/database/schema.ts';
import { type CallHost, HostCallError } from '../../../edge/hosts/host-client.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import type { HostedBranch, Inventory } from '../../../edge/reconciliation/differences.ts';
import { keepDeleted } from '../../../edge/reconciliation/reconcile-host.ts';
import { reconcileSnapshots } from '../../../edge/reconciliation/reconcile-snapshots.ts';
import type { HostFailureCode } from '../../../shared/protocol/host-failures.ts';
import { EMPTY_HOST } from '../../support/host/scripted-inventory.ts';
import { ACTOR, insertBranch, startRecords } from '../../support/records/records.ts';

const NOW = new Date('2026-11-22T12:00:00Z');

const { db } = await startRecords();

/** A host that remembers what it was asked. */
function hostThat(failure?: HostFailureCode) {
  const asked: [string, object][] = [];
  const call = async (method: string, params: object) => {
    asked.push([method, params]);
    if (failure) throw new HostCallError(failure, 'as scripted');
    return {};
  };
  return { asked, call: call as CallHost };
}

/** A deleted branch whose database is on record as kept. */
async function deletedBranch() {
  const branch = await insertBranch(db, 'deleted');
  const id = crypto.randomUUID();
  const about = { projectId: 'p', branchId: branch.id, branchName: 'oops', tenantId: 't' };
  await db
    .insert(snapshots)
    .values({ id, ...about, kind: 'deleted', status: 'ready', takenAt: NOW, createdAt: NOW });
  return { branchId: branch.id, snapshotId: id };
}

const hosted = (branch_id: string, state: HostedBranch['state'] = 'ready'): HostedBranch => ({
  project_id: 'p',
  branch_id,
  database: `db_${branch_id}`,
  state,
  made_by: null,
});

test('a deleted branch on a restored host becomes its kept database again; other leftovers do not', async () => {
  const wanted = await deletedBranch();
  const unfinished = await deletedBranch();
  const purged = hosted((await insertBranch(db, 'deleted')).id);
  const building = hosted(unfinished.branchId, 'building');
  const { asked, call } = hostThat();
  expect(await keepDeleted(db, call, [hosted(wanted.branchId), building, purged], [])).toEqual({
    others: [building, purged],
    waiting: new Set(),
  });
  const { branchId: branch_id, snapshotId: snapshot_id } = wanted;
  expect(asked).toEqual([['branch.keep', expect.objectContaining({ branch_id, snapshot_id })]]);
});

test('a leftover whose kept database is there too does not replace it', async () => {
  const { branchId, snapshotId: snapshot_id } = await deletedBranch();
  const { asked, call } = hostThat();
  const kept = { project_id: 'p', branch_id: branchId, snapshot_id, independent: false, ready: true };
  expect(await keepDeleted(db, call, [hosted(branchId)], [kept])).toEqual({
    others: [hosted(branchId)],
    waiting: new Set(),
  });
  expect(asked).toEqual([]);
});

test('what cannot be kept is not dropped either, does not count as lost, and stops no other', async () => {
  await db.delete(snapshots);
  const one = await deletedBranch();
  const other = await deletedBranch();
  const { asked, call } = hostThat('HOST_BUSY');
  expect(await keepDeleted(db, call, [hosted(one.branchId), hosted(other.branchId)], [])).toEqual({
    others: [],
    waiting: new Set([one.snapshotId, other.snapshotId]),
  });
  expect(asked).toHaveLength(2);
  const holdings = { projects: [], branches: [], snapshots: [] };
  const inventory: Inventory = { system_identifier: '1', free_bytes: 0, ...holdings };
  await reconcileSnapshots(db, call, 'h', inventory, new Set([one.snapshotId, other.snapshotId]));
  expect(asked).toHaveLength(2);
  await expect(reconcileSnapshots(db, call, 'h', inventory, new Set())).rejects.toThrow(HostCallError);
});

test('what a host still has of a lost snapshot is dropped when its record is removed, and not before', async () => {
  await db.delete(snapshots);
  const { snapshotId: snapshot_id } = await deletedBranch();
  // A full disk can end a drop between the database and the agent's row.
  const held = { project_id: 'p', snapshot_id, independent: false, ready: false };
  const host = { ...EMPTY_HOST, snapshots: [held] };
  const dropped: object[] = [];
  const call = async (method: string, params: object) => {
    if (method !== 'snapshot.drop') return { ...host, description: null, groups: {}, next: null };
    dropped.push({ params, records: await db.select().from(snapshots) });
    throw new HostCallError('HOST_BUSY', 'a drop that fails ends no reconciliation');
  };
  const reconcile = () => reconcileSnapshots(db, call as unknown as CallHost, 'h', host, new Set());
  expect(await reconcile()).toBe(false);
  expect(dropped).toEqual([{ params: { project_id: 'p', snapshot_id }, records: [] }]);
  expect(await reconcile()).toBe(true);
});

test('a deleted branch whose database is lost loses its passwords, but not while it is being restored', async () => {
  await db.delete(snapshots);
  const lost = await deletedBranch();
  const restoring = await deletedBranch();
  const passwords = () => db.select().from(branchCredentials);
  const password = { role: 'owner', keyId: 'k', sealedPassword: 's', updatedAt: NOW } as const;
  for (const { branchId } of [lost, restoring])
    await db.insert(branchCredentials).values({ ...password, branchId });
  const setStatus = (status: 'creating' | 'deleted') =>
    db.update(projectBranches).set({ status }).where(eq(projectBranches.id, restoring.branchId));
  const call = async () => ({ ...EMPTY_HOST, description: null, groups: {}, next: null });
  const reconcile = () => reconcileSnapshots(db, call as unknown as CallHost, 'h', EMPTY_HOST, new Set());

  await setStatus('creating');
  await reconcile();
  expect(await passwords()).toMatchObject([{ branchId: restoring.branchId }]);
  expect(await db.select().from(snapshots)).toMatchObject([{ id: restoring.snapshotId }]);
  // Its restoration has failed.
  await setStatus('deleted');
  await reconcile();
  expect(await passwords()).toEqual([]);
  expect(await db.select().from(snapshots)).toEqual([]);
});

test.each([
  ['is lost', false, []],
  ['is there', true, ['snapshot.drop']],
])('what a branch was restored from, without a record, while the branch %s', async (_, isThere, expected) => {
  const branch = await insertBranch(db, 'active');
  const snapshotId = crypto.randomUUID();
  const about = { id: crypto.randomUUID(), projectId: 'p', hostId: 'h', actor: ACTOR };
  const job = newJob('branch.restore', { branchId: branch.id, snapshotId }, about, NOW);
  await db.insert(jobs).values({ ...job, status: 'succeeded' });
  await db.delete(snapshots);
  const inventory: Inventory = {
    system_identifier: '1',
    free_bytes: 0,
    projects: [],
    branches: isThere ? [hosted(branch.id)] : [],
    snapshots: [{ project_id: 'p', snapshot_id: snapshotId, ready: true, independent: true }],
  };
  const { asked, call } = hostThat();
  await reconcileSnapshots(db, call, 'h', inventory, new Set());
  expect(asked.map(([method]) => method)).toEqual(expected);
});
