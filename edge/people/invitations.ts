import { and, eq, gt, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import type { Actor, Role } from '../database/column-types.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { accounts, type InvitationRow, invitations } from '../database/people-schema.ts';
import { auditEvents } from '../database/schema.ts';
import { type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { repeatIfLost } from '../lost-object.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforce } from '../rate-limits/limiter-client.ts';
import { accountByEmail } from '../sign-in/accounts.ts';
import { challengesOf, INVITATION_TTL_MS } from '../sign-in/challenge.ts';
import { enforceUnaskedMail } from '../sign-in/email-code.ts';
import type { SignInContext } from '../sign-in/sign-in-context.ts';
import { isInvitable } from '../sign-in/sign-up.ts';
import { checkOwnerFor } from './members.ts';

export const Invitation = z
  .strictObject({
    id: z.uuid(),
    email: z.string().meta({ example: 'grace@example.com' }),
    role: z.string().meta({ example: 'operator' }),
    invited_by: z.uuid(),
    expires_at: z.iso.datetime(),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'Invitation' });

export const toInvitationResponse = (row: InvitationRow): z.output<typeof Invitation> => ({
  id: row.id,
  email: row.email,
  role: row.role,
  invited_by: row.invitedBy,
  expires_at: row.expiresAt.toISOString(),
  created_at: row.createdAt.toISOString(),
});

/** The open invitations of a tenant. */
export const isOpenIn = (tenantId: string, now: Date) =>
  and(eq(invitations.tenantId, tenantId), gt(invitations.expiresAt, now));

/** @returns or MANAGED_BY_PROVIDER, FORBIDDEN unless the principal may invite someone to this role */
export const checkInviter = (principal: Principal, role: Role): Result<null, Failure> =>
  // Only the gateway's own sessions have one.
  principal.sessionId === undefined ? fail({ code: 'MANAGED_BY_PROVIDER' }) : checkOwnerFor(principal, role);

/**
 * Invites an address to the tenant of the principal, by a mail with a code. An address that has an account
 * elsewhere gets another mail and the caller the same response, which would otherwise reveal which addresses
 * have accounts.
 * @returns or SIGN_UP_CLOSED, MAIL_UNAVAILABLE, RATE_LIMITED, MEMBER_EXISTS, INVITATION_EXISTS,
 *   IDEMPOTENCY_IN_FLIGHT
 */
export async function invite(
  context: SignInContext,
  principal: Principal,
  { email, role }: { email: string; role: Role },
  keyUse: KeyUse | null,
): Promise<Result<InvitationRow, Failure>> {
  const { env, db, client } = context;
  const { tenantId, userId } = principal;
  if (!(await isInvitable(context, email, tenantId))) return fail({ code: 'SIGN_UP_CLOSED' });
  const mayInvite = await enforce(env, bucketOf.invitations(tenantId));
  if (!mayInvite.ok) return mayInvite;
  const mayMail = await enforceUnaskedMail(context, 'invitation', email);
  if (!mayMail.ok) return mayMail;
  const now = context.now();
  const expiresAt = new Date(now.getTime() + INVITATION_TTL_MS);
  const id = crypto.randomUUID();
  const row = { id, tenantId, email, role, invitedBy: userId, expiresAt, createdAt: now };
  const inserted = await insertInvitation(db, row, actorWith(client, principal), keyUse);
  if (!inserted.ok) return inserted;
  await mailInvitation(context, principal.email, row);
  return ok(row);
}

/**
 * Stores an invitation and audits it, in one batch, with the response for a repeated request with the same
 * key.
 */
async function insertInvitation(
  db: Database,
  row: InvitationRow,
  actor: Actor,
  keyUse: KeyUse | null,
): Promise<Result<unknown, Failure>> {
  const { id, tenantId, email, role, createdAt } = row;
  const ofAddress = and(eq(invitations.tenantId, tenantId), eq(invitations.email, email));
  const isMember = and(eq(accounts.tenantId, tenantId), eq(accounts.email, email));
  const isOpen = and(ofAddress, gt(invitations.expiresAt, createdAt));
  const about = { metadata: { invitation_id: id, email, role } };
  const response = { status: 201, body: toInvitationResponse(row) };
  return writeUnderKey(
    db,
    { use: keyUse, subjectId: id, now: createdAt, response },
    {
      decides: [auditEvents, auditEvent('invitation.created', actor, about, createdAt)],
      require: [
        [sql`not ${isThere(accounts, isMember)}`, 'MEMBER_EXISTS'],
        [sql`not ${isThere(invitations, isOpen)}`, 'INVITATION_EXISTS'],
      ],
      rest: (isWritten) => [
        // An expired one.
        db.delete(invitations).where(and(ofAddress, isWritten)),
        insertIf(db, invitations, row, isWritten),
      ],
    },
  );
}

/**
 * Mails the code of an invitation, unless that was done before.
 * @param inviter who invites, as the mail says
 */
export async function mailInvitation(
  { env, db }: SignInContext,
  inviter: string,
  { id, email, role }: Pick<InvitationRow, 'id' | 'email' | 'role'>,
): Promise<void> {
  const [account] = await accountByEmail(db, email);
  const mail = account ? 'account_exists' : 'code';
  const request = { kind: 'invitation', challengeId: id, address: email, mail } as const;
  const started = { ...request, invitation: { inviter, role } };
  await repeatIfLost(() => challengesOf(env, email).start(started));
}

/** Mails the code of an open invitation if the request that created it was interrupted before. */
export async function resumeInvitation(
  context: SignInContext,
  principal: Principal,
  id: string,
): Promise<void> {
  const { db, now } = context;
  const isIt = and(eq(invitations.id, id), isOpenIn(principal.tenantId, now()));
  const [row] = await db.select().from(invitations).where(isIt);
  if (row) await mailInvitation(context, principal.email, row);
}

/** Revokes an open invitation; its code is refused from then on. @returns or NOT_FOUND */
export async function revokeInvitation(
  { env, db, client, now }: SignInContext,
  principal: Principal,
  id: string,
): Promise<Result<null, Failure>> {
  const timestamp = now();
  const isIt = and(eq(invitations.id, id), isOpenIn(principal.tenantId, timestamp));
  const [found] = await db.select().from(invitations).where(isIt);
  if (!found) return fail({ code: 'NOT_FOUND' });
  const { email, role } = found;
  const event = auditEvent(
    'invitation.revoked',
    actorWith(client, principal),
    { metadata: { invitation_id: id, email, role } },
    timestamp,
  );
  const revoked = await guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere(invitations, isIt), 'NOT_FOUND']],
    rest: (isWritten) => [db.delete(invitations).where(and(isIt, isWritten))],
  });
  if (!revoked.ok) return revoked;
  await repeatIfLost(() => challengesOf(env, email).cancel(id));
  return ok(null);
}
