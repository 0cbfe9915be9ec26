import type { Host } from '../host.ts';
import { dropDatabase } from '../postgres/databases.ts';
import { tryLock, withLocks } from '../postgres/locks.ts';
import { readLeftovers } from './snapshot-databases.ts';

/** Drops half-dropped snapshots and unfinished copies, except those that another process works on. */
export async function dropLeftovers({ postgres, sessions }: Host): Promise<void> {
  // Usually there is none, and no session for operations is needed.
  if ((await readLeftovers(postgres)).length === 0) return;
  await withLocks(sessions, [], async (session) => {
    for (const { name, snapshotId } of await readLeftovers(session))
      if (await tryLock(session, `clone:${snapshotId}`)) await dropDatabase(session, name);
  });
}
