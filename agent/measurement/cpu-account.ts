import { z } from 'zod';
import type { Change } from './counters.ts';

/** A process of the server, seen alive. */
export interface SeenProcess {
  /** Tells it from every other one, earlier ones included. */
  key: string;
  /** Oid of the database it is in. */
  database: string | null;
  kind: 'client' | 'parallel worker' | 'other';
  /** Seconds of CPU since it began. */
  cpu: number;
  /** Milliseconds that its statement has been running; 0 when none is. */
  activeMs: number;
}

/** All processes of the server at one moment. */
export interface ProcessSample {
  /** Milliseconds on a clock that never goes back. */
  at: number;
  postmaster: string;
  /** Seconds of CPU of all processes that have ended since the postmaster began. */
  ended: number;
  processes: SeenProcess[];
}

/** From where to go on, after a restart of the agent too. */
export const CpuState = z.object({
  postmaster: z.string(),
  ended: z.number(),
  /** CPU of processes that ended, which no database has been charged for yet. */
  unshared: z.number(),
  /** Key → its database, and the CPU that has been seen. */
  processes: z.record(z.string(), z.tuple([z.string().nullable(), z.number()])),
});
export type CpuState = z.output<typeof CpuState>;

type Work = Pick<Change, 'active_ms' | 'sessions' | 'parallel_workers'>;

/**
 * CPU milliseconds that starting and ending a process takes, a TLS login included: of the machines it was measured
 * on, and the bounds of what is believed of others.
 */
const PROCESS_START_MS = { usual: 4, least: 1, most: 8 };
/** So many that the kernel's ticks and a visit of autovacuum tell little in their sum. */
const MANY_SESSIONS = 50;
/**
 * The most a millisecond of active time is charged with. What ended processes took beyond that was not theirs:
 * autovacuum and the agent end processes too.
 */
const MOST_PER_ACTIVE_MS = 2;

/** What was seen of one database since the last settlement. */
interface Watched {
  cpu: number;
  /** Milliseconds its sessions were seen running statements. */
  activeMs: number;
  arrivals: number;
  /** Milliseconds in which sessions ended that had been seen before: what they did then was not. */
  endings: number;
  isActive: boolean;
}

const UNWATCHED: Watched = { cpu: 0, activeMs: 0, arrivals: 0, endings: 0, isActive: false };

/**
 * Whose queries used the processor. Sessions that last are watched as they run. Those that come and go between
 * two looks leave their CPU in the postmaster's account of ended children, together; it is shared out by what
 * the databases' statistics tell of them: the time they were active and how many there were.
 */
export class CpuAccount {
  #state: CpuState | null;
  #at: number | null = null;
  #watched = new Map<string, Watched>();
  /** Active milliseconds that were seen and are in no statistics yet: those of a statement come at its end. */
  #unreported = new Map<string, number>();

  #startMs = PROCESS_START_MS.usual;
  /** Whether all that ended since the last settlement is in the account: not so once the server was started anew. */
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
    for (const watched of this.#watched.values()) watched.isActive = false;
    for (const process of processes) {
      const known = before?.processes[process.key];
      if (before) this.#watch(process, process.cpu - (known?.[1] ?? 0), known === undefined, elapsed);
    }
    const alive = Object.fromEntries(
      processes.map(({ key, database, cpu }) => [key, [database, cpu] satisfies [string | null, number]]),
    );
    const gone = Object.entries(before?.processes ?? {}).filter(([key]) => !(key in alive));
    for (const [, [database]] of gone) if (database !== null) this.#watchedOf(database).endings += elapsed;
    const seenOfGone = gone.reduce((sum, [, [, cpu]]) => sum + cpu, 0);
    const unshared = before ? before.unshared + (ended - before.ended) - seenOfGone : 0;
    this.#state = { postmaster, ended, unshared, processes: alive };
  }

