import { and, eq } from 'drizzle-orm';
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
import { toProjectResponse } from './project-resource.ts';

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
