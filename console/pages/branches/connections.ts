import { queryOptions } from '@tanstack/react-query';

/** The connections of each branch over the last hour. */
export const connectionsQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['connections', projectId],
    queryFn: async () => new Map<string, number[]>(),
  });
