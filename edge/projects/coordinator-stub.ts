import type { Env } from '../env.ts';

/** The project's coordinator. */
export const coordinatorOf = (env: Env, projectId: string) =>
  env.PROJECT_COORDINATOR.get(env.PROJECT_COORDINATOR.idFromName(projectId));
