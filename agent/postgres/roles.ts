import { BRANCH_ROLES, type BranchRole, groupName, loginName } from '../../shared/branch/login.ts';
import { identifier, literal, type Queryable, type Session } from './connect.ts';
import { takeLock } from './locks.ts';
import { sqlState } from './postgres-failure.ts';

/**
 * How a login belongs to its project's group. The owner login acts only as the group (by its setting `role`),
 * never as itself: what it made would be in the way of every later clone's drop.
 */
const MEMBERSHIP: Record<BranchRole, string> = {
  owner: 'INHERIT FALSE, SET TRUE',
  read_write: 'INHERIT TRUE, SET FALSE',
  read_only: 'INHERIT TRUE, SET FALSE',
};

const DEPENDENT_OBJECTS = '2BP01';

async function existing(db: Queryable, names: string[]): Promise<Set<string>> {
  const { rows } = await db.query<{ rolname: string }>(
    'SELECT rolname FROM pg_roles WHERE rolname = ANY ($1)',
    [names],
  );
  return new Set(rows.map(({ rolname }) => rolname));
}

/** The project's groups, which own its objects and hold the grants. To be called in a transaction. */
export async function ensureGroups(session: Session, projectId: string): Promise<void> {
  await session.query('SELECT pg_advisory_xact_lock(hashtextextended($1, 0))', [`groups:${projectId}`]);
  const names = BRANCH_ROLES.map((role) => groupName(projectId, role));
  const there = await existing(session, names);
  for (const name of names.filter((name) => !there.has(name))) {
    await session.query(`CREATE ROLE ${identifier(name)} NOLOGIN`);
  }
}

/** The branch's logins with these SCRAM verifiers. To be called in a transaction, after `ensureGroups`. */
export async function ensureLogins(
  session: Session,
  { project_id, branch_id }: { project_id: string; branch_id: string },
  verifiers: Record<BranchRole, string>,
): Promise<void> {
  const there = await existing(
    session,
    BRANCH_ROLES.map((role) => loginName(branch_id, role)),
  );
  for (const role of BRANCH_ROLES) {
    const login = loginName(branch_id, role);
    const name = identifier(login);
    await session.query(
      `${there.has(login) ? 'ALTER' : 'CREATE'} ROLE ${name} LOGIN PASSWORD ${literal(verifiers[role])};
       GRANT ${identifier(groupName(project_id, role))} TO ${name} WITH ${MEMBERSHIP[role]}`,
    );
    await session.query(
      `INSERT INTO login (login, branch_id, verifier) VALUES ($1, $2, $3)
       ON CONFLICT (login) DO UPDATE SET verifier = excluded.verifier`,
      [login, branch_id, verifiers[role]],
    );
  }
}

/**
 * Drops every login and group whose branch or project is gone. One that a clone still refers to can't go yet:
 * it is shut, and tried again at the next call.
 */
export async function dropUnusedRoles(session: Session): Promise<void> {
  await takeLock(session, 'roles');
  const { rows } = await session.query<{ rolname: string; rolcanlogin: boolean }>(
    `SELECT rolname, rolcanlogin FROM pg_roles
     WHERE rolname ~ '^u_[0-9a-f]{32}_(owner|rw|ro)$'
       AND NOT EXISTS (SELECT FROM branch WHERE replace(branch_id::text, '-', '') = substr(rolname, 3, 32))
     UNION ALL
     SELECT rolname, rolcanlogin FROM pg_roles
     WHERE rolname ~ '^g_[0-9a-f]{32}_(owner|rw|ro)$'
       AND NOT EXISTS (SELECT FROM branch WHERE replace(project_id::text, '-', '') = substr(rolname, 3, 32))
       AND NOT EXISTS (SELECT FROM project WHERE replace(project_id::text, '-', '') = substr(rolname, 3, 32))`,
  );
  for (const { rolname, rolcanlogin } of rows) {
    await session.query(`DROP ROLE ${identifier(rolname)}`).catch(async (error) => {
      if (sqlState(error) !== DEPENDENT_OBJECTS) throw error;
      if (rolcanlogin) await session.query(`ALTER ROLE ${identifier(rolname)} NOLOGIN PASSWORD NULL`);
    });
  }
}

/** A login may change its own password; the one that the edge knows is put back. */
export async function restoreVerifiers(db: Queryable): Promise<void> {
  const { rows } = await db.query<{ login: string; verifier: string }>(
    `SELECT login, verifier FROM login JOIN pg_authid ON rolname = login
     WHERE rolpassword IS DISTINCT FROM verifier`,
  );
  for (const { login, verifier } of rows) {
    await db.query(`ALTER ROLE ${identifier(login)} PASSWORD ${literal(verifier)}`);
  }
}
