import type { Pool, Session } from './connect.ts';

/**
 * Advisory locks in the agent's own database, held by a session. So they outlive an agent that is killed for
 * as long as its statement goes on: the next agent process, or a control tool beside it, waits for a
 * `CREATE DATABASE` that nobody reads the end of. Taken in the order of this list, so that none waits in a ring.
 */
export type Lock =
  /** The branch's logins, rules and pooler entry. */
  | `prepare:${string}`
  /** The branch's database, under either of its names. */
  | `clone:${string}`
  /** A database that is being cloned, by name: clones of one source go one after another. */
  | `source:${string}`
  /** What the project's access makes of logins, ports and sessions. */
  | `access:${string}`
  /** Roles that nothing uses any more. */
  | 'roles'
  /** The rule files. */
  | 'rules';

const KEY = 'hashtextextended($1, 0)';

export const takeLock = (session: Session, lock: Lock) =>
  session.query(`SELECT pg_advisory_lock(${KEY})`, [lock]);

export async function tryLock(session: Session, lock: Lock): Promise<boolean> {
  const { rows } = await session.query<{ taken: boolean }>(`SELECT pg_try_advisory_lock(${KEY}) AS taken`, [
    lock,
  ]);
  return rows[0]?.taken === true;
}

/** Runs `action` in a session of the pool that holds `locks`, and more if the action takes more. */
export async function withLocks<T>(
  pool: Pool,
  locks: readonly Lock[],
  action: (session: Session) => Promise<T>,
): Promise<T> {
  const session = await pool.connect();
  let intact = false;
  try {
    for (const lock of locks) await takeLock(session, lock);
    const result = await action(session);
    await session.query('SELECT pg_advisory_unlock_all()');
    intact = true;
    return result;
  } finally {
    // After a failure nobody knows what the session still holds or does: closing it lets go of everything.
    session.release(!intact);
  }
}
