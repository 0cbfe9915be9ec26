import { z } from 'zod';
import type { Change } from './counters.ts';

/** A live process of the server. */
export interface SeenProcess {
  /** Unique among all processes, earlier ones included. */
  key: string;
  /** Oid of the database it is in. */
  database: string | null;
  kind: 'client' | 'parallel worker' | 'other';
  /** Seconds of CPU since it began. */
  cpu: number;
  /** Milliseconds that its statement has been running; 0 when none runs. */
  activeMs: number;
}

/** All processes of the server at one instant. */
export interface ProcessSample {
  /** Milliseconds of a monotonic clock. */
  at: number;
  postmaster: string;
  /** Seconds of CPU of all processes that have ended since the postmaster began. */
  ended: number;
  processes: SeenProcess[];
}

/** The account's state, which outlives a restart of the agent. */
export const CpuState = z.object({
  postmaster: z.string(),
  ended: z.number(),
  /** CPU seconds of ended processes that no database has been billed for yet. */
  unshared: z.number(),
  /** Key → its database, and its CPU seconds in the last sample. */
  processes: z.record(z.string(), z.tuple([z.string().nullable(), z.number()])),
});
export type CpuState = z.output<typeof CpuState>;

type Work = Pick<Change, 'active_ms' | 'sessions' | 'parallel_workers'>;

/**
 * CPU milliseconds for starting and ending a process, a TLS login included: as measured on some machines, and
 * the bounds for an estimate on others.
 */
const PROCESS_START_MS = { usual: 4, least: 1, most: 8 };
/** With this many sessions, the kernel's tick size and a visit of autovacuum hardly affect their sum. */
const MANY_SESSIONS = 50;
/**
 * Maximum CPU milliseconds billed per millisecond of active time. Ended processes of autovacuum and of the
 * agent account for any excess.
 */
const MOST_PER_ACTIVE_MS = 2;

/** Observations of one database since the last settlement. */
interface Observed {
  cpu: number;
  /** Milliseconds its sessions were observed running statements. */
  activeMs: number;
  arrivals: number;
  /**
   * Milliseconds between two samples in which known sessions ended: their work in that time was not observed.
   */
  endings: number;
  isActive: boolean;
}

const NOTHING_OBSERVED: Observed = { cpu: 0, activeMs: 0, arrivals: 0, endings: 0, isActive: false };

/**
 * Attributes CPU time to databases. Long sessions are sampled while they run. The CPU time of sessions that
 * start and end between two samples is part of the postmaster's sum over ended children. That sum is divided
 * by the databases' statistics: the number of such sessions and their active time.
 */
export class CpuAccount {
  #state: CpuState | null;
  #at: number | null = null;
  #observed = new Map<string, Observed>();
  /**
   * Observed active milliseconds that no statistics contain yet, because a statement is counted at its end.
   */
  #unreported = new Map<string, number>();

  #startMs = PROCESS_START_MS.usual;
  /**
   * Whether the account contains all processes ended since the last settlement; false after a server restart.
   */
  #isWhole = true;

  constructor(state: CpuState | null) {
    this.#state = state;
  }

  get state(): CpuState | null {
    return this.#state;
  }

