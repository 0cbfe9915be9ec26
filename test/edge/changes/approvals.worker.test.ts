import { eq, sql } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { countedApprovals, hasApprovals, mayApply } from '../../../edge/changes/approvals.ts';
import { changes } from '../../../edge/database/change-schema.ts';
import type { ChangeApproval } from '../../../edge/database/column-types.ts';
import { projectMembers } from '../../../edge/database/people-schema.ts';
import { organizationMembers, organizations, projects, users } from '../../../edge/database/schema.ts';
import { changeRow } from '../../support/records/changes.ts';
import { startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();
const EARLIER = new Date(1_000);
const DIGEST = 'of the plan';
await db.insert(organizations).values({ id: 'o', idpTenantId: 't', name: null, createdAt: EARLIER });

interface Person {
  /** Null: no member of the tenant any more. */
  role: 'owner' | 'admin' | 'operator' | 'viewer' | null;
  /** In the project; left out: none. */
  inProject?: 'operator' | 'viewer';
}

async function insertPerson(id: string, { role, inProject }: Person): Promise<void> {
  const times = { createdAt: EARLIER, updatedAt: EARLIER, tenantSeenAt: EARLIER };
  const about = { id, issuer: 'i', gid: id, email: `${id}@example.com`, tenantId: 't', ...times };
  await db.insert(users).values({ ...about, role: role ?? 'owner' });
  const member = { userId: id, createdAt: EARLIER };
  if (role) await db.insert(organizationMembers).values({ organizationId: 'o', role, ...member });
  if (inProject) await db.insert(projectMembers).values({ projectId: 'p', role: inProject, ...member });
}

const PEOPLE: Record<string, Person> = {
  owner: { role: 'owner' },
  admin: { role: 'admin' },
  'an operator who is a member of the project': { role: 'operator', inProject: 'operator' },
  'an operator who may only see the project': { role: 'operator', inProject: 'viewer' },
  'an operator of other projects': { role: 'operator' },
  'a viewer': { role: 'viewer' },
  'a viewer who is a member of the project': { role: 'viewer', inProject: 'operator' },
  'a member who was removed': { role: null, inProject: 'operator' },
};
for (const [id, person] of Object.entries(PEOPLE)) await insertPerson(id, person);

const approvalOf = (user_id: string, digest = DIGEST): ChangeApproval => ({
  user_id,
  email: 'e',
  digest,
  at: EARLIER.toISOString(),
});

async function count(
  approvals: ChangeApproval[],
  createdBy = 'u',
): Promise<{ counted: number; has: number }> {
  const row = changeRow({ approvals, createdBy, digest: DIGEST });
  await db.insert(changes).values(row);
  const [found] = await db
    .select({
      counted: sql<number>`${countedApprovals(row.id)}`,
      has: sql<number>`${hasApprovals(row.id)}`,
      may: sql<number>`${mayApply(row.id, approvals[0]?.user_id ?? '')}`,
    })
    .from(sql`(select 1)`);
  await db.delete(changes).where(eq(changes.id, row.id));
  return found ?? expect.unreachable();
}
const setProject = (set: Partial<typeof projects.$inferInsert>) =>
  db.update(projects).set(set).where(eq(projects.id, 'p'));

test.each([
  ['owner', 1, 1],
  ['admin', 1, 1],
  // Members get masked data only where the project says so.
  ['an operator who is a member of the project', 1, 0],
  ['an operator who may only see the project', 0, 0],
  ['an operator of other projects', 0, 0],
  ['a viewer', 0, 0],
  ['a viewer who is a member of the project', 0, 0],
  ['a member who was removed', 0, 0],
  ['nobody who is known', 0, 0],
])('an approval by %s counts %i times, and %i with masked data only', async (id, usually, masked) => {
  await setProject({ maskedOnly: false });
  expect(await count([approvalOf(id)])).toMatchObject({ counted: usually, may: usually });
  await setProject({ maskedOnly: true });
  expect(await count([approvalOf(id)])).toMatchObject({ counted: masked, may: masked });
  await setProject({ maskedOnly: false });
});

test('two approvals are those of two people, of this plan, and not of its author', async () => {
  await setProject({ changeApprovals: 2 });
  const first = approvalOf('owner');
  const second = approvalOf('admin');
  expect(await count([first, second])).toMatchObject({ counted: 2, has: 1 });
  expect(await count([first, first])).toMatchObject({ counted: 1, has: 0 });
  expect(await count([first, approvalOf('admin', 'of another plan')])).toMatchObject({ counted: 1, has: 0 });
  expect(await count([first, second], 'admin')).toMatchObject({ counted: 1, has: 0 });
  // The one who made the project may approve too.
  await setProject({ createdBy: 'an operator of other projects' });
  expect((await count([approvalOf('an operator of other projects')])).counted).toBe(1);
});
