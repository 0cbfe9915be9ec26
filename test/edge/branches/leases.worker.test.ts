import { eq } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { nextEnd } from '../../../edge/branches/branch-ends.ts';
import { storeSettings } from '../../../edge/branches/branch-settings.ts';
import { retireBranches } from '../../../edge/branches/delete-branch.ts';
import { storeRenewal } from '../../../edge/branches/expiry.ts';
import { auditEvents, jobs, projectBranches } from '../../../edge/database/schema.ts';
import { ACTOR, insertBranch, isStale, readBranch, startRecords } from '../../support/records/records.ts';

const NOW = new Date('2026-11-21T12:00:00Z');
const at = (seconds: number) => new Date(NOW.getTime() + seconds * 1000);

const { db } = await startRecords();

async function leased(endsIn: number, status: 'active' | 'expired' = 'active') {
  const inserted = await insertBranch(db, status);
  const [branch] = await db
    .update(projectBranches)
    .set({ leaseSeconds: 60, leaseEndsAt: at(endsIn) })
    .where(eq(projectBranches.id, inserted.id))
    .returning();
  if (!branch) throw new Error('no branch');
  return branch;
}

/** @returns how often the alarm was set before work was written */
async function endLeases(now: Date): Promise<number> {
  let armed = 0;
  await retireBranches(db, 'p', now, () => {
    armed += 1;
  });
  return armed;
}

test('a lease that ends deletes the branch once; a later one is left', async () => {
  const over = await leased(-1);
  const left = await leased(30);
  expect(await isStale(db, NOW)).toBe(true);
  expect(await nextEnd(db, 'p')).toEqual(at(-1));
  expect(await endLeases(NOW)).toBe(1);
  expect(await endLeases(NOW)).toBe(0);
  expect(await nextEnd(db, 'p')).toEqual(at(30));
  expect(await isStale(db, NOW)).toBe(false);
  expect(await readBranch(db, over)).toEqual({ status: 'deleted', events: ['branch.deleted'] });
  expect(await readBranch(db, left)).toEqual({ status: 'active', events: [] });
  const opened = await db.select().from(jobs).where(eq(jobs.branchId, over.id));
  expect(opened).toMatchObject([{ kind: 'branch.delete', status: 'queued', createdBy: over.createdBy }]);
  const [event] = await db.select().from(auditEvents).where(eq(auditEvents.branchId, over.id));
  expect(event).toMatchObject({ actorId: null, metadata: { reason: 'lease_ended' } });
});

test('a renewal counts from now, and can change the length', async () => {
  const branch = await leased(5);
  const renew = (leaseSeconds: number | null, now: Date) =>
    storeRenewal(db, { branch, leaseSeconds, actor: ACTOR }, now);
  expect(await renew(null, at(1))).toMatchObject({ ok: true, value: { leaseEndsAt: at(61) } });
  expect(await renew(30, at(2))).toMatchObject({
    ok: true,
    value: { leaseSeconds: 30, leaseEndsAt: at(32) },
  });
  expect(await renew(null, at(3))).toMatchObject({ ok: true, value: { leaseEndsAt: at(33) } });
  await endLeases(at(33));
  expect((await readBranch(db, branch)).status).toBe('deleted');
});

test.each([
  ['that has ended', () => leased(-1), 'NOT_FOUND'],
  ['of an expired branch', () => leased(30, 'expired'), 'BRANCH_NOT_ACTIVE'],
] as const)('a lease %s is not renewed', async (_, made, code) => {
  const branch = await made();
  const renewed = await storeRenewal(db, { branch, leaseSeconds: 60, actor: ACTOR }, NOW);
  expect(renewed).toEqual({ ok: false, failure: { code } });
  const [stored] = await db.select().from(projectBranches).where(eq(projectBranches.id, branch.id));
  expect(stored).toEqual(branch);
});

test('another tenant, or a branch without a lease, gets no renewal', async () => {
  const branch = await leased(30);
  const stranger = { ...ACTOR, tenantId: 'other' };
  expect(await storeRenewal(db, { branch, leaseSeconds: null, actor: stranger }, NOW)).toMatchObject({
    ok: false,
  });
  const unleased = { ...branch, leaseSeconds: null };
  expect(await storeRenewal(db, { branch: unleased, leaseSeconds: 60, actor: ACTOR }, NOW)).toEqual({
    ok: false,
    failure: { code: 'BRANCH_NOT_LEASED' },
  });
});

test('a protected branch has no end of its lease, which begins again when its protection ends', async () => {
  const branch = await leased(30);
  const retention = { EXPIRED_RETENTION_SECONDS: 60 };
  const protect = (isProtected: boolean, now: Date) =>
    storeSettings(db, retention, { branch, isProtected, hostId: 'h', actor: ACTOR }, now);
  const renew = (leaseSeconds: number | null) =>
    storeRenewal(db, { branch, leaseSeconds, actor: ACTOR }, at(10));
  expect(await protect(true, NOW)).toMatchObject({ ok: true, value: { leaseEndsAt: null } });
  expect(await renew(null)).toMatchObject({ ok: true, value: { leaseSeconds: 60, leaseEndsAt: null } });
  expect(await renew(40)).toMatchObject({ ok: true, value: { leaseSeconds: 40, leaseEndsAt: null } });
  await endLeases(at(1_000));
  expect((await readBranch(db, branch)).status).toBe('active');
  expect(await protect(false, at(1_000))).toMatchObject({ ok: true, value: { leaseEndsAt: at(1_040) } });
  await endLeases(at(1_039));
  expect((await readBranch(db, branch)).status).toBe('active');
  await endLeases(at(1_040));
  expect((await readBranch(db, branch)).status).toBe('deleted');
});
