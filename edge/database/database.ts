import { getTableColumns, type SQL, sql } from 'drizzle-orm';
import type { BatchItem } from 'drizzle-orm/batch';
import { type DrizzleD1Database, drizzle } from 'drizzle-orm/d1';
import type { SQLiteTable } from 'drizzle-orm/sqlite-core';

export type Database = DrizzleD1Database;
export type Statement = BatchItem<'sqlite'>;

export const openDatabase = (binding: D1Database): Database => drizzle(binding);

/** Runs the statements as one transaction; the answers come in their order. */
export const inOneBatch = (db: Database, statements: Statement[]): Promise<unknown[]> =>
  db.batch(statements as [Statement, ...Statement[]]);

/**
 * Inserts the row when `condition` holds; what the row leaves out is null.
 * D1 has no interactive transactions: in one batch such inserts come first and the update of the state
 * that their condition reads comes last, so all of them happen or none does.
 */
export function insertIf<T extends SQLiteTable>(
  db: Database,
  table: T,
  row: T['$inferInsert'],
  condition: SQL,
): Statement {
  const values = Object.entries(getTableColumns(table)).map(([key, column]) => {
    const value = (row as Record<string, unknown>)[key] ?? null;
    return sql`${value === null ? null : column.mapToDriverValue(value)}`;
  });
  // Not `db.run(sql)`: drizzle's batch on D1 can't bind the parameters of a raw statement.
  return db.insert(table).select(sql`select ${sql.join(values, sql`, `)} where ${condition}`);
}

/** How many rows a statement of a batch changed, read from its answer. */
export const changesOf = (answer: unknown): number => (answer as D1Result).meta.changes;

/**
 * The name of the unique index or the columns that a refused insert ran into, e.g.
 * `project_branches.project_id, project_branches.branch_name`; null for any other error.
 */
export function uniqueConflict(error: unknown): string | null {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    const match = /UNIQUE constraint failed: ([^:]+)/.exec(cause.message);
    if (match?.[1]) return match[1];
  }
  return null;
}
