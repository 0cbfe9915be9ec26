export const PROJECT_STATUSES = ['creating', 'active', 'deleting', 'failed'] as const;

/** Spec section 8: branches that count (creating, active, expired) a project, `main` included. */
export const DEFAULT_BRANCH_LIMIT = 10;
/** As far as the platform can raise it. */
export const RAISED_BRANCH_LIMIT = 20;
/** Spec section 8: creations of one project that run at the same time; the rest wait. */
export const CONCURRENT_CREATIONS = 3;
