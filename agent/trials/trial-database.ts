import { SNAPSHOT_DATABASE } from '../../shared/branch/database-name.ts';
import {
  BRANCH_ROLES,
  type BranchRole,
  groupName,
  loginName,
  queryLoginName,
} from '../../shared/branch/login.ts';
import type { Params } from '../../shared/protocol/operations.ts';
import type { CloneTurns } from '../cloning/clone-turns.ts';
import { createClone, createUnusedClone } from '../cloning/create-clone.ts';
import type { Side } from '../difference/sides.ts';
import { copyBranchSettings } from '../postgres/branch-settings.ts';
import { readTenant } from '../postgres/branches.ts';
import { identifier, inTransaction, type Session } from '../postgres/connect.ts';
import { dropDatabase, protectWork } from '../postgres/databases.ts';
import { releaseLock, takeLock, withLocks } from '../postgres/locks.ts';
import { inAgentLogin } from '../postgres/login-session.ts';
import { dropRoles, rolesOfBranch } from '../postgres/unused-roles.ts';
import { HostError } from '../process/host-error.ts';
import type { AgentSettings } from '../process/settings.ts';
import { comparedDatabaseName, trialDatabaseName } from '../snapshots/snapshot-databases.ts';
import type { StandingHost } from '../snapshots/standing-snapshots.ts';

/**
 * The databases of one trial: the copy on which the statements run, and the state before, with which it is compared.
 * No rule file names either, so only the agent gets in. The logins exist for this trial alone: what a statement
 * does to its own login, such as a new password, reaches no branch.
 */

export interface TrialDatabaseHost extends StandingHost {
  cloneTurns: CloneTurns;
}

/** An open copy, with the state before it; without that, nothing can have changed. */
export interface TrialDatabase {
  id: string;
  project_id: string;
  tenant: string;
  copy: Side;
  before: Side | null;
}

type Wanted = Pick<Params<'try.run'>, 'project_id' | 'branch_id' | 'source' | 'busy_wait' | 'role'>;

/** As of a branch: `MEMBERSHIP` in `roles.ts`. The owner login acts only as its group. */
const MEMBER: Record<BranchRole, string> = {
  owner: 'INHERIT FALSE, SET TRUE',
  read_write: 'INHERIT TRUE, SET FALSE',
  read_only: 'INHERIT TRUE, SET FALSE',
};

/** @throws HostError SOURCE_BUSY, SOURCE_MISSING, POOLER_UNAVAILABLE, HOST_FULL */
export async function makeTrialDatabase(
  host: TrialDatabaseHost,
  id: string,
  wanted: Wanted,
): Promise<TrialDatabase> {
  const { project_id, branch_id, role } = wanted;
  const tenant = await readTenant(host.postgres, project_id);
  const side = (database: string): Side => ({ branch_id: id, project_id, database });
  const copy = side(trialDatabaseName(id));
  const before = role === 'read_only' ? null : side(comparedDatabaseName(id));
  const first = before ?? copy;
  const end = await host.cloneTurns.begin(wanted.source, tenant);
  try {
    await withLocks(host.sessions, [], async (session) => {
      await cloneSource(host, session, wanted, first.database);
      if (before && !(await takeSpare(host, session, before.database, copy.database)))
        await createUnusedClone(host, session, { name: copy.database, source: before.database });
      await inTransaction(session, async () => {
        await session.query(
          [
            ...roleStatements(id, project_id),
            ...opening(host.settings, copy, [
              ...BRANCH_ROLES.map((one) => loginName(id, one)),
              queryLoginName(id),
            ]),
            `GRANT TEMPORARY ON DATABASE ${identifier(copy.database)} TO ${[loginName(id, 'owner'), loginName(id, 'read_write')].map(identifier).join(', ')}`,
            `GRANT CONNECT, CREATE, TEMPORARY ON DATABASE ${identifier(copy.database)} TO ${identifier(groupName(project_id, 'owner'))}`,
            ...(before ? opening(host.settings, before, [queryLoginName(id)]) : []),
          ].join(';'),
        );
        await copyBranchSettings(session, branch_id, copy.database);
      });
    });
  } finally {
    end();
  }
  return { id, project_id, tenant, copy, before };
}

