import { and, eq, gt, notExists } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, type Result } from '../../shared/result.ts';
import { auditEvent, type ClientDetails, noActor } from '../audit/audit-event.ts';
import type { AuditActor } from '../database/column-types.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import {
  type AccountRow,
  accounts,
  type InvitationRow,
  invitations,
  ownerInvitations,
} from '../database/people-schema.ts';
import { auditEvents } from '../database/schema.ts';

/** An e-mail address in lower case, as accounts store it. */
export const EmailAddress = z
  .email()
  .max(254)
  .transform((address) => address.toLowerCase())
  .meta({ example: 'ada@example.com' });

export async function findAccount(db: Database, email: string): Promise<AccountRow | undefined> {
  const [account] = await accountByEmail(db, email);
  return account;
}

export const accountByEmail = (db: Database, email: string) =>
  db.select().from(accounts).where(eq(accounts.email, email));

export const accountById = (db: Database, id: string) =>
  db.select().from(accounts).where(eq(accounts.id, id));

interface NewAccount {
  id: string;
  tenantId: string;
  email: string;
  name: string;
  role: string;
  passwordHash: string;
}

const newAccount = (account: NewAccount, now: Date): AccountRow => ({
  ...account,
  version: 0,
  createdAt: now,
  updatedAt: now,
});

interface SignedUp extends Omit<NewAccount, 'id' | 'role'> {
  accountId: string;
}

/**
 * Creates an account with its own tenant. If the address already has an account, nothing is changed and no
 * audit event is stored.
 * @returns or ACCOUNT_EXISTS
 */
export function createAccount(
  db: Database,
  { accountId: id, tenantId, email, name, passwordHash }: SignedUp,
  client: Partial<AuditActor>,
  now: Date,
): Promise<Result<unknown, Failure>> {
  const account = newAccount({ id, tenantId, email, name, passwordHash, role: 'owner' }, now);
  const actor = { ...noActor(tenantId), ...client, tenantId, email };
  // The event decides, because the ID of the account is the same in a repetition.
  return guardedWrite(db, {
    decides: [auditEvents, auditEvent('account.created', actor, {}, now)],
    require: [[notExists(accountByEmail(db, email)), 'ACCOUNT_EXISTS']],
    rest: (isWritten) => [insertIf(db, accounts, account, isWritten)],
  });
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
 * @returns or CODE_WRONG for a revoked invitation, ACCOUNT_EXISTS
 */
export async function acceptInvitation(
  db: Database,
  { invitationId: id, email, name, passwordHash }: Acceptance,
  client: Partial<ClientDetails>,
  now: Date,
): Promise<Result<unknown, Failure>> {
  const [table, invitation] = await openInvitation(db, id, email, now);
  if (!invitation) return fail({ code: 'CODE_WRONG' });
  const { tenantId, role } = invitation;
  const isOpen = and(eq(table.id, id), eq(table.email, email), gt(table.expiresAt, now));
  const actor = { ...noActor(tenantId), ...client, email };
  const metadata = { invitation_id: id, role };
  const account = newAccount({ id, tenantId, email, name, passwordHash, role }, now);
  return guardedWrite(db, {
    decides: [auditEvents, auditEvent('invitation.accepted', actor, { metadata }, now)],
    require: [
      [isThere(table, isOpen), 'CODE_WRONG'],
      [notExists(accountByEmail(db, email)), 'ACCOUNT_EXISTS'],
    ],
    rest: (isWritten) => [
      insertIf(db, accounts, account, isWritten),
      db.delete(table).where(and(eq(table.id, id), isWritten)),
    ],
  });
}

/** An open invitation by a member, or by the operator, and its table. */
async function openInvitation(db: Database, id: string, email: string, now: Date) {
  const read = async (table: typeof invitations | typeof ownerInvitations) => {
    const [row] = await db
      .select()
      .from(table)
      .where(and(eq(table.id, id), eq(table.email, email), gt(table.expiresAt, now)));
    return row;
  };
  const [byMember, byOperator] = await Promise.all([read(invitations), read(ownerInvitations)]);
  if (byOperator) return [ownerInvitations, { ...byOperator, role: 'owner' }] as const;
  return [invitations, byMember as InvitationRow | undefined] as const;
}
