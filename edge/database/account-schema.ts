import { index, integer, primaryKey, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import { SECOND_FACTOR_METHODS } from '../sign-in/second-factor/second-factor-method.ts';
import { created, timestamp, updated } from './columns.ts';

/**
 * The gateway's own accounts. An account is created with its own tenant once its e-mail address is verified. Its user
 * has the gateway as issuer and the account id as `gid`.
 */
export const accounts = sqliteTable(
  'accounts',
  {
    id: text('id').primaryKey(),
    /** In lower case. */
    email: text('email').notNull().unique(),
    name: text('name').notNull(),
    /** scrypt with its parameters and salt; see `sign-in/accounts/password-hash.ts`. */
    passwordHash: text('password_hash').notNull(),
    role: text('role').notNull(),
    tenantId: text('tenant_id').notNull(),
    /** Raised when the password changes or all sessions end: a sign-in that began before cannot be completed. */
    version: integer('version').notNull().default(0),
    createdAt: created(),
    updatedAt: updated(),
  },
  (t) => [index('accounts_by_tenant').on(t.tenantId)],
);

/** The second factor of a user, of a gateway account or of the identity provider. */
export const secondFactors = sqliteTable(
  'second_factors',
  {
    issuer: text('issuer').notNull(),
    gid: text('gid').notNull(),
    method: text('method', { enum: SECOND_FACTOR_METHODS }).notNull(),
    /** For `totp`: the secret, sealed with AES-256-GCM. Associated data: `second_factor`, issuer, gid, key id. */
    keyId: text('key_id'),
    sealedSecret: text('sealed_secret'),
    /** For `totp`: the time step of the last accepted code; codes up to this step are rejected as replays. */
    lastStep: integer('last_step'),
    createdAt: created(),
  },
  (t) => [primaryKey({ columns: [t.issuer, t.gid] })],
);

/** SHA-256 of the unused recovery codes of a second factor, hexadecimal. Each code has 80 random bits. */
export const recoveryCodes = sqliteTable(
  'recovery_codes',
  {
    issuer: text('issuer').notNull(),
    gid: text('gid').notNull(),
    hash: text('hash').notNull(),
  },
  (t) => [primaryKey({ columns: [t.issuer, t.gid, t.hash] })],
);

/** One row per session of an account. An access token is valid only as long as its session is here. */
export const sessions = sqliteTable(
  'sessions',
  {
    /** The family of its refresh tokens. */
    id: text('id').primaryKey(),
    accountId: text('account_id')
      .notNull()
      .references(() => accounts.id, { onDelete: 'cascade' }),
    /** The client that signed in. */
    ip: text('ip'),
    userAgent: text('user_agent'),
    /** When its tokens were renewed last. */
    lastUsedAt: timestamp('last_used_at').notNull(),
    expiresAt: timestamp('expires_at').notNull(),
    createdAt: created(),
  },
  (t) => [
    index('sessions_by_account').on(t.accountId, t.createdAt, t.id),
    index('sessions_by_expiry').on(t.expiresAt),
  ],
);

/** One row per issued refresh token; the tokens of one sign-in are a family. The tokens are not stored. */
export const refreshTokens = sqliteTable(
  'refresh_tokens',
  {
    id: text('id').primaryKey(),
    familyId: text('family_id').notNull(),
    accountId: text('account_id')
      .notNull()
      .references(() => accounts.id, { onDelete: 'cascade' }),
    usedAt: timestamp('used_at'),
    expiresAt: timestamp('expires_at').notNull(),
  },
  (t) => [
    index('refresh_tokens_by_family').on(t.familyId),
    index('refresh_tokens_by_expiry').on(t.expiresAt),
  ],
);
