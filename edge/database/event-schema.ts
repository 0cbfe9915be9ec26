import { sql } from 'drizzle-orm';
import { index, integer, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import { created, type EventType, timestamp } from './column-types.ts';

/** A random UUID (RFC 9562, version 4). */
const RANDOM_UUID = sql`(lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-' || substr('89ab', 1 + (abs(random()) % 4), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))))`;

const NOW = sql`(cast(unixepoch('subsec') * 1000 as integer))`;

/**
 * Events on their way to the coordinator of their project, which deletes them here. Triggers write them: an
 * event and the change that it reports are one transaction, wherever the change is made
 * (`docs/decisions/events.md`). A migration that replaces a table drops its triggers and has to create them
 * again.
 */
export const eventOutbox = sqliteTable(
  'event_outbox',
  {
    /** The order of the changes. D1 runs one transaction at a time, so a lower number never appears later. */
    seq: integer('seq').primaryKey({ autoIncrement: true }),
    id: text('id').notNull().default(RANDOM_UUID),
    type: text('type').$type<EventType>().notNull(),
    projectId: text('project_id').notNull(),
    tenantId: text('tenant_id').notNull(),
    /**
     * The names of the branches that the event is about, except `main`; empty: the project, or `main`.
     * Together with the machine that started a job, they decide which machines limited to branches see the
     * event.
     */
    branchNames: text('branch_names', { mode: 'json' }).$type<string[]>().notNull(),
    machineId: text('machine_id'),
    /** The changed record at the time of the change: its columns in the shape of `event-types.ts`. */
    data: text('data', { mode: 'json' }).$type<Record<string, unknown>>().notNull(),
    createdAt: timestamp('created_at').notNull().default(NOW),
  },
  (t) => [index('event_outbox_by_project').on(t.projectId, t.seq)],
);

/** An endpoint of a tenant that receives events. What waits for delivery is in its `WebhookSender` object. */
export const webhooks = sqliteTable(
  'webhooks',
  {
    id: text('id').primaryKey(),
    tenantId: text('tenant_id').notNull(),
    /** Null: every project of the tenant. */
    projectId: text('project_id'),
    url: text('url').notNull(),
    events: text('events', { mode: 'json' }).$type<EventType[]>().notNull(),
    /** Sealed with AES-256-GCM. Associated data: `webhook`, webhook id, key id. */
    keyId: text('key_id').notNull(),
    sealedSecret: text('sealed_secret').notNull(),
    /** Set after three days in which every delivery failed. */
    disabledAt: timestamp('disabled_at'),
    createdBy: text('created_by').notNull(),
    createdAt: created(),
  },
  (t) => [index('webhooks_by_tenant').on(t.tenantId, t.createdAt, t.id)],
);

export type WebhookRow = typeof webhooks.$inferSelect;
