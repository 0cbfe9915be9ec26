import { sql } from 'drizzle-orm';
import { check, index, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import { created, timestamp } from './column-types.ts';
import { providerPeople } from './company-schema.ts';
import { accounts } from './people-schema.ts';

/**
 * One row per session of an account of the gateway, or of a person of an identity provider. An access token is valid only
 * as long as its session is here.
 */
export const sessions = sqliteTable(
  'sessions',
  {
    id: text('id').primaryKey(),
    /** Exactly one of the two holds the session. */
    accountId: text('account_id').references(() => accounts.id, { onDelete: 'cascade' }),
    personId: text('person_id').references(() => providerPeople.id, { onDelete: 'cascade' }),
    /** The provider of the person; null for an account, as the columns below. */
    providerId: text('provider_id'),
    /** When the provider last let the person continue. */
    checkedAt: timestamp('checked_at'),
    /**
     * The provider's refresh token, sealed with AES-256-GCM; null: it gave none. Associated data:
     * `provider_session`, session id, key id.
     */
    keyId: text('key_id'),
    sealedRefresh: text('sealed_refresh'),
    /** The client that signed in. */
    ip: text('ip'),
    userAgent: text('user_agent'),
    /** When its tokens were renewed last. */
    lastUsedAt: timestamp('last_used_at').notNull(),
    expiresAt: timestamp('expires_at').notNull(),
    createdAt: created(),
  },
  (t) => [
    check('sessions_holder', sql`(${t.accountId} IS NULL) <> (${t.personId} IS NULL)`),
    check(
      'sessions_provider',
      sql`(${t.personId} IS NULL) = (${t.providerId} IS NULL) AND (${t.personId} IS NULL) = (${t.checkedAt} IS NULL)`,
    ),
    check(
      'sessions_sealed',
      sql`(${t.keyId} IS NULL) = (${t.sealedRefresh} IS NULL) AND (${t.keyId} IS NULL OR ${t.personId} IS NOT NULL)`,
    ),
    index('sessions_by_account').on(t.accountId, t.createdAt, t.id),
    index('sessions_by_person').on(t.personId, t.createdAt, t.id),
    index('sessions_by_expiry').on(t.expiresAt),
  ],
);

/** One row per issued refresh token of a session, which it ends with. The tokens are not stored. */
export const refreshTokens = sqliteTable(
  'refresh_tokens',
  {
    id: text('id').primaryKey(),
    sessionId: text('session_id')
      .notNull()
      .references(() => sessions.id, { onDelete: 'cascade' }),
    usedAt: timestamp('used_at'),
    expiresAt: timestamp('expires_at').notNull(),
  },
  (t) => [
    index('refresh_tokens_by_session').on(t.sessionId),
    index('refresh_tokens_by_expiry').on(t.expiresAt),
  ],
);

export type SessionRow = typeof sessions.$inferSelect;
