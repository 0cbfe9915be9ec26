import type { BranchRole } from '../shared/branch/login.ts';
import type { Failure } from '../shared/failures.ts';
import { fail, ok, type Result } from '../shared/result.ts';
import { isRole, type Principal } from './authentication/principal.ts';
import { ROLES, type Role } from './database/column-types.ts';

/**
 * The projects that a role can access: all of its tenant, or those that its user created or that are shared
 * with them.
 */
export type Reach = 'all' | 'own';
type Reaches = Record<Role, Reach | 'no'>;

const CREATE_PROJECT: Reaches = { owner: 'all', admin: 'all', operator: 'all', viewer: 'no' };
const SEE: Reaches = { owner: 'all', admin: 'all', operator: 'own', viewer: 'own' };
const CHANGE: Reaches = { owner: 'all', admin: 'all', operator: 'own', viewer: 'no' };
/**
 * The tenant itself: its members, machines, webhooks and audit events, whom its projects are shared with, and
 * the databases elsewhere that they follow.
 */
const ADMINISTER: Reaches = { owner: 'all', admin: 'all', operator: 'no', viewer: 'no' };

/** Who its people are and how they sign in. */
const OWN: Reaches = { owner: 'all', admin: 'no', operator: 'no', viewer: 'no' };

/**
 * Whether the bearer may see unmasked data of a project whose members get masked data only: owners, admins,
 * and keys with the permission, while their creator is one of these.
 */
export const seesFullData = ({ role, machine }: Pick<Principal, 'role' | 'machine'>): boolean => {
  if (machine && !machine.permissions.includes('data.full')) return false;
  const person = machine?.creatorRole ?? role;
  return isRole(person) && ADMINISTER[person] === 'all';
};

/** The scopes that satisfy a required scope; `write` includes `read`. */
const SATISFIED_BY = { read: ['read', 'write'], write: ['write'] } as const;

/** The permission table (specification 5.7, 5.8). A role allows an action, a scope restricts it. */
const ACTIONS = {
  'project.create': { scope: 'write', reaches: CREATE_PROJECT },
  'project.read': { scope: 'read', reaches: SEE },
  'project.change': { scope: 'write', reaches: CHANGE },
  'branch.read': { scope: 'read', reaches: SEE },
  'branch.change': { scope: 'write', reaches: CHANGE },
  'branch.protect': { scope: 'write', reaches: ADMINISTER },
  // Credentials allow writing to the database, so reading them requires the write scope.
  'credentials.read': { scope: 'write', reaches: CHANGE },
  'rows.read': { scope: 'read', reaches: SEE },
  'rows.change': { scope: 'write', reaches: CHANGE },
  'credentials.rotate': { scope: 'write', reaches: CHANGE },
  'network_rules.read': { scope: 'read', reaches: SEE },
  'network_rules.change': { scope: 'write', reaches: CHANGE },
  'metrics.read': { scope: 'read', reaches: SEE },
  'jobs.read': { scope: 'read', reaches: SEE },
  'events.read': { scope: 'read', reaches: SEE },
  'webhooks.read': { scope: 'read', reaches: ADMINISTER },
  'webhooks.change': { scope: 'write', reaches: ADMINISTER },
  'masking.read': { scope: 'read', reaches: SEE },
  // A weaker policy would show the data of `main` to those who may not read it.
  'masking.change': { scope: 'write', reaches: ADMINISTER },
  // How many others have to approve a change of `main`.
  'change.govern': { scope: 'write', reaches: ADMINISTER },
  // It makes the host connect to an address that the caller names.
  'follow.change': { scope: 'write', reaches: ADMINISTER },
  'audit.read': { scope: 'read', reaches: ADMINISTER },
  'members.read': { scope: 'read', reaches: ADMINISTER },
  'members.change': { scope: 'write', reaches: ADMINISTER },
  'providers.read': { scope: 'read', reaches: OWN },
  'providers.change': { scope: 'write', reaches: OWN },
  'machines.read': { scope: 'read', reaches: ADMINISTER },
  'machines.change': { scope: 'write', reaches: ADMINISTER },
  // The clients that a person signed in. Everybody may sign in their own, with at most their own rights.
  'grants.read': { scope: 'read', reaches: SEE },
  'grants.change': { scope: 'write', reaches: SEE },
} as const satisfies Record<string, { scope: keyof typeof SATISFIED_BY; reaches: Reaches }>;

export type Action = keyof typeof ACTIONS;

/** The action that running statements as this login takes beside reading rows. */
export const ACTION_OF_ROLE: Record<BranchRole, Action | null> = {
  read_only: null,
  read_write: 'rows.change',
  owner: 'credentials.read',
};

export const isAction = (name: string): name is Action => Object.hasOwn(ACTIONS, name);

const forbidden = (required: string, reason: string) =>
  fail<Failure>({ code: 'FORBIDDEN', fields: { required }, reason });

const rolesFor = (reaches: Reaches) => ROLES.filter((name) => reaches[name] !== 'no');

/**
 * Whether the action takes more than seeing a project, so that a project shared for viewing does not allow
 * it.
 */
export const isChange = (action: Action): boolean => ACTIONS[action].reaches === CHANGE;

/**
 * The scope and roles that an action requires, for the OpenAPI document. `own`: projects that the user
 * created or that are shared with them.
 */
export function requirement(action: Action) {
  const { scope, reaches } = ACTIONS[action];
  return { scope, roles: Object.fromEntries(rolesFor(reaches).map((role) => [role, reaches[role]])) };
}

/**
 * The projects that the bearer can access with this action.
 * @returns or FORBIDDEN, with the missing scope or the allowed roles as `required`
 */
export function allow(
  { role, scopes, service, machine }: Pick<Principal, 'role' | 'scopes' | 'service' | 'machine'>,
  action: Action,
): Result<Reach, Failure> {
  const { scope, reaches } = ACTIONS[action];
  const reach = isRole(role) ? reaches[role] : 'no';
  if (reach === 'no') {
    return forbidden(`role ${rolesFor(reaches).join(', ')}`, `role does not allow ${action}`);
  }
  if (!SATISFIED_BY[scope].some((name) => scopes.includes(`${service}:${name}`))) {
    return forbidden(`scope ${service}:${scope}`, `scope does not allow ${action}`);
  }
  // Who binds a machine to a project shares the own access to this project.
  const creatorRole = machine?.projectId ? machine.creatorRole : role;
  return ok(isRole(creatorRole) && reaches[creatorRole] === 'all' ? 'all' : reach);
}
