import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { inTransaction, literal, type Session } from '../postgres/connect.ts';
import { readDatabases } from '../postgres/databases.ts';
import { withLocks } from '../postgres/locks.ts';
import { restoreLogins } from '../postgres/roles.ts';
import { runAlone } from '../postgres/run-alone.ts';
import { clearDatabase } from '../postgres/source-sessions.ts';
import { repair } from '../privileges/repair-privileges.ts';
import { HostError } from '../servers/host-error.ts';
import { closeAsSnapshot, readSnapshotSize } from '../snapshots/snapshot-databases.ts';
import { opening } from './branch-finalize.ts';

/**
 * Replaces the branch's database by the clone of this job, in one transaction: the old one becomes a snapshot. Both
 * names are locked then, so a new login waits and gets the new database. Pooled clients are disconnected, because what
 * they know of the database is of its former state.
 * @throws HostError INVALID_CALL, HOST_BUSY
 */
export async function swapReset(
  host: Host,
  params: Params<'reset.swap'>,
): Promise<MethodResult<'reset.swap'>> {
  const { project_id, branch_id, database, snapshot_id } = params;
  const size = await withLocks(host.sessions, [`clone:${branch_id}`], async (session) => {
    if (!(await isSwapped(session, params)))
      await host.rules.withhold([database], () => swap(host, session, params));
    await inTransaction(session, () => restoreLogins(session, project_id));
    return readSnapshotSize(session, snapshot_id);
  });
  await repair(host, params);
  return { kept: size !== null, size_bytes: size ?? 0 };
}

async function isSwapped(session: Session, { job_id, branch_id, database }: Params<'reset.swap'>) {
  const build = buildDatabaseName(job_id);
  const found = await readDatabases(session, [build, database]);
  if (found.some(({ mark }) => mark?.job_id === job_id)) return true;
  const isThere = found.some(({ name }) => name === build);
  const isOwn = found.some(({ name, mark }) => name === database && mark?.branch_id === branch_id);
  if (isThere && isOwn) return false;
  throw new HostError('INVALID_CALL', `job ${job_id} has made no clone for branch ${branch_id}`);
}

const swap = ({ postgres, settings }: Host, session: Session, params: Params<'reset.swap'>) =>
  runAlone(
    { postgres, session },
    params.database,
    () =>
      session.query(
        `${closeAsSnapshot(params, 'replaced')};
         UPDATE branch SET job_id = ${literal(params.job_id)} WHERE branch_id = ${literal(params.branch_id)};
         ${opening({ settings }, params)}`,
      ),
    async (signal) => {
      await clearDatabase(postgres, params.database, signal);
      return true;
    },
  );
