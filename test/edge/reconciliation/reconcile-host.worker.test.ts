import { eq } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { jobs, projects } from '../../../edge/database/schema.ts';
import type { Env } from '../../../edge/env.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import type { Inventory } from '../../../edge/reconciliation/differences.ts';
import { reconcileHost } from '../../../edge/reconciliation/reconcile-host.ts';
import type { JobKind } from '../../../shared/project/job.ts';
import { EMPTY_HOST } from '../../support/host/scripted-inventory.ts';
import {
  ACTOR,
  insertBranch,
  insertProject,
  readBranch,
  startRecords,
} from '../../support/records/records.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const { binding, db } = await startRecords();

/** Reconciles the host that answers so. @returns the projects that were woken */
async function reconcileWith(call: (method: string, params: object) => Promise<object>): Promise<string[]> {
  const woken: string[] = [];
  const objectOf = (objectNamed: (name: string) => object) => ({
    idFromName: (name: string) => name,
    get: objectNamed,
  });
  const env = {
    ...SETTINGS,
    DB: binding,
    HOST_LINK: objectOf(() => ({ call })),
    PROJECT_COORDINATOR: objectOf((id) => ({ wake: async () => woken.push(id) })),
  };
  await reconcileHost(env as unknown as Env, 'h', () => true);
  return woken;
}

/**
 * Reconciles a host of the previous version, which has these inventories.
 * @returns the projects that were woken
 */
async function reconcile(...inventories: Inventory[]): Promise<string[]> {
  const woken = await reconcileWith(async (method) =>
    method === 'host.inventory'
      ? { ok: true, value: inventories.shift() }
      : { ok: false, failure: { code: 'HOST_UPGRADE_REQUIRED', message: method } },
  );
  expect(inventories).toEqual([]);
  return woken;
}

/** An inventory with a complete database of the branch. */
const holding = (branch_id: string): Inventory => ({
  ...EMPTY_HOST,
  branches: [{ project_id: 'p', branch_id, database: `db_${branch_id}`, state: 'ready', made_by: null }],
});

test('a failed branch is there again only if a second inventory of the same cluster has it too', async () => {
  const branch = await insertBranch(db, 'failed');
  const there = holding(branch.id);
  const failed = { status: 'failed', events: [] };
  // Its creation was undone after the first inventory.
  await reconcile(there, EMPTY_HOST);
  expect(await readBranch(db, branch)).toEqual(failed);
  await reconcile(there, { ...there, system_identifier: '2' });
  expect(await readBranch(db, branch)).toEqual(failed);
  expect(await reconcile(there, there)).toContain('p');
  expect(await readBranch(db, branch)).toEqual({ status: 'active', events: ['branch.found'] });
});

test('an active branch is lost only if a second inventory does not have it either', async () => {
  const branch = await insertBranch(db, 'active');
  await reconcile(EMPTY_HOST, holding(branch.id));
  expect(await readBranch(db, branch)).toEqual({ status: 'active', events: [] });
  await reconcile(EMPTY_HOST, EMPTY_HOST);
  expect(await readBranch(db, branch)).toEqual({ status: 'failed', events: ['branch.lost'] });
});

test('a database under another name gets the name of the record, by a job of the woken coordinator', async () => {
  const branch = await insertBranch(db, 'active');
  const [held] = holding(branch.id).branches;
  const former = { ...EMPTY_HOST, branches: held ? [{ ...held, database: 'db_former' }] : [] };
  expect(await reconcile(former)).toContain('p');
  // The open job is left to the coordinator.
  await reconcile(former);
  const opened = await db.select().from(jobs).where(eq(jobs.branchId, branch.id));
  expect(opened).toMatchObject([{ kind: 'branch.rename', status: 'queued' }]);
  await db.delete(jobs).where(eq(jobs.branchId, branch.id));
});

