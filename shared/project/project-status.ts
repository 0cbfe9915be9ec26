export const PROJECT_STATUSES = ['creating', 'active', 'deleting', 'failed'] as const;

/** Counted branches (creating, active, expired) per project, `main` included (specification 8). */
export const DEFAULT_BRANCH_LIMIT = 10;
/** Bound of the settings that limit branches. The host takes as many closed branches of a project at most. */
export const HIGHEST_BRANCH_LIMIT = 100;
/** Concurrent creations in one project (specification 8); further ones are queued. */
export const CONCURRENT_CREATIONS = 3;
