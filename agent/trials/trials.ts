import { setTimeout as sleep } from 'node:timers/promises';
import type { TrialReport } from '../../shared/protocol/trial-operations.ts';
import type { Pool, Session } from '../postgres/connect.ts';
import { releaseLock, takeLock } from '../postgres/locks.ts';
import { ProjectGate } from '../process/project-gate.ts';

/** Trials of a host, and of a project. */
const OF_HOST = 8;
const OF_PROJECT = 2;
/** Trials that are compared concurrently: each takes a session for operations. The others wait here, without one. */
const COMPARED = 2;
/** A report that the first call has not waited for, and one that it has. Milliseconds. */
const KEPT_MS = 3_600_000;
const READ_KEPT_MS = 60_000;
/** Reports of half a megabyte each. Those of a project end none of another one's before the host has too many. */
const KEPT_OF_PROJECT = 8;
const KEPT_OF_HOST = 64;

interface Known {
  projectId: string;
  outcome: Promise<TrialReport>;
  /** Milliseconds of `performance.now()`; infinite while it runs. */
  until: number;
}

interface Keeper {
  session: Promise<Session & { release: (isLost: boolean) => void }>;
  /** Trials whose locks it has. */
  held: number;
}

/** Trials that are running, and their reports. They end with the agent, as their copies do. */
export class Trials {
  readonly #gate = new ProjectGate({ ofHost: OF_HOST, ofProject: OF_PROJECT, noun: 'trial' });
  /** The oldest first. */
  readonly #known = new Map<string, Known>();
  readonly #waiting: (() => void)[] = [];
  #compared = 0;
  readonly #pool: Pool;
  /** The session that holds the locks of all trials. A session for each would leave none to other operations. */
  #keeper: Keeper | null = null;

  constructor(pool: Pool) {
    this.#pool = pool;
  }

  /**
   * Begins a trial, unless there is one with the id.
   * @throws HostError PROJECT_BUSY, HOST_BUSY
   */
  begin(id: string, projectId: string, run: () => Promise<TrialReport>): void {
    if (this.#known.has(id)) return;
    const leave = this.#gate.enter(projectId);
    this.#forget(projectId);
    const outcome = this.#locked(id, run);
    const known: Known = { projectId, outcome, until: Number.POSITIVE_INFINITY };
    const onEnd = () => {
      leave();
      known.until = performance.now() + KEPT_MS;
    };
    // The caller that waits for the report gets the failure.
    outcome.then(onEnd, onEnd);
    this.#known.set(id, known);
  }

  /**
   * Waits for the report.
   * @param wait milliseconds
   * @returns `report` is null while the trial is running; `known` is false if there is none
   * @throws the failure of the trial
   */
  async read(id: string, wait: number): Promise<{ known: boolean; report: TrialReport | null }> {
    const known = this.#known.get(id);
    if (!known) return { known: false, report: null };
    const isOver = new AbortController();
    const tooLong = sleep(wait, null, { signal: isOver.signal }).catch(() => null);
    try {
      return { known: true, report: await Promise.race([known.outcome, tooLong]) };
    } finally {
      isOver.abort();
    }
  }

  /** For a trial whose report the first call returns. */
  async readFirst(id: string, wait: number): Promise<TrialReport | null> {
    const { report } = await this.read(id, wait);
    const known = this.#known.get(id);
    if (report && known) known.until = performance.now() + READ_KEPT_MS;
    return report;
  }

  /** Runs the comparison of a trial when it has a turn. */
  async compare<T>(action: () => Promise<T>): Promise<T> {
    if (this.#compared >= COMPARED) await new Promise<void>((start) => this.#waiting.push(start));
    else this.#compared += 1;
    try {
      return await action();
    } finally {
      const next = this.#waiting.shift();
      if (next) next();
      else this.#compared -= 1;
    }
  }

  /** @param projectId that is about to have one more */
  #forget(projectId: string): void {
    const now = performance.now();
    const ended = () => [...this.#known].filter(([, { until }]) => until < Number.POSITIVE_INFINITY);
    for (const [id, { until }] of ended()) if (until < now) this.#known.delete(id);
    const own = ended().filter(([, known]) => known.projectId === projectId);
    for (const [id] of own.slice(0, Math.max(0, own.length - KEPT_OF_PROJECT + 1))) this.#known.delete(id);
    const all = ended();
    for (const [id] of all.slice(0, Math.max(0, all.length - KEPT_OF_HOST + 1))) this.#known.delete(id);
  }

  /** The removal of leftovers takes the same lock, also that of another process. */
  async #locked<T>(id: string, action: () => Promise<T>): Promise<T> {
    const lock = `clone:${id}` as const;
    this.#keeper ??= { session: this.#pool.connect(), held: 0 };
    const keeper = this.#keeper;
    keeper.held += 1;
    let isIntact = false;
    try {
      const session = await keeper.session;
      await takeLock(session, lock);
      try {
        return await action();
      } finally {
        isIntact = await releaseLock(session, lock).then(
          () => true,
          () => false,
        );
      }
    } finally {
      keeper.held -= 1;
      // One that is lost has released its locks. The next trial opens another one.
      if ((keeper.held === 0 || !isIntact) && this.#keeper === keeper) this.#keeper = null;
      if (keeper.held === 0) keeper.session.then((session) => session.release(!isIntact)).catch(() => {});
    }
  }
}