test('a branch whose loss cannot be recorded stops no other one', async () => {
  const refused = await insertBranch(db, 'active');
  const other = await insertBranch(db, 'active');
  await binding.exec(
    `create trigger refuse before update on project_branches when new.id = '${refused.id}' begin select raise(abort, 'planted'); end`,
  );
  try {
    expect(await reconcile(EMPTY_HOST, EMPTY_HOST)).toContain('p');
  } finally {
    await binding.exec('drop trigger refuse');
  }
  expect(await readBranch(db, refused)).toEqual({ status: 'active', events: [] });
  expect(await readBranch(db, other)).toEqual({ status: 'failed', events: ['branch.lost'] });
});

test.each([
  ['queued', 'branch.reset', false],
  ['running', 'branch.reset', false],
  ['succeeded', 'branch.reset', true],
  ['failed', 'branch.reset', true],
  ['failed', 'branch.diff', false],
  [null, 'branch.reset', false],
] as const)('the clone of a %s job %s is dropped: %s', async (status, kind, isDropped) => {
  const branch = await insertBranch(db, 'deleted');
  const id = crypto.randomUUID();
  const snapshotId = crypto.randomUUID();
  const about = { id, projectId: 'p', hostId: 'h', actor: ACTOR };
  const job = newJob<JobKind>(kind, { branchId: branch.id, snapshotId }, about, new Date());
  if (status) await db.insert(jobs).values({ ...job, status });
  const cancelled: object[] = [];
  await reconcileWith(async (method, params) => {
    if (method === 'reset.cancel') cancelled.push(params);
    const value = {
      ...EMPTY_HOST,
      description: null,
      resets: [id],
      restored_logins: [],
      groups: {},
      next: null,
    };
    return { ok: true, value };
  });
  const reset = { job_id: id, project_id: 'p', branch_id: branch.id, snapshot_id: snapshotId };
  expect(cancelled).toEqual(isDropped ? [reset] : []);
});

test('a host that lies about projects of another one changes none of their records', async () => {
  await insertProject(db, 'other', 'elsewhere');
  const failed = await insertBranch(db, 'failed', null, 'elsewhere');
  const active = await insertBranch(db, 'active', null, 'elsewhere');
  const records = () => db.select().from(projects).where(eq(projects.id, 'elsewhere'));
  const before = await records();
  const [held] = holding(failed.id).branches;
  const lie: Inventory = {
    ...EMPTY_HOST,
    branches: [
      { project_id: 'elsewhere', branch_id: failed.id, database: 'd', state: 'ready', made_by: 'j' },
    ],
    projects: [{ project_id: 'elsewhere', access_revision: 99, needs_tenant: true }],
    snapshots: [{ project_id: 'elsewhere', snapshot_id: 's', ready: true, independent: true }],
  };
  // Also under a project of its own.
  const asItsOwn = { ...lie, branches: held ? [held] : [], projects: [] };
  for (const claimed of [lie, asItsOwn]) {
    const woken = await reconcileWith(async (method) =>
      method === 'host.inventory'
        ? { ok: true, value: claimed }
        : { ok: false, failure: { code: 'HOST_UPGRADE_REQUIRED', message: method } },
    );
    expect(woken).not.toContain('elsewhere');
  }
  expect(await records()).toEqual(before);
  expect(await readBranch(db, failed)).toEqual({ status: 'failed', events: [] });
  expect(await readBranch(db, active)).toEqual({ status: 'active', events: [] });
});

test('a host that does not know the tenant of a project gets a new revision of its access, once', async () => {
  const ofProject = eq(projects.id, 'p');
  await db.update(projects).set({ accessRevision: 4, accessApplied: 4 }).where(ofProject);
  const inventory: Inventory = {
    ...EMPTY_HOST,
    projects: [{ project_id: 'p', access_revision: 4, needs_tenant: true }],
  };
  const answer = async (method: string) =>
    method === 'host.inventory'
      ? { ok: true, value: inventory }
      : { ok: false, failure: { code: 'HOST_UPGRADE_REQUIRED', message: method } };
  for (const _ of [1, 2]) {
    expect(await reconcileWith(answer)).toContain('p');
    const [project] = await db.select().from(projects).where(ofProject);
    expect(project).toMatchObject({ accessRevision: 5, accessApplied: 4 });
  }
});
