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

/** Statements that open what the owner's group creates to another group. Clones inherit them. */
export function grantByDefault(projectId: string, group: OpenedGroup): string {
  const owner = identifier(groupName(projectId, 'owner'));
  const grantee = identifier(groupName(projectId, group));
  return GRANTS[group]
    .map((right) => `ALTER DEFAULT PRIVILEGES FOR ROLE ${owner} GRANT ${right} TO ${grantee}`)
    .join('; ');
}
