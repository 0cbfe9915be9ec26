import { and, eq, exists, gt, notExists, sql } from 'drizzle-orm';
import { z } from 'zod';
import { auditEvent, type ClientDetails, noActor } from '../audit/audit-event.ts';
import type { AuditActor } from '../database/column-types.ts';
import { type Database, inOneBatch, insertIf, isThere } from '../database/database.ts';
import { accounts, type InvitationRow, invitations, ownerInvitations } from '../database/people-schema.ts';
import { auditEvents } from '../database/schema.ts';

/** An e-mail address in lower case, as accounts store it. */
export const EmailAddress = z
  .email()
  .max(254)
  .transform((address) => address.toLowerCase())
  .meta({ example: 'ada@example.com' });

export const accountByEmail = (db: Database, email: string) =>
  db.select().from(accounts).where(eq(accounts.email, email));

export const accountById = (db: Database, id: string) =>
  db.select().from(accounts).where(eq(accounts.id, id));

interface NewAccount {
  accountId: string;
  tenantId: string;
  email: string;
  name: string;
  passwordHash: string;
}

/**
 * Creates an account with its own tenant. If the address already has an account, nothing is changed and no
 * audit event is stored.
 */
export async function createAccount(
  db: Database,
  { accountId, tenantId, email, name, passwordHash }: NewAccount,
  client: Partial<AuditActor>,
  now: Date,
): Promise<void> {
  const event = auditEvent('account.created', { ...noActor(tenantId), ...client, tenantId, email }, {}, now);
  const values = {
    id: accountId,
    tenantId,
    email,
    name,
    passwordHash,
    role: 'owner',
    version: 0,
    createdAt: now,
    updatedAt: now,
  };
  await inOneBatch(db, [
    insertIf(db, auditEvents, event, notExists(accountByEmail(db, email))),
    db.insert(accounts).values(values).onConflictDoNothing({ target: accounts.email }),
  ]);
}

interface Acceptance {
  invitationId: string;
  email: string;
  name: string;
  passwordHash: string;
}

/**
 * Creates the account of an invitation, in the tenant that invited it. A repetition changes nothing, because
 * the account has the invitation's id. Nothing is created if the invitation was revoked or the address has an
 * account.
 */
export async function acceptInvitation(
  db: Database,
  { invitationId: id, email, name, passwordHash }: Acceptance,
  client: Partial<ClientDetails>,
  now: Date,
): Promise<void> {
  const [table, invitation] = await openInvitation(db, id, email, now);
  if (!invitation) return;
  const { tenantId, role } = invitation;
  const isOpen = isThere(table, and(eq(table.id, id), eq(table.email, email), gt(table.expiresAt, now)));
  const isAcceptable = sql`${isOpen} and ${notExists(accountByEmail(db, email))}`;
  const event = auditEvent(
    'invitation.accepted',
    { ...noActor(tenantId), ...client, email },
    { metadata: { invitation_id: id, role } },
    now,
  );
  const account = {
    id,
    tenantId,
    email,
    name,
    passwordHash,
    role,
    version: 0,
    createdAt: now,
    updatedAt: now,
  };
  const accepted = db.select({ id: accounts.id }).from(accounts).where(eq(accounts.id, id));
  await inOneBatch(db, [
    insertIf(db, auditEvents, event, isAcceptable),
    insertIf(db, accounts, account, isAcceptable),
    db.delete(table).where(and(eq(table.id, id), exists(accepted))),
  ]);
}

/** An open invitation by a member, or by the operator, and its table. */
async function openInvitation(db: Database, id: string, email: string, now: Date) {
  const read = async (table: typeof invitations | typeof ownerInvitations) =>
    (
      await db
        .select()
        .from(table)
        .where(and(eq(table.id, id), eq(table.email, email), gt(table.expiresAt, now)))
    )[0];
  const [byMember, byOperator] = await Promise.all([read(invitations), read(ownerInvitations)]);
  if (byOperator) return [ownerInvitations, { ...byOperator, role: 'owner' }] as const;
  return [invitations, byMember as InvitationRow | undefined] as const;
}
