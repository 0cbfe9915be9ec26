import { sql } from 'drizzle-orm';
import type { Database } from '../database/database.ts';
import { jobs } from '../database/schema.ts';
import { logEvent } from '../log.ts';
import type { Differences, HostedBranch } from './differences.ts';

const ADVICE =
  'No job was ever about it, so it is left alone: the records may have been restored from an older backup. ' +
  'docs/decisions/0023-records-that-went-back.md says what to do.';

/**
 * What may be dropped of what no record claims: a job has made it, and jobs are kept for ever. The rest is
 * somebody's data that the records have forgotten, or never knew; it is logged at every look.
 */
export async function leftoversAmong(
  db: Database,
  hostId: string,
  { orphans, orphanedProjects }: Pick<Differences, 'orphans' | 'orphanedProjects'>,
): Promise<{ branches: HostedBranch[]; projectIds: string[] }> {
  const asked = [...orphanedProjects, ...orphans.map(({ project_id }) => project_id)];
  if (asked.length === 0) return { branches: [], projectIds: [] };
  const traces = await db
    .selectDistinct({ projectId: jobs.projectId, branchId: jobs.branchId })
    .from(jobs)
    .where(sql`${jobs.projectId} in (select value from json_each(${JSON.stringify(asked)}))`);
  const traced = new Set(traces.flatMap(({ projectId, branchId }) => [projectId, branchId]));

  const strangers = [
    ...orphans
      .filter(({ branch_id }) => !traced.has(branch_id))
      .map(({ project_id, branch_id, database }) => ({ project_id, branch_id, database })),
    ...orphanedProjects.filter((id) => !traced.has(id)).map((project_id) => ({ project_id })),
  ];
  for (const stranger of strangers)
    logEvent('reconcile.stranger', { host_id: hostId, ...stranger, advice: ADVICE });
  return {
    branches: orphans.filter(({ branch_id }) => traced.has(branch_id)),
    projectIds: orphanedProjects.filter((id) => traced.has(id)),
  };
}
