import { transactionAge } from '../postgres/tenant-code.ts';
import type { Finding, Guard, Observation } from './guard.ts';

/**
 * Open transactions keep every database of the host from removing old rows, and from using transaction ids
 * again. PostgreSQL's own timeouts do not help: a session can unset them.
 */
export class OldTransactions implements Guard {
  readonly name = 'old transactions';
  readonly reason = 'transaction_ids';
  readonly #seconds: number;

  constructor(seconds: number) {
    this.#seconds = seconds;
  }

  check({ sessions }: Observation): Finding[] {
    return sessions
      .filter(
        ({ branch, kind, transactionSeconds }) =>
          branch !== null && transactionSeconds > transactionAge(kind, this.#seconds),
      )
      .map((session) => ({
        sessions: [session],
        branches: [],
        detail: { transaction_seconds: Math.round(session.transactionSeconds) },
      }));
  }
}
