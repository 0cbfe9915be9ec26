import { readProcessTimes } from '../measurement/server-sample.ts';
import type { Ended } from './guard.ts';
import type { Reading } from './watch-session.ts';

/** Signalled sessions are remembered, so that one that ends slowly is counted once. */
const REMEMBERED = 10_000;

/**
 * Ends sessions and workers of autovacuum by a signal to their processes, as `pg_terminate_backend` does, but without a statement: that
 * would fail while the lock table is full.
 */
export class SessionEnder {
  #signalled = new Set<string>();

  /**
   * @returns how many were signalled for the first time
   * @throws Error when the agent may not signal PostgreSQL
   */
  end(sessions: readonly Ended[], { postmaster, seenAt }: Pick<Reading, 'postmaster' | 'seenAt'>): number {
    if (this.#signalled.size > REMEMBERED) this.#signalled.clear();
    let count = 0;
    for (const { pid, key } of sessions) {
      // Another process may have the number by now. It would have another parent, or have begun later.
      const times = readProcessTimes(pid);
      if (times?.parent !== postmaster || times.startedAt >= seenAt || !signal(pid)) continue;
      if (!this.#signalled.has(key)) count += 1;
      this.#signalled.add(key);
    }
    return count;
  }
}

/** @returns whether the process still existed */
function signal(pid: number): boolean {
  try {
    return process.kill(pid, 'SIGTERM');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
    throw error;
  }
}
