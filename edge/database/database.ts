import { DrizzleQueryError, getTableColumns, type SQL, type SQLWrapper, sql } from 'drizzle-orm';
import type { BatchItem } from 'drizzle-orm/batch';
import { type DrizzleD1Database, drizzle } from 'drizzle-orm/d1';
import type { SQLiteTable } from 'drizzle-orm/sqlite-core';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';

export type Database = DrizzleD1Database;
export type Statement = BatchItem<'sqlite'>;

/** Binding of the system of record. */
export interface DatabaseBinding {
  DB: D1Database;
}

/** @param binding or a session of it, which has the methods that the driver calls */
export const openDatabase = (binding: D1Database | D1DatabaseSession): Database =>
  drizzle(binding as D1Database);

/**
 * Runs the statements as one transaction. It returns no results, because they would be read by counting
 * statements; see `writeThenRead`.
 */
export async function inOneBatch(db: Database, statements: Statement[]): Promise<void> {
  await db.batch(statements as [Statement, ...Statement[]]);
}

/** Runs the statements and then the query, as one transaction. @returns the rows of the query */
export async function writeThenRead<R>(
  db: Database,
  statements: Statement[],
  query: Statement & PromiseLike<R[]>,
): Promise<R[]> {
  const all: Statement[] = [...statements, query];
  const results: unknown[] = await db.batch(all as [Statement, ...Statement[]]);
  return results.pop() as R[];
}

/** The rows of each of several queries. */
export type RowsOf<Q extends readonly unknown[]> = { -readonly [N in keyof Q]: Awaited<Q[N]> };

/** As `writeThenRead`, for several queries. */
export async function writeThenReadAll<const Q extends readonly (Statement & PromiseLike<unknown>)[]>(
  db: Database,
  statements: Statement[],
  queries: Q,
): Promise<RowsOf<Q>> {
  const all: Statement[] = [...statements, ...queries];
  const results: unknown[] = await db.batch(all as [Statement, ...Statement[]]);
  return results.slice(-queries.length) as RowsOf<Q>;
}

/** The first row, or the failure. */
export const firstRow = <R>(
  [row]: readonly R[],
  failure: Failure = { code: 'NOT_FOUND' },
): Result<R, Failure> => (row === undefined ? fail(failure) : ok(row));

/**
 * The values of a row in the order of the table's columns, as the driver takes them; missing columns are
 * null.
 */
const driverValues = <T extends SQLiteTable>(table: T, row: T['$inferInsert']) =>
  Object.entries(getTableColumns(table)).map(([key, column]) => {
    const value = (row as Record<string, unknown>)[key] ?? null;
    return value === null ? null : column.mapToDriverValue(value);
  });

/**
 * Inserts the row if `condition` is true. D1 has no interactive transactions: in a batch, such inserts come
 * first and the update of the state that their condition reads comes last, so that either all of them take
 * effect or none does.
 */
export function insertIf<T extends SQLiteTable>(
  db: Database,
  table: T,
  row: T['$inferInsert'],
  condition: SQL,
): Statement {
  const values = driverValues(table, row).map((value) => sql`${value}`);
  // `db.run(sql)` does not work here: drizzle's batch on D1 cannot bind the parameters of a raw statement.
  return db.insert(table).select(sql`select ${sql.join(values, sql`, `)} where ${condition}`);
}

/**
 * Inserts all rows or none, as `insertIf` does. The rows are one parameter, because a statement on D1 has at
 * most 100.
 */
export function insertAllIf<T extends SQLiteTable>(
  db: Database,
  table: T,
  rows: readonly T['$inferInsert'][],
  condition: SQL,
): Statement {
  const values = rows.map((row) => driverValues(table, row));
  const columns = Object.keys(getTableColumns(table));
  const selected = columns.map((_, index) => sql.raw(`json_extract(value, '$[${index}]')`));
  return db
    .insert(table)
    .select(
      sql`select ${sql.join(selected, sql`, `)} from json_each(${JSON.stringify(values)}) where ${condition}`,
    );
}

/** Whether the table has such a row. */
export const isThere = (table: SQLiteTable, condition: SQL | undefined): SQL =>
  sql`exists (select 1 from ${table} where ${condition})`;

/** Like `inArray`, with one parameter for all values. */
export const isOneOf = (column: SQLWrapper, values: readonly string[]): SQL =>
  sql`${column} in (select value from json_each(${JSON.stringify(values)}))`;

/**
 * Whether a statement of a batch changed rows, from its result. D1 counts the rows that triggers wrote as
 * well, so the number itself says nothing.
 */
export const hasChanged = (result: unknown): boolean => (result as D1Result).meta.changes > 0;

/**
 * The name of the unique index or the columns that an insert violated, e.g.
 * `project_branches.project_id, project_branches.branch_name`; null for any other error.
 */
export function uniqueConflict(error: unknown): string | null {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    const match = /UNIQUE constraint failed: ([^:]+)/.exec(cause.message);
    if (match?.[1]) return match[1];
  }
  return null;
}

/** The message of a `DrizzleQueryError`, whose class is lost when it comes from an object. */
const QUERY_FAILURE = /^(?:\w*Error: )?Failed query: /;

/**
 * The error without query values, safe to log: the message of a failed query contains them, such as e-mails.
 */
export function withoutValues(error: Error): Error {
  if (error instanceof DrizzleQueryError) return error.cause ?? new Error('a query failed');
  return QUERY_FAILURE.test(error.message) ? new Error('a query of an object failed') : error;
}