  addSample({ at, postmaster, ended, processes }: ProcessSample): void {
    const before = this.#stateOf(postmaster);
    if (this.#state?.postmaster !== postmaster) this.#isWhole = false;
    const elapsed = this.#at === null ? 0 : at - this.#at;
    this.#at = at;
    for (const observed of this.#observed.values()) observed.isActive = false;
    for (const process of processes) {
      const known = before?.processes[process.key];
      if (before) this.#observe(process, process.cpu - (known?.[1] ?? 0), known === undefined, elapsed);
    }
    const alive = Object.fromEntries(
      processes.map(({ key, database, cpu }) => [key, [database, cpu] satisfies [string | null, number]]),
    );
    const gone = Object.entries(before?.processes ?? {}).filter(([key]) => !(key in alive));
    for (const [, [database]] of gone)
      if (database !== null) this.#observationsOf(database).endings += elapsed;
    const sampledOfGone = gone.reduce((sum, [, [, cpu]]) => sum + cpu, 0);
    const unshared = before ? before.unshared + (ended - before.ended) - sampledOfGone : 0;
    this.#state = { postmaster, ended, unshared, processes: alive };
  }

  /**
   * Attributes the CPU time since the last settlement.
   * @param work the increase of every database's statistics since then, of tenants' databases and others; by
   *   oid
   * @returns seconds of CPU by database
   */
  settle(work: ReadonlyMap<string, Work>): Map<string, number> {
    const unreported = this.#unreported;
    this.#unreported = new Map();
    const unobserved = [...work].map(([database, done]) => ({
      database,
      ...this.#unobservedOf(database, done, unreported.get(database) ?? 0),
    }));
    const price = this.#price(
      unobserved.reduce((sum, { sessions }) => sum + sessions, 0),
      unobserved.reduce((sum, { activeMs }) => sum + activeMs, 0),
    );
    const billed = new Map([...this.#observed].map(([database, { cpu }]) => [database, cpu]));
    for (const { database, sessions, activeMs } of unobserved) {
      const ms = sessions * price.session + activeMs * price.activeMs;
      if (ms > 0) billed.set(database, (billed.get(database) ?? 0) + ms / 1000);
    }
    // A rest belongs to no database. A debt stays: it comes from a process that ended before its postmaster
    // noticed.
    if (this.#state) this.#state = { ...this.#state, unshared: Math.min(0, this.#state.unshared) };
    this.#observed = new Map();
    this.#isWhole = true;
    return billed;
  }

  /**
   * CPU milliseconds billed for each unobserved session, and for each unobserved active millisecond. On a
   * busy machine, statements are active for longer than they use the processor, but a login uses no more CPU
   * than usual. Sessions are therefore billed first, and the active time shares the rest. The price of a
   * session is the last estimate, limited by two facts: sessions cannot have used more than the total, and
   * statements cannot have used more CPU time than they were active.
   */
  #price(sessions: number, activeMs: number): { session: number; activeMs: number } {
    const shared = Math.max(0, this.#state?.unshared ?? 0) * 1000;
    const perSession = (ms: number) => (sessions === 0 ? 0 : ms / sessions);
    const atLeast = Math.min(perSession(shared - activeMs), PROCESS_START_MS.most);
    const session = Math.min(Math.max(this.#startMs, atLeast), perSession(shared));
    if (this.#isWhole && sessions >= MANY_SESSIONS) {
      this.#startMs = Math.max(session, PROCESS_START_MS.least);
    }
    const rest = activeMs === 0 ? 0 : (shared - session * sessions) / activeMs;
    return { session, activeMs: Math.min(rest, MOST_PER_ACTIVE_MS) };
  }

  /** A restarted server has no ended processes yet, and all its processes are new. */
  #stateOf(postmaster: string): CpuState | null {
    if (this.#state === null || this.#state.postmaster === postmaster) return this.#state;
    return { postmaster, ended: 0, unshared: this.#state.unshared, processes: {} };
  }

  #observe({ database, kind, activeMs }: SeenProcess, cpu: number, isNew: boolean, elapsed: number): void {
    if (database === null || kind === 'other') return;
    const observed = this.#observationsOf(database);
    observed.cpu += cpu;
    if (isNew) observed.arrivals += 1;
    if (kind !== 'client') return;
    // A session sampled as active counts as active since the last sample, an idle one as idle: this is
    // unbiased over many samples, for sessions that run many short statements too.
    observed.activeMs += activeMs > 0 ? Math.max(cpu * 1000, isNew ? activeMs : elapsed) : cpu * 1000;
    observed.isActive ||= activeMs > 0;
  }

  #observationsOf(database: string): Observed {
    const observed = this.#observed.get(database) ?? { ...NOTHING_OBSERVED };
    this.#observed.set(database, observed);
    return observed;
  }

  /** A database's unobserved processes, and the milliseconds its statements ran unobserved. */
  #unobservedOf(database: string, { active_ms, sessions, parallel_workers }: Work, unreported: number) {
    const observed = this.#observed.get(database) ?? NOTHING_OBSERVED;
    const knownActive = observed.activeMs + unreported;
    if (observed.isActive && knownActive > active_ms) this.#unreported.set(database, knownActive - active_ms);
    const missed = Math.max(0, sessions + parallel_workers - observed.arrivals);
    // Without missed sessions, only observed sessions can have spent the time in the statistics.
    const missedActive = Math.min(
      active_ms - knownActive,
      missed > 0 ? Number.POSITIVE_INFINITY : observed.endings,
    );
    return { sessions: missed, activeMs: Math.max(0, missedActive) };
  }
}
