import { readFileSync } from 'node:fs';
import type { GuardedBranch, Observation, TenantSession } from './guard.ts';

/** Rates are averages over this time. Milliseconds. */
const WINDOW = 4_000;
/** A rate over less than this says little. Milliseconds. */
const LEAST = 900;

interface Amount {
  at: number;
  branch: GuardedBranch;
  bytes: number;
}

/**
 * How fast the sessions of each branch write files: tables, WAL, temporary files. The kernel counts it for each
 * process, also during a statement, which PostgreSQL's own statistics do not.
 */
export class WriteRates {
  readonly #writtenBy: (pid: number) => number | null;
  /** By session. */
  #written = new Map<string, number>();
  #amounts: Amount[] = [];
  #since: number | null = null;

  /** @param writtenBy bytes that a process has written; replaced by tests only */
  constructor(writtenBy = bytesWritten) {
    this.#writtenBy = writtenBy;
  }

  observe({ at, sessions }: Pick<Observation, 'at' | 'sessions'>): void {
    const isFirst = this.#since === null;
    this.#since ??= at;
    const written = new Map<string, number>();
    for (const session of sessions) {
      const total = this.#writtenBy(session.pid);
      if (total === null) continue;
      written.set(session.key, total);
      // What was written before the first look is no rate.
      const before = this.#written.get(session.key) ?? (isFirst ? total : 0);
      this.#add(at, session, total - before);
    }
    this.#written = written;
    this.#amounts = this.#amounts.filter((amount) => at - amount.at < WINDOW);
  }

  /** Bytes a second of each branch, the fastest first. */
  fastest(at: number): { branch: GuardedBranch; bytesPerSecond: number }[] {
    const observed = Math.min(WINDOW, at - (this.#since ?? at));
    if (observed < LEAST) return [];
    return [...Map.groupBy(this.#amounts, ({ branch }) => branch)]
      .map(([branch, amounts]) => ({
        branch,
        bytesPerSecond: (amounts.reduce((sum, { bytes }) => sum + bytes, 0) / observed) * 1000,
      }))
      .sort((one, other) => other.bytesPerSecond - one.bytesPerSecond);
  }

  #add(at: number, { branch }: TenantSession, bytes: number) {
    if (branch && bytes > 0) this.#amounts.push({ at, branch, bytes });
  }
}

/** `wchar` of proc(5), `/proc/pid/io`; null when the process is gone. */
function bytesWritten(pid: number): number | null {
  try {
    const [, bytes] = /^wchar: (\d+)$/m.exec(readFileSync(`/proc/${pid}/io`, 'latin1')) ?? [];
    return bytes === undefined ? null : Number(bytes);
  } catch {
    return null;
  }
}
