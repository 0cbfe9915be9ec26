import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { withLocks } from '../postgres/locks.ts';
import { readBranches } from '../postgres/read-branches.ts';
import { dropUnusedRoles } from '../postgres/roles.ts';
import { readSnapshots } from '../snapshots/snapshot-databases.ts';
import { dropBranch } from './branch-drop.ts';
import { dropSnapshot } from './snapshot-drop.ts';

/**
 * Drops the project's branches and snapshots concurrently, so that they share the servers' reloads, and then its record
 * and groups.
 */
export async function dropProject(
  host: Host,
  { project_id, job_id }: Params<'project.drop'>,
): Promise<MethodResult<'project.drop'>> {
  const branches = (await readBranches(host.postgres)).filter((branch) => branch.project_id === project_id);
  const snapshots = (await readSnapshots(host.postgres)).filter((one) => one.project_id === project_id);
  const outcomes = await Promise.allSettled([
    ...branches.map(({ branch_id, database }) =>
      dropBranch(host, { job_id, project_id, branch_id, database, made_by: null }),
    ),
    ...snapshots.map(({ snapshot_id }) => dropSnapshot(host, { project_id, snapshot_id })),
  ]);
  for (const outcome of outcomes) if (outcome.status === 'rejected') throw outcome.reason;
  await withLocks(host.sessions, [], async (session) => {
    await session.query('DELETE FROM project WHERE project_id = $1', [project_id]);
    await host.rules.sync();
    await dropUnusedRoles(session);
  });
  return {
    dropped_databases: outcomes.filter((outcome) => outcome.status === 'fulfilled' && outcome.value.dropped)
      .length,
  };
}
