import { integer, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { type MaskingRule, UNLISTED } from '../../shared/masking.ts';
import { created } from './column-types.ts';
import { projects } from './schema.ts';

/** Every version of the masking policies of projects; the newest one is in effect. */
export const maskingPolicies = sqliteTable(
  'masking_policies',
  {
    id: text('id').primaryKey(),
    projectId: text('project_id')
      .notNull()
      .references(() => projects.id, { onDelete: 'cascade' }),
    version: integer('version').notNull(),
    rules: text('rules', { mode: 'json' }).$type<MaskingRule[]>().notNull(),
    unlisted: text('unlisted', { enum: UNLISTED }).notNull(),
    createdBy: text('created_by').notNull(),
    createdAt: created(),
  },
  (t) => [uniqueIndex('masking_policies_version').on(t.projectId, t.version)],
);

/**
 * The key of a project's masking, made with the first version of its policy. Sealed with AES-256-GCM;
 * associated data: `masking`, project id, key id.
 */
export const maskingKeys = sqliteTable('masking_keys', {
  projectId: text('project_id')
    .primaryKey()
    .references(() => projects.id, { onDelete: 'cascade' }),
  keyId: text('key_id').notNull(),
  sealedKey: text('sealed_key').notNull(),
  createdAt: created(),
});
