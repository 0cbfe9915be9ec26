import { HostError } from '../process/host-error.ts';
import { backendPid, literal, type Pool, type Session } from './connect.ts';
import { LOCK_NOT_AVAILABLE, sqlState } from './postgres-failure.ts';
import { lockedBy } from './sessions.ts';

/**
 * Advisory locks in the agent's own database, held by a session. They outlive a killed agent for as long as
 * its statement runs, so the next agent process, or a control tool, waits for a `CREATE DATABASE` that was
 * abandoned. They are taken in the order of this list, so that there is no deadlock.
 */
export type Lock =
  /** The branch's logins, rules and pooler entry. */
  | `prepare:${string}`
  /** The branch's database, under either of its names. */
  | `clone:${string}`
  /** The login of a move. */
  | `mover:${string}`
  /** A database that is being cloned, by name: one source is cloned once at a time. */
  | `source:${string}`
  /** A project's comparison of two databases, and one of the host's places for them. */
  | `difference:${string}`
  /** The number of rehearsals, while one more begins. */
  | 'rehearsals'
  /** Logins, ports and sessions of a project, while its access is enforced. */
  | `access:${string}`
  /** Roles without a branch or project. */
  | 'roles'
  /** The rule files. */
  | 'rules'
  /** Creation of the agent's own database; held in the database `postgres`. */
  | 'agent-database';

const keyOf = (lock: string) => `hashtextextended(${lock}, 0)`;
const KEY = keyOf('$1');

/**
 * Locks that are held for moments. A holder that was stopped must not hold up every operation, and the start
 * of the agent. Seconds.
 */
const WITHIN: { [L in Lock]?: number } = { rules: 20, roles: 20 };

/**
 * Waits for the lock. For `rules` and `roles` it must be called outside of a transaction.
 * @throws HostError HOST_BUSY if a stopped process holds one of these
 */
export async function takeLock(session: Session, lock: Lock): Promise<void> {
  const within = WITHIN[lock];
  if (within === undefined) await session.query(`SELECT pg_advisory_lock(${KEY})`, [lock]);
  else await takeLockWithin(session, lock, within);
}

/** Takes the locks in this order. @throws as `takeLock` */
async function takeLocks(session: Session, locks: readonly Lock[]): Promise<void> {
  if (locks.length > 1 && locks.every((lock) => WITHIN[lock] === undefined))
    await session.query(`SELECT pg_advisory_lock(${keyOf('lock')}) FROM unnest($1::text[]) AS lock`, [locks]);
  else for (const lock of locks) await takeLock(session, lock);
}

/**
 * As `takeLock`, outside of a transaction.
 * @param within seconds
 * @throws HostError HOST_BUSY if another session holds the lock for longer
 */
export async function takeLockWithin(session: Session, lock: Lock, within: number): Promise<void> {
  try {
    // Statements that are sent together are one transaction, to which SET LOCAL applies.
    await session.query(
      `SET LOCAL lock_timeout = '${within}s'; SELECT pg_advisory_lock(${keyOf(literal(lock))})`,
    );
  } catch (error) {
    if (sqlState(error) !== LOCK_NOT_AVAILABLE) throw error;
    throw new HostError(
      'HOST_BUSY',
      `another operation, or a control tool that was stopped, has held the lock ${lock} for ${within} s`,
    );
  }
}

export const releaseLock = (session: Session, lock: Lock) =>
  session.query(`SELECT pg_advisory_unlock(${KEY})`, [lock]);

export async function tryLock(session: Session, lock: Lock): Promise<boolean> {
  const { rows } = await session.query<{ taken: boolean }>(`SELECT pg_try_advisory_lock(${KEY}) AS taken`, [
    lock,
  ]);
  return rows[0]?.taken === true;
}

/** Runs `action` in a session of the pool that holds `locks` and may take more. */
export async function withLocks<T>(
  pool: Pool,
  locks: readonly Lock[],
  action: (session: Session) => Promise<T>,
): Promise<T> {
  const session = await pool.connect();
  let intact = false;
  try {
    await takeLocks(session, locks);
    const result = await action(session);
    await session.query('SELECT pg_advisory_unlock_all()');
    intact = true;
    return result;
  } finally {
    // After a failure the session's state is unknown. Closing it releases every lock.
    session.release(!intact);
  }
}

/**
 * Runs a statement that needs a database without sessions, and that locks it against new ones. Those that
 * began just before are emptied out concurrently, because PostgreSQL only waits for them, for five seconds.
 * @param empty called when the database is locked; ends its sessions. If it returns false, the statement is
 *   cancelled
 * @throws what the statement throws
 */
export async function runAlone(
  { postgres, session }: { postgres: Pool; session: Session },
  database: string,
  statement: () => Promise<unknown>,
  empty: (signal: AbortSignal) => Promise<boolean>,
): Promise<void> {
  const pid = backendPid(session);
  const done = new AbortController();
  const running = statement().finally(() => done.abort());
  const guard = async () => {
    const { signal } = done;
    await lockedBy(postgres, pid, database, signal);
    if (signal.aborted || (await empty(signal))) return;
    // Not once the last session has ended: the statement has begun then.
    await postgres.query(
      'SELECT pg_cancel_backend($1) WHERE EXISTS (SELECT FROM pg_stat_activity WHERE datname = $2)',
      [pid, database],
    );
  };
  const [ran, guarded] = await Promise.allSettled([running, guard()]);
  if (ran.status === 'rejected') throw ran.reason;
  if (guarded.status === 'rejected') throw guarded.reason;
}
