import { groupName } from '../../shared/branch/login.ts';
import { identifier } from '../postgres/connect.ts';

/** The groups that default privileges open the owner's objects to. */
export const OPENED_GROUPS = ['read_write', 'read_only'] as const;
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
 * Selects the default privileges of a database that apply in all schemas, as text. `lostGroups` finds missing ones: in the
 * first session of a database, planning such a search takes longer than the login. The statement names the schema of
 * everything, because a login may put others first.
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
