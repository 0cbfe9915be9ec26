import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useMemo, useState } from 'react';
import { dataOf, ResponseError } from '../../../client/response-error.ts';
import { api } from '../../data/gateway.ts';
import { type Branch, inBranch, type RowPage, type Table } from '../../data/resources.ts';
import { mayChange, STAGED_PREFIX, sessionStore } from '../../data/session.ts';
import { createStore, type Store, useStore } from '../../data/store.ts';
import type { GridColumn } from './cell.tsx';
import type { Position } from './grid.tsx';
import { detailsQuery, type Place, placeKey, type Selection, useRows } from './rows.ts';
import {
  countOf,
  keyOf,
  pageAfter,
  type Row,
  type SavedRows,
  type Staged,
  type StagedRow,
  stagedAfter,
  type Value,
  withConflicts,
} from './staged.ts';

/** Changes that the API makes in one transaction. */
const TOGETHER = 50;

interface Conflict {
  /** Index of the change in the request. */
  change: number;
  row: Row | null;
}

/** What the row must still have: the columns that change, or all that were read of a row to delete. */
const expectedOf = ({ original, values, isDeleted }: StagedRow): Row =>
  Object.fromEntries(Object.entries(original).filter(([name]) => isDeleted || Object.hasOwn(values, name)));

function changeOf(row: StagedRow, place: Place, primaryKey: readonly string[]) {
  const { schema, table } = place;
  if (row.id === null) return { action: 'insert' as const, schema, table, values: row.values };
  const key = { schema, table, primary_key: [...primaryKey], id: row.id.map(String) };
  const expected = expectedOf(row);
  return row.isDeleted
    ? { action: 'delete' as const, ...key, expected }
    : { action: 'update' as const, ...key, values: row.values, expected };
}

/**
 * Saves staged changes, up to 50 rows in one transaction.
 * @param onSaved called after each transaction with its rows as they are now. A later failure then does not
 *   repeat them
 * @returns the rows as somebody else changed them in the meantime, by the keys of the changes that conflict;
 *   null for a deleted one
 */
async function saveStaged(
  place: Place,
  primaryKey: readonly string[],
  staged: Staged,
  onSaved: (rows: SavedRows) => void,
): Promise<ReadonlyMap<string, Row | null>> {
  const { path } = inBranch(place.projectId, place.branch);
  const entries = Object.entries(staged);
  for (let first = 0; first < entries.length; first += TOGETHER) {
    const part = entries.slice(first, first + TOGETHER);
    const changes = part.map(([, row]) => changeOf(row, place, primaryKey));
    try {
      const saved = await dataOf(
        api.POST('/api/v1/projects/{project_id}/branches/{branch_ref}/row-changes', {
          params: { path },
          body: { changes },
        }),
      );
      onSaved(
        new Map(
          saved.changes.flatMap((change, index) => {
            const entry = part[index];
            return entry ? [[entry[0], change] as const] : [];
          }),
        ),
      );
    } catch (error) {
      if (!(error instanceof ResponseError) || error.code !== 'CHANGES_CONFLICT') throw error;
      const conflicts = (error.fields.conflicts ?? []) as Conflict[];
      return new Map(
        conflicts.flatMap(({ change, row }) => {
          const entry = part[change];
          return entry ? [[entry[0], row] as const] : [];
        }),
      );
    }
  }
  return new Map();
}

const stores = new Map<string, Store<Staged>>();

function read(name: string): Staged {
  try {
    return JSON.parse(sessionStorage.getItem(name) ?? '{}') as Staged;
  } catch {
    return {};
  }
}

/**
 * The staged changes of one table. They outlive the page, a reload, and the end of a session, so that nothing
 * that a person typed is lost; a sign-out removes them.
 */
function stagedOf(userId: string, branchId: string, schema: string, table: string): Store<Staged> {
  const name = `${STAGED_PREFIX}${userId}:${branchId}:${schema}.${table}`;
  const known = stores.get(name);
  // One store as long as the page lives, except that a sign-out has removed what an earlier session staged.
  if (known && (countOf(known.get()) === 0 || sessionStorage.getItem(name) !== null)) return known;
  const store = createStore(read(name));
  store.subscribe(() => {
    const staged = store.get();
    if (Object.keys(staged).length === 0) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, JSON.stringify(staged));
  });
  stores.set(name, store);
  return store;
}

/** A row that can be changed: one that was read, or a new one. */
export interface Target {
  key: string;
  /** Null for a new row. */
  id: Value[] | null;
  original: Row;
}

