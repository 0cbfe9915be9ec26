import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { ADOPTED } from '../cloning/claim-branch.ts';
import { createClone } from '../cloning/create-clone.ts';
import { restoreBranchSettings } from '../postgres/branch-settings.ts';
import { inTransaction, literal, type Session } from '../postgres/connect.ts';
import { dropDatabase, readDatabases } from '../postgres/databases.ts';
import { runAlone, takeLock, withLocks } from '../postgres/locks.ts';
import { restoreLogins } from '../postgres/roles.ts';
import { clearDatabase } from '../postgres/sessions.ts';
import { repair } from '../privileges/repair-privileges.ts';
import { HostError } from '../process/host-error.ts';
import type { OnProgress } from '../process/progress.ts';
import { closeAsSnapshot, readSnapshotSize } from '../snapshots/snapshot-databases.ts';
import { readFollowed } from '../transfer/following.ts';
import { type BranchHost, opening } from './branch.ts';

/**
 * Makes the database that a reset swaps in. One that an earlier call made is adopted, also if it is swapped
 * in already.
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, POOLER_UNAVAILABLE
 */
export function cloneForReset(
  host: BranchHost,
  { job_id, branch_id, database, source, busy_wait }: Params<'reset.clone'>,
  onProgress?: OnProgress,
): Promise<MethodResult<'reset.clone'>> {
  return withLocks(host.sessions, [`clone:${branch_id}`], async (session) => {
    const name = buildDatabaseName(job_id);
    const found = await readDatabases(session, [name, database]);
    if (found.some(({ mark }) => mark?.job_id === job_id)) return ADOPTED;
    const build = found.find((one) => one.name === name);
    if (build?.interrupted) await dropDatabase(session, name);
    else if (build) return ADOPTED;
    await takeLock(session, `source:${source}`);
    return createClone(host, session, { name, source, busy_wait }, onProgress);
  });
}

/**
 * Replaces the branch's database by the clone of this job, in one transaction: the old one becomes a
 * snapshot. Both names are locked then, so a new login waits and gets the new database. Pooled clients are
 * disconnected, because what they know of the database is of its former state.
 * @throws HostError INVALID_CALL, HOST_BUSY
 */
export async function swapReset(
  host: BranchHost,
  params: Params<'reset.swap'>,
): Promise<MethodResult<'reset.swap'>> {
  const { branch_id, database, snapshot_id } = params;
  const size = await withLocks(host.sessions, [`clone:${branch_id}`], async (session) => {
    if (!(await isSwapped(session, params)))
      await host.rules.withhold([database], () => swap(host, session, params));
    await inTransaction(session, async () => {
      await restoreLogins(session, { branches: [branch_id] });
      await restoreBranchSettings(session, { branches: [branch_id] });
    });
    return readSnapshotSize(session, snapshot_id);
  });
  await repair(host, params);
  return { kept: size !== null, size_bytes: size ?? 0 };
}

async function isSwapped(session: Session, { job_id, branch_id, database }: Params<'reset.swap'>) {
  const build = buildDatabaseName(job_id);
  const found = await readDatabases(session, [build, database]);
  if (found.some(({ mark }) => mark?.job_id === job_id)) return true;
  if ((await readFollowed(session, { branch_id })).some(({ since }) => since))
    throw new HostError('INVALID_CALL', 'the branch follows a database elsewhere');
  const isThere = found.some(({ name }) => name === build);
  const isOwn = found.some(({ name, mark }) => name === database && mark?.branch_id === branch_id);
  if (isThere && isOwn) return false;
  throw new HostError('INVALID_CALL', `job ${job_id} has made no clone for branch ${branch_id}`);
}

const swap = ({ postgres, settings }: BranchHost, session: Session, params: Params<'reset.swap'>) =>
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

/** Drops what `reset.clone` made. After `reset.swap` there is nothing under that name, but the snapshot. */
export function cancelReset(
  host: BranchHost,
  { job_id, branch_id, snapshot_id }: Params<'reset.cancel'>,
): Promise<MethodResult<'reset.cancel'>> {
  return withLocks(host.sessions, [`clone:${branch_id}`], async (session) => {
    const found = await readDatabases(session, [buildDatabaseName(job_id)]);
    for (const { name } of found) await dropDatabase(session, name);
    const size = await readSnapshotSize(session, snapshot_id);
    return {
      dropped: found.length > 0,
      left: size === null ? null : { kept: true, size_bytes: size },
    };
  });
}
