import { and, eq, exists, gt, notExists } from 'drizzle-orm';
import { z } from 'zod';
import { auditEvent, type ClientDetails, noActor } from '../audit/audit-event.ts';
import type { AuditActor } from '../database/column-types.ts';
import { type Database, inOneBatch, insertIf } from '../database/database.ts';
import { accounts, invitations } from '../database/people-schema.ts';
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
  const isOpen = and(eq(invitations.id, id), eq(invitations.email, email), gt(invitations.expiresAt, now));
  const [invitation] = await db.select().from(invitations).where(isOpen);
  if (!invitation) return;
  const { tenantId, role } = invitation;
  const open = db.select({ id: invitations.id }).from(invitations).where(isOpen);
  const isAcceptable = and(exists(open), notExists(accountByEmail(db, email))) ?? exists(open);
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
    db.delete(invitations).where(and(eq(invitations.id, id), exists(accepted))),
  ]);
}
