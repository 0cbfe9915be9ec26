import { setTimeout as sleep } from 'node:timers/promises';
import { type DeadTuples, readDeadTuples } from '../measurement/database-statistics.ts';
import { inDatabase, type Pool } from '../postgres/connect.ts';
import { inLoginSession, type LoginBranch } from '../postgres/login-session.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { DEFAULT_PRIVILEGES, grantByDefault, lostGroups } from './default-privileges.ts';
import { LACKS_OWN_SESSIONS, makeOwnSessions } from './own-sessions.ts';

/** What it takes to repair the privileges of branches. */
export interface PrivilegesHost {
  settings: AgentSettings;
  postgres: Pool;
  /** As read in the hourly session of each branch's owner login. */
  deadTuples: DeadTuples;
  log: Log;
}

const REPEAT_AFTER_MS = 60 * 60 * 1000;
/** Between two branches, so that a thousand of them do not disturb their clients. */
const PAUSE_MS = 20;

/**
 * Grants the default privileges again to each group that has lost all of them: a login of the group can drop
 * them with DROP OWNED, for this branch and its later clones. A group that has some is left alone, because
 * the owner may narrow them. The session also reads the share of dead rows. Runs as the branch's owner login
 * over the unix socket: default privileges can be altered only in a session in their database, and the
 * superuser opens one there only for a branch of an earlier release, whose logins cannot see their own
 * sessions yet.
 * @throws Error when the login is refused, for example because the branch has no connection left
 */
export async function repairPrivileges(host: PrivilegesHost, branch: LoginBranch): Promise<void> {
  const { branch_id, project_id, database } = branch;
  let isLacking = false;
  const lost = await inLoginSession(host.settings, branch, 'owner', async (session) => {
    const { rows } = await session.query<{ defaclacl: string }>(DEFAULT_PRIVILEGES);
    const found = lostGroups(
      project_id,
      rows.map(({ defaclacl }) => defaclacl),
    );
    if (found.length > 0)
      await session.query(found.map((group) => grantByDefault(project_id, group)).join('; '));
    const { rows: own } = await session.query<{ lacking: boolean }>(LACKS_OWN_SESSIONS);
    isLacking = own[0]?.lacking === true;
    host.deadTuples.record(branch_id, await readDeadTuples(session));
    return found;
  });
  if (isLacking) {
    await inDatabase(host.settings, database, makeOwnSessions);
    host.log('privileges.own_sessions_made', { branch_id });
  }
  if (lost.length > 0) host.log('privileges.repaired', { branch_id, groups: lost });
}

/**
 * A clone inherits what a login has dropped on the source. The branch works without it, and the agent tries
 * again.
 */
export const repair = (host: PrivilegesHost, branch: LoginBranch): Promise<void> =>
  repairPrivileges(host, branch).catch((error: Error) => {
    host.log('privileges.unrepaired', { branch_id: branch.branch_id, reason: error.message });
  });

/** Repairs every branch that its owner may log in to: at the start, and then once an hour. */
export async function runPrivilegeLoop(host: PrivilegesHost, signal: AbortSignal): Promise<void> {
  const troubles = new TroubleLog(host.log);
  const repairAll = async () => {
    const branches = await readOpenBranches(host);
    host.deadTuples.forgetExcept(new Set(branches.map(({ branch_id }) => branch_id)));
    for (const branch of branches) {
      if (signal.aborted) return;
      await repairPrivileges(host, branch).catch((error) =>
        troubles.report('privileges.unrepaired', branch.branch_id, error, { branch_id: branch.branch_id }),
      );
      await sleep(PAUSE_MS, undefined, { signal }).catch(() => {});
    }
    troubles.clearAll();
  };
  await runLoop(repairAll, {
    every: REPEAT_AFTER_MS,
    signal,
    log: host.log,
    failed: 'privileges.unrepaired',
  });
}

/** Finalized branches whose owner login is not disabled, and may write. */
async function readOpenBranches({ postgres }: PrivilegesHost): Promise<LoginBranch[]> {
  const { rows } = await postgres.query<LoginBranch>(
    `SELECT branch_id, project_id, database FROM branch JOIN pg_database ON datname = database
     WHERE NOT closed AND datconnlimit > 0
       AND NOT EXISTS (SELECT FROM following WHERE following.branch_id = branch.branch_id)
     ORDER BY database`,
  );
  return rows;
}
