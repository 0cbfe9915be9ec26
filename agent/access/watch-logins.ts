import { setTimeout as sleep } from 'node:timers/promises';
import { inTransaction, type Pool } from '../postgres/connect.ts';
import { tryLock, withLocks } from '../postgres/locks.ts';
import { readChangedProjects, restoreLogins } from '../postgres/roles.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import { type AccessHost, enforceAccess, unenforcedProjects } from './enforce-access.ts';

/** What it takes to restore logins. */
interface WatchedHost extends AccessHost {
  /** For short statements. */
  postgres: Pool;
  /** For operations: each holds its locks in one of these sessions. */
  sessions: Pool;
}

const POLL_EVERY_MS = 1_000;
/** On a host with very many logins, a look takes this share of the time at most. */
const SHARE = 0.05;

/**
 * Restores logins that have changed their own password or settings, and ends the sessions that may have used
 * another password. A function that a login owns can change both, whoever calls it, and no privilege of
 * PostgreSQL prevents that.
 */
export class LoginWatch {
  readonly #host: WatchedHost;
  readonly #log: Log;
  readonly #troubles: TroubleLog;
  /** Projects whose access was not enforced at the last poll. An operation may have been about to. */
  #left: ReadonlySet<string> = new Set();

  constructor(host: WatchedHost, log: Log) {
    this.#host = host;
    this.#log = log;
    this.#troubles = new TroubleLog(log);
  }

  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const started = performance.now();
      await this.poll();
      const pause = Math.max(POLL_EVERY_MS, (performance.now() - started) / SHARE);
      await sleep(pause, undefined, { signal }).catch(() => {});
    }
  }

  /** One look. Never throws. */
  async poll(): Promise<void> {
    try {
      const { postgres } = this.#host;
      const changed = new Set<string>();
      for (const id of await readChangedProjects(postgres)) if (await this.#restore(id)) changed.add(id);
      const unenforced = await unenforcedProjects(postgres);
      for (const id of unenforced.filter((id) => changed.has(id) || this.#left.has(id)))
        await this.#try(id, () => this.#enforce(id));
      this.#left = new Set(unenforced);
      this.#troubles.clear('logins');
    } catch (error) {
      this.#troubles.report('logins.unwatched', 'logins', error);
    }
  }

  /** @returns whether one of the logins had another password */
  async #restore(projectId: string): Promise<boolean> {
    const restored = await this.#try(projectId, () =>
      withLocks(this.#host.sessions, [], (session) =>
        inTransaction(session, () => restoreLogins(session, { projectId })),
      ),
    );
    for (const { login, password, settings } of restored ?? [])
      this.#log('login.restored', { login, password, settings });
    return restored?.some(({ password }) => password) ?? false;
  }

  /** Nothing while an operation enforces the access. */
  #enforce(projectId: string): Promise<void> {
    return withLocks(this.#host.sessions, [], async (session) => {
      if (await tryLock(session, `access:${projectId}`)) await enforceAccess(this.#host, session, projectId);
    });
  }

  /** A project that cannot be restored does not hold up the others. */
  async #try<T>(projectId: string, action: () => Promise<T>): Promise<T | null> {
    try {
      return await action();
    } catch (error) {
      this.#troubles.report('login.unrestored', projectId, error, { project_id: projectId });
      return null;
    }
  }
}
