import { queryOptions } from '@tanstack/react-query';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { inBranch } from '../../app/resources.ts';

export type TableDetails = Schemas['TableDetails'];

export const OPERATORS = ['eq', 'ne', 'lt', 'le', 'gt', 'ge', 'contains', 'is_null', 'is_not_null'] as const;

export interface Filter {
  column: string;
  operator: (typeof OPERATORS)[number];
  value?: string;
}
export interface Order {
  column: string;
  direction: 'asc' | 'desc';
}

/** Which table. */
export interface Place {
  projectId: string;
  branch: string;
  schema: string;
  table: string;
}

/** Which rows of a table, in which order. */
export interface Selection {
  filters: readonly Filter[];
  order: Order | null;
}

const read = <T>(text: string | undefined, isValid: (value: unknown) => value is T, otherwise: T): T => {
  try {
    const value: unknown = JSON.parse(text ?? 'null');
    return isValid(value) ? value : otherwise;
  } catch {
    return otherwise;
  }
};

const isFilters = (value: unknown): value is Filter[] =>
  Array.isArray(value) &&
  value.every((each) => OPERATORS.includes(each?.operator) && typeof each?.column === 'string');
const isOrder = (value: unknown): value is Order | null =>
  typeof value === 'object' && value !== null && 'column' in value && 'direction' in value;

/** The selection in the address of the page. */
export const selectionOf = (search: { where?: string; order?: string }): Selection => ({
  filters: read(search.where, isFilters, []),
  order: read(search.order, isOrder, null),
});

export const placeKey = ({ projectId, branch, schema, table }: Place) =>
  ['rows', projectId, branch, schema, table] as const;

const pathOf = ({ projectId, branch, table }: Place) => ({ ...inBranch(projectId, branch).path, table });

export const detailsQuery = (place: Place) =>
  queryOptions({
    queryKey: ['table', ...placeKey(place)],
    queryFn: ({ signal }) =>
      dataOf(
        api.GET('/api/v1/projects/{project_id}/branches/{branch_ref}/tables/{table}', {
          params: { path: pathOf(place), query: { schema: place.schema } },
          signal,
        }),
      ),
    staleTime: 30_000,
  });

export const pageQuery = (place: Place, { filters, order }: Selection, offset: number, limit: number) =>
  queryOptions({
    queryKey: [...placeKey(place), filters, order, offset],
    queryFn: ({ signal }) => {
      const query = {
        schema: place.schema,
        limit,
        offset,
        ...(filters.length > 0 && { filter: JSON.stringify(filters) }),
        ...(order && { sort: JSON.stringify([order]) }),
      };
      const path = '/api/v1/projects/{project_id}/branches/{branch_ref}/tables/{table}/rows';
      return dataOf(api.GET(path, { params: { path: pathOf(place), query }, signal }));
    },
    staleTime: 30_000,
    gcTime: 120_000,
  });
