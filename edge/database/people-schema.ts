import { index, integer, primaryKey, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import {
  created,
  type KeyPermission,
  ROLES,
  SECOND_FACTOR_METHODS,
  SHARED_ROLES,
  timestamp,
  updated,
} from './column-types.ts';
import { projects, users } from './schema.ts';

/**
 * Open invitations to a tenant of the gateway's own accounts. The code is in the `Challenges` object of the
 * address.
 */
export const invitations = sqliteTable(
  'invitations',
  {
    /** The account that it becomes has the same id. */
    id: text('id').primaryKey(),
    tenantId: text('tenant_id').notNull(),
    /** In lower case. */
    email: text('email').notNull(),
    role: text('role').notNull(),
    invitedBy: text('invited_by')
      .notNull()
      .references(() => users.id),
    expiresAt: timestamp('expires_at').notNull(),
    createdAt: created(),
  },
  (t) => [
    uniqueIndex('invitations_once').on(t.tenantId, t.email),
    index('invitations_by_tenant').on(t.tenantId, t.createdAt, t.id),
  ],
);

/** Open invitations of first owners, by the platform operator; at most one of a tenant. */
export const ownerInvitations = sqliteTable('owner_invitations', {
  /** Also the id of the account that it becomes. */
  id: text('id').primaryKey(),
  tenantId: text('tenant_id').notNull().unique(),
  /** In lower case. */
  email: text('email').notNull(),
  expiresAt: timestamp('expires_at').notNull(),
  createdAt: created(),
});

/** The users that a project is shared with, in addition to its creator. */
export const projectMembers = sqliteTable(
  'project_members',
  {
    projectId: text('project_id')
      .notNull()
      .references(() => projects.id, { onDelete: 'cascade' }),
    userId: text('user_id')
      .notNull()
      .references(() => users.id, { onDelete: 'cascade' }),
    role: text('role', { enum: SHARED_ROLES }).notNull(),
    createdAt: created(),
  },
  (t) => [primaryKey({ columns: [t.projectId, t.userId] }), index('project_members_by_user').on(t.userId)],
);

export type OwnerInvitationRow = typeof ownerInvitations.$inferSelect;

export type InvitationRow = typeof invitations.$inferSelect;

/**
 * The gateway's own accounts. An account is created with its own tenant once its e-mail address is verified.
 * Its user has the gateway as issuer and the account id as `gid`.
 */
export const accounts = sqliteTable(
  'accounts',
  {
    id: text('id').primaryKey(),
    /** In lower case. */
    email: text('email').notNull().unique(),
    name: text('name').notNull(),
    /** scrypt with its parameters and salt; see `crypto/password-hash.ts`. */
    passwordHash: text('password_hash').notNull(),
    role: text('role').notNull(),
    tenantId: text('tenant_id').notNull(),
    /**
     * Raised when the password changes or all sessions end: a sign-in that began before cannot be completed.
     */
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
    /**
     * For `totp`: the secret, sealed with AES-256-GCM. Associated data: `second_factor`, issuer, gid, key id.
     */
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

export type AccountRow = typeof accounts.$inferSelect;

export type SecondFactorRow = typeof secondFactors.$inferSelect;

/**
 * Callers that are no persons (`docs/machine-access.md`). Neither table holds anything that grants access.
 */

export const apiKeys = sqliteTable(
  'api_keys',
  {
    /** The readable part of the key, after `bg_`. */
    id: text('id').primaryKey(),
    name: text('name').notNull(),
    /** SHA-256 of the secret part, hexadecimal; the key itself is shown once and not stored. */
    secretHash: text('secret_hash').notNull(),
    role: text('role', { enum: ROLES }).notNull(),
    scopes: text('scopes', { mode: 'json' }).$type<('read' | 'write')[]>().notNull(),
    permissions: text('permissions', { mode: 'json' }).$type<KeyPermission[]>().notNull().default([]),
    projectId: text('project_id').references(() => projects.id, { onDelete: 'cascade' }),
    branchPattern: text('branch_pattern'),
    /** Networks that may use the key, in canonical form; null: all. */
    cidrs: text('cidrs', { mode: 'json' }).$type<string[]>(),
    expiresAt: timestamp('expires_at').notNull(),
    /** Exact to a minute. */
    lastUsedAt: timestamp('last_used_at'),
    createdBy: text('created_by')
      .notNull()
      .references(() => users.id),
    tenantId: text('tenant_id').notNull(),
    createdAt: created(),
  },
  (t) => [index('api_keys_by_tenant').on(t.tenantId, t.createdAt, t.id)],
);

/** Whose ID tokens are accepted as workloads of a project. Its tenant is that of the project. */
export const trusts = sqliteTable(
  'trusts',
  {
    id: text('id').primaryKey(),
    projectId: text('project_id')
      .notNull()
      .references(() => projects.id, { onDelete: 'cascade' }),
    issuer: text('issuer').notNull(),
    audience: text('audience').notNull(),
    /** Claims that a token must have: the exact value, or its beginning before a `*`. */
    claims: text('claims', { mode: 'json' }).$type<Record<string, string>>().notNull(),
    role: text('role', { enum: ROLES }).notNull(),
    branchPattern: text('branch_pattern'),
    lastUsedAt: timestamp('last_used_at'),
    createdBy: text('created_by')
      .notNull()
      .references(() => users.id),
    createdAt: created(),
  },
  (t) => [index('trusts_by_project').on(t.projectId, t.createdAt, t.id)],
);

export type ApiKeyRow = typeof apiKeys.$inferSelect;

export type TrustRow = typeof trusts.$inferSelect;
