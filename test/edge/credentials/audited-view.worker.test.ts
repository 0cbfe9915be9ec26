import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { auditedView } from '../../../edge/credentials/audited-view.ts';
import { changesOf, type Database, inOneBatch, openDatabase } from '../../../edge/database/database.ts';
import { auditEvents, projectBranches } from '../../../edge/database/schema.ts';
import { startD1, type TestD1 } from '../../support/d1.ts';
import { insertBranch, insertProject } from '../../support/records.ts';

let d1: TestD1;
let db: Database;

beforeAll(async () => {
  d1 = await startD1();
  db = openDatabase(d1.binding);
  await insertProject(db, 'h');
});
afterAll(() => d1.stop());

const actor = { userId: 'u', email: 'e', tenantId: 't', ip: null, userAgent: null, requestId: 'r' };

test('a view of a branch that has moved to another tenant since it was read is not recorded in the former one', async () => {
  const { id } = await insertBranch(db, 'active');
  const thisBranch = eq(projectBranches.id, id);
  const [branch] = await db.select().from(projectBranches).where(thisBranch);
  if (!branch) throw new Error('no branch');
  const view = async () => {
    const [answer] = await inOneBatch(db, [auditedView(db, branch, 'default', actor, new Date())]);
    return changesOf(answer);
  };
  expect(await view()).toBe(1);
  await db.update(projectBranches).set({ tenantId: 'other' }).where(thisBranch);
  expect(await view()).toBe(0);
  expect(await db.$count(auditEvents)).toBe(1);
});
