import { index, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import { created, type KeyPermission, ROLES, timestamp } from './column-types.ts';
import { projects, users } from './schema.ts';
import { sessions } from './session-schema.ts';

/** Clients of the Model Context Protocol that registered themselves (RFC 7591). Anybody can, and none has a secret. */
export const oauthClients = sqliteTable(
  'oauth_clients',
  {
    id: text('id').primaryKey(),
    /** As the client calls itself. */
    name: text('name').notNull(),
    redirectUris: text('redirect_uris', { mode: 'json' }).$type<string[]>().notNull(),
    /** When a person last let it act, or when it registered. */
    lastUsedAt: timestamp('last_used_at').notNull(),
    createdAt: created(),
  },
  (t) => [index('oauth_clients_by_use').on(t.lastUsedAt)],
);

/**
 * What people let clients do in their name. A grant ends with the session in which it was made, because its row is deleted
 * with that of the session. No column holds anything that grants access.
 */
export const oauthGrants = sqliteTable(
  'oauth_grants',
  {
    id: text('id').primaryKey(),
    /** Of `oauth_clients`, or the URL of a metadata document. */
    clientId: text('client_id').notNull(),
    clientName: text('client_name').notNull(),
    role: text('role', { enum: ROLES }).notNull(),
    scopes: text('scopes', { mode: 'json' }).$type<('read' | 'write')[]>().notNull(),
    permissions: text('permissions', { mode: 'json' }).$type<KeyPermission[]>().notNull().default([]),
    projectId: text('project_id').references(() => projects.id, { onDelete: 'cascade' }),
    branchPattern: text('branch_pattern'),
    /** Null for a user of the gateway's PASETO provider. */
    sessionId: text('session_id').references(() => sessions.id, { onDelete: 'cascade' }),
    /** SHA-256 of the authorization code, hexadecimal. It stays, so that a second use is recognised. */
    codeHash: text('code_hash').notNull().unique(),
    codeExpiresAt: timestamp('code_expires_at').notNull(),
    /** Of the authorization request. The exchange of the code has to match them. */
    redirectUri: text('redirect_uri').notNull(),
    codeChallenge: text('code_challenge').notNull(),
    resource: text('resource').notNull(),
    /** The `jti` of the only refresh token that is valid; null until the code is exchanged. */
    refreshId: text('refresh_id'),
    /** That of the token before, and when it was exchanged; null: none was. */
    previousRefreshId: text('previous_refresh_id'),
    refreshedAt: timestamp('refreshed_at'),
    /** When the last refresh token expires at the latest. */
    expiresAt: timestamp('expires_at').notNull(),
    /** Exact to a minute. */
    lastUsedAt: timestamp('last_used_at'),
    createdBy: text('created_by')
      .notNull()
      .references(() => users.id),
    tenantId: text('tenant_id').notNull(),
    createdAt: created(),
  },
  (t) => [
    index('oauth_grants_by_tenant').on(t.tenantId, t.createdAt, t.id),
    index('oauth_grants_by_user').on(t.createdBy),
    index('oauth_grants_by_client').on(t.clientId),
    index('oauth_grants_by_project').on(t.projectId),
    index('oauth_grants_by_session').on(t.sessionId),
  ],
);

export type OAuthClientRow = typeof oauthClients.$inferSelect;
export type OAuthGrantRow = typeof oauthGrants.$inferSelect;
