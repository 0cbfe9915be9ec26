import { and, eq, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type ChangeRow, changes } from '../database/change-schema.ts';
import type { Actor, ChangeApproval } from '../database/column-types.ts';
import { inActiveProject } from '../database/conditions.ts';
import { type Database, insertIf } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { projectMembers } from '../database/people-schema.ts';
import {
  auditEvents,
  organizationMembers,
  organizations,
  type ProjectRow,
  projects,
  users,
} from '../database/schema.ts';
import { allows, changeState } from './states.ts';

const userOf = sql.raw(`approval.value ->> 'user_id'`);

/** The condition that a user could apply changes of the project of the query now. */
const couldApply = (userId: SQL): SQL => sql`exists (
  select 1 from ${users}
  join ${organizations} on ${organizations.idpTenantId} = ${projects.tenantId}
  join ${organizationMembers} on ${organizationMembers.organizationId} = ${organizations.id}
    and ${organizationMembers.userId} = ${users.id}
  where ${users.id} = ${userId} and ${users.tenantId} = ${projects.tenantId}
    and (${organizationMembers.role} in ('owner', 'admin')
      or (${organizationMembers.role} = 'operator' and not ${projects.maskedOnly} and (
        ${projects.createdBy} = ${users.id} or exists (
          select 1 from ${projectMembers} where ${projectMembers.projectId} = ${projects.id}
            and ${projectMembers.userId} = ${users.id} and ${projectMembers.role} = 'operator')))))`;

/** The condition that a person could apply the change now. */
export const mayApply = (changeId: string, userId: string): SQL => sql`exists (
  select 1 from ${changes} join ${projects} on ${projects.id} = ${changes.projectId}
  where ${changes.id} = ${changeId} and ${couldApply(sql`${userId}`)})`;

/**
 * Approvals of the present plan by people who could give them now: a member who was removed, or who has lost the right,
 * counts no more, and neither does the author.
 */
export const countedApprovals = (changeId: string): SQL => sql`(
  select count(distinct ${userOf}) from ${changes}
  join ${projects} on ${projects.id} = ${changes.projectId}
  join json_each(${changes.approvals}) as approval
  where ${changes.id} = ${changeId} and approval.value ->> 'digest' = ${changes.digest}
    and ${userOf} <> ${changes.createdBy} and ${couldApply(userOf)})`;

/** The condition that a change has the approvals of `approvalsRequired`. */
export const hasApprovals = (changeId: string): SQL => sql`${countedApprovals(changeId)} >= (
  select max(${projects.changeApprovals}, ${projects.maskedOnly} and not ${changes.authorSeesData})
  from ${changes} join ${projects} on ${projects.id} = ${changes.projectId} where ${changes.id} = ${changeId})`;

/**
 * Adds the approval of a person who is not the author; a repeated one changes nothing. The caller has checked that the
 * person may apply the change.
 * @returns or FORBIDDEN for the author, CHANGE_STATE
 */
export async function approve(
  db: Database,
  { change, project, actor }: { change: ChangeRow; project: Pick<ProjectRow, 'id'>; actor: Actor },
  now: Date,
): Promise<Result<ChangeRow, Failure>> {
  const { id, digest } = change;
  if (actor.userId === change.createdBy) {
    const message = 'The author of a change cannot approve it. Ask another member.';
    return fail({ code: 'FORBIDDEN', fields: { required: 'another person than the author', message } });
  }
  const own = change.approvals.find((approval) => approval.user_id === actor.userId);
  if (own?.digest === digest) return ok(change);
  const approval: ChangeApproval = {
    user_id: actor.userId,
    email: actor.email,
    digest,
    at: now.toISOString(),
  };
  const about = { projectId: project.id, metadata: { change_id: id, digest } };
  const thisPlan = and(eq(changes.id, id), eq(changes.digest, digest));
  const written = await guardedWrite(db, {
    decides: (isAllowed) =>
      changeState(db, 'approve', and(thisPlan, isAllowed), {
        // The earlier one of the same person is of another plan.
        approvals: sql`(select json_group_array(json(kept.value)) from (
          select value from json_each(${changes.approvals}) where value ->> 'user_id' <> ${actor.userId}
          union all select ${JSON.stringify(approval)}) as kept)`,
        updatedAt: now,
      }),
    require: [
      ...inActiveProject(project.id, actor.tenantId),
      allows(id, 'approve'),
      [sql`exists (select 1 from ${changes} where ${thisPlan})`, 'CHANGE_STATE'],
    ],
    rest: (isAllowed) => [
      insertIf(db, auditEvents, auditEvent('change.approved', actor, about, now), isAllowed),
    ],
    returns: db.select().from(changes).where(eq(changes.id, id)),
  });
  return written.ok ? ok(written.value.at(0) ?? change) : written;
}
