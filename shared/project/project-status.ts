export const PROJECT_STATUSES = ['creating', 'active', 'deleting', 'failed'] as const;

/** Counted branches (creating, active, expired) per project, `main` included (specification 8). */
export const DEFAULT_BRANCH_LIMIT = 10;
/** Maximum to which the platform can raise the limit. */
export const RAISED_BRANCH_LIMIT = 20;
/** Concurrent creations in one project (specification 8); further ones are queued. */
export const CONCURRENT_CREATIONS = 3;
