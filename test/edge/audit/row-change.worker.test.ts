import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { auditedRowChange } from '../../../edge/audit/row-change.ts';
import { type Database, openDatabase } from '../../../edge/database/database.ts';
import { auditEvents } from '../../../edge/database/schema.ts';
import { ApiError } from '../../../edge/errors.ts';
import type { FailureCode } from '../../../shared/failures.ts';
import { startD1, type TestD1 } from '../../support/records/d1.ts';

const ACTOR = {
  userId: 'user',
  email: 'ada@example.com',
  tenantId: 'acme',
  ip: null,
  userAgent: null,
  requestId: 'request-1',
};

let d1: TestD1;
let db: Database;
let projectId: string;

beforeAll(async () => {
  d1 = await startD1();
  db = openDatabase(d1.binding);
});
afterAll(() => d1.stop());
beforeEach(() => {
  projectId = crypto.randomUUID();
});

const stored = async () => {
  const rows = await db.select().from(auditEvents).where(eq(auditEvents.projectId, projectId));
  return rows.map(({ name, metadata }) => ({ name, ...metadata }));
};

const NAMES = { schema: 'public', table: 'book' };
const changeOf = (ids: string[][]) => ({
  name: 'row.deleted' as const,
  projectId,
  branchId: crypto.randomUUID(),
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
