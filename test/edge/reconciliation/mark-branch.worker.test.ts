import { afterAll, expect, test } from 'vitest';
import { confirmAccess } from '../../../edge/access/access-revision.ts';
import { expireBranches } from '../../../edge/branches/expire-branches.ts';
import { eventOutbox } from '../../../edge/database/event-schema.ts';
import { projects } from '../../../edge/database/schema.ts';
import { readRecords } from '../../../edge/reconciliation/differences.ts';
import { markFound, markLost } from '../../../edge/reconciliation/mark-branch.ts';
import { clusterOnRecord } from '../../../edge/reconciliation/reconcile-host.ts';
import { insertBranch, readBranch, startRecords } from '../../support/records/records.ts';

const NOW = new Date('2026-11-21T12:00:00Z');
const EARLIER = new Date(NOW.getTime() - 1);
const LATER = new Date(NOW.getTime() + 1);

const { db, stop } = await startRecords();
afterAll(stop);

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

  const isStale = async () => {
    await db.delete(eventOutbox);
    return (await readRecords(db, 'h', NOW)).projects[0]?.stale;
  };
  const revision = async () => (await db.select().from(projects))[0]?.accessRevision ?? 0;
  const before = await revision();
  expect(await isStale()).toBe(expires);
  await expireBranches(db, 'p', NOW);
  expect(await revision()).toBe(before + (expires ? 1 : 0));
  expect((await readBranch(db, found)).status).toBe(expires ? 'expired' : 'active');
  await confirmAccess(db, 'p', await revision());
  expect(await isStale()).toBe(false);
});

test('a project whose events are not published is woken', async () => {
  await db.delete(eventOutbox);
  const isStale = async () => (await readRecords(db, 'h', NOW)).projects[0]?.stale;
  expect(await isStale()).toBe(false);
  await insertBranch(db, 'active');
  expect(await isStale()).toBe(true);
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
