import { eq } from 'drizzle-orm';
import { z } from 'zod';
import { accounts } from '../../database/account-schema.ts';
import type { Database } from '../../database/database.ts';

export type AccountRow = typeof accounts.$inferSelect;

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
