import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useMemo, useState } from 'react';
import type { Branch, RowPage, Table } from '../../app/resources.ts';
import { mayChange, sessionStore } from '../../app/session.ts';
import { useStore } from '../../app/store.ts';
import { TABLES_TEXT } from '../../strings/tables.ts';
import { pageAfter, stagedAfter, withConflicts } from './after-save.ts';
import type { GridColumn } from './columns.ts';
import type { Position } from './movement.ts';
import { detailsQuery, type Place, placeKey, type Selection } from './row-source.ts';
import { saveStaged } from './save.ts';
import { countOf, keyOf, type Row, type Staged, type Value } from './staged.ts';
import { stagedOf } from './staged-store.ts';
import { useRows } from './use-rows.ts';

/** A row that can be changed: one that was read, or a new one. */
export interface Target {
  key: string;
  /** Null for a new row. */
  id: Value[] | null;
  original: Row;
}

/** Why rows cannot be changed here; null if they can. */
function readOnlyReason(table: Table, key: readonly string[], mayEdit: boolean): string | null {
  if (!mayEdit) return TABLES_TEXT.noRole;
  if (table.kind !== 'table' && table.kind !== 'partitioned_table') return TABLES_TEXT.noTableKind;
  return key.length === 0 ? TABLES_TEXT.noKey : null;
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

  /** Where a row is now; null if it is not visible. A save makes rows that were read of the new ones, which moves the others. */
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
    // Not awaited: the end of the save moves the focus, which must not happen while a person types into the next cell.
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