  /**
   * Closes the account since the last settlement.
   * @param work what the statistics of every database, tenants' or not, have gained since then; by oid
   * @returns seconds of CPU by database
   */
  settle(work: ReadonlyMap<string, Work>): Map<string, number> {
    const unreported = this.#unreported;
    this.#unreported = new Map();
    const unseen = [...work].map(([database, done]) => ({
      database,
      ...this.#unseenOf(database, done, unreported.get(database) ?? 0),
    }));
    const price = this.#price(
      unseen.reduce((sum, { sessions }) => sum + sessions, 0),
      unseen.reduce((sum, { activeMs }) => sum + activeMs, 0),
    );
    const charged = new Map([...this.#watched].map(([database, { cpu }]) => [database, cpu]));
    for (const { database, sessions, activeMs } of unseen) {
      const ms = sessions * price.session + activeMs * price.activeMs;
      if (ms > 0) charged.set(database, (charged.get(database) ?? 0) + ms / 1000);
    }
    // What is left over is nobody's. A debt, from a process that was seen to be gone before the postmaster knew, stays.
    if (this.#state) this.#state = { ...this.#state, unshared: Math.min(0, this.#state.unshared) };
    this.#watched = new Map();
    this.#isWhole = true;
    return charged;
  }

  /**
   * CPU milliseconds for which each session and each active millisecond that was not seen is charged. On a busy machine
   * statements are active for longer than they use the processor, and logins use no more of it than ever: so the
   * sessions come first and the active time shares the rest. A session's part is what it was taken for before, as far
   * as it fits: all together can't have taken more than there was, nor have been active for less than they used.
   */
  #price(sessions: number, activeMs: number): { session: number; activeMs: number } {
    const toShare = Math.max(0, this.#state?.unshared ?? 0) * 1000;
    const perSession = (ms: number) => (sessions === 0 ? 0 : ms / sessions);
    const atLeast = Math.min(perSession(toShare - activeMs), PROCESS_START_MS.most);
    const session = Math.min(Math.max(this.#startMs, atLeast), perSession(toShare));
    if (this.#isWhole && sessions >= MANY_SESSIONS) {
      this.#startMs = Math.max(session, PROCESS_START_MS.least);
    }
    const rest = activeMs === 0 ? 0 : (toShare - session * sessions) / activeMs;
    return { session, activeMs: Math.min(rest, MOST_PER_ACTIVE_MS) };
  }

  /** A server that was started anew has ended nothing yet and all its processes are new. */
  #stateOf(postmaster: string): CpuState | null {
    if (this.#state === null || this.#state.postmaster === postmaster) return this.#state;
    return { postmaster, ended: 0, unshared: this.#state.unshared, processes: {} };
  }

  #watch({ database, kind, activeMs }: SeenProcess, cpu: number, isNew: boolean, elapsed: number): void {
    if (database === null || kind === 'other') return;
    const watched = this.#watchedOf(database);
    watched.cpu += cpu;
    if (isNew) watched.arrivals += 1;
    if (kind !== 'client') return;
    // Who is found at work has been at it since the last look, and who is found idle has not: in the long run both
    // are right, also of a session that runs one short statement after the other.
    watched.activeMs += activeMs > 0 ? Math.max(cpu * 1000, isNew ? activeMs : elapsed) : cpu * 1000;
    watched.isActive ||= activeMs > 0;
  }

  #watchedOf(database: string): Watched {
    const watched = this.#watched.get(database) ?? { ...UNWATCHED };
    this.#watched.set(database, watched);
    return watched;
  }

  /** A database's processes that came and went unseen, and the milliseconds its statements ran unseen. */
  #unseenOf(database: string, { active_ms, sessions, parallel_workers }: Work, unreported: number) {
    const watched = this.#watched.get(database) ?? UNWATCHED;
    const seenActive = watched.activeMs + unreported;
    if (watched.isActive && seenActive > active_ms) this.#unreported.set(database, seenActive - active_ms);
    const unseen = Math.max(0, sessions + parallel_workers - watched.arrivals);
    // Where nobody came and went unseen, the time in the statistics was spent by sessions that were watched.
    const unseenActive = Math.min(
      active_ms - seenActive,
      unseen > 0 ? Number.POSITIVE_INFINITY : watched.endings,
    );
    return { sessions: unseen, activeMs: Math.max(0, unseenActive) };
  }
}
