import { queryOptions } from '@tanstack/react-query';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { inBranch } from '../../app/resources.ts';

/** Which rows of which table. */
export interface Place {
  projectId: string;
  branch: string;
  schema: string;
  table: string;
}

export const placeKey = ({ projectId, branch, schema, table }: Place) =>
  ['rows', projectId, branch, schema, table] as const;

export const pageQuery = (place: Place, offset: number, limit: number) =>
  queryOptions({
    queryKey: [...placeKey(place), place, offset],
    queryFn: ({ signal }) => {
      const { path } = inBranch(place.projectId, place.branch);
      const params = { path: { ...path, table: place.table }, query: { schema: place.schema, limit, offset } };
      return dataOf(
        api.GET('/api/v1/projects/{project_id}/branches/{branch_ref}/tables/{table}/rows', { params, signal }),
      );
    },
    staleTime: 30_000,
    gcTime: 120_000,
  });
