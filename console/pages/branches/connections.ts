import { queryOptions } from '@tanstack/react-query';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';

const EVERY_MS = 30_000;

/** The connections of each branch over the last hour. */
export const connectionsQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['connections', projectId],
    queryFn: async ({ signal }) => {
      const params = { path: { project_id: projectId }, query: { metric: 'active_connections' as const } };
      const { branches } = await dataOf(api.GET('/api/v1/projects/{project_id}/metrics', { params, signal }));
      return new Map(branches.map(({ branch_id, values }) => [branch_id, values.map(({ value }) => value)]));
    },
    refetchInterval: EVERY_MS,
  });