async function cloneSource(
  host: TrialDatabaseHost,
  session: Session,
  { project_id, source, busy_wait }: Wanted,
  name: string,
): Promise<void> {
  if (SNAPSHOT_DATABASE.test(source)) {
    await createClone(host, session, { name, source, busy_wait });
    return;
  }
  await takeLock(session, `source:${source}`);
  await host.standing.clone(host, session, { project_id, name, source, busy_wait });
  await releaseLock(session, `source:${source}`);
}

/** Another spare of the snapshot that the first copy is a clone of has the same content. @returns whether there was one */
async function takeSpare(
  { spares }: TrialDatabaseHost,
  session: Session,
  clone: string,
  name: string,
): Promise<boolean> {
  const { rows } = await session.query<{ snapshot: string }>(
    `SELECT snapshot.datname AS snapshot FROM pg_database AS clone JOIN database_origin USING (oid)
     JOIN pg_database AS snapshot ON snapshot.oid = database_origin.source WHERE clone.datname = $1`,
    [clone],
  );
  const [found] = rows;
  return found !== undefined && (await spares.take(session, found.snapshot, [name])).length > 0;
}

const roleStatements = (id: string, projectId: string): string[] => [
  ...BRANCH_ROLES.map((role) => `CREATE ROLE ${identifier(loginName(id, role))} LOGIN`),
  `CREATE ROLE ${identifier(queryLoginName(id))} LOGIN`,
  ...BRANCH_ROLES.map((role) => {
    const members = [loginName(id, role), ...(role === 'read_only' ? [queryLoginName(id)] : [])];
    return `GRANT ${identifier(groupName(projectId, role))} TO ${members.map(identifier).join(', ')} WITH ${MEMBER[role]}`;
  }),
];

function opening(
  settings: AgentSettings,
  { database, project_id = '' }: Side,
  logins: readonly string[],
): string[] {
  return [
    protectWork(settings, database, { project_id }),
    `GRANT CONNECT ON DATABASE ${identifier(database)} TO ${logins.map(identifier).join(', ')}`,
  ];
}

/** Drops the databases as far as they exist, concurrently, and the logins. */
export async function dropTrialDatabase(
  { sessions }: Pick<TrialDatabaseHost, 'sessions'>,
  id: string,
): Promise<void> {
  const drops = [trialDatabaseName(id), comparedDatabaseName(id)].map((name) =>
    withLocks(sessions, [], (session) => dropDatabase(session, name)),
  );
  for (const { status, ...drop } of await Promise.allSettled(drops))
    if (status === 'rejected') throw (drop as PromiseRejectedResult).reason;
  await withLocks(sessions, [], (session) => dropRoles(session, rolesOfBranch(id)));
}

const MAPPINGS = `
  SELECT pg_catalog.format('DROP USER MAPPING FOR %s SERVER %I',
    CASE umuser WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(usename) END, srvname) AS statement
  FROM pg_catalog.pg_user_mappings`;

/** Runs `action` in the copy as the owners of its objects, before code of the tenant has run there. */
export const asOwner = <T>(
  settings: AgentSettings,
  { id, project_id, copy }: TrialDatabase,
  action: (session: Session) => Promise<T>,
): Promise<T> =>
  inAgentLogin(settings, { login: loginName(id, 'owner'), database: copy.database }, action, [
    `role=${groupName(project_id, 'owner')}`,
  ]);

/**
 * Removes the passwords for other servers from the copy, with which a statement would reach them.
 * @param session in the copy, before code of the tenant runs there
 * @throws HostError STATEMENT_REFUSED for one that its owner may not remove
 */
export async function dropUserMappings(
  settings: AgentSettings,
  trial: TrialDatabase,
  session: Session,
): Promise<void> {
  const { rows } = await session.query<{ statement: string }>(MAPPINGS);
  if (rows.length === 0) return;
  const statements = rows.map(({ statement }) => statement).join('; ');
  await asOwner(settings, trial, (own) => own.query(statements)).catch(() => {
    throw new HostError(
      'STATEMENT_REFUSED',
      'the branch has a user mapping that its owner cannot remove from a copy',
      { sqlstate: INSUFFICIENT_PRIVILEGE },
    );
  });
}

const INSUFFICIENT_PRIVILEGE = '42501';
