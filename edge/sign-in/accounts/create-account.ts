import { notExists } from 'drizzle-orm';
import { type AuditActor, noActor } from '../../audit/actor.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import { accounts } from '../../database/account-schema.ts';
import { type Database, inOneBatch, insertIf } from '../../database/database.ts';
import { auditEvents } from '../../database/schema.ts';
import { accountByEmail } from './accounts.ts';

interface NewAccount {
  accountId: string;
  tenantId: string;
  email: string;
  name: string;
  passwordHash: string;
}

/**
 * Creates an account with its own tenant. If the address already has an account, nothing is changed and no audit event
 * is stored.
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
