import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { BranchIdentity } from '../cloning/claim-branch.ts';
import type { Host } from '../host.ts';
import type { Session } from '../postgres/connect.ts';
import { dropDatabase, readDatabases } from '../postgres/databases.ts';
import { withLocks } from '../postgres/locks.ts';
import { readBranches } from '../postgres/read-branches.ts';
import { dropUnusedRoles } from '../postgres/roles.ts';

/**
 * Removes the branch as far as it exists: first access to it, then the database, then the logins. Waits for a
 * preparation or clone of the branch that still runs.
 */
export function dropBranch(host: Host, params: Params<'branch.drop'>): Promise<MethodResult<'branch.drop'>> {
  const { branch_id } = params;
  return withLocks(host.sessions, [`prepare:${branch_id}`, `clone:${branch_id}`], async (session) => {
    if (!(await isWanted(session, params))) return { dropped: false };
    await closeBranch(host, session, branch_id);
    const doomed = await databasesOf(session, params);
    for (const { name } of doomed) await dropDatabase(session, name);
    await forgetBranch(session, branch_id);
    return { dropped: doomed.length > 0 };
  });
}

/** Whether the branch is still the one that the call is about. No step of a restoration has begun, or can begin meanwhile. */
export async function isWanted(
  session: Session,
  { branch_id, made_by }: Pick<Params<'branch.drop'>, 'branch_id' | 'made_by'>,
): Promise<boolean> {
  if (made_by === null) return true;
  const held = (await readBranches(session)).find((branch) => branch.branch_id === branch_id);
  return held?.made_by === made_by;
}

/** Closes both ports to the branch's logins. */
export async function closeBranch({ rules }: Host, session: Session, branchId: string): Promise<void> {
  await session.query('DELETE FROM login WHERE branch_id = $1', [branchId]);
  await rules.sync();
}

/** Removes what the agent knows of a branch whose databases are gone, and its logins. */
export async function forgetBranch(session: Session, branchId: string): Promise<void> {
  await session.query('DELETE FROM network_rule WHERE branch_id = $1', [branchId]);
  await session.query('DELETE FROM branch WHERE branch_id = $1', [branchId]);
  await dropUnusedRoles(session);
}

/**
 * The branch's databases, finalized or not. A finalized one is found by its mark alone, because another branch may
 * have taken the name since. A clone without its final name carries the id of the job that made it.
 */
export async function databasesOf(
  session: Session,
  params: BranchIdentity,
): Promise<{ name: string; finalized: boolean }[]> {
  const { rows } = await session.query<{ job_id: string }>('SELECT job_id FROM branch WHERE branch_id = $1', [
    params.branch_id,
  ]);
  const builds = [params, ...rows].map(({ job_id }) => buildDatabaseName(job_id));
  const found = await readDatabases(session);
  return found
    .filter(({ name, mark }) => builds.includes(name) || mark?.branch_id === params.branch_id)
    .map(({ name }) => ({ name, finalized: !builds.includes(name) }));
}
