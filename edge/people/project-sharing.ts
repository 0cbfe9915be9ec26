import { and, eq, exists, ne, notExists, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent } from '../audit/audit-event.ts';
import { SHARED_ROLES, type SharedRole } from '../database/column-types.ts';
import { isOfTenant } from '../database/conditions.ts';
import { type Database, firstRow, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { projectMembers } from '../database/people-schema.ts';
import { auditEvents, projects, users } from '../database/schema.ts';
import { type MemberRequest, membersOf } from './members.ts';

export const ProjectRole = z.enum(SHARED_ROLES).meta({
  description:
    '`operator`: the project counts as their own. `viewer`: they can see it. It never gives more than the role of the user in the tenant.',
  example: 'viewer',
});

export const ProjectMember = z
  .strictObject({
    user_id: z.uuid(),
    email: z.string().meta({ example: 'grace@example.com' }),
    role: ProjectRole,
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'ProjectMember' });

/** The users that the project is shared with. */
export const projectMembersOf = (db: Database, projectId: string, condition?: SQL) =>
  db
    .select({
      id: projectMembers.userId,
      email: users.email,
      role: projectMembers.role,
      createdAt: projectMembers.createdAt,
    })
    .from(projectMembers)
    .innerJoin(users, eq(users.id, projectMembers.userId))
    .where(and(eq(projectMembers.projectId, projectId), condition));

type ProjectMemberRow = Awaited<ReturnType<typeof projectMembersOf>>[number];

export const toProjectMemberResponse = (row: ProjectMemberRow): z.output<typeof ProjectMember> => ({
  user_id: row.id,
  email: row.email,
  role: row.role,
  created_at: row.createdAt.toISOString(),
});

/**
 * Shares a project with a member of its tenant, or changes the role. A repetition changes nothing.
 * @returns or NOT_FOUND for a user who is no member
 */
export async function shareProject(
  { db, settings, principal, client, now }: MemberRequest,
  { projectId, userId, role }: { projectId: string; userId: string; role: SharedRole },
): Promise<Result<ProjectMemberRow, Failure>> {
  const { tenantId } = principal;
  const [member] = await membersOf(db, settings, tenantId, eq(users.id, userId));
  if (!member) return fail({ code: 'NOT_FOUND' });
  const { email } = member;
  const isShared = and(eq(projectMembers.projectId, projectId), eq(projectMembers.userId, userId));
  const same = db
    .select({ role: projectMembers.role })
    .from(projectMembers)
    .where(and(isShared, eq(projectMembers.role, role)));
  // A project or a user that has moved to another tenant since it was read is not shared.
  const event = auditEvent(
    'project.shared',
    actorWith(client, principal),
    { projectId, metadata: { user_id: userId, email, role } },
    now,
  );
  const row = { projectId, userId, role, createdAt: now };
  const shared = await guardedWrite(db, {
    decides: (isAllowed) => insertIf(db, projectMembers, row, sql`${isAllowed} and ${notExists(same)}`),
    require: [
      [isOfTenant(projects, projectId, tenantId), 'NOT_FOUND'],
      [exists(membersOf(db, settings, tenantId, eq(users.id, userId))), 'NOT_FOUND'],
    ],
    rest: (isAllowed) => [
      insertIf(db, auditEvents, event, sql`${isAllowed} and ${notExists(same)}`),
      db.delete(projectMembers).where(and(isShared, ne(projectMembers.role, role), isAllowed)),
    ],
    returns: projectMembersOf(db, projectId, eq(projectMembers.userId, userId)),
  });
  return shared.ok ? firstRow(shared.value) : shared;
}

/** @returns or NOT_FOUND if the project is not shared with the user */
export async function unshareProject(
  { db, principal, client, now }: MemberRequest,
  { projectId, userId }: { projectId: string; userId: string },
): Promise<Result<null, Failure>> {
  const [shared] = await projectMembersOf(db, projectId, eq(projectMembers.userId, userId));
  if (!shared) return fail({ code: 'NOT_FOUND' });
  const isShared = and(eq(projectMembers.projectId, projectId), eq(projectMembers.userId, userId));
  const event = auditEvent(
    'project.unshared',
    actorWith(client, principal),
    { projectId, metadata: { user_id: userId, email: shared.email, role: shared.role } },
    now,
  );
  const unshared = await guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere(projectMembers, isShared), 'NOT_FOUND']],
    rest: (isWritten) => [db.delete(projectMembers).where(and(isShared, isWritten))],
  });
  return unshared.ok ? ok(null) : unshared;
}
