import { eq, sql } from 'drizzle-orm';
import { beforeEach, describe, expect, test } from 'vitest';
import { confirmExport, eventsAfter } from '../../../edge/audit/export.ts';
import { removeHistory } from '../../../edge/audit/retention.ts';
import { markBranchDeleted } from '../../../edge/branches/delete-branch.ts';
import {
  auditEvents,
  idempotencyKeys,
  jobs,
  projectBranches,
  snapshots,
} from '../../../edge/database/schema.ts';
import { follows } from '../../../edge/database/source-schema.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { ACTOR, insertBranch, startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();

const DAY_MS = 86_400_000;
const NOW = new Date('2026-11-28T12:00:00Z');
const OLD = new Date(NOW.getTime() - 40 * DAY_MS);
const RETENTION = { AUDIT_RETENTION_DAYS: 30, HISTORY_RETENTION_DAYS: 30 };
/** Of a host, which stay. */
const NEWEST = 100;

const about = { projectId: 'p', hostId: 'h', actor: ACTOR };
const aJob = (at: Date) =>
  newJob('branch.delete', { branchId: crypto.randomUUID() }, { ...about, id: crypto.randomUUID() }, at);

async function insertJobs(count: number, at: Date): Promise<string[]> {
  const rows = Array.from({ length: count }, () => ({ ...aJob(at), status: 'succeeded' as const }));
  for (const row of rows) await db.insert(jobs).values(row);
  return rows.map(({ id }) => id);
}

/** A branch whose deletion is over. */
async function deletedBranch(at: Date): Promise<string> {
  const { id } = await insertBranch(db, 'active');
  const [row] = await db.select().from(projectBranches).where(eq(projectBranches.id, id));
  if (!row) throw new Error('no branch');
  const job = newJob('branch.delete', { branchId: id }, { ...about, id: crypto.randomUUID() }, at);
  expect(await markBranchDeleted(db, job, row, at)).toMatchObject({ ok: true });
  await db.update(jobs).set({ status: 'succeeded' }).where(eq(jobs.id, job.id));
  return id;
}

/** What the operator's command does. */
async function exportAll(): Promise<string> {
  let last: string | null = null;
  for (;;) {
    const read = await eventsAfter(db, last, 3);
    if (!read.ok) throw new Error('the event is gone');
    const next: string | undefined = read.value.at(-1)?.id;
    if (next === undefined) break;
    last = next;
  }
  if (last === null) throw new Error('there are no events');
  expect(await confirmExport(db, last, NOW)).toMatchObject({ ok: true });
  return last;
}

const branchIds = async () =>
  (await db.select({ id: projectBranches.id }).from(projectBranches)).map(({ id }) => id);
const jobIds = async () => (await db.select({ id: jobs.id }).from(jobs)).map(({ id }) => id);
const eventNames = async () =>
  (await db.select({ name: auditEvents.name }).from(auditEvents)).map(({ name }) => name);

beforeEach(async () => {
  await db.delete(snapshots);
  await db.delete(idempotencyKeys);
  await db.delete(follows);
  await db.delete(jobs);
  await db.delete(auditEvents);
  await db.delete(projectBranches);
  await db.run(sql`delete from audit_exports`);
});

test.runIf(IS_NIGHTLY)('without the settings everything stays', async () => {
  const id = await deletedBranch(OLD);
  await insertJobs(NEWEST + 5, NOW);
  await exportAll();
  expect(await removeHistory(db, {}, NOW)).toEqual({ jobs: 0, branches: 0, audit_events: 0 });
  expect(await branchIds()).toContain(id);
});

