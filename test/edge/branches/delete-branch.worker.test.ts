import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { recordBranchDeletion } from '../../../edge/branches/delete-branch.ts';
import { type Database, openDatabase } from '../../../edge/database/database.ts';
import { projects } from '../../../edge/database/schema.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
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
const about = { projectId: 'p', hostId: 'h', actor, kind: 'branch.delete' } as const;

test.each([
  ['access that is on its way gets a newer one behind it', { accessRevision: 3, accessApplied: 2 }, 4],
  ['access that the host obeys stays as it is', { accessRevision: 3, accessApplied: 3 }, 3],
])('when a branch is deleted, %s', async (_, access, revision) => {
  const { id } = await insertBranch(db, 'active');
  await db.update(projects).set(access);
  const deletion = () => newJob({ ...about, id: crypto.randomUUID(), branchId: id }, new Date());
  expect(await recordBranchDeletion(db, deletion(), new Date())).toBeNull();
  const [project] = await db.select().from(projects).where(eq(projects.id, 'p'));
  expect(project?.accessRevision).toBe(revision);
  expect(await recordBranchDeletion(db, deletion(), new Date())).toEqual({ code: 'NOT_FOUND' });
  expect(await db.select().from(projects)).toEqual([project]);
});
