import { ROLES, type Role } from '../../../edge/authentication/role.ts';
import type { Operation } from '../operations.ts';

/** One user each, who comes with every role in turn. Ada made what the others try to reach. */
export const USERS = {
  ada: { tenant: 'acme', email: 'ada@acme.example' },
  colleague: { tenant: 'acme', email: 'bob@acme.example' },
  stranger: { tenant: 'other', email: 'eve@other.example' },
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

/** `unknown`: the thing looks as if there were none. */
type Verdict = 'allowed' | 'role' | 'scope' | 'unknown';

/** Whether a role reaches what Ada made, given that it may do such a thing at all. */
export const reachesAdas = ({ reaches }: Operation, { user, role }: Caller): boolean =>
  user === 'ada' || (user === 'colleague' && reaches[role] === 'all');

/** What the operation's row says of this caller and Ada's things. */
function verdictOn(operation: Operation, caller: Caller): Verdict {
  if (!operation.reaches[caller.role]) return 'role';
  if (operation.scope === 'write' && caller.scope === 'read') return 'scope';
  return operation.ids.length === 0 || reachesAdas(operation, caller) ? 'allowed' : 'unknown';
}

/** The callers with one of these verdicts. */
export const callersWith = (operation: Operation, ...verdicts: Verdict[]) =>
  CALLERS.map((caller) => ({ ...caller, verdict: verdictOn(operation, caller) })).filter(({ verdict }) =>
    verdicts.includes(verdict),
  );
