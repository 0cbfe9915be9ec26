import { eq } from 'drizzle-orm';
import { afterAll, expect, test } from 'vitest';
import { markBranchDeleted } from '../../../edge/branches/delete-branch.ts';
import { projectBranches, projects } from '../../../edge/database/schema.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import { ACTOR, insertBranch, startRecords } from '../../support/records/records.ts';

const { db, stop } = await startRecords();
afterAll(stop);

const deletionOf = (branchId: string) => {
  const about = { id: crypto.randomUUID(), projectId: 'p', hostId: 'h', actor: ACTOR };
  return newJob('branch.delete', { branchId }, about, new Date());
};

test.each([
  ['an unconfirmed access revision is followed by a newer one', { accessRevision: 3, accessApplied: 2 }, 4],
  ['a confirmed access revision stays as it is', { accessRevision: 3, accessApplied: 3 }, 3],
])('when a branch is deleted, %s', async (_, access, revision) => {
  const { id } = await insertBranch(db, 'active');
  await db.update(projects).set(access);
  expect(await markBranchDeleted(db, deletionOf(id), new Date())).toMatchObject({ ok: true });
  const [project] = await db.select().from(projects).where(eq(projects.id, 'p'));
  expect(project?.accessRevision).toBe(revision);
  expect(await markBranchDeleted(db, deletionOf(id), new Date())).toEqual({
    ok: false,
    failure: { code: 'NOT_FOUND' },
  });
  expect(await db.select().from(projects)).toEqual([project]);
});

test('the children of a deleted branch have no parent, and still name their source', async () => {
  const [parent, child, other] = [
    await insertBranch(db, 'active'),
    await insertBranch(db, 'active'),
    await insertBranch(db, 'active'),
  ];
  const source = { parentBranchId: parent.id, sourceDatabase: `db_${parent.id}` };
  await db.update(projectBranches).set(source).where(eq(projectBranches.id, child.id));
  await db.update(projectBranches).set({ parentBranchId: child.id }).where(eq(projectBranches.id, other.id));
  expect(await markBranchDeleted(db, deletionOf(parent.id), new Date())).toMatchObject({ ok: true });
  const rowOf = async ({ id }: { id: string }) =>
    (await db.select().from(projectBranches).where(eq(projectBranches.id, id)))[0];
  expect(await rowOf(child)).toMatchObject({ parentBranchId: null, sourceDatabase: `db_${parent.id}` });
  expect(await rowOf(other)).toMatchObject({ parentBranchId: child.id });
});
