import { setTimeout as sleep } from 'node:timers/promises';
import type { OwnSession } from '../postgres/connect.ts';
import type { BoundedSession } from './bounded-session.ts';

/** A session that was idle for this time is closed. Milliseconds. */
const IDLE_MS = 10_000;
/** The caches of a session grow with what it reads, so it is not kept for longer. Milliseconds. */
const AGE_MS = 60_000;
/** On the host. Each is a process of PostgreSQL with some megabytes. */
const KEPT_MAX = 16;
/** Milliseconds to reset a session, or to find out that it is usable. */
const WITHIN_MS = 1_000;

interface Kept {
  database: string;
  bounded: BoundedSession;
  timer: NodeJS.Timeout;
}

/**
 * Sessions that wait for the next page of the same login. What a tenant's code can leave in a session is discarded
 * before it waits: settings, advisory locks, prepared statements, cursors, temporary tables, notifications.
 */
export class KeptSessions {
  /** By login, of which each belongs to one database. */
  readonly #kept = new Map<string, Kept>();
  readonly #resets = new Set<Promise<void>>();

  /** A usable session of the login. The server may have ended it, for instance for a clone. */
  async take(login: string): Promise<BoundedSession | null> {
    const kept = this.#remove(login);
    if (!kept) return null;
    const { session, renew } = kept.bounded;
    renew();
    if (await isDone(session.query(''))) return kept.bounded;
    end(session);
    return null;
  }

  /** Keeps the session, or closes it: if another one waits already, if it is too old, or if there are too many. */
  put(login: string, database: string, bounded: BoundedSession): void {
    const { session, openedAt } = bounded;
    const isKept = performance.now() - openedAt < AGE_MS && this.#kept.size < KEPT_MAX;
    if (!isKept || this.#kept.has(login)) {
      end(session);
      return;
    }
    const reset = isDone(session.query('DISCARD ALL')).then((isReset) => {
      this.#resets.delete(reset);
      if (!isReset || this.#kept.has(login)) return end(session);
      const timer = setTimeout(() => this.#close(login), IDLE_MS).unref();
      this.#kept.set(login, { database, bounded, timer });
    });
    this.#resets.add(reset);
  }

  /** Closes the sessions of this database, or all, and waits until they are closed. */
  async close(database?: string): Promise<void> {
    await Promise.all(this.#resets);
    const logins = [...this.#kept].filter(([, kept]) => database === undefined || kept.database === database);
    await Promise.all(logins.map(([login]) => this.#close(login)));
  }

  async #close(login: string): Promise<void> {
    const kept = this.#remove(login);
    if (kept) await isDone(kept.bounded.session.end());
  }

  #remove(login: string): Kept | undefined {
    const kept = this.#kept.get(login);
    clearTimeout(kept?.timer);
    this.#kept.delete(login);
    return kept;
  }
}

const end = (session: OwnSession): void => void session.end().catch(() => {});

/** Whether the work succeeds in time. */
const isDone = (work: Promise<unknown>): Promise<boolean> =>
  Promise.race([
    work.then(
      () => true,
      () => false,
    ),
    sleep(WITHIN_MS, false, { ref: false }),
  ]);
