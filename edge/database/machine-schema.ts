import { index, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import { ROLES } from '../authentication/role.ts';
import { created, timestamp } from './columns.ts';
import { projects, users } from './schema.ts';

/** Callers that are no persons (`docs/machine-access.md`). Neither table holds anything that grants access. */

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
