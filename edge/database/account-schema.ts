import { index, integer, primaryKey, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import { SECOND_FACTOR_METHODS } from '../sign-in/second-factor/second-factor-method.ts';
import { created, moment, updated } from './columns.ts';

/**
 * Accounts of the gateway's own. Each is made when its e-mail address is proven, with a tenant of its own; as a user
 * it is known by the gateway as issuer and the account's id as `gid`.
 */
export const accounts = sqliteTable('accounts', {
  id: text('id').primaryKey(),
  /** In lower case. */
  email: text('email').notNull().unique(),
  name: text('name').notNull(),
  /** scrypt with its parameters and salt; see `sign-in/password-hash.ts`. */
  passwordHash: text('password_hash').notNull(),
  role: text('role').notNull(),
  tenantId: text('tenant_id').notNull(),
  createdAt: created(),
  updatedAt: updated(),
});

/** The second factor of a user, of ours or the provider's. */
export const secondFactors = sqliteTable(
  'second_factors',
  {
    issuer: text('issuer').notNull(),
    gid: text('gid').notNull(),
    method: text('method', { enum: SECOND_FACTOR_METHODS }).notNull(),
    /** Of `totp`: the secret, sealed with AES-256-GCM; associated data: `second_factor`, issuer, gid, key id. */
    keyId: text('key_id'),
    sealedSecret: text('sealed_secret'),
    /** Of `totp`: the time step of the last code that was taken; no code of it or before is taken again. */
    lastStep: integer('last_step'),
    createdAt: created(),
  },
  (t) => [primaryKey({ columns: [t.issuer, t.gid] })],
);

/** One row a refresh token that was given out; those that stem from one sign-in are a family. No token is kept. */
export const refreshTokens = sqliteTable(
  'refresh_tokens',
  {
    id: text('id').primaryKey(),
    familyId: text('family_id').notNull(),
    accountId: text('account_id')
      .notNull()
      .references(() => accounts.id, { onDelete: 'cascade' }),
    usedAt: moment('used_at'),
    expiresAt: moment('expires_at').notNull(),
  },
  (t) => [
    index('refresh_tokens_by_family').on(t.familyId),
    index('refresh_tokens_by_expiry').on(t.expiresAt),
  ],
);