/** Why rows cannot be changed here; null if they can. */
function readOnlyReason(table: Table, key: readonly string[], mayEdit: boolean): string | null {
  if (!mayEdit) return 'Your role can look at rows, but not change them.';
  if (table.kind !== 'table' && table.kind !== 'partitioned_table')
    return 'This is not a table, so its rows are read-only.';
  return key.length === 0
    ? 'The table has no primary key, so its rows cannot be distinguished and are read-only. Add a key to edit them.'
    : null;
}

/** The staged value of a cell, otherwise the one that was read; undefined for the default of a new row. */
export function cellOf(staged: Staged, { key, original }: Target, column: string): Value | undefined {
  const row = staged[key];
  return row && Object.hasOwn(row.values, column) ? row.values[column] : original[column];
}

/** A table with its rows around what is visible, and the changes that are staged for it. */
export function useTable(projectId: string, branch: Branch, table: Table, selection: Selection) {
  const client = useQueryClient();
  const session = useStore(sessionStore);
  const userId = session.state === 'signed_in' ? (session.me.id ?? '') : '';
  const store = stagedOf(userId, branch.id, table.schema, table.name);
  const staged = useStore(store);
  const place = useMemo<Place>(
    () => ({ projectId, branch: branch.id, schema: table.schema, table: table.name }),
    [projectId, branch.id, table.schema, table.name],
  );
  const details = useQuery(detailsQuery(place)).data;
  const columns: readonly GridColumn[] = details?.columns ?? table.columns;
  const key = details?.keys[0] ?? table.primary_key;
  const [visible, setVisible] = useState({ first: 0, last: 30 });
  const isFiltered = selection.filters.length > 0;
  const rows = useRows(
    place,
    selection,
    isFiltered ? null : table.estimated_rows,
    visible.first,
    visible.last,
  );
  const newRows = useMemo(() => Object.entries(staged).filter(([, { id }]) => id === null), [staged]);
  const idOf = (row: Row): Value[] => key.map((name) => row[name] ?? null);

  const targetAt = ({ row }: Position): Target | null => {
    const fresh = newRows[row];
    if (fresh) return { key: fresh[0], id: null, original: {} };
    const read = rows.rowAt(row - newRows.length) as Row | undefined;
    if (!read) return null;
    const id = idOf(read);
    const index = row - newRows.length;
    // A value of which only the beginning was read cannot be compared with the present one.
    const whole = Object.entries(read).filter(([name]) => !rows.isCut(index, name));
    return { key: keyOf(id), id, original: staged[keyOf(id)]?.original ?? Object.fromEntries(whole) };
  };

  /**
   * Where a row is now; null if it is not visible. A save makes rows that were read of the new ones, which
   * moves the others.
   */
  const indexOf = (name: string): number | null => {
    const fresh = newRows.findIndex(([each]) => each === name);
    if (fresh >= 0) return fresh;
    for (let row = visible.first; row <= visible.last; row += 1)
      if (targetAt({ row, column: 0 })?.key === name) return row;
    return null;
  };

  const saving = useMutation({
    mutationFn: async () => {
      const before = store.get();
      const count = countOf(before);
      const conflicts = await saveStaged(place, key, before, (saved) => {
        // A person may change a row again before it is read again.
        client.setQueriesData<RowPage>(
          { queryKey: placeKey(place) },
          (page) => page && pageAfter(page, saved, idOf),
        );
        store.set(stagedAfter(store.get(), before, saved, idOf));
      });
      store.set(withConflicts(store.get(), conflicts));
      return count;
    },
    // Not awaited: the end of the save moves the focus, which must not happen while a person types into the
    // next cell.
    onSettled: () => {
      client.invalidateQueries({ queryKey: placeKey(place) });
    },
  });

  return {
    place,
    details,
    columns,
    rows,
    newRows,
    staged,
    change: store.set,
    latest: store.get,
    readOnly: readOnlyReason(table, key, session.state === 'signed_in' && mayChange(session.me)),
    setVisible,
    targetAt,
    indexOf,
    isCutAt: (position: Position, column: string) => rows.isCut(position.row - newRows.length, column),
    stagedAt: (row: Row | undefined) => (row ? staged[keyOf(idOf(row))] : undefined),
    saving,
    reload: () => client.invalidateQueries({ queryKey: placeKey(place) }),
  };
}

export type TableView = ReturnType<typeof useTable>;
