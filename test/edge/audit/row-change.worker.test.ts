import { eq } from 'drizzle-orm';
import { beforeEach, expect, test } from 'vitest';
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
