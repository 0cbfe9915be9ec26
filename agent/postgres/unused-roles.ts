import { BRANCH_ROLES, groupName, loginName, queryLoginName } from '../../shared/branch/login.ts';
import { identifier, type Session } from './connect.ts';
import { withHostLock } from './locks.ts';
import { LOCK_NOT_AVAILABLE, sqlState } from './postgres-failure.ts';

const DEPENDENT_OBJECTS = '2BP01';
const NO_ROLE = '42704';
/** Another session has changed the role first. */
const CHANGED_MEANWHILE = 'XX000';
const LOCKED_FOR_MS = 500;

/** A role that is to be dropped. */
interface Doomed {
  rolname: string;
  rolcanlogin: boolean;
  /** The login of a comparison of schemas. */
  has_lease: boolean;
}

/** The roles of a branch, or of whatever has its logins by the same id. */
export const rolesOfBranch = (branchId: string): string[] => [
  ...BRANCH_ROLES.map((role) => loginName(branchId, role)),
  queryLoginName(branchId),
];

export const rolesOfProject = (projectId: string): string[] =>
  BRANCH_ROLES.map((role) => groupName(projectId, role));

/**
 * Drops these roles, which nothing on the host uses any more. One that cannot be dropped yet is left to
 * `dropUnusedRoles`.
 */
export async function dropRoles(session: Session, roles: readonly string[]): Promise<void> {
  const { rows } = await session.query<Doomed>(
    'SELECT rolname, rolcanlogin, false AS has_lease FROM pg_roles WHERE rolname = ANY ($1)',
    [roles],
  );
  await drop(session, rows, DROP_WITHIN);
}

/** Digits that ids begin with. The scan for unused roles takes those of one digit at a time. */
const DIGITS = [...'0123456789abcdef'];

/** A tenant can lock each of its roles. The next call drops the rest. Milliseconds. */
const DROP_WITHIN = 5_000;

/**
 * Drops every login and group whose branch or project is gone, and the roles of forgotten networks, moves and standbys. A role
 * that a clone still refers to, or a tenant's open transaction names, cannot be dropped yet: a login is
 * disabled, and the next call tries again.
 * @param between called before each part of the scan
 */
export async function dropUnusedRoles(session: Session, between = async () => {}): Promise<void> {
  let left = DROP_WITHIN;
  // In another order each time, so that locked roles do not keep the same others.
  for (const digit of DIGITS.toSorted(() => Math.random() - 0.5)) {
    await between();
    const began = performance.now();
    await withHostLock(session, 'roles', async () => drop(session, await readUnused(session, digit), left));
    left -= performance.now() - began;
    if (left <= 0) return;
  }
}

/** @param digit first one of the roles' ids */
async function readUnused(session: Session, digit: string): Promise<Doomed[]> {
  const { rows } = await session.query<Doomed>(
    `WITH role AS MATERIALIZED (
       SELECT rolname, rolcanlogin, rolvaliduntil, kind, digits, digits::uuid AS id
       FROM pg_roles, LATERAL (
         SELECT split_part(rolname, '_', 1) AS kind, split_part(rolname, '_', 2) AS digits
       ) AS name
       WHERE rolname ~ ('^(u_' || $1 || '[0-9a-f]{31}_(owner|rw|ro|query|mask)|g_' || $1 || '[0-9a-f]{31}_(owner|rw|ro)|(net|mv|standby)_' || $1 || '[0-9a-f]{31})$')
     )
     SELECT * FROM (
     SELECT rolname, rolcanlogin, rolvaliduntil IS NOT NULL AS has_lease FROM role
     WHERE kind = 'u' AND NOT EXISTS (SELECT FROM branch WHERE branch_id = id)
       -- The one that owns the subscription of a project.
       AND NOT EXISTS (SELECT FROM following WHERE cutover IS DISTINCT FROM 'done' AND project_id = id)
       -- The login of a comparison of schemas has a lease.
       AND (rolvaliduntil IS NULL OR rolvaliduntil < now())
       -- The login that masks a clone, the owner of its functions, or a login that fills, warms or tries one.
       AND NOT EXISTS (
         SELECT FROM pg_database
         WHERE datname IN ('bgmask_' || digits, 'bgload_' || digits, 'bgspare_' || digits, 'bgtry_' || digits))
     UNION ALL
     SELECT rolname, rolcanlogin, false FROM role
     WHERE kind = 'g' AND NOT EXISTS (SELECT FROM branch WHERE project_id = id)
       AND NOT EXISTS (SELECT FROM project WHERE project_id = id)
     UNION ALL
     SELECT rolname, rolcanlogin, false FROM role
     WHERE kind = 'net' AND NOT EXISTS (SELECT FROM network WHERE role = rolname)
     UNION ALL
     SELECT rolname, rolcanlogin, false FROM role
     WHERE kind = 'mv' AND NOT EXISTS (SELECT FROM mover WHERE login = rolname)
     UNION ALL
     SELECT rolname, rolcanlogin, false FROM role
     WHERE kind = 'standby' AND NOT EXISTS (SELECT FROM standby WHERE login = rolname)
     ) AS unused ORDER BY random()`,
    [digit],
  );
  return rows;
}

/** Drops the roles, or disables the logins among them that cannot be dropped. @param within milliseconds */
async function drop(session: Session, roles: readonly Doomed[], within: number): Promise<void> {
  const deadline = performance.now() + within;
  // Statements that are sent together are one transaction, to which SET LOCAL applies.
  const inTime = (statement: string) =>
    session.query(`SET LOCAL lock_timeout = ${LOCKED_FOR_MS}; ${statement}`);
  const tryDrop = async (doomed: readonly Doomed[]) => {
    try {
      await inTime(`DROP ROLE IF EXISTS ${doomed.map(({ rolname }) => identifier(rolname)).join(', ')}`);
      return true;
    } catch (error) {
      if ([DEPENDENT_OBJECTS, LOCK_NOT_AVAILABLE, CHANGED_MEANWHILE].includes(sqlState(error) ?? ''))
        return false;
      throw error;
    }
  };
  // A killed comparison has left its rights on databases that are still there.
  for (const { rolname, has_lease } of roles)
    if (has_lease) await inTime(`DROP OWNED BY ${identifier(rolname)}`).catch(() => {});
  // Usually all of them can be dropped, with one commit.
  if (roles.length === 0 || (roles.length > 1 && (await tryDrop(roles)))) return;
  for (const role of roles) {
    if (performance.now() > deadline) return;
    if (!(await tryDrop([role])) && role.rolcanlogin)
      await inTime(`ALTER ROLE ${identifier(role.rolname)} NOLOGIN PASSWORD NULL`).catch((error) => {
        if (![NO_ROLE, CHANGED_MEANWHILE].includes(sqlState(error) ?? '')) throw error;
      });
  }
}
