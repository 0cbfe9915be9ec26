import type { Env } from '../env.ts';

/** The coordinator of the project. */
export const coordinatorOf = (env: Env, projectId: string) =>
  env.PROJECT_COORDINATOR.get(env.PROJECT_COORDINATOR.idFromName(projectId));
