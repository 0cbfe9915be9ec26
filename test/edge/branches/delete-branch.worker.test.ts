import { eq } from 'drizzle-orm';
import { describe, expect, test } from 'vitest';
import { deleteBranch, markBranchDeleted } from '../../../edge/branches/delete-branch.ts';
import { projectBranches, projects, snapshots } from '../../../edge/database/schema.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import type { Settings } from '../../../edge/settings.ts';
import { ACTOR, insertBranch, startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();

const deletionOf = (branchId: string) => {
  const about = { id: crypto.randomUUID(), projectId: 'p', hostId: 'h', actor: ACTOR };
  return newJob('branch.delete', { branchId }, about, new Date());
};

const rowOf = async ({ id }: { id: string }) => {
  const [row] = await db.select().from(projectBranches).where(eq(projectBranches.id, id));
  if (!row) throw new Error('no branch');
  return row;
};
const remove = async (branch: { id: string }) =>
  markBranchDeleted(db, deletionOf(branch.id), await rowOf(branch), new Date());

test.each([
  ['an unconfirmed access revision is followed by a newer one', { accessRevision: 3, accessApplied: 2 }, 4],
  ['a confirmed access revision stays as it is', { accessRevision: 3, accessApplied: 3 }, 3],
])('when a branch is deleted, %s', async (_, access, revision) => {
  const branch = await insertBranch(db, 'active');
  await db.update(projects).set(access);
  const isAccessPending = revision === 4;
  expect(await remove(branch)).toMatchObject({ ok: true, value: { isAccessPending } });
  const [project] = await db.select().from(projects).where(eq(projects.id, 'p'));
  expect(project?.accessRevision).toBe(revision);
  expect(await remove(branch)).toEqual({
    ok: false,
    failure: { code: 'NOT_FOUND' },
  });
  expect(await db.select().from(projects)).toEqual([project]);
});

test('the children of a deleted branch have no parent, and still name their source', async () => {
  const parent = await insertBranch(db, 'active');
  const child = await insertBranch(db, 'active');
  const other = await insertBranch(db, 'active');
  const source = { parentBranchId: parent.id, sourceDatabase: `db_${parent.id}` };
  await db.update(projectBranches).set(source).where(eq(projectBranches.id, child.id));
  await db.update(projectBranches).set({ parentBranchId: child.id }).where(eq(projectBranches.id, other.id));
  expect(await remove(parent)).toMatchObject({ ok: true });
  expect(await rowOf(child)).toMatchObject({ parentBranchId: null, sourceDatabase: `db_${parent.id}` });
  expect(await rowOf(other)).toMatchObject({ parentBranchId: child.id });
});

describe('a branch that has changed since its deletion read it', () => {
  type Change = Partial<typeof projectBranches.$inferInsert>;
  const change = (id: string, fields: Change) =>
    db.update(projectBranches).set(fields).where(eq(projectBranches.id, id));

  /** @param fields what has changed since */
  async function removeChanged(fields: Change, status: 'active' | 'creating' = 'active') {
    const { id } = await insertBranch(db, status);
    const branch = await rowOf({ id });
    await change(id, fields);
    const about = { id: crypto.randomUUID(), projectId: 'p', hostId: 'h', actor: ACTOR };
    const settings = { UNDELETE_SECONDS: 100 } as Settings;
    const deletion = { ...about, branch, purge: false };
    const deleted = await deleteBranch(db, settings, deletion, new Date());
    const kept = await db.select().from(snapshots).where(eq(snapshots.branchId, id));
    return { deleted, kept, status: (await rowOf({ id })).status };
  }

  test('stays, if it is protected by now', async () => {
    expect(await removeChanged({ protected: true })).toMatchObject({
      deleted: { ok: false, failure: { code: 'BRANCH_PROTECTED' } },
      status: 'active',
    });
  });

  test('is kept as what it is by now', async () => {
    expect(await removeChanged({ data: 'masked', maskingVersion: 3 })).toMatchObject({
      deleted: { ok: true },
      kept: [{ data: 'masked', maskingVersion: 3 }],
    });
  });

  test('is kept, if it is complete by now, and not if it has a lease by now', async () => {
    expect(await removeChanged({ status: 'active' }, 'creating')).toMatchObject({
      kept: [{}],
      status: 'deleted',
    });
    expect(await removeChanged({ leaseSeconds: 60 })).toMatchObject({ kept: [], status: 'deleted' });
  });

  test('cannot be deleted, if it is deleted by now', async () => {
    expect(await removeChanged({ status: 'deleted' })).toMatchObject({
      deleted: { ok: false, failure: { code: 'NOT_FOUND' } },
      kept: [],
    });
  });
});
