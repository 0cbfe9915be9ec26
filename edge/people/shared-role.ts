/** What a user may do in a project that is shared with them, within their own role. */
export const SHARED_ROLES = ['operator', 'viewer'] as const;
export type SharedRole = (typeof SHARED_ROLES)[number];
