import { ApiError } from '../errors.ts';
import type { Identity } from './principal.ts';
import { isRole, ROLES, type Role } from './role.ts';

/** How far a role reaches: every project of its tenant, or those its user created. */
export type Reach = 'all' | 'own';
type Reaches = Record<Role, Reach | 'no'>;

const CREATE_PROJECT: Reaches = { owner: 'all', admin: 'all', operator: 'all', viewer: 'no' };
const SEE: Reaches = { owner: 'all', admin: 'all', operator: 'own', viewer: 'own' };
const CHANGE: Reaches = { owner: 'all', admin: 'all', operator: 'own', viewer: 'no' };
const AUDIT: Reaches = { owner: 'all', admin: 'all', operator: 'no', viewer: 'no' };

/** What a scope opens; writing includes reading. */
const OPENED_BY = { read: ['read', 'write'], write: ['write'] } as const;

/** Who may do what (spec 5.7, 5.8). A role allows, a scope narrows. */
const ACTIONS = {
  'project.create': { scope: 'write', reaches: CREATE_PROJECT },
  'project.read': { scope: 'read', reaches: SEE },
  'project.change': { scope: 'write', reaches: CHANGE },
  'branch.read': { scope: 'read', reaches: SEE },
  'branch.change': { scope: 'write', reaches: CHANGE },
  // Credentials open the database for writing, so seeing them is more than reading.
  'credentials.read': { scope: 'write', reaches: CHANGE },
  'rows.read': { scope: 'read', reaches: SEE },
  'rows.change': { scope: 'write', reaches: CHANGE },
  'credentials.rotate': { scope: 'write', reaches: CHANGE },
  'network_rules.read': { scope: 'read', reaches: SEE },
  'network_rules.change': { scope: 'write', reaches: CHANGE },
  'metrics.read': { scope: 'read', reaches: SEE },
  'jobs.read': { scope: 'read', reaches: SEE },
  'audit.read': { scope: 'read', reaches: AUDIT },
} as const satisfies Record<string, { scope: keyof typeof OPENED_BY; reaches: Reaches }>;

export type Action = keyof typeof ACTIONS;

const forbidden = (required: string, reason: string) => new ApiError('FORBIDDEN', { required }, reason);

const rolesFor = (reaches: Reaches) => ROLES.filter((name) => reaches[name] !== 'no');

/** What an action takes, for the API's description. `own`: roles that reach only what their user created. */
export function requirement(action: Action) {
  const { scope, reaches } = ACTIONS[action];
  return { scope, roles: Object.fromEntries(rolesFor(reaches).map((role) => [role, reaches[role]])) };
}

/**
 * How far the bearer may go with this action.
 * @throws ApiError FORBIDDEN, `required` being the scope or the roles that it takes
 */
export function allow({ role, scopes, service }: Identity, action: Action): Reach {
  const { scope, reaches } = ACTIONS[action];
  const reach = isRole(role) ? reaches[role] : 'no';
  if (reach === 'no') {
    throw forbidden(`role ${rolesFor(reaches).join(', ')}`, `role too small for ${action}`);
  }
  if (!OPENED_BY[scope].some((name) => scopes.includes(`${service}:${name}`))) {
    throw forbidden(`scope ${service}:${scope}`, `scope too small for ${action}`);
  }
  return reach;
}
