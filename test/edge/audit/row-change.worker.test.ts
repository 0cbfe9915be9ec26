import { eq } from 'drizzle-orm';
import { beforeEach, expect, test } from 'vitest';
import { auditEvent } from '../../../edge/audit/audit-event.ts';
import { auditEvents } from '../../../edge/database/schema.ts';
import { ApiError } from '../../../edge/errors.ts';
import { auditedRowChange } from '../../../edge/routes/audited-work.ts';
import type { FailureCode } from '../../../shared/failures.ts';
import { ACTOR, insertBranch, startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();

/** The project of all branches that `insertBranch` makes. */
const projectId = 'p';
let branchId: string;

beforeEach(async () => {
  await db.delete(auditEvents);
  branchId = (await insertBranch(db, 'active')).id;
});

const stored = async () => {
  const rows = await db.select().from(auditEvents).where(eq(auditEvents.projectId, projectId));
  return rows.map(({ name, metadata }) => ({ name, ...metadata }));
};

const NAMES = { schema: 'public', table: 'book' };
const changeOf = (ids: string[][]) => ({
  name: 'row.deleted' as const,
  projectId,
  branchId,
  ...NAMES,
  primaryKey: ['isbn'],
  ids,
});

test('the event is stored before the host is called, with names and keys, which are bounded', async () => {
  const ids = [['x'.repeat(1000)]];
  const seen = await auditedRowChange(db, ACTOR, { ...changeOf(ids), column: 'title' }, async () => ({
    result: await stored(),
    changed: ids,
  }));
  const event = {
    name: 'row.deleted',
    ...NAMES,
    column: 'title',
    primary_key: ['isbn'],
    ids: [['x'.repeat(200)]],
  };
  expect(seen).toEqual([event]);
  expect(await stored()).toEqual([event]);
});

test('an event has at most 9,000 characters, whatever a request names, and says how much there was', async () => {
  const length = async () => JSON.stringify(await stored()).length;
  const ids = Array.from({ length: 50 }, (_, n) => Array(32).fill(String(n).padEnd(200, 'x')));
  const change = { ...changeOf(ids), primaryKey: Array.from({ length: 32 }, (_, n) => `column_${n}`) };
  await auditedRowChange(db, ACTOR, change, async () => {
    expect(await length()).toBeLessThan(9000);
    return { result: null, changed: ids.slice(1) };
  });
  expect(await length()).toBeLessThan(9000);
  const [event] = (await stored()) as unknown as { shortened: object; schema: string }[];
  expect(event).toMatchObject({ schema: 'public', table: 'book', shortened: { ids: 49 } });
});

test('an event about 50 rows with ordinary keys is whole', async () => {
  const ids = Array.from({ length: 50 }, () => [crypto.randomUUID(), crypto.randomUUID()]);
  await auditedRowChange(db, ACTOR, changeOf(ids), async () => ({ result: null, changed: ids }));
  expect(await stored()).toEqual([{ name: 'row.deleted', ...NAMES, primary_key: ['isbn'], ids }]);
});

test('the record of a deleted branch is whole, beside texts that are not', async () => {
  const record = { id: 'b', labels: { text: 'y'.repeat(20_000) } };
  const about = { projectId, metadata: { branch_name: 'x'.repeat(20_000), count: 3, nothing: null, record } };
  await db.insert(auditEvents).values(auditEvent('branch.deleted', ACTOR, about, new Date()));
  const [event] = (await stored()) as unknown as { branch_name: string }[];
  expect(event).toMatchObject({ count: 3, nothing: null, record, shortened: { branch_name: 20_000 } });
  expect(event?.branch_name.length).toBeLessThan(9000);
});

test('only rows that were changed are recorded', async () => {
  const run = (changed: string[][]) => async () => ({ result: null, changed });
  await auditedRowChange(db, ACTOR, changeOf([['1'], ['2']]), run([['2']]));
  await auditedRowChange(db, ACTOR, changeOf([['3']]), run([]));
  expect((await stored()).map((event) => (event as { ids?: unknown }).ids)).toEqual([[['2']]]);
});

test.each<[FailureCode, number]>([
  ['STATEMENT_REFUSED', 0],
  ['ROW_NOT_FOUND', 0],
  ['ROW_CHANGED', 0],
  ['TIME_LIMIT_REACHED', 0],
  ['HOST_TIMEOUT', 1],
  ['HOST_UNAVAILABLE', 1],
  ['INTERNAL', 1],
])('after %s, %i events are left, because the change may have been made', async (code, left) => {
  const fail = () => Promise.reject(new ApiError(code));
  await expect(auditedRowChange(db, ACTOR, changeOf([['1']]), fail)).rejects.toMatchObject({
    failure: { code },
  });
  expect(await stored()).toHaveLength(left);
});

test('a change of a branch that has moved to another tenant is refused before it is made', async () => {
  const moved = { ...ACTOR, tenantId: 'former' };
  const run = () => Promise.reject(new Error('the host is called'));
  await expect(auditedRowChange(db, moved, changeOf([['1']]), run)).rejects.toMatchObject({
    failure: { code: 'NOT_FOUND' },
  });
  expect(await stored()).toEqual([]);
});
