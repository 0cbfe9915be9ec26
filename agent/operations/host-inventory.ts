import type { Result } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { inTransaction } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { readBranches } from '../postgres/read-branches.ts';
import { dropUnusedRoles, restoreLogins } from '../postgres/roles.ts';

/**
 * Also tries once more the roles that could not be dropped earlier, and puts back passwords that logins changed:
 * the reconciler asks often enough.
 */
export async function takeInventory(host: Host): Promise<Result<'host.inventory'>> {
  await withLocks(host.sessions, [], async (session) => {
    await dropUnusedRoles(session);
    await inTransaction(session, () => restoreLogins(session));
  });
  const [branches, projects, cluster] = await Promise.all([
    readBranches(host.postgres),
    host.postgres.query<Result<'host.inventory'>['projects'][number]>(
      'SELECT project_id, access_revision FROM project ORDER BY project_id',
    ),
    host.postgres.query<{ system_identifier: string }>(
      'SELECT system_identifier::text FROM pg_control_system()',
    ),
  ]);
  return {
    system_identifier: cluster.rows[0]?.system_identifier ?? '',
    branches,
    projects: projects.rows,
  };
}
