import { and, eq } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, type Result } from '../../shared/result.ts';
import { toCreatedBranchResponse } from '../branches/branch-resource.ts';
import { transition } from '../branches/branch-transition.ts';
import {
  activation,
  areActive,
  CREATION_STEPS,
  type Creation,
  loadCreation,
} from '../branches/create-branch.ts';
import { branchCredentials, hosts, networkRules, projectBranches, projects } from '../database/schema.ts';
import { saga } from '../jobs/saga.ts';
import type { ProjectRequest } from './coordinator-rpc.ts';
import type { CreationProgress } from './creation-progress.ts';
import type { CoordinatorParts } from './project-history.ts';
import { toProjectResponse } from './project-resource.ts';
import { reserveProject } from './reserve-project.ts';
import { runCreation } from './run-creation.ts';

interface ProjectCreation extends Creation {
  hostName: string;
}

/** Creates a project by creating its `main` branch, with the same steps but from an empty database. */
export const createProjectJob = saga<ProjectCreation>({
  steps: CREATION_STEPS,
  load: async (context) => {
    const [creation, [host]] = await Promise.all([
      loadCreation(context),
      context.db.select({ name: hosts.name }).from(hosts).where(eq(hosts.id, context.job.hostId)),
    ]);
    return creation && { ...creation, hostName: host?.name ?? '' };
  },
  complete: (context, creation, now) => [
    ...activation(context, [creation], now),
    context.db
      .update(projects)
      .set({ status: 'active', updatedAt: now })
      .where(and(eq(projects.id, creation.project.id), eq(projects.status, 'creating'))),
  ],
  completed: (creation) => areActive([creation]),
  response: ({ project, branch, hostName }) => ({
    status: 201,
    body: {
      ...toProjectResponse({ ...project, status: 'active', hostName, branchCount: 1, blocks: [] }),
      main_branch: toCreatedBranchResponse({ ...branch, status: 'active' }),
    },
  }),
  undo: {
    run: ({ job, callHost }) => callHost('project.drop', { job_id: job.id, project_id: job.projectId }),
    record: ({ db, job }, refused, now) => {
      const stillCreating = and(eq(projects.id, job.projectId), eq(projects.status, 'creating'));
      if (refused) return [db.delete(projects).where(stillCreating)];
      return [
        db.delete(branchCredentials).where(eq(branchCredentials.branchId, job.branchId ?? '')),
        db.delete(networkRules).where(eq(networkRules.projectId, job.projectId)),
        transition(db, 'gave_up', eq(projectBranches.projectId, job.projectId), now),
        db.update(projects).set({ status: 'failed', updatedAt: now }).where(stillCreating),
      ];
    },
  },
});

/** Creates a project with its `main`. Nothing is reserved while the host is not linked. */
export async function createProject(
  { db, settings, isLinked, armAlarm, running }: CoordinatorParts,
  request: ProjectRequest,
  waitMs: number,
): Promise<Result<CreationProgress, Failure>> {
  const { projectId, hostId } = request;
  if (!(await isLinked(hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
  armAlarm(projectId);
  const reserved = await reserveProject(db, settings(), request, new Date());
  return reserved.ok ? runCreation(running(hostId), reserved.value, waitMs) : reserved;
}