describe('a deleted branch', () => {
  test('goes when the exported audit log has its whole record, which is that of the row', async () => {
    const id = await deletedBranch(OLD);
    const [row] = await db.select().from(projectBranches).where(eq(projectBranches.id, id));
    await removeHistory(db, RETENTION, NOW);
    expect(await branchIds()).toEqual([id]);

    const [event] = await db.select().from(auditEvents);
    expect(event?.metadata.record).toMatchObject({
      id,
      branch_name: row?.branchName,
      database_name: row?.databaseName,
      created_at: row?.createdAt.toISOString(),
      is_default: false,
    });
    await exportAll();
    // A newer deletion stays.
    const newer = await deletedBranch(NOW);
    await exportAll();
    expect(await removeHistory(db, RETENTION, NOW)).toMatchObject({ branches: 1 });
    expect(await branchIds()).toEqual([newer]);
  });

  test('stays while a kept snapshot has it', async () => {
    const id = await deletedBranch(OLD);
    await db.insert(snapshots).values({
      id: crypto.randomUUID(),
      projectId: 'p',
      branchId: id,
      kind: 'manual',
      status: 'ready',
      tenantId: 't',
      name: 's',
      branchName: 'b',
      database: 'd',
      source: 'd',
      takenAt: OLD,
      sizeBytes: 0,
      createdBy: 'u',
      createdAt: OLD,
      updatedAt: OLD,
      expiresAt: null,
    } as unknown as typeof snapshots.$inferInsert);
    await exportAll();
    await removeHistory(db, RETENTION, NOW);
    expect(await branchIds()).toEqual([id]);
  });

  test('stays if its event is of a release that recorded less', async () => {
    const id = await deletedBranch(OLD);
    await db.update(auditEvents).set({ metadata: { branch_name: 'x' } });
    await exportAll();
    await removeHistory(db, RETENTION, NOW);
    expect(await branchIds()).toEqual([id]);
    // Its event is the record that is left.
    expect(await eventNames()).toEqual(['branch.deleted']);
  });
});

describe('jobs', () => {
  test.runIf(IS_NIGHTLY)('go in pieces, except for the newest of each host', async () => {
    const old = await insertJobs(600, OLD);
    expect(await removeHistory(db, RETENTION, NOW)).toMatchObject({ jobs: 600 - NEWEST });
    expect((await jobIds()).toSorted()).toEqual(old.slice(-NEWEST).toSorted());
  });

  test.runIf(IS_NIGHTLY)(
    'stay while they are open, or a key, a following project or an open job names them',
    async () => {
      const [keyed = '', followed = '', named = '', free = ''] = await insertJobs(4, OLD);
      const open = { ...aJob(OLD), status: 'running' as const };
      await db
        .insert(jobs)
        .values({ ...open, input: { ...open.input, emptying: { jobId: named } } as never });
      await insertJobs(NEWEST, NOW);
      await db.insert(idempotencyKeys).values({
        tenantId: 't',
        userId: 'u',
        path: '/',
        key: 'k',
        bodyHash: 'h',
        jobId: keyed,
        createdAt: OLD,
        expiresAt: new Date(NOW.getTime() + DAY_MS),
        updatedAt: OLD,
      } as unknown as typeof idempotencyKeys.$inferInsert);
      await db.insert(follows).values({
        projectId: 'p',
        branchId: 'b',
        tenantId: 't',
        jobId: followed,
        state: 'following',
        source: {},
        createdAt: OLD,
        updatedAt: OLD,
      } as unknown as typeof follows.$inferInsert);
      expect(await removeHistory(db, RETENTION, NOW)).toMatchObject({ jobs: 1 });
      const left = await jobIds();
      expect(left).toEqual(expect.arrayContaining([keyed, followed, named, open.id]));
      expect(left).not.toContain(free);
    },
  );
});

describe('audit events', () => {
  test('go when they were exported, and no event is written for it', async () => {
    await deletedBranch(OLD);
    await deletedBranch(OLD);
    await removeHistory(db, RETENTION, NOW);
    expect(await eventNames()).toHaveLength(2);
    await exportAll();
    expect(await removeHistory(db, RETENTION, NOW)).toMatchObject({ branches: 2, audit_events: 1 });
    // The last exported one stays, so that its place is known.
    expect(await eventNames()).toHaveLength(1);
    const next = await deletedBranch(OLD);
    await removeHistory(db, RETENTION, NOW);
    expect(await branchIds()).toEqual([next]);
    expect(await eventNames()).toHaveLength(2);
  });

  test('an export that is confirmed again with an older event does not go back', async () => {
    await deletedBranch(OLD);
    const [first] = await db.select().from(auditEvents);
    await deletedBranch(OLD);
    await exportAll();
    await confirmExport(db, first?.id ?? '', NOW);
    expect(await removeHistory(db, RETENTION, NOW)).toMatchObject({ branches: 2, audit_events: 1 });
    expect(await confirmExport(db, crypto.randomUUID(), NOW)).toMatchObject({ ok: false });
  });
});
