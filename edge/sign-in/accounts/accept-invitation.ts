import { and, eq, exists, gt, notExists } from 'drizzle-orm';
import { type ClientDetails, noActor } from '../../audit/actor.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import { accounts } from '../../database/account-schema.ts';
import { type Database, inOneBatch, insertIf } from '../../database/database.ts';
import { invitations } from '../../database/people-schema.ts';
import { auditEvents } from '../../database/schema.ts';
import { accountByEmail } from './accounts.ts';

interface Acceptance {
  invitationId: string;
  email: string;
  name: string;
  passwordHash: string;
}

/**
 * Creates the account of an invitation, in the tenant that invited it. A repetition changes nothing, because the account
 * has the invitation's id. Nothing is created if the invitation was revoked or the address has an account.
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
