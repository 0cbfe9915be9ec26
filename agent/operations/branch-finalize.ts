import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import { groupName, loginName } from '../../shared/branch/login.ts';
import type { Params } from '../../shared/protocol/operations.ts';
import { type BranchIdentity, nameHeld } from '../cloning/claim-branch.ts';
import type { Host } from '../host.ts';
import { identifier, inTransaction, literal } from '../postgres/connect.ts';
import { grantDatabase, protectDatabase } from '../postgres/database-settings.ts';
import { type FoundDatabase, markText, readDatabases } from '../postgres/databases.ts';
import { withLocks } from '../postgres/locks.ts';
import { restoreLogins } from '../postgres/roles.ts';
import { HostError } from '../servers/host-error.ts';

/** Finalizes a clone. @throws HostError DATABASE_NAME_HELD, INVALID_CALL */
export async function finalizeBranch(
  host: Host,
  branch: Params<'branch.finalize'>,
): Promise<Record<string, never>> {
  await openBranches(host, [branch]);
  return {};
}

/**
 * Gives clones their final names and opens them to the logins of their branches. A clone does not inherit the privileges on
 * its source, and PUBLIC may connect by default.
 * @throws HostError DATABASE_NAME_HELD, INVALID_CALL
 */
export function openBranches(host: Host, branches: readonly Params<'branch.finalize'>[]): Promise<void> {
  const locks = branches.map(({ branch_id }) => `clone:${branch_id}` as const);
  return withLocks(host.sessions, locks, async (session) => {
    const names = branches.flatMap(({ job_id, database }) => [buildDatabaseName(job_id), database]);
    const found = await readDatabases(session, names);
    const unopened = branches.filter((branch) => !isOpen(branch, found));
    await inTransaction(session, async () => {
      if (unopened.length > 0) await session.query(unopened.map((branch) => opening(host, branch)).join(';'));
      // The project may be write-blocked, so the rest of the rights is not the same for every branch. The agent of an
      // earlier release may have opened the branches without it.
      await restoreLogins(session, branches[0]?.project_id);
    });
  });
}

function isOpen({ branch_id, job_id, database }: Params<'branch.finalize'>, found: FoundDatabase[]): boolean {
  const finalized = found.find(({ name }) => name === database);
  if (finalized?.mark?.branch_id === branch_id) return true;
  if (finalized) throw nameHeld(database);
  if (!found.some(({ name }) => name === buildDatabaseName(job_id)))
    throw new HostError('INVALID_CALL', `job ${job_id} has made no clone to finalize`);
  return false;
}

/** Statements that give a clone its final name. The last one opens the database, with its limits. */
export function opening({ settings }: Pick<Host, 'settings'>, branch: BranchIdentity): string {
  const { project_id, branch_id, job_id, database } = branch;
  const name = identifier(database);
  const ownerGroup = identifier(groupName(project_id, 'owner'));
  return `ALTER DATABASE ${identifier(buildDatabaseName(job_id))} RENAME TO ${name};
    REVOKE ALL ON DATABASE ${name} FROM PUBLIC;
    ${grantDatabase(branch)};
    ALTER ROLE ${identifier(loginName(branch_id, 'owner'))} IN DATABASE ${name} SET role = ${ownerGroup};
    COMMENT ON DATABASE ${name} IS ${literal(markText(branch))};
    INSERT INTO branch_usage (branch_id) VALUES (${literal(branch_id)}) ON CONFLICT DO NOTHING;
    ${protectDatabase(settings, database)}`;
}
