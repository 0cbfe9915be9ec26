import { index, primaryKey, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { SHARED_ROLES } from '../people/shared-role.ts';
import { created, timestamp } from './columns.ts';
import { projects, users } from './schema.ts';

/** Open invitations to a tenant of the gateway's own accounts. The code is in the `Challenges` object of the address. */
export const invitations = sqliteTable(
  'invitations',
  {
    /** Also the id of the account that it becomes. */
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
