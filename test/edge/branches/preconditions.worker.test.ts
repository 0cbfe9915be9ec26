import { eq } from 'drizzle-orm';
import { beforeEach, expect, test } from 'vitest';
import { storeRotation } from '../../../edge/access/credentials.ts';
import { storeSettings } from '../../../edge/branches/branch-settings.ts';
import { ofBranch } from '../../../edge/branches/clone-source.ts';
import { reserveComparison } from '../../../edge/branches/comparison.ts';
import { deleteBranch } from '../../../edge/branches/delete-branch.ts';
import { storeLifespan, storeRenewal } from '../../../edge/branches/expiry.ts';
import { reserveReset } from '../../../edge/branches/reset-branch.ts';
import { reserveSnapshot } from '../../../edge/branches/take-snapshot.ts';
import {
  auditEvents,
  type BranchRow,
  jobs,
  projectBranches,
  projects,
  snapshots,
} from '../../../edge/database/schema.ts';
import type { Settings } from '../../../edge/settings.ts';
import type { FailureCode } from '../../../shared/failures.ts';
import { ACTOR, insertBranch, startRecords } from '../../support/records/records.ts';

const NOW = new Date('2026-11-23T12:00:00Z');
const LATER = new Date(NOW.getTime() + 60_000);
const SETTINGS = { UNDELETE_SECONDS: 100, SNAPSHOT_LIMIT: 1, LEASED_BRANCH_LIMIT: 1 } as Settings;
const LIFE = { lifespan: '7d', ttlSeconds: 604_800 } as const;

const { db } = await startRecords();

const read = async (id: string): Promise<BranchRow> => {
  const [row] = await db.select().from(projectBranches).where(eq(projectBranches.id, id));
  if (!row) throw new Error('no branch');
  return row;
};
const set = (id: string, values: Partial<BranchRow>) =>
  db.update(projectBranches).set(values).where(eq(projectBranches.id, id));
const setProject = (values: object) => db.update(projects).set(values).where(eq(projects.id, 'p'));

let branch: BranchRow;
beforeEach(async () => {
  for (const table of [auditEvents, jobs, snapshots, projectBranches]) await db.delete(table);
  await setProject({ status: 'active', tenantId: 't', branchLimit: 10 });
  const { id } = await insertBranch(db, 'active');
  await set(id, { leaseSeconds: 60, leaseEndsAt: LATER });
  branch = await read(id);
});

/** Each as a request that has read the branch before. */
const WRITES = {
  reset: () => {
    const ids = { jobId: crypto.randomUUID(), snapshotId: crypto.randomUUID() };
    const about = { branch, source: ofBranch(branch), life: null, hostId: 'h', actor: ACTOR, keyUse: null };
    return reserveReset(db, { ...ids, ...about, asCreation: false }, NOW);
  },
  snapshot: () => {
    const ids = { jobId: crypto.randomUUID(), snapshotId: crypto.randomUUID() };
    const about = {
      branch,
      name: null,
      kind: 'manual',
      ttlSeconds: null,
      hostId: 'h',
      actor: ACTOR,
    } as const;
    return reserveSnapshot(db, SETTINGS, { ...ids, ...about, createdBy: 'u', keyUse: null }, NOW);
  },
  comparison: () => {
    const comparison = { against: { branchId: crypto.randomUUID() }, rows: true, schema: false };
    const jobId = crypto.randomUUID();
    return reserveComparison(db, { jobId, branch, comparison, hostId: 'h', actor: ACTOR }, NOW);
  },
  rotation: () =>
    storeRotation(
      db,
      [],
      { projectId: 'p', branchId: branch.id, roles: [], hostId: 'h', actor: ACTOR, keyUse: null },
      NOW,
    ),
  lifespan: () => storeLifespan(db, SETTINGS, { branch, life: LIFE, hostId: 'h', actor: ACTOR }, NOW),
  'lifespan and protection': () =>
    storeLifespan(db, SETTINGS, { branch, life: LIFE, isProtected: true, hostId: 'h', actor: ACTOR }, NOW),
  lease: () => storeRenewal(db, { branch, leaseSeconds: 30, actor: ACTOR }, NOW),
  settings: () =>
    storeSettings(db, SETTINGS, { branch, isProtected: true, attempts: 100, hostId: 'h', actor: ACTOR }, NOW),
  deletion: () => {
    const about = { id: crypto.randomUUID(), projectId: 'p', branch, hostId: 'h', actor: ACTOR };
    return deleteBranch(db, SETTINGS, { ...about, purge: false }, NOW);
  },
};
type Write = keyof typeof WRITES;
const ALL = Object.keys(WRITES) as Write[];
const ON_ACTIVE = ALL.filter((write) => !['settings', 'deletion'].includes(write));
const STARTING = ['reset', 'snapshot', 'comparison'] as const satisfies Write[];

