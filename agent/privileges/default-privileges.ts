import { groupName } from '../../shared/branch/login.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { openPublic } from '../postgres/project-extensions.ts';

/** The groups that default privileges open the owner's objects to. */
const OPENED_GROUPS = ['read_write', 'read_only'] as const;
type OpenedGroup = (typeof OPENED_GROUPS)[number];

const GRANTS: Record<OpenedGroup, readonly string[]> = {
  read_write: [
    'USAGE ON SCHEMAS',
    'SELECT, INSERT, UPDATE, DELETE ON TABLES',
    'SELECT, USAGE, UPDATE ON SEQUENCES',
  ],
  read_only: ['USAGE ON SCHEMAS', 'SELECT ON TABLES', 'SELECT ON SEQUENCES'],
};

/**
 * Selects the default privileges of a database that apply in all schemas, as text. `lostGroups` finds missing
 * ones: in the first session of a database, planning such a search takes longer than the login. The statement
 * names the schema of everything, because a login may put others first.
 */
export const DEFAULT_PRIVILEGES = `
  SELECT defaclacl::pg_catalog.text FROM pg_catalog.pg_default_acl
  WHERE defaclnamespace OPERATOR(pg_catalog.=) 0::pg_catalog.oid`;

/**
 * The groups that have lost all default privileges of the owner's group.
 * @param privileges as `DEFAULT_PRIVILEGES` selects them: `{grantee=rights/owner,…}`
 */
export function lostGroups(projectId: string, privileges: readonly string[]): OpenedGroup[] {
  const items = privileges.flatMap((list) => list.slice(1, -1).split(','));
  const owner = `/${groupName(projectId, 'owner')}`;
  const has = (group: OpenedGroup) => {
    const grantee = `${groupName(projectId, group)}=`;
    return items.some((item) => item.startsWith(grantee) && item.endsWith(owner));
  };
  return OPENED_GROUPS.filter((group) => !has(group));
}

/** Statements that open what the owner's group creates to another group. Clones inherit them. */
export function grantByDefault(projectId: string, group: OpenedGroup): string {
  const owner = identifier(groupName(projectId, 'owner'));
  const grantee = identifier(groupName(projectId, group));
  return GRANTS[group]
    .map((right) => `ALTER DEFAULT PRIVILEGES FOR ROLE ${owner} GRANT ${right} TO ${grantee}`)
    .join('; ');
}

/**
 * Functions that write large objects. PUBLIC may run them by default, so read-only and write-blocked logins
 * could.
 */
const LARGE_OBJECT_WRITERS = [
  'lo_creat(integer)',
  'lo_create(oid)',
  'lo_from_bytea(oid, bytea)',
  'lo_put(oid, bigint, bytea)',
  'lowrite(integer, bytea)',
  'lo_truncate(integer, integer)',
  'lo_truncate64(integer, bigint)',
]
  .map((name) => `pg_catalog.${name}`)
  .join(', ');

/** Functions that write any number of bytes to the log of changes (WAL), which PUBLIC may run by default. */
const WAL_WRITERS = ['text', 'bytea']
  .map((message) => `pg_catalog.pg_logical_emit_message(boolean, text, ${message}, boolean)`)
  .join(', ');

/**
 * Grants a new `main` to its project's groups, with the extensions of the project. Default privileges open what the owner creates to the other
 * groups, and every clone inherits them without a statement per object. No tenant has run code in this
 * database yet; the superuser runs nothing in any other.
 */
export async function grantGroups(
  session: Session,
  projectId: string,
  extensions: readonly string[],
): Promise<void> {
  await openPublic(session, groupName(projectId, 'owner'), extensions);
  const owner = identifier(groupName(projectId, 'owner'));
  const readWrite = identifier(groupName(projectId, 'read_write'));
  const readOnly = identifier(groupName(projectId, 'read_only'));
  await session.query(
    `REVOKE ALL ON SCHEMA public FROM PUBLIC;
     GRANT USAGE ON SCHEMA public TO ${readWrite}, ${readOnly};
     REVOKE EXECUTE ON FUNCTION ${LARGE_OBJECT_WRITERS} FROM PUBLIC;
     GRANT EXECUTE ON FUNCTION ${LARGE_OBJECT_WRITERS} TO ${owner}, ${readWrite};
     REVOKE EXECUTE ON FUNCTION ${WAL_WRITERS} FROM PUBLIC;
     ${OPENED_GROUPS.map((group) => grantByDefault(projectId, group)).join('; ')}`,
  );
}
