import type { Pool } from '../postgres/connect.ts';
import { dropDatabase } from '../postgres/databases.ts';
import { tryLock, withLocks } from '../postgres/locks.ts';
import { readLeftovers } from './snapshot-databases.ts';

/** Drops half-dropped snapshots and unfinished copies, except those that another process works on. */
export const dropLeftovers = (sessions: Pool): Promise<void> =>
  withLocks(sessions, [], async (session) => {
    for (const { name, snapshotId } of await readLeftovers(session))
      if (await tryLock(session, `clone:${snapshotId}`)) await dropDatabase(session, name);
  });
