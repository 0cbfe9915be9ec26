import type { Result } from '../../shared/protocol/operations.ts';
import { withLocks } from '../postgres/locks.ts';
import { dropUnusedRoles } from '../postgres/roles.ts';
import type { Host } from './host.ts';
import { readBranches } from './read-branches.ts';

/** Tries the roles that could not be dropped earlier once more, because the reconciler asks often enough. */
export async function takeInventory(host: Host): Promise<Result<'host.inventory'>> {
  await withLocks(host.sessions, [], dropUnusedRoles);
  const [branches, projects] = await Promise.all([
    readBranches(host.postgres),
    host.postgres.query<Result<'host.inventory'>['projects'][number]>(
      'SELECT project_id, access_revision FROM project ORDER BY project_id',
    ),
  ]);
  return { branches, projects: projects.rows };
}
