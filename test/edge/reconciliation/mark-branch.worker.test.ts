import { eq } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { confirmAccess } from '../../../edge/access/send-access.ts';
import { activation, type Creation } from '../../../edge/branches/create-branches.ts';
import { expireBranches } from '../../../edge/branches/expiry.ts';
import { type Database, inOneBatch, openDatabase } from '../../../edge/database/database.ts';
import { auditEvents, jobs, projectBranches, projects } from '../../../edge/database/schema.ts';
import type { Env } from '../../../edge/env.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import type { SagaContext } from '../../../edge/jobs/saga.ts';
import { type RecordedBranch, readRecords } from '../../../edge/reconciliation/differences.ts';
import {
  clusterOnRecord,
  markFound,
  markLost,
  recordRestoredLogins,
} from '../../../edge/reconciliation/reconcile-host.ts';
import { ACTOR, insertBranch, isStale, readBranch, startRecords } from '../../support/records/records.ts';
import { Meter } from '../../support/worker/meter.ts';

const NOW = new Date('2026-11-21T12:00:00Z');
const EARLIER = new Date(NOW.getTime() - 1);
const LATER = new Date(NOW.getTime() + 1);

const { binding, db } = await startRecords();

test('a login that had changed itself is one event of its tenant, however often its host reports it', async () => {
  const branch = await insertBranch(db, 'active');
  const id = crypto.randomUUID();
  const changed = { role: 'read_only' as const, password: true, settings: ['local_preload_libraries'] };
  const report = { restored_logins: [{ id, branch_id: branch.id, ...changed }] };
  // Another host cannot report it.
  await recordRestoredLogins(db, 'another', report, NOW);
  expect((await readBranch(db, branch)).events).toEqual([]);
  for (let times = 0; times < 2; times++) await recordRestoredLogins(db, 'h', report, NOW);
  const events = await db.select().from(auditEvents).where(eq(auditEvents.branchId, branch.id));
  expect(events.map(({ id, name, tenantId, metadata }) => ({ id, name, tenantId, metadata }))).toEqual([
    { id, name: 'branch.login.restored', tenantId: 't', metadata: changed },
  ]);
});

test.each([
  ['active', null],
  ['expired', EARLIER],
] as const)(
  'a lost branch that was %s becomes failed, with one event even if marked repeatedly',
  async (status, end) => {
    const lost = await insertBranch(db, status, end);
    await markLost(db, lost, NOW);
    const first = await readBranch(db, lost);
    await markLost(db, lost, NOW);
    expect(await readBranch(db, lost)).toEqual(first);
    expect(first).toEqual({ status: 'failed', events: ['branch.lost'] });
  },
);

test.each([
  ['for ever', null, false],
  ['for a while yet', LATER, false],
  ['until this moment', NOW, true],
  ['until before it was found', EARLIER, true],
] as const)('a branch that is found and lasts %s: expired like any other', async (_, expiresAt, expires) => {
  const found = await insertBranch(db, 'failed', expiresAt);
  await markFound(db, found, NOW);
  const first = await readBranch(db, found);
  await markFound(db, found, NOW);
  expect(await readBranch(db, found)).toEqual(first);
  expect(first).toEqual({ status: 'active', events: ['branch.found'] });

  const revision = async () => (await db.select().from(projects))[0]?.accessRevision ?? 0;
  const before = await revision();
  expect(await isStale(db, NOW)).toBe(expires);
  await expireBranches(db, { EXPIRED_RETENTION_SECONDS: 60 }, 'p', NOW);
  expect(await revision()).toBe(before + (expires ? 1 : 0));
  expect((await readBranch(db, found)).status).toBe(expires ? 'expired' : 'active');
  await confirmAccess(db, 'p', await revision());
  expect(await isStale(db, NOW)).toBe(false);
});

/** As the last step of its creation does. */
async function activate(db: Database, { id }: RecordedBranch) {
  const [[project], [branch]] = await db.batch([
    db.select().from(projects),
    db.select().from(projectBranches).where(eq(projectBranches.id, id)),
  ]);
  if (!project || !branch) throw new Error('there are no records');
  const about = { id: crypto.randomUUID(), projectId: 'p', hostId: 'h', actor: ACTOR };
  const job = newJob('branch.create', { branchId: id }, about, NOW);
  const creation = {
    project,
    access: { revision: 0, rules: [] },
    rules: [],
    branches: [{ branch, credentials: [] }],
  } as unknown as Creation;
  await inOneBatch(db, activation({ db, job } as SagaContext<'branch.create'>, creation, NOW));
}

test.each([
  ['found', 'failed', markFound],
  ['created', 'creating', activate],
] as const)('a branch that is %s in a closed project is closed as well', async (_, status, makeActive) => {
  const branch = await insertBranch(db, status);
  const revision = async () => (await db.select().from(projects))[0]?.accessRevision ?? 0;
  const before = await revision();
  await db.update(projects).set({ storageState: 'closed' });
  await makeActive(db, branch, NOW);
  await makeActive(db, branch, NOW);
  await db.update(projects).set({ storageState: 'normal' });
  expect((await readBranch(db, branch)).status).toBe('active');
  expect(await revision()).toBe(before + 1);
});

test('a project whose events are not published is woken', async () => {
  const [project] = await db.select().from(projects);
  await confirmAccess(db, 'p', project?.accessRevision ?? 0);
  expect(await isStale(db, NOW)).toBe(false);
  await insertBranch(db, 'active');
  expect((await readRecords(db, 'h', NOW)).projects[0]?.stale).toBe(true);
});

test('an earlier deletion remains, without an event', async () => {
  const deleted = await insertBranch(db, 'deleted', EARLIER);
  await markLost(db, deleted, NOW);
  await markFound(db, deleted, NOW);
  expect(await readBranch(db, deleted)).toEqual({ status: 'deleted', events: [] });
});

test('the first cluster seen is recorded', async () => {
  expect(await clusterOnRecord(db, 'h', '1')).toBe('1');
  expect(await clusterOnRecord(db, 'h', '2')).toBe('1');
  expect(await clusterOnRecord(db, 'nobody', '2')).toBeNull();
});

test('jobs that have ended add nothing to what a reconciliation reads', async () => {
  const meter = new Meter({ DB: binding } as Env);
  const rowsRead = async () => {
    await readRecords(openDatabase(meter.env.DB), 'h', NOW);
    return meter.read().rowsRead;
  };
  const before = await rowsRead();
  const about = { projectId: 'p', hostId: 'h', actor: ACTOR };
  for (let n = 0; n < 20; n += 1) {
    const job = newJob('project.delete', { branchId: null }, { id: crypto.randomUUID(), ...about }, NOW);
    await db.insert(jobs).values({ ...job, status: 'succeeded' });
  }
  expect(await rowsRead()).toBe(before);
});
