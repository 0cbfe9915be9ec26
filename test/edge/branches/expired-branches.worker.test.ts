import { eq } from 'drizzle-orm';
import { beforeEach, expect, test } from 'vitest';
import { confirmAccess } from '../../../edge/access/send-access.ts';
import { nextEnd } from '../../../edge/branches/branch-ends.ts';
import { storeSettings } from '../../../edge/branches/branch-settings.ts';
import { retireBranches } from '../../../edge/branches/delete-branch.ts';
import { expireBranches } from '../../../edge/branches/expiry.ts';
import { auditEvents, jobs, projectBranches } from '../../../edge/database/schema.ts';
import { ACTOR, insertBranch, isStale, readBranch, startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();

const DAY_MS = 86_400_000;
const NOW = new Date();
const after = (days: number) => new Date(NOW.getTime() + days * DAY_MS);
const SETTINGS = { EXPIRED_RETENTION_SECONDS: 7 * 86_400 };

beforeEach(async () => {
  await db.delete(projectBranches);
});

const rowOf = async (id: string) =>
  (await db.select().from(projectBranches).where(eq(projectBranches.id, id)))[0];
/** @returns how often the alarm was set before work was written */
async function retire(now: Date): Promise<number> {
  let armed = 0;
  await retireBranches(db, 'p', now, () => {
    armed += 1;
  });
  return armed;
}

test('an expired branch is deleted after its retention, with notice before, a job and an audit event', async () => {
  const branch = await insertBranch(db, 'active', after(-3));
  const other = await insertBranch(db, 'active', null);
  expect(await nextEnd(db, 'p')).toEqual(after(-3));
  await expireBranches(db, SETTINGS, 'p', NOW);
  await confirmAccess(db, 'p', 1);
  // Counted from the expiry itself, which can be late.
  expect(await rowOf(branch.id)).toMatchObject({ status: 'expired', deletesAt: after(7) });
  expect(await nextEnd(db, 'p')).toEqual(after(7));

  expect(await retire(after(6.9))).toBe(0);
  expect((await readBranch(db, branch)).status).toBe('expired');
  expect(await isStale(db, after(6.9))).toBe(false);
  expect(await isStale(db, after(7))).toBe(true);

  expect(await retire(after(7))).toBe(1);
  expect(await retire(after(7))).toBe(0);
  expect(await rowOf(branch.id)).toMatchObject({ status: 'deleted', deletedAt: after(7), deletesAt: null });
  const events = await db.select().from(auditEvents).where(eq(auditEvents.branchId, branch.id));
  expect(events.map(({ name, actorId, metadata }) => ({ name, actorId, metadata }))).toMatchObject([
    { name: 'branch.expired', actorId: null, metadata: { deletes_at: after(7).toISOString() } },
    { name: 'branch.deleted', actorId: null, metadata: { reason: 'expired', branch_name: branch.id } },
  ]);
  expect(await db.select().from(jobs).where(eq(jobs.branchId, branch.id))).toMatchObject([
    { kind: 'branch.delete', status: 'queued', hostId: 'h', createdBy: 'u' },
  ]);
  expect(await nextEnd(db, 'p')).toBeNull();
  expect((await readBranch(db, other)).status).toBe('active');
});

test('an expired branch is not kept for longer than it lived', async () => {
  const brief = await insertBranch(db, 'active', NOW);
  const long = await insertBranch(db, 'active', NOW);
  const live = (id: string, ttlSeconds: number) =>
    db.update(projectBranches).set({ ttlSeconds }).where(eq(projectBranches.id, id));
  await live(brief.id, 60);
  await live(long.id, 30 * 86_400);
  await expireBranches(db, SETTINGS, 'p', NOW);
  const minute = after(1 / 1440);
  expect(await rowOf(brief.id)).toMatchObject({ status: 'expired', deletesAt: minute });
  expect(await rowOf(long.id)).toMatchObject({ status: 'expired', deletesAt: after(7) });
  const [event] = await db.select().from(auditEvents).where(eq(auditEvents.branchId, brief.id));
  expect(event?.metadata).toMatchObject({ deletes_at: minute.toISOString() });
  await retire(minute);
  expect([(await readBranch(db, brief)).status, (await readBranch(db, long)).status]).toEqual([
    'deleted',
    'expired',
  ]);
});

test.each([
  ['expired, and not yet due', { status: 'expired', deletesAt: after(1) }],
  ['active again', { status: 'active', deletesAt: null }],
  ['lost', { status: 'failed', deletesAt: null }],
] as const)('a branch that is %s stays', async (_, values) => {
  const branch = await insertBranch(db, 'expired', after(-1));
  await db.update(projectBranches).set(values).where(eq(projectBranches.id, branch.id));
  expect(await retire(NOW)).toBe(0);
  expect((await readBranch(db, branch)).status).toBe(values.status);
});

test('a protected branch expires and is not deleted; its retention begins when its protection ends', async () => {
  const branch = await insertBranch(db, 'active', NOW);
  const protect = async (isProtected: boolean, now: Date) => {
    const row = await rowOf(branch.id);
    if (!row) throw new Error('no branch');
    const changed = await storeSettings(
      db,
      SETTINGS,
      { branch: row, isProtected, hostId: 'h', actor: ACTOR },
      now,
    );
    expect(changed).toMatchObject({ ok: true });
  };
  await protect(true, NOW);
  await expireBranches(db, SETTINGS, 'p', NOW);
  expect(await rowOf(branch.id)).toMatchObject({ status: 'expired', deletesAt: null });
  const [, event] = await db.select().from(auditEvents).where(eq(auditEvents.branchId, branch.id));
  expect(event).toMatchObject({ name: 'branch.expired', metadata: { deletes_at: null } });
  expect(await nextEnd(db, 'p')).toBeNull();
  expect(await retire(after(400))).toBe(0);
  await protect(false, after(400));
  expect(await rowOf(branch.id)).toMatchObject({ deletesAt: after(407) });
  // A branch that is not protected keeps its end.
  await protect(false, after(401));
  expect(await rowOf(branch.id)).toMatchObject({ deletesAt: after(407) });
  // Protected by the release before, with an end.
  await db.update(projectBranches).set({ protected: true }).where(eq(projectBranches.id, branch.id));
  expect(await retire(after(407))).toBe(0);
  await db.update(projectBranches).set({ protected: false }).where(eq(projectBranches.id, branch.id));
  expect(await retire(after(407))).toBe(1);
  expect(await rowOf(branch.id)).toMatchObject({ status: 'deleted' });
});
