import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { readProjectSizes } from '../measurement/sizes.ts';
import { readBranches } from '../postgres/branches.ts';
import { withLocks } from '../postgres/locks.ts';
import { dropRoles, rolesOfProject } from '../postgres/unused-roles.ts';
import { HostError } from '../process/host-error.ts';
import { dropSnapshot, readSnapshots } from '../snapshots/snapshot-databases.ts';
import { type BranchHost, dropBranch, SIDE_BY_SIDE } from './branch.ts';

/**
 * Sizes at most this long, so that a database of very many files does not hold a session of the operations.
 */
const STATEMENT_WITHIN_MS = 3_000;

export function sizeProject(
  host: BranchHost,
  { project_id }: Params<'project.size'>,
): Promise<MethodResult<'project.size'>> {
  return withLocks(host.sessions, [], async (session) => {
    await session.query(`SET statement_timeout = ${STATEMENT_WITHIN_MS}`);
    const known = { dataDir: host.settings.PGDATA_DIR, sizes: host.sizes };
    const [sizes = { project_id, sizes: {} }] = await readProjectSizes(session, known, [project_id]);
    await session.query('RESET statement_timeout');
    return sizes;
  });
}

/** @throws HostError INVALID_CALL for a call that comes after the project was put into use here */
async function requireUnused(
  { postgres }: BranchHost,
  { project_id, up_to_revision }: Params<'project.drop'>,
): Promise<void> {
  const { rows } = await postgres.query(
    'SELECT FROM project WHERE project_id = $1 AND access_revision > $2',
    [project_id, up_to_revision ?? null],
  );
  if (rows.length > 0) throw new HostError('INVALID_CALL', 'the project is in use on this host');
}

/**
 * Drops the project's branches and snapshots, some concurrently, so that they share the servers' reloads, and
 * then its record and groups.
 */
export async function dropProject(
  host: BranchHost,
  params: Params<'project.drop'>,
): Promise<MethodResult<'project.drop'>> {
  const { project_id, job_id } = params;
  const branches = await readBranches(host.postgres, project_id);
  const snapshots = await readSnapshots(host.postgres, project_id);
  const drops = [
    ...branches.map(
      ({ branch_id, database }) =>
        () =>
          dropBranch(host, { job_id, project_id, branch_id, database, made_by: null }),
    ),
    ...snapshots.map(
      ({ snapshot_id }) =>
        () =>
          dropSnapshot(host, { snapshot_id }),
    ),
  ];
  const outcomes: PromiseSettledResult<{ dropped: boolean }>[] = [];
  for (let first = 0; first < drops.length; first += SIDE_BY_SIDE) {
    await requireUnused(host, params);
    const some = drops.slice(first, first + SIDE_BY_SIDE);
    outcomes.push(...(await Promise.allSettled(some.map((drop) => drop()))));
  }
  for (const outcome of outcomes) if (outcome.status === 'rejected') throw outcome.reason;
  await requireUnused(host, params);
  await withLocks(host.sessions, [], async (session) => {
    const { rows: networks } = await session.query<{ role: string }>(
      'SELECT role FROM network WHERE project_id = $1',
      [project_id],
    );
    for (const table of ['project', 'project_extensions'])
      await session.query(`DELETE FROM ${table} WHERE project_id = $1`, [project_id]);
    await host.rules.sync();
    await dropRoles(session, [...networks.map(({ role }) => role), ...rolesOfProject(project_id)]);
  });
  return {
    dropped_databases: outcomes.filter((outcome) => outcome.status === 'fulfilled' && outcome.value.dropped)
      .length,
  };
}