/** What has changed since the branch was read, the writes that it concerns, and their failure. */
const CHANGES: [string, readonly Write[], FailureCode, () => Promise<unknown>][] = [
  ['the project moved to another tenant', ALL, 'NOT_FOUND', () => setProject({ tenantId: 'other' })],
  ['the project is being deleted', ALL, 'PROJECT_NOT_ACTIVE', () => setProject({ status: 'deleting' })],
  [
    'the branch is being created',
    ON_ACTIVE,
    'BRANCH_NOT_ACTIVE',
    () => set(branch.id, { status: 'creating' }),
  ],
  ['the branch failed', ['settings'], 'BRANCH_NOT_ACTIVE', () => set(branch.id, { status: 'failed' })],
  ['the branch was deleted', ['deletion'], 'NOT_FOUND', () => set(branch.id, { status: 'deleted' })],
  ['the lease has ended', ['lease'], 'NOT_FOUND', () => set(branch.id, { leaseEndsAt: NOW })],
  ['another job changes the branch', ['reset'], 'HOST_BUSY', () => WRITES.reset()],
  ['another comparison runs', ['comparison'], 'PROJECT_BUSY', () => WRITES.comparison()],
  ['the project has its snapshots', ['snapshot'], 'SNAPSHOT_LIMIT_REACHED', () => WRITES.snapshot()],
  ['the branch was protected', ['deletion'], 'BRANCH_PROTECTED', () => set(branch.id, { protected: true })],
];

const CELLS = CHANGES.flatMap(([what, writes, code, change]) =>
  writes.map((write) => [write, what, code, change] as const),
);

test.each(CELLS)('%s: %s, which is %s, and nothing is written', async (write, _, code, change) => {
  await change();
  const before = [await read(branch.id), await db.$count(auditEvents), await db.$count(jobs)];
  expect(await WRITES[write]()).toMatchObject({ ok: false, failure: { code } });
  expect([await read(branch.id), await db.$count(auditEvents), await db.$count(jobs)]).toEqual(before);
});

test.each(ALL)('%s: it is written if nothing has changed', async (write) => {
  expect(await WRITES[write]()).toMatchObject({ ok: true });
  expect((await db.$count(auditEvents)) + (await db.$count(jobs)) > 0).toBe(write !== 'lease');
});

test.each(STARTING)('%s: one of two simultaneous requests is refused', async (write) => {
  const results = await Promise.all([WRITES[write](), WRITES[write]()]);
  expect(results.map(({ ok }) => ok).sort()).toEqual([false, true]);
});

test('a lifespan and the protection are one change with two events', async () => {
  expect(await WRITES['lifespan and protection']()).toMatchObject({
    ok: true,
    value: { protected: true, lifespan: '7d' },
  });
  const events = await db.select().from(auditEvents);
  expect(events.map(({ name }) => name).sort()).toEqual([
    'branch.lifespan.changed',
    'branch.protection.changed',
  ]);
});
