import type { ChangeStep } from '../../shared/protocol/change-operations.ts';
import type { OwnSession, Session } from '../postgres/connect.ts';
import { runStatement } from '../postgres/run-statement.ts';

/** A statement that PostgreSQL refused, or that was interrupted. */
export class StatementError extends Error {
  override readonly name = 'StatementError';
  /** In its step, from 0. */
  readonly at: number;

  constructor(at: number, cause: unknown) {
    super(cause instanceof Error ? cause.message : String(cause), { cause });
    this.at = at;
  }
}

/** Runs one statement; its rows are dropped. @throws StatementError */
const run = (session: Session, at: number, sql: string) =>
  runStatement(session, sql, [], () => true, { untilFull: false }).catch((error) => {
    throw new StatementError(at, error);
  });

/** Repeats the settings that the steps before have made in a session that is over. */
export async function repeatSettings(session: Session, before: readonly ChangeStep[]): Promise<void> {
  for (const { sets, statements } of before)
    if (sets) for (const [at, { sql }] of statements.entries()) await run(session, at, sql);
}

/** SQLSTATE `invalid_transaction_termination`. */
const ENDED = Object.assign(new Error('the statement has ended its transaction'), {
  code: '2D000',
  severity: 'ERROR',
});

interface Limits {
  /** Milliseconds; 0: none. */
  lock: number;
  /** Limit of a single statement. */
  statement: number;
  transaction: number;
}

export const NO_LIMITS: Limits = { lock: 0, statement: 0, transaction: 0 };

/**
 * Runs a step.
 * @param beforeCommit runs in the transaction of the step, when its statements have run; not for a step that runs alone
 * @throws StatementError
 */
export async function runStep(
  session: OwnSession,
  { statements, alone }: ChangeStep,
  { lock, statement, transaction }: Limits,
  beforeCommit: () => Promise<unknown>,
): Promise<void> {
  const [first] = statements;
  if (alone && first) {
    await session.query(`SET lock_timeout = ${lock}; SET statement_timeout = ${statement}`);
    await run(session, 0, first.sql);
    return;
  }
  await session.query(
    `BEGIN; SET LOCAL lock_timeout = ${lock}; SET LOCAL statement_timeout = ${statement};
     SET LOCAL transaction_timeout = ${transaction}`,
  );
  for (const [at, { sql }] of statements.entries()) {
    await run(session, at, sql);
    if (session.getTransactionStatus() !== 'T') throw new StatementError(at, ENDED);
  }
  await beforeCommit();
  await session.query('COMMIT').catch((error) => {
    throw new StatementError(statements.length - 1, error);
  });
}
