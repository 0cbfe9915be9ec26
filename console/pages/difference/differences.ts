import { infiniteQueryOptions, queryOptions } from '@tanstack/react-query';
import type { Schemas } from '../../../client/client.ts';
import { dataOf, ResponseError } from '../../../client/response-error.ts';
import { sleep } from '../../../client/sleep.ts';
import { api, gateway } from '../../data/gateway.ts';
import { queryClient } from '../../data/query-client.ts';
import { inBranch } from '../../data/resources.ts';

export type Difference = Schemas['Difference'];
export type ChangedRows = Schemas['RowDifferencePage'];

export type Part = 'rows' | 'schema';

/** Which two sides. */
export interface Sides {
  projectId: string;
  branch: string;
  against: string;
}

/** A comparison is not repeated by itself: it reads both databases. */
const ONCE = { staleTime: Number.POSITIVE_INFINITY, refetchOnWindowFocus: false, gcTime: 60_000 } as const;

/** How far the comparison of the rows is; null unless it has become a job. */
export const progressQuery = ({ projectId, branch, against }: Sides) =>
  queryOptions({
    queryKey: ['difference', projectId, branch, against, 'progress'],
    queryFn: (): number | null => null,
    enabled: false,
  });

const TURN_EVERY_MS = 2_000;
const TURN_WITHIN_MS = 300_000;

/** A project compares one pair of databases at a time: the next comparison waits for the end of the one before. */
async function inTurn<T>(signal: AbortSignal, ask: () => Promise<T>): Promise<T> {
  const until = Date.now() + TURN_WITHIN_MS;
  while (true) {
    try {
      return await ask();
    } catch (error) {
      const isBusy = error instanceof ResponseError && error.code === 'PROJECT_BUSY';
      if (!isBusy || Date.now() > until) throw error;
      await sleep(TURN_EVERY_MS, signal);
    }
  }
}

export const cancelComparison = ({ projectId, branch }: Sides) =>
  dataOf(
    api.DELETE('/api/v1/projects/{project_id}/branches/{branch_ref}/diff', {
      params: inBranch(projectId, branch),
    }),
  );

/** The rows or the schemas, so that the failure of one does not hide the other. */
export const differenceQuery = (sides: Sides, part: Part) => {
  const { projectId, branch, against } = sides;
  return queryOptions({
    queryKey: ['difference', projectId, branch, against, part],
    queryFn: async ({ signal }): Promise<Difference> => {
      const flag = (name: Part) => (name === part ? ('true' as const) : ('false' as const));
      const query = { against, rows: flag('rows'), schema: flag('schema') };
      const ask = (jobId?: string) =>
        inTurn(signal, () => {
          const params = {
            ...inBranch(projectId, branch),
            query: { ...query, ...(jobId && { job_id: jobId }) },
          };
          return dataOf(
            api.GET('/api/v1/projects/{project_id}/branches/{branch_ref}/diff', { params, signal }),
          );
        });
      const { queryKey } = progressQuery(sides);
      const show = (percent: number | null) => part === 'rows' && queryClient.setQueryData(queryKey, percent);
      show(null);
      const first = await ask();
      if (!('steps' in first)) return first;
      // It takes longer, and has become a job.
      show(0);
      const wait = gateway.waitForJob(first.id, {
        signal,
        onProgress: ({ steps }) => show(steps.find((step) => step.percent !== undefined)?.percent ?? 0),
      });
      await wait.catch((error) => {
        // Nobody waits for it any more, and the next comparison would.
        if (signal.aborted) cancelComparison(sides).catch(() => {});
        throw error;
      });
      return (await ask(first.id)) as Difference;
    },
    ...ONCE,
  });
};

export const changedRowsQuery = ({ projectId, branch, against }: Sides, schema: string, table: string) =>
  infiniteQueryOptions({
    queryKey: ['difference', projectId, branch, against, 'rows-of', schema, table],
    queryFn: ({ pageParam, signal }) => {
      const query = { against, schema, table, ...(pageParam !== null && { cursor: pageParam }) };
      const path = '/api/v1/projects/{project_id}/branches/{branch_ref}/diff/rows';
      return dataOf(api.GET(path, { params: { ...inBranch(projectId, branch), query }, signal }));
    },
    initialPageParam: null as string | null,
    getNextPageParam: (page: ChangedRows) => page.next_cursor,
    ...ONCE,
  });
