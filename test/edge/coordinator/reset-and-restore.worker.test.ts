import { setTimeout } from 'node:timers/promises';
import { eq, sql } from 'drizzle-orm';
import { beforeAll, beforeEach, expect, test } from 'vitest';
import { insertAllIf } from '../../../edge/database/database.ts';
import { branchCredentials, jobs, networkRules, projects, snapshots } from '../../../edge/database/schema.ts';
import { NETWORK_RULES_MAX } from '../../../shared/limits.ts';
import type { Method } from '../../../shared/protocol/operations.ts';
import type { BranchBody } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { sharedTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

const FAILURE = { code: 'POSTGRES_UNAVAILABLE', message: 'planted' } as const;
/** What the host of this gateway keeps of a deleted branch. */
const KEPT_BYTES = 8_388_608;
const NO_WAIT = { Prefer: 'wait=0' };

let gateway: TripsGateway;
let projectId: string;
let branch: BranchBody;
let path: string;

beforeAll(async () => {
  gateway = await sharedTripsGateway();
});
beforeEach(async () => {
  ({ id: projectId } = await gateway.api.project('Shop'));
  branch = await gateway.api.branch(projectId, 'made');
  path = `/api/v1/projects/${projectId}/branches`;
});

const jobsOf = (kind: 'branch.reset' | 'branch.delete' | 'snapshot.delete') =>
  gateway.db
    .select()
    .from(jobs)
    .where(eq(jobs.projectId, projectId))
    .orderBy(jobs.createdAt)
    .then((rows) => rows.filter((job) => job.kind === kind));

const reset = (headers = {}) =>
  gateway.api.post<BranchBody>(`${path}/${branch.id}/reset`, { to: 'parent' }, headers);

/** Makes the attempts of a job fail, so that it stays open. @returns ends that */
async function whileFailing(method: Method, begin: () => Promise<{ status: number }>) {
  await gateway.plantFailure(projectId, method, FAILURE);
  expect((await begin()).status).toBe(202);
  return async () => {
    await gateway.plantFailure(projectId, method, null);
    await gateway.coordinatorOf(projectId).wake();
  };
}

test.runIf(IS_NIGHTLY)(
  'a reset waits for an older one that is tried again, some seconds; a deletion does not',
  async () => {
    const succeed = await whileFailing('reset.swap', () => reset(NO_WAIT));
    await eventually(async () => expect((await jobsOf('branch.reset'))[0]?.attempts).toBeGreaterThan(0));
    expect(await reset()).toMatchObject({ status: 503, body: { error: 'HOST_BUSY' } });

    const newer = reset();
    await succeed();
    expect(await newer).toMatchObject({ status: 200, body: { id: branch.id } });
    const [first, second, ...more] = await jobsOf('branch.reset');
    expect([first, second, more]).toMatchObject([{ status: 'succeeded' }, { status: 'succeeded' }, []]);
    expect(second?.createdAt.getTime()).toBeGreaterThanOrEqual(first?.updatedAt.getTime() ?? Infinity);

    const end = await whileFailing('reset.swap', () => reset(NO_WAIT));
    expect((await gateway.api.delete(`${path}/${branch.id}`)).status).toBe(202);
    await end();
    await eventually(async () => {
      expect(await jobsOf('branch.delete')).toMatchObject([{ status: 'succeeded' }]);
      expect((await jobsOf('branch.reset')).at(-1)).toMatchObject({ status: 'failed' });
    });
  },
);

test('the wait of a client includes that for an older reset', async () => {
  const succeed = await whileFailing('reset.swap', () => reset(NO_WAIT));
  const newer = reset({ Prefer: 'wait=1' });
  await setTimeout(1_000);
  await succeed();
  expect((await newer).status).toBe(202);
});

test('a restoration during the deletion of its branch needs the room that the kept database takes', async () => {
  const { api, db } = gateway;
  const succeed = await whileFailing('branch.keep', () => api.delete(`${path}/${branch.id}`));
  const restore = () => api.post<BranchBody>(`${path}/${branch.id}/restore`, {});
  const setQuota = (bytes: number) =>
    db
      .update(projects)
      .set({ storageQuotaGib: bytes / 2 ** 30 })
      .where(eq(projects.id, projectId));
  await setQuota(KEPT_BYTES - 1);
  const refused = restore();
  await succeed();
  expect(await refused).toMatchObject({
    body: { error: 'STORAGE_QUOTA_EXCEEDED', needed_bytes: KEPT_BYTES },
  });
  await setQuota(KEPT_BYTES);
  expect(await restore()).toMatchObject({ status: 200, body: { id: branch.id } });
});

test.runIf(IS_NIGHTLY)('a purge of a branch that is being restored leaves nothing to restore', async () => {
  const { api, db } = gateway;
  await api.delete(`${path}/${branch.id}`);
  await eventually(async () =>
    expect(await jobsOf('branch.delete')).toMatchObject([{ status: 'succeeded' }]),
  );
  const end = await whileFailing('branch.clone', () => api.post(`${path}/${branch.id}/restore`, {}, NO_WAIT));
  expect((await api.delete(`${path}/${branch.id}?purge=true`)).status).toBe(202);
  const ofBranch = eq(branchCredentials.branchId, branch.id);
  expect(await db.select().from(snapshots).where(eq(snapshots.branchId, branch.id))).toEqual([]);
  expect(await db.select().from(branchCredentials).where(ofBranch)).toEqual([]);
  await end();
  await eventually(async () =>
    expect(await jobsOf('snapshot.delete')).toMatchObject([{ status: 'succeeded' }]),
  );
  expect(await api.post(`${path}/${branch.id}/restore`, {})).toMatchObject({ status: 404 });
});

test('a branch whose rules have no room is not restored without them', async () => {
  const { api, db } = gateway;
  const rulesPath = `/api/v1/projects/${projectId}/network-rules`;
  await api.post(rulesPath, { cidr: '192.0.2.0/24', branch_id: branch.id });
  await api.post(rulesPath, { cidr: '192.0.2.0/24' });
  await api.delete(`${path}/${branch.id}`);
  await eventually(async () =>
    expect(await jobsOf('branch.delete')).toMatchObject([{ status: 'succeeded' }]),
  );
  const [rule] = await db.select().from(networkRules).where(eq(networkRules.projectId, projectId));
  if (!rule) throw new Error('the project has no rule');
  const others = Array.from({ length: NETWORK_RULES_MAX }, (_, n) => ({
    ...rule,
    id: crypto.randomUUID(),
    cidr: `10.${n >> 8}.${n & 255}.0/24`,
  }));
  await insertAllIf(db, networkRules, others.slice(1), sql`true`);
  const restore = () => api.post(`${path}/${branch.id}/restore`, {});
  expect(await restore()).toMatchObject({ status: 429, body: { error: 'RULE_LIMIT_REACHED' } });
  // The branch has the rule of its creator too.
  for (const cidr of ['10.0.1.0/24', '10.0.2.0/24'])
    await db.delete(networkRules).where(eq(networkRules.cidr, cidr));
  expect(await restore()).toMatchObject({ status: 200 });
});

test.runIf(IS_NIGHTLY)('a restoration whose kept database is gone is not found', async () => {
  const { api, db } = gateway;
  const countSizings = () => gateway.countCalls(projectId, 'project.size');
  const before = await countSizings();
  const succeed = await whileFailing('branch.keep', () => api.delete(`${path}/${branch.id}`));
  const restored = api.post(`${path}/${branch.id}/restore`, {});
  // The deletion reads the sizes once, and so does the restoration when it has read the record.
  await eventually(async () => expect(await countSizings()).toBe(before + 2));
  await db.delete(snapshots).where(eq(snapshots.branchId, branch.id));
  await succeed();
  expect(await restored).toMatchObject({ status: 404, body: { error: 'NOT_FOUND' } });
});

test('a branch is created on the host that the project is on, also after a move', async () => {
  const countClones = () => gateway.countCalls(projectId, 'branch.clone');
  expect(await countClones()).toBeGreaterThan(0);
  await gateway.moveProject(projectId);
  expect(await countClones()).toBe(0);
  await gateway.api.branch(projectId, 'moved');
  expect(await countClones()).toBe(1);
});
