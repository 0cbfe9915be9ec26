import { queryOptions, useQueries } from '@tanstack/react-query';
import { useEffect, useMemo, useRef, useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../data/gateway.ts';
import { inBranch, type RowPage } from '../../data/resources.ts';
import type { Row } from './staged.ts';

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

const pageQuery = (place: Place, { filters, order }: Selection, offset: number, limit: number) =>
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

/** Rows of one page of the API. */
const PAGE = 50;
const SETTLED_MS = 90;
const FAR = 2;

export interface Rows {
  /** How many rows are known to exist, or are likely to. */
  count: number;
  rowAt: (index: number) => RowPage['rows'][number] | undefined;
  isCut: (index: number, column: string) => boolean;
  error: unknown;
  isLoading: boolean;
  refetch: () => void;
}

/**
 * The rows around a range, page by page. Pages that a fast scroll only passes are not read, because each read
 * is one of the project's limited ones.
 */
export function useRows(
  place: Place,
  selection: Selection,
  estimate: number | null,
  first: number,
  last: number,
): Rows {
  const range = useMemo(() => {
    const from = Math.max(0, Math.floor(first / PAGE));
    const to = Math.max(from, Math.floor(Math.max(first, last) / PAGE));
    return { from, to };
  }, [first, last]);
  const [settled, setSettled] = useState(range);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setSettled(range), SETTLED_MS);
    return () => clearTimeout(timer.current);
  }, [range]);
  const indexes = useMemo(() => {
    const from = Math.max(0, settled.from);
    return Array.from({ length: Math.min(FAR + 2, settled.to - from + 1) }, (_, step) => from + step);
  }, [settled]);
  const pages = useQueries({
    queries: indexes.map((index) => pageQuery(place, selection, index * PAGE, PAGE)),
  });
  const placeKey = JSON.stringify([place, selection]);
  const byIndex = useRef<{ key: string; pages: Map<number, RowPage>; end: number | null }>({
    key: placeKey,
    pages: new Map(),
    end: null,
  });
  if (byIndex.current.key !== placeKey) {
    byIndex.current = { key: placeKey, pages: new Map(), end: null };
  }
  pages.forEach(({ data }, position) => {
    const index = indexes[position];
    if (!data || index === undefined) return;
    byIndex.current.pages.set(index, data);
    if (!data.has_more) byIndex.current.end = index * PAGE + data.rows.length;
    else if (byIndex.current.end !== null && byIndex.current.end <= (index + 1) * PAGE)
      byIndex.current.end = null;
  });
  const { pages: read, end } = byIndex.current;
  const furthest = Math.max(0, ...[...read].map(([index, page]) => index * PAGE + page.rows.length));
  const more = [...read.values()].some(({ has_more }) => has_more) ? PAGE : 0;
  const count = end ?? Math.max(furthest + more, estimate ?? 0);
  return {
    count,
    rowAt: (index) => read.get(Math.floor(index / PAGE))?.rows[index % PAGE],
    isCut: (index, column) =>
      read
        .get(Math.floor(index / PAGE))
        ?.truncated.some((cell) => cell.row === index % PAGE && cell.column === column) ?? false,
    error: pages.find(({ isError }) => isError)?.error ?? null,
    isLoading: pages.some(({ isPending }) => isPending),
    refetch: () => {
      for (const page of pages) page.refetch();
    },
  };
}

/** Where the foreign key of a column leads; null if there is none, or if it has no value. */
export function referencedRow(details: TableDetails | undefined, row: Row, column: string) {
  const foreignKey = details?.foreign_keys.find(({ columns }) => columns.includes(column));
  if (!foreignKey) return null;
  const filters = foreignKey.columns.map((name, index): Filter | null => {
    const value = row[name];
    const referenced = foreignKey.referenced_columns[index];
    if (value === null || value === undefined || referenced === undefined) return null;
    return { column: referenced, operator: 'eq', value: String(value) };
  });
  if (filters.some((filter) => filter === null)) return null;
  return {
    schema: foreignKey.referenced_schema,
    table: foreignKey.referenced_table,
    filters: filters as Filter[],
  };
}
