import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { dropDatabase } from '../postgres/databases.ts';
import { withLocks } from '../postgres/locks.ts';
import { runAlone } from '../postgres/run-alone.ts';
import { clearDatabase } from '../postgres/source-sessions.ts';
import { closeAsSnapshot, readSnapshotSize } from '../snapshots/snapshot-databases.ts';
import { closeBranch, databasesOf, forgetBranch, isWanted } from './branch-drop.ts';

/**
 * Removes the branch as `branch.drop` does, but keeps its finalized database as a snapshot, so that the deletion can be
 * undone.
 */
export function keepBranch(host: Host, params: Params<'branch.keep'>): Promise<MethodResult<'branch.keep'>> {
  const { branch_id, snapshot_id } = params;
  return withLocks(host.sessions, [`prepare:${branch_id}`, `clone:${branch_id}`], async (session) => {
    if (!(await isWanted(session, params))) return { kept: false, size_bytes: 0 };
    await closeBranch(host, session, branch_id);
    for (const { name, finalized } of await databasesOf(session, params)) {
      if (!finalized) await dropDatabase(session, name);
      else await keepDatabase(host, session, { ...params, database: name });
    }
    await forgetBranch(session, branch_id);
    const size = await readSnapshotSize(session, snapshot_id);
    return { kept: size !== null, size_bytes: size ?? 0 };
  });
}

const keepDatabase = (
  { postgres }: Host,
  session: Parameters<typeof closeBranch>[1],
  params: Params<'branch.keep'>,
) =>
  runAlone(
    { postgres, session },
    params.database,
    () => session.query(closeAsSnapshot(params, 'deleted')),
    async (signal) => {
      await clearDatabase(postgres, params.database, signal);
      return true;
    },
  );
