import type { OwnSession } from '../postgres/connect.ts';
import { RESET } from '../postgres/sessions.ts';

/**
 * A session is closed this long after its login. Its work counts as the branch's usage because of the login,
 * which measurements remember for longer (`REPORTED_WITHIN_MS`). Milliseconds.
 */
const KEPT_FOR_MS = 8_000;
/** On the host. Each is a process of PostgreSQL, and one of the connections that clients have. */
const KEPT_MAX = 8;
/** A project's share of them. */
const KEPT_OF_PROJECT = 2;
/** Milliseconds. */
const RESET_WITHIN_MS = 1_000;

/** A session that can be used for more than one operation. */
export interface ReusableSession {
  session: OwnSession;
  pid: number;
  /** The database of the project's branch `main`, which identifies the project. */
  project: string;
  /** `performance.now()` */
  openedAt: number;
  /** Whether it has ended, for instance for a clone of its database. */
  isLost: boolean;
}

/**
 * Sessions that wait for the next page of the same login. What a tenant's code can leave in a session is
 * discarded before it waits: settings, role, advisory locks, prepared statements, cursors, temporary tables,
 * notifications.
 */
export class KeptSessions {
  /** By login, each of which belongs to one database. */
  readonly #kept = new Map<string, ReusableSession & { timer: NodeJS.Timeout }>();
  /** By login. */
  readonly #resets = new Map<string, Promise<void>>();

  /** A session that is being reset is worth the wait: a login takes longer. */
  async take(login: string): Promise<ReusableSession | null> {
    await this.#resets.get(login);
    const kept = this.#remove(login);
    return kept && !kept.isLost ? kept : null;
  }

  /** Keeps the session, or closes it if another one waits already, it is too old, or there are too many. */
  put(login: string, reusable: ReusableSession): void {
    if (!this.#hasRoom(login, reusable) || this.#resets.has(login) || leftOf(reusable) <= 0) {
      end(reusable);
      return;
    }
    const reset = resetOf(reusable).then((isReset) => {
      this.#resets.delete(login);
      const left = leftOf(reusable);
      if (!isReset || !this.#hasRoom(login, reusable) || left <= 0) return end(reusable);
      const timer = setTimeout(() => end(this.#remove(login)), left).unref();
      this.#kept.set(login, Object.assign(reusable, { timer }));
    });
    this.#resets.set(login, reset);
  }

  /** Whether the session with this process waits. */
  has(pid: number): boolean {
    return [...this.#kept.values()].some((kept) => kept.pid === pid && !kept.isLost);
  }

  /** Closes the sessions that wait. */
  async close(): Promise<void> {
    await Promise.all(this.#resets.values());
    const sessions = [...this.#kept.keys()].map((login) => this.#remove(login)?.session);
    await Promise.all(sessions.map((session) => session?.end().catch(() => {})));
  }

  #hasRoom(login: string, { project }: ReusableSession): boolean {
    const other = this.#kept.get(login);
    if (other?.isLost) this.#remove(login);
    else if (other) return false;
    const ofProject = [...this.#kept.values()].filter((kept) => kept.project === project).length;
    return this.#kept.size < KEPT_MAX && ofProject < KEPT_OF_PROJECT;
  }

  #remove(login: string) {
    const kept = this.#kept.get(login);
    clearTimeout(kept?.timer);
    this.#kept.delete(login);
    return kept;
  }
}

const leftOf = ({ openedAt }: ReusableSession) => openedAt + KEPT_FOR_MS - performance.now();

const end = (reusable: ReusableSession | undefined): void => void reusable?.session.end().catch(() => {});

/** @returns whether the session was reset in time */
function resetOf({ session }: ReusableSession): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const timer = setTimeout(resolve, RESET_WITHIN_MS, false);
  session.query(RESET).then(
    () => resolve(true),
    () => resolve(false),
  );
  return promise.finally(() => clearTimeout(timer));
}
