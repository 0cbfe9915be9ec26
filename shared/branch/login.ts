/** The roles of a branch's logins: owner (direct), read-write (pooled), read-only. */
export const BRANCH_ROLES = ['owner', 'read_write', 'read_only'] as const;
export type BranchRole = (typeof BRANCH_ROLES)[number];

const SUFFIX: Record<BranchRole, string> = { owner: 'owner', read_write: 'rw', read_only: 'ro' };

const compact = (id: string) => id.replaceAll('-', '');

/** LOGIN role of one branch, e.g. `u_0f…_rw`: 32 hexadecimal digits of the branch id. */
export const loginName = (branchId: string, role: BranchRole) => `u_${compact(branchId)}_${SUFFIX[role]}`;

/**
 * Login of one branch for what the platform reads for clients: statements of the query route, comparisons and
 * rehearsals. It is a member of the read-only group. It has no password, and only the agent may log in with it
 * over the unix socket, so no client is ever shown it.
 */
export const queryLoginName = (branchId: string) => `u_${compact(branchId)}_query`;

/** The id of the branch that a login belongs to. */
export const branchOfLogin = (login: string) =>
  login.replace(/^u_(.{8})(.{4})(.{4})(.{4})(.{12})_.*$/, '$1-$2-$3-$4-$5');

/** NOLOGIN group role of one project, e.g. `g_0f…_owner`; owns the objects or has the grants. */
export const groupName = (projectId: string, role: BranchRole) => `g_${compact(projectId)}_${SUFFIX[role]}`;
