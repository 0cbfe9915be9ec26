import { and, eq, ne, or, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent, type ClientDetails } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import { type AuditActor, ROLES, type Role } from '../database/column-types.ts';
import { type Database, firstRow, isThere, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { oauthGrants } from '../database/oauth-schema.ts';
import {
  accounts,
  invitations,
  projectMembers,
  recoveryCodes,
  secondFactors,
} from '../database/people-schema.ts';
import { auditEvents, organizationMembers, organizations, users } from '../database/schema.ts';
import { sessions } from '../database/session-schema.ts';
import { repeatIfLost } from '../lost-object.ts';
import type { Settings } from '../settings.ts';
import { type ChallengeObjects, challengesOf } from '../sign-in/challenge.ts';
import { deleteSessions } from '../sign-in/sessions.ts';

export const Member = z
  .strictObject({
    id: z.uuid().meta({ description: 'The ID of the user, as in `created_by` and `actor_id`.' }),
    email: z.string().meta({ example: 'ada@example.com' }),
    role: z.string().meta({ example: 'operator' }),
    issuer: z.string().meta({
      description: 'Who manages the user: this gateway, or the identity provider.',
      example: 'https://idp.example.com',
    }),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'Member' });

const isAccountOf = ({ BASE_URL }: Settings): SQL | undefined =>
  and(eq(users.issuer, BASE_URL), eq(accounts.id, users.gid));

const isMember = sql`exists (select 1 from ${organizations}
  join ${organizationMembers} on ${organizationMembers.organizationId} = ${organizations.id}
  where ${organizations.idpTenantId} = ${users.tenantId} and ${organizationMembers.userId} = ${users.id})`;

/**
 * The members of a tenant: its accounts here, and the users of the provider whose newest token named the
 * tenant.
 */
export const membersOf = (db: Database, settings: Settings, tenantId: string, condition?: SQL) =>
  db
    .select({
      id: users.id,
      issuer: users.issuer,
      gid: users.gid,
      // With a name of its own, because a batch on D1 returns only one of two columns with the same name.
      accountRole: sql<string | null>`${accounts.role}`.as('account_role'),
      email: users.email,
      tokenRole: users.role,
      createdAt: users.createdAt,
    })
    .from(users)
    .leftJoin(accounts, isAccountOf(settings))
    .where(
      and(
        eq(users.tenantId, tenantId),
        // A user of this gateway without an account was removed, and a person of a provider who has left has
        // no membership.
        or(eq(accounts.tenantId, tenantId), and(ne(users.issuer, settings.BASE_URL), isMember)),
        condition,
      ),
    );

export type MemberRow = Awaited<ReturnType<typeof membersOf>>[number];

export const toMemberResponse = (row: MemberRow): z.output<typeof Member> => ({
  id: row.id,
  email: row.email,
  role: row.accountRole ?? row.tokenRole,
  issuer: row.issuer,
  created_at: row.createdAt.toISOString(),
});

/** What a change of a member needs to know about its request. */
export interface MemberRequest {
  env: ChallengeObjects;
  db: Database;
  settings: Settings;
  principal: Principal;
  client: ClientDetails;
  now: Date;
}

/**
 * Only an owner may make, change or remove an owner, so that an admin cannot take over the tenant.
 * @returns or FORBIDDEN
 */
export function checkOwnerFor(principal: Principal, ...roles: (string | null)[]): Result<null, Failure> {
  if (principal.role === 'owner' || !roles.includes('owner')) return ok(null);
  const reason = 'only an owner decides about owners';
  return fail({ code: 'FORBIDDEN', fields: { required: 'role owner' }, reason });
}

type AccountMember = MemberRow & { accountRole: string };

/** The member, who has to be an account of this gateway. @returns or NOT_FOUND, MANAGED_BY_PROVIDER */
async function accountMember(
  { db, settings, principal }: MemberRequest,
  userId: string,
): Promise<Result<AccountMember, Failure>> {
  const member = firstRow(await membersOf(db, settings, principal.tenantId, eq(users.id, userId)));
  if (!member.ok) return member;
  const { accountRole } = member.value;
  return accountRole === null ? fail({ code: 'MANAGED_BY_PROVIDER' }) : ok({ ...member.value, accountRole });
}

interface MemberChange {
  /** The new role; null if the account is removed. */
  next: Role | null;
  event: ReturnType<typeof auditEvent>;
  rest: (isWritten: SQL) => Statement[];
}

/** Writes the change, unless the account has changed since it was read or the tenant would lose its last owner. */
function writeUnlessLast(
  { db, principal: { tenantId } }: MemberRequest,
  { gid, accountRole }: AccountMember,
  { next, event, rest }: MemberChange,
): Promise<Result<unknown, Failure>> {
  const asRead = and(eq(accounts.id, gid), eq(accounts.role, accountRole));
  const otherOwner = and(eq(accounts.tenantId, tenantId), eq(accounts.role, 'owner'), ne(accounts.id, gid));
  const losesOwner = accountRole === 'owner' && next !== 'owner';
  return guardedWrite(db, {
    decides: [auditEvents, event],
    require: [
      [isThere(accounts, asRead), 'NOT_FOUND'],
      ...(losesOwner ? [[isThere(accounts, otherOwner), 'LAST_OWNER'] as const] : []),
    ],
    rest,
  });
}

/** Bounds the attempts of one request: another one may change the account in between each time. */
const TRIES = 5;

/**
 * Reads a member and changes it, again if another request changed the account in between.
 * @param changeOf the change of the member as it was read; null if there is nothing to change
 * @returns the member before the change; or NOT_FOUND, MANAGED_BY_PROVIDER, LAST_OWNER, those of `changeOf`
 */
async function changeMember(
  request: MemberRequest,
  userId: string,
  changeOf: (member: AccountMember) => Result<MemberChange | null, Failure>,
): Promise<Result<AccountMember, Failure>> {
  for (let left = TRIES; left > 0; left--) {
    const member = await accountMember(request, userId);
    if (!member.ok) return member;
    const change = changeOf(member.value);
    if (!change.ok) return change;
    if (change.value === null) return member;
    const written = await writeUnlessLast(request, member.value, change.value);
    if (written.ok) return member;
    if (written.failure.code === 'LAST_OWNER') return written;
  }
  throw new Error(`member ${userId} was changed by other requests`);
}

/** Open invitations of a member who is removed or loses rights would give these rights to other people. */
const deleteInvitationsBy = (db: Database, userId: string, condition: SQL) =>
  db.delete(invitations).where(and(eq(invitations.invitedBy, userId), condition));

const actorOf = ({ client, principal }: MemberRequest): AuditActor => actorWith(client, principal);

/**
 * Changes the role of an account. It applies to requests with existing access tokens within 30 s.
 * @returns or NOT_FOUND, FORBIDDEN, MANAGED_BY_PROVIDER, LAST_OWNER
 */
export async function changeMemberRole(
  request: MemberRequest,
  userId: string,
  role: Role,
): Promise<Result<MemberRow, Failure>> {
  const { db, principal, now } = request;
  const changed = await changeMember(request, userId, ({ accountRole: from, email, gid }) => {
    const allowed = checkOwnerFor(principal, from, role);
    if (!allowed.ok) return allowed;
    if (from === role) return ok(null);
    const metadata = { user_id: userId, email, from, to: role };
    return ok({
      next: role,
      event: auditEvent('member.role.changed', actorOf(request), { metadata }, now),
      rest: (isWritten) => [
        ...(role === 'owner' ? [] : [deleteInvitationsBy(db, userId, isWritten)]),
        db
          .update(users)
          .set({ role, updatedAt: now })
          .where(and(eq(users.id, userId), isWritten)),
        db
          .update(organizationMembers)
          .set({ role })
          .where(and(eq(organizationMembers.userId, userId), isWritten)),
        db
          .update(accounts)
          .set({ role, updatedAt: now })
          .where(and(eq(accounts.id, gid), isWritten)),
      ],
    });
  });
  return changed.ok ? ok({ ...changed.value, accountRole: role }) : changed;
}

/**
 * Removes a member: the account, its sessions and what was shared with it, and then the codes that its
 * address has open. What the member made stays in the tenant.
 * @returns or NOT_FOUND, FORBIDDEN, MANAGED_BY_PROVIDER, LAST_OWNER
 */
export async function removeMember(request: MemberRequest, userId: string): Promise<Result<null, Failure>> {
  const { env, db, principal, now } = request;
  const removed = await changeMember(request, userId, ({ issuer, gid, email, accountRole: role }) => {
    const allowed = checkOwnerFor(principal, role);
    if (!allowed.ok) return allowed;
    const metadata = { user_id: userId, email, role };
    return ok({
      next: null,
      event: auditEvent('member.removed', actorOf(request), { metadata }, now),
      rest: (isWritten) => [
        deleteInvitationsBy(db, userId, isWritten),
        db.delete(projectMembers).where(and(eq(projectMembers.userId, userId), isWritten)),
        db.delete(oauthGrants).where(and(eq(oauthGrants.createdBy, userId), isWritten)),
        db.delete(organizationMembers).where(and(eq(organizationMembers.userId, userId), isWritten)),
        db
          .delete(secondFactors)
          .where(and(eq(secondFactors.issuer, issuer), eq(secondFactors.gid, gid), isWritten)),
        db
          .delete(recoveryCodes)
          .where(and(eq(recoveryCodes.issuer, issuer), eq(recoveryCodes.gid, gid), isWritten)),
        deleteSessions(db, and(eq(sessions.accountId, gid), isWritten)),
        db.delete(accounts).where(and(eq(accounts.id, gid), isWritten)),
      ],
    });
  });
  if (!removed.ok) return removed;
  await repeatIfLost(() => challengesOf(env, removed.value.email).cancelSignIns());
  return ok(null);
}

/** The role of a request about a member. */
export const MemberRole = z.enum(ROLES).meta({ example: 'operator' });
