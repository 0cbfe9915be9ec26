import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import { groupName, loginName } from '../../shared/branch/login.ts';
import type { Params } from '../../shared/protocol/operations.ts';
import { nameHeld } from '../cloning/claim-branch.ts';
import type { Host } from '../host.ts';
import { identifier, literal } from '../postgres/connect.ts';
import { grantDatabase, protectDatabase } from '../postgres/database-settings.ts';
import { markText, readDatabases } from '../postgres/databases.ts';
import { withLocks } from '../postgres/locks.ts';
import { repairPrivileges } from '../privileges/repair-privileges.ts';
import { HostError } from '../servers/host-error.ts';

/** Finalizes a clone, and repairs the privileges in it. @throws HostError DATABASE_NAME_HELD, INVALID_CALL */
export async function finalizeBranch(
  host: Host,
  branch: Params<'branch.finalize'>,
): Promise<Record<string, never>> {
  await openBranch(host, branch);
  await repair(host, branch);
  return {};
}

/** A clone inherits what a login has dropped on the source. The branch works without it, and the agent tries again. */
export const repair = (host: Host, branch: Params<'branch.finalize'>): Promise<boolean> =>
  repairPrivileges(host, branch).catch((error: Error) => {
    host.log('privileges.unrepaired', { branch_id: branch.branch_id, reason: error.message });
    return true;
  });

/**
 * Gives the clone its final name and opens it to the branch's logins. A clone does not inherit the privileges on
 * its source, and PUBLIC may connect by default. The last statement opens it, with its limits. The statements are sent together, which makes them one transaction.
 * @throws HostError DATABASE_NAME_HELD, INVALID_CALL
 */
export function openBranch(host: Host, params: Params<'branch.finalize'>): Promise<void> {
  const { project_id, branch_id, job_id, database } = params;
  return withLocks(host.sessions, [`clone:${branch_id}`], async (session) => {
    const build = buildDatabaseName(job_id);
    const found = await readDatabases(session, [build, database]);
    const finalized = found.find(({ name }) => name === database);
    if (finalized?.mark?.branch_id === branch_id) return;
    if (finalized) throw nameHeld(database);
    if (found.length === 0)
      throw new HostError('INVALID_CALL', `job ${job_id} has made no clone to finalize`);

    const name = identifier(database);
    const ownerGroup = identifier(groupName(project_id, 'owner'));
    await session.query(
      `ALTER DATABASE ${identifier(build)} RENAME TO ${name};
       REVOKE ALL ON DATABASE ${name} FROM PUBLIC;
       ${grantDatabase(params)};
       ALTER ROLE ${identifier(loginName(branch_id, 'owner'))} IN DATABASE ${name} SET role = ${ownerGroup};
       COMMENT ON DATABASE ${name} IS ${literal(markText(params))};
       INSERT INTO branch_usage (branch_id) VALUES (${literal(branch_id)}) ON CONFLICT DO NOTHING;
       ${protectDatabase(host.settings, database)}`,
    );
  });
}
