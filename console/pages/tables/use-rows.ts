import { useQueries } from '@tanstack/react-query';
import { useEffect, useMemo, useRef, useState } from 'react';
import type { RowPage } from '../../app/resources.ts';
import { type Place, pageQuery, type Selection } from './row-source.ts';

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
 * The rows around a range, page by page. Pages that a fast scroll only passes are not read, because each read is one
 * of the project's limited ones.
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
