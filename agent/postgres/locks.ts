import { Histogram } from 'prom-client';
import { HostError } from '../process/host-error.ts';
import { backendPid, breakOff, literal, type OwnSession, type Pool, type Session } from './connect.ts';
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
  /** The scratch database of a tenant for a comparison of schemas, and one of the host's places for them. */
  | `proof:${string}`
  /** The change that is being applied to a branch. */
  | `change:${string}`
  /** Logins, ports and sessions of a project, while its access is enforced. */
  | `access:${string}`;

/**
 * Locks of the whole host, for which operations of every tenant wait. A session takes them with `withHostLock` alone,
 * which releases them before work that takes long.
 */
type HostLock =
  /** The number of rehearsals, while one more begins. */
  | 'rehearsals'
  /** Roles without a branch or project. */
  | 'roles'
  /** The rule files. */
  | 'rules'
  /** Creation of the agent's own database; held in the database `postgres`. */
  | 'agent-database';

/** Seconds for which a lock of the host is waited for, and held. A holder that was stopped holds up nobody for longer. */
export const HOST_LOCKS: Record<HostLock, { wait: number; hold: number }> = {
  rehearsals: { wait: 20, hold: 10 },
  roles: { wait: 20, hold: 10 },
  // Both servers reload meanwhile.
  rules: { wait: 20, hold: 60 },
  'agent-database': { wait: 60, hold: 60 },
};

/** How long the locks of the host were held. */
export const HOST_LOCK_SECONDS = new Histogram({
  name: 'branchgate_host_lock_held_seconds',
  help: 'Time for which a lock of the whole host was held',
  labelNames: ['lock'],
  buckets: [0.005, 0.02, 0.1, 0.5, 1, 5, 10, 60],
  registers: [],
});

const keyOf = (lock: string) => `hashtextextended(${lock}, 0)`;
const KEY = keyOf('$1');

export const takeLock = (session: Session, lock: Lock) =>
  session.query(`SELECT pg_advisory_lock(${KEY})`, [lock]);

/**
 * Runs `action` while the session holds a lock of the whole host. To be called outside of a transaction.
 * @throws HostError HOST_BUSY if another session holds the lock for longer than `wait`, or this one for longer than
 *   `hold`: the session is closed then, which releases the lock
 */
export async function withHostLock<T>(
  session: Session,
  lock: HostLock,
  action: () => Promise<T>,
): Promise<T> {
  const { wait, hold } = HOST_LOCKS[lock];
  await takeLockWithin(session, lock, wait);
  const released = HOST_LOCK_SECONDS.startTimer({ lock });
  let isLate = false;
  const late = setTimeout(() => {
    isLate = true;
    breakOff(session as OwnSession);
  }, hold * 1000);
  try {
    return await action();
  } catch (error) {
    throw isLate ? new HostError('HOST_BUSY', `the lock ${lock} was held for ${hold} s`) : error;
  } finally {
    clearTimeout(late);
    // A session that is lost has released it, and one that has failed is closed by its owner.
    await releaseLock(session, lock).catch(() => {});
    released();
  }
}

/**
 * As `takeLock`, outside of a transaction.
 * @param within seconds
 * @throws HostError HOST_BUSY if another session holds the lock for longer
 */
export async function takeLockWithin(session: Session, lock: Lock | HostLock, within: number): Promise<void> {
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

export const releaseLock = (session: Session, lock: Lock | HostLock) =>
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
    if (locks.length > 0)
      await session.query(`SELECT pg_advisory_lock(${keyOf('lock')}) FROM unnest($1::text[]) AS lock`, [
        locks,
      ]);
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
