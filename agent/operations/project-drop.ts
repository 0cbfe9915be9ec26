import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { withLocks } from '../postgres/locks.ts';
import { readBranches } from '../postgres/read-branches.ts';
import { dropUnusedRoles } from '../postgres/roles.ts';
import { readSnapshots } from '../snapshots/snapshot-databases.ts';
import { dropBranch } from './branch-drop.ts';
import { dropSnapshot } from './snapshot-drop.ts';

/** The rest of the agent's sessions is for other projects. */
const SIDE_BY_SIDE = 6;

/**
 * Drops the project's branches and snapshots, some concurrently, so that they share the servers' reloads, and then its
 * record and groups.
 */
export async function dropProject(
  host: Host,
  { project_id, job_id }: Params<'project.drop'>,
): Promise<MethodResult<'project.drop'>> {
  const branches = (await readBranches(host.postgres)).filter((branch) => branch.project_id === project_id);
  const snapshots = (await readSnapshots(host.postgres)).filter((one) => one.project_id === project_id);
  const drops = [
    ...branches.map(
      ({ branch_id, database }) =>
        () =>
          dropBranch(host, { job_id, project_id, branch_id, database, made_by: null }),
    ),
    ...snapshots.map(
      ({ snapshot_id }) =>
        () =>
          dropSnapshot(host, { project_id, snapshot_id }),
    ),
  ];
  const outcomes: PromiseSettledResult<{ dropped: boolean }>[] = [];
  for (let first = 0; first < drops.length; first += SIDE_BY_SIDE) {
    const some = drops.slice(first, first + SIDE_BY_SIDE);
    outcomes.push(...(await Promise.allSettled(some.map((drop) => drop()))));
  }
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
