import { index, integer, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import { created, MOVE_PHASES, type MovingBranch, timestamp, updated } from './column-types.ts';
import { hosts, projects } from './schema.ts';

/** The former host keeps the closed databases of a project that has moved for this time. */
export const KEPT_MS = 86_400_000;

/** The last move of a project to another host. */
export const moves = sqliteTable(
  'moves',
  {
    projectId: text('project_id')
      .primaryKey()
      .references(() => projects.id, { onDelete: 'cascade' }),
    jobId: text('job_id').notNull(),
    fromHostId: text('from_host_id').notNull(),
    toHostId: text('to_host_id').notNull(),
    phase: text('phase', { enum: MOVE_PHASES }).notNull(),
    /**
     * The password of the login on the former host, sealed with AES-256-GCM. Associated data: `move`, job id, key id.
     * Null when the move has ended.
     */
    keyId: text('key_id').notNull(),
    sealedPassword: text('sealed_password'),
    /** When the login was made, as the former host says. */
    admittedAt: text('admitted_at'),
    /** Whether `main` follows while the others are copied, or is copied like them; null: not known yet. */
    follows: integer('follows', { mode: 'boolean' }),
    branches: text('branches', { mode: 'json' }).$type<MovingBranch[]>().notNull(),
    /** Since when a host has been away at each attempt; null: none is. */
    awaySince: timestamp('away_since'),
    /** When both hosts were closed. */
    fencedAt: timestamp('fenced_at'),
    /** Until when the former host has the closed databases; null until the project has moved. */
    keptUntil: timestamp('kept_until'),
    createdAt: created(),
    updatedAt: updated(),
  },
  (t) => [index('moves_to').on(t.toHostId), index('moves_from').on(t.fromHostId)],
);

export type MoveRow = typeof moves.$inferSelect;

/** Hosts whose projects all move elsewhere, one at a time. */
export const drains = sqliteTable('drains', {
  hostId: text('host_id')
    .primaryKey()
    .references(() => hosts.id, { onDelete: 'cascade' }),
  branches: text('branches', { enum: ['all', 'protected'] }).notNull(),
  dropsSnapshots: integer('drops_snapshots', { mode: 'boolean' }).notNull(),
  /** Projects that could not move, with the code of the failure. */
  failed: text('failed', { mode: 'json' }).$type<Record<string, string>>().notNull(),
  createdAt: created(),
});
