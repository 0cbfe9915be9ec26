import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { gateway } from '../../app/gateway.ts';
import {
  AT_ONCE,
  branchesQuery,
  type Job,
  type Lifespan,
  projectQuery,
  rulesQuery,
} from '../../app/resources.ts';

export interface Wanted {
  name: string;
  /** A branch or a snapshot. */
  source: { source_branch_id: string } | { snapshot_id: string };
  lifespan: Lifespan;
  allow: string[];
  labels: Record<string, string>;
}

/** Creates a branch and follows the job that does it. */
export function useCreation(projectId: string) {
  const client = useQueryClient();
  const [job, setJob] = useState<Job | null>(null);
  const creation = useMutation({
    mutationFn: ({ name, source, ...rest }: Wanted) => {
      setJob(null);
      const body = {
        branch_name: name,
        ...source,
        include: ['credentials' as const],
        ...rest,
      };
      const params = { path: { project_id: projectId }, ...AT_ONCE };
      const init = { params, body };
      return gateway.create('/api/v1/projects/{project_id}/branches', init, { onProgress: setJob });
    },
    onSettled: () => {
      client.invalidateQueries({ queryKey: branchesQuery(projectId).queryKey });
      client.invalidateQueries({ queryKey: projectQuery(projectId).queryKey });
      client.invalidateQueries({ queryKey: rulesQuery(projectId).queryKey });
    },
  });
  return { creation, job };
}
