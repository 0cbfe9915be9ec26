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
 * Selects the names of the groups `$1` that have lost all default privileges of the owner's group `$2`. It names the schema
 * of everything, because a login may put others first.
 */
export const LOST_GROUPS = `
  SELECT grantee.rolname::pg_catalog.text FROM pg_catalog.pg_roles AS grantee
  WHERE grantee.rolname OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.text[]) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_default_acl, pg_catalog.aclexplode(defaclacl) AS item, pg_catalog.pg_roles AS owner
    WHERE owner.rolname OPERATOR(pg_catalog.=) $2::pg_catalog.text AND defaclrole OPERATOR(pg_catalog.=) owner.oid
      AND defaclnamespace OPERATOR(pg_catalog.=) 0::pg_catalog.oid
      AND item.grantee OPERATOR(pg_catalog.=) grantee.oid)
  ORDER BY 1`;

/** The values of `LOST_GROUPS` for a project. */
export const openedGroups = (projectId: string) => [
  OPENED_GROUPS.map((group) => groupName(projectId, group)),
  groupName(projectId, 'owner'),
];

/** Statements that open what the owner's group creates to another group. Clones inherit them. */
export function grantByDefault(projectId: string, group: OpenedGroup): string {
  const owner = identifier(groupName(projectId, 'owner'));
  const grantee = identifier(groupName(projectId, group));
  return GRANTS[group]
    .map((right) => `ALTER DEFAULT PRIVILEGES FOR ROLE ${owner} GRANT ${right} TO ${grantee}`)
    .join('; ');
}
