import { eq, type SQL, sql } from 'drizzle-orm';
import type { SQLiteColumn, SQLiteTable } from 'drizzle-orm/sqlite-core';
import type { Failure, FailureCode } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { type Database, insertAllIf, isThere, type Statement, uniqueConflict } from './database.ts';

/**
 * What must hold before a write, and the failure otherwise. A condition that is null does not hold. A field
 * of the failure can be SQL, which is read before the write.
 */
export type Requirement<F extends object = Failure> = readonly [condition: SQL, failure: Refusal<F>];

/** A failure of the API can be given by its code. Another protocol has failures of its own form. */
type Refusal<F extends object> = F | (F extends Failure ? FailureCode : never);

/** A table whose rows have an ID that is never used again. */
export type Identified = SQLiteTable & { id: SQLiteColumn };
type Row<T extends Identified> = T['$inferInsert'] & { id: string };

export interface GuardedWrite<T extends Identified, R, F extends object = Failure> {
  /**
   * What decides: new rows of one table, or an update or deletion, whose row must be among the requirements.
   */
  decides: readonly [table: T, row: Row<T>, ...more: Row<T>[]] | ((isAllowed: SQL) => Statement);
  /** In order: the first one that does not hold is the failure. */
  require: readonly [Requirement<F>, ...Requirement<F>[]];
  /**
   * Statements that must have no effect unless `isWritten`. They follow new rows, and precede an update or
   * deletion, because that may change what the requirements read.
   */
  rest?: (isWritten: SQL) => Statement[];
  /**
   * Statements that derive records from what is stored. They run last, in the same transaction, and change
   * nothing that is up to date, so they need no condition.
   */
  derived?: Statement[];
  /** By table: the failure if one of its unique indexes is violated. */
  conflicts?: Partial<Record<string, Refusal<F>>>;
  /** A query that runs after the write. */
  returns?: Statement & PromiseLike<R[]>;
}

const jsonObject = (members: Record<string, unknown>): SQL =>
  sql`json_object(${sql.join(
    Object.entries(members).map(([name, value]) => sql`${name}, ${value}`),
    sql`, `,
  )})`;

const failureOf = <F extends object>(refusal: Refusal<F>): F =>
  (typeof refusal === 'string' ? { code: refusal } : refusal) as F;

/** The failure of the first requirement that does not hold; null if all of them hold. */
function refusalOf<F extends object>(require: readonly Requirement<F>[]): SQL.Aliased<F> {
  const cases = require.map(([condition, refusal]) => {
    const { fields, ...failure }: Pick<Failure, 'fields'> = failureOf(refusal);
    const json = jsonObject({ ...failure, ...(fields && { fields: jsonObject(fields) }) });
    return sql`when (${condition}) is not true then ${json}`;
  });
  return sql`case ${sql.join(cases, sql` `)} end`
    .mapWith((json: string): F => JSON.parse(json))
    .as('refusal');
}

/**
 * Writes everything or nothing, in one batch, because D1 has no interactive transactions. A batch is one
 * transaction, and D1 runs one at a time. So the first statement, which decides on the failure, reads the
 * same state as the condition of the write.
 * @returns the rows of `returns`, or the failure of the first requirement that does not hold
 */
export async function guardedWrite<T extends Identified, R = never, F extends object = Failure>(
  db: Database,
  {
    decides,
    require,
    rest = () => [],
    derived = [],
    conflicts = {},
    returns,
  }: GuardedWrite<T, R, NoInfer<F>>,
): Promise<Result<R[], F>> {
  const decision = db.select({ refusal: refusalOf(require) }).from(sql`(select 1)`);
  const isAllowed = sql.join(
    require.map(([condition]) => sql`(${condition})`),
    sql` and `,
  );
  const statements: Statement[] = [];
  if (typeof decides === 'function') statements.push(...rest(isAllowed), decides(isAllowed));
  else {
    const [table, row, ...more] = decides;
    statements.push(
      insertAllIf(db, table, [row, ...more], isAllowed),
      ...rest(isThere(table, eq(table.id, row.id))),
    );
  }
  statements.push(...derived);
  if (returns) statements.push(returns);
  try {
    const [[decided], ...results] = await db.batch([decision, ...statements]);
    if (decided?.refusal) return fail(decided.refusal);
    // The only position that is read, because the batch is built here.
    return ok(returns ? (results.pop() as R[]) : []);
  } catch (error) {
    const [table = ''] = uniqueConflict(error)?.split('.') ?? [];
    const refusal = conflicts[table];
    if (!refusal) throw error;
    return fail(failureOf<F>(refusal));
  }
}
