import { ROLES, type Role } from '../../../edge/database/column-types.ts';
import type { Operation } from '../operations.ts';

/**
 * One user of each kind, who is given every role in turn. Ada made the resources that the others try to
 * access.
 */
export const USERS = {
  ada: { tenant: 'acme', email: 'ada@acme.example' },
  colleague: { tenant: 'acme', email: 'bob@acme.example' },
  outsider: { tenant: 'other', email: 'eve@other.example' },
} as const;
export type User = keyof typeof USERS;
const SCOPES = ['read', 'write'] as const;

/** A user with the role and the one scope that a token gives. */
export interface Caller {
  user: User;
  role: Role;
  scope: (typeof SCOPES)[number];
}

/** Every user with every role and scope. */
export const CALLERS: readonly Caller[] = (Object.keys(USERS) as User[]).flatMap((user) =>
  ROLES.flatMap((role) => SCOPES.map((scope) => ({ user, role, scope }))),
);

/** `unknown`: the resource is reported as absent. */
type Decision = 'allowed' | 'role' | 'scope' | 'unknown';

/** Whether the caller may access what Ada made, provided that its role permits the operation. */
export const reachesAdas = ({ reaches }: Operation, { user, role }: Caller): boolean =>
  user === 'ada' || (user === 'colleague' && reaches[role] === 'all');

/** The decision that the operation's row implies for this caller and Ada's resources. */
function decisionOn(operation: Operation, caller: Caller): Decision {
  if (!operation.reaches[caller.role]) return 'role';
  if (operation.scope === 'write' && caller.scope === 'read') return 'scope';
  return operation.ids.length === 0 || reachesAdas(operation, caller) ? 'allowed' : 'unknown';
}

/** The callers with one of these decisions. */
export const callersWith = (operation: Operation, ...decisions: Decision[]) =>
  CALLERS.map((caller) => ({ ...caller, decision: decisionOn(operation, caller) })).filter(({ decision }) =>
    decisions.includes(decision),
  );
