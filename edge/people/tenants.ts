import { and, eq, gt, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import { insertIf, isThere } from '../database/database.ts';
import { accounts, type OwnerInvitationRow, ownerInvitations } from '../database/people-schema.ts';
import { auditEvents, organizations, users } from '../database/schema.ts';
import { type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { EmailAddress } from '../sign-in/accounts.ts';
import { INVITATION_TTL_MS } from '../sign-in/challenge.ts';
import { enforceMailLimit } from '../sign-in/email-code.ts';
import type { SignInContext } from '../sign-in/sign-in-context.ts';
import { Invitation, mailInvitation } from './invitations.ts';

const TENANT_ID = /^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$/;

const TenantId = z
  .string()
  .regex(TENANT_ID, 'Expected at most 63 letters, digits, dots, hyphens and underscores')
  .meta({ description: 'The ID of the tenant, as in the tokens of its users.', example: 'acme' });
const TenantName = z.string().trim().min(1).max(100).meta({ example: 'Acme Ltd.' });

export const NewTenant = z
  .strictObject({ tenant_id: TenantId, name: TenantName, owner_email: EmailAddress })
  .meta({ example: { tenant_id: 'acme', name: 'Acme Ltd.', owner_email: 'ada@example.com' } });

const OwnerInvitation = Invitation.omit({ invited_by: true }).meta({ id: 'OwnerInvitation' });

const toOwnerInvitation = (row: OwnerInvitationRow): z.output<typeof OwnerInvitation> => ({
  id: row.id,
  email: row.email,
  role: 'owner',
  expires_at: row.expiresAt.toISOString(),
  created_at: row.createdAt.toISOString(),
});

/** A tenant of the operator, with the invitation of its first owner. */
export const Tenant = z
  .strictObject({ tenant_id: TenantId, name: TenantName, invitation: OwnerInvitation })
  .meta({ id: 'Tenant' });

const toTenantResponse = (
  tenantId: string,
  name: string,
  invitation: OwnerInvitationRow,
): z.output<typeof Tenant> => ({ tenant_id: tenantId, name, invitation: toOwnerInvitation(invitation) });

/**
 * Makes a tenant and invites its first owner, by a mail with a code. A repeated request resumes an invitation
 * that was interrupted, and replaces one that has expired or names another address, until the tenant has a
 * member.
 * @returns or TENANT_EXISTS, MAIL_UNAVAILABLE, RATE_LIMITED, IDEMPOTENCY_IN_FLIGHT
 */
export async function createTenant(
  context: SignInContext,
  { tenant_id: tenantId, name, owner_email: email }: z.output<typeof NewTenant>,
  keyUse: KeyUse | null,
): Promise<Result<z.output<typeof Tenant>, Failure>> {
  const { db, client } = context;
  const counted = await enforceMailLimit(context);
  if (!counted.ok) return counted;
  const now = context.now();
  const expiresAt = new Date(now.getTime() + INVITATION_TTL_MS);
  const row = {
    id: crypto.randomUUID(),
    tenantId,
    email,
    expiresAt,
    createdAt: now,
  };
  const hasMember = sql`(${isThere(users, eq(users.tenantId, tenantId))}
    or ${isThere(accounts, eq(accounts.tenantId, tenantId))})`;
  const ofTenant = eq(organizations.idpTenantId, tenantId);
  const isNew = sql`not ${isThere(organizations, ofTenant)}`;
  const theirs = eq(ownerInvitations.tenantId, tenantId);
  const isOpen = and(theirs, eq(ownerInvitations.email, email), gt(ownerInvitations.expiresAt, now));
  const isInvited = isThere(ownerInvitations, isOpen);
  const actor = { ...noActor(tenantId), ...client };
  const created = auditEvent('tenant.created', actor, { metadata: { name, owner_email: email } }, now);
  const about = { metadata: { invitation_id: row.id, email, role: 'owner' } };
  const invited = auditEvent('invitation.created', actor, about, now);
  const organization = { id: crypto.randomUUID(), idpTenantId: tenantId, name, createdAt: now };
  const [known] = await db.select().from(ownerInvitations).where(isOpen);
  // The response that is stored with the key has this invitation, or the new one.
  const isAsRead = known
    ? isThere(ownerInvitations, and(isOpen, eq(ownerInvitations.id, known.id)))
    : sql`not ${isInvited}`;
  const response = { status: 201, body: toTenantResponse(tenantId, name, known ?? row) };
  const written = await writeUnderKey(
    db,
    { use: keyUse, subjectId: row.id, now, response },
    {
      // The last statement, because the requirements read its table. An invitation to this address that is
      // still open stays as it is, with its code.
      decides: (isAllowed) => insertIf(db, ownerInvitations, row, sql`${isAllowed} and not ${isInvited}`),
      require: [
        [sql`not ${hasMember}`, 'TENANT_EXISTS'],
        ...(keyUse === null ? [] : [[isAsRead, 'IDEMPOTENCY_IN_FLIGHT'] as const]),
      ],
      rest: (isAllowed) => [
        db.update(organizations).set({ name }).where(and(ofTenant, isAllowed)),
        db.delete(ownerInvitations).where(and(theirs, isAllowed, sql`not ${isInvited}`)),
        insertIf(db, auditEvents, invited, sql`${isAllowed} and not ${isInvited}`),
        insertIf(db, auditEvents, created, sql`${isAllowed} and ${isNew}`),
        insertIf(db, organizations, organization, sql`${isAllowed} and ${isNew}`),
      ],
      returns: db.select().from(ownerInvitations).where(isOpen),
    },
  );
  if (!written.ok) return written;
  const [invitation] = written.value;
  if (!invitation) throw new Error(`no invitation of the first owner of ${tenantId}`);
  await mailOwnerInvitation(context, invitation);
  return ok(toTenantResponse(tenantId, name, invitation));
}

const mailOwnerInvitation = (context: SignInContext, invitation: OwnerInvitationRow): Promise<void> =>
  mailInvitation(context, `The operator of ${context.settings.SERVICE_NAME}`, {
    ...invitation,
    role: 'owner',
  });

/** Mails the code of an open invitation if the request that created it was interrupted before. */
export async function resumeOwnerInvitation(context: SignInContext, id: string): Promise<void> {
  const { db, now } = context;
  const isIt = and(eq(ownerInvitations.id, id), gt(ownerInvitations.expiresAt, now()));
  const [row] = await db.select().from(ownerInvitations).where(isIt);
  if (row) await mailOwnerInvitation(context, row);
}
