import { eq } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { auditedView } from '../../../edge/access/credentials.ts';
import { hasChanged, inOneBatch } from '../../../edge/database/database.ts';
import { auditEvents, projectBranches } from '../../../edge/database/schema.ts';
import { ACTOR, insertBranch, startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();

test('a view of a branch that has moved to another tenant since it was read is not audited in the former tenant', async () => {
  const { id } = await insertBranch(db, 'active');
  const thisBranch = eq(projectBranches.id, id);
  const [branch] = await db.select().from(projectBranches).where(thisBranch);
  if (!branch) throw new Error('no branch');
  const view = async () => hasChanged(await auditedView(db, branch, 'default', ACTOR, new Date()));
  expect(await view()).toBe(true);
  await db.update(projectBranches).set({ tenantId: 'other' }).where(thisBranch);
  expect(await view()).toBe(false);
  expect(await db.$count(auditEvents)).toBe(1);
});

test.each(['default', 'read_only', 'owner'] as const)(
  'the event of a view names the login that was shown: %s',
  async (role) => {
    const { id } = await insertBranch(db, 'active');
    const [branch] = await db.select().from(projectBranches).where(eq(projectBranches.id, id));
    if (!branch) throw new Error('no branch');
    await inOneBatch(db, [auditedView(db, branch, role, ACTOR, new Date())]);
    const events = await db.select().from(auditEvents).where(eq(auditEvents.branchId, id));
    expect(events.map(({ name, metadata }) => ({ name, metadata }))).toEqual([
      { name: 'branch.credentials.viewed', metadata: { role } },
    ]);
  },
);
