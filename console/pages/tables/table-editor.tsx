import { useMutation, useQueryClient } from '@tanstack/react-query';
import { type KeyboardEvent, useCallback, useMemo, useState } from 'react';
import type { Branch, Table } from '../../app/resources.ts';
import { mayChange, sessionStore } from '../../app/session.ts';
import { useStore } from '../../app/store.ts';
import { BranchName } from '../../components/branch-status.tsx';
import { Button } from '../../components/button.tsx';
import { ErrorNote, Note } from '../../components/feedback.tsx';
import { announce } from '../../components/toast.tsx';
import { TEXT } from '../../strings.ts';
import { CellEditor, type Leave } from './cell-editor.tsx';
import { CellPanel } from './cell-panel.tsx';
import { type GridColumn, isFixed, isLong } from './columns.ts';
import { Grid } from './grid.tsx';
import type { Position } from './movement.ts';
import { ReviewDialog } from './review-dialog.tsx';
import { placeKey } from './row-source.ts';
import { saveStaged } from './save.ts';
import {
  countOf,
  decide,
  discard,
  keyOf,
  type Row,
  type Staged,
  stagedOf,
  type Value,
  withDeletion,
  withoutValue,
  withValue,
} from './staged.ts';
import { useRows } from './use-rows.ts';

interface Props {
  projectId: string;
  branch: Branch;
  table: Table;
}

/** Why rows cannot be changed here; null if they can. */
function readOnlyReason(table: Table, mayEdit: boolean): string | null {
  if (!mayEdit) return TEXT.tables.noRole;
  if (table.kind !== 'table' && table.kind !== 'partitioned_table') return TEXT.tables.noTableKind;
  return table.primary_key.length === 0 ? TEXT.tables.noKey : null;
}

export function TableEditor({ projectId, branch, table }: Props) {
  const session = useStore(sessionStore);
  const userId = session.state === 'signed_in' ? (session.me.id ?? '') : '';
  const client = useQueryClient();
  const columns: readonly GridColumn[] = table.columns;
  const store = stagedOf(userId, branch.id, table.schema, table.name);
  const staged = useStore(store);
  const reason = readOnlyReason(table, session.state === 'signed_in' && mayChange(session.me));
  const mayEdit = reason === null;
  const [active, setActive] = useState<Position>({ row: 0, column: 0 });
  const [editing, setEditing] = useState<{ position: Position; typed: string | null } | null>(null);
  const [visible, setVisible] = useState({ first: 0, last: 30 });
  const [isReviewing, setReviewing] = useState(false);
  const place = useMemo(
    () => ({ projectId, branch: branch.id, schema: table.schema, table: table.name }),
    [projectId, branch.id, table],
  );
  const rows = useRows(place, table.estimated_rows, visible.first, visible.last);
  const newRows = useMemo(() => Object.entries(staged).filter(([, { id }]) => id === null), [staged]);
  const idOf = (row: Row): Value[] => table.primary_key.map((name) => row[name] ?? null);
  const stagedAt = (row: Row | undefined) => (row ? staged[keyOf(idOf(row))] : undefined);
  const onVisible = useCallback((first: number, last: number) => setVisible({ first, last }), []);

  /** What is at a position: a new row, or one of the table. */
  const targetAt = ({ row }: Position) => {
    const fresh = newRows[row];
    if (fresh) return { key: fresh[0], id: null, original: {} as Row };
    const read = rows.rowAt(row - newRows.length);
    if (!read) return null;
    const id = idOf(read);
    return { key: keyOf(id), id, original: staged[keyOf(id)]?.original ?? (read as Row) };
  };
  const column = columns[active.column];
  const target = targetAt(active);
  const present = target && column ? valueOf(staged, target, column.name) : undefined;
  const isCut = column !== undefined && target?.id != null && rows.isCut(active.row - newRows.length, column.name);
  const change = (next: Staged) => store.set(next);
  const stage = (at: Position, value: Value) => {
    const about = targetAt(at);
    const name = columns[at.column]?.name;
    if (about && name !== undefined) change(withValue(store.get(), about, name, value));
  };

  const onEdit = (position: Position, typed: string | null) => {
    const edited = columns[position.column];
    const about = targetAt(position);
    if (!mayEdit || !edited || isFixed(edited) || !about || staged[about.key]?.isDeleted) return;
    if (about.id !== null && rows.isCut(position.row - newRows.length, edited.name)) return;
    const value = valueOf(staged, about, edited.name);
    // An input would lose the line breaks; such values are edited in the panel.
    if (typed === null && isLong(edited) && typeof value === 'string' && value.includes('\n')) {
      document.querySelector<HTMLTextAreaElement>('.cell-panel textarea')?.focus();
      return;
    }
    setEditing({ position, typed });
  };
  const focusGrid = () => document.querySelector<HTMLElement>('[role=grid]')?.focus();
  const endEditing = (at: Position, leave: Leave) => {
    setEditing(null);
    const step = { down: { row: 1, column: 0 }, right: { row: 0, column: 1 }, stay: { row: 0, column: 0 } }[leave];
    const last = newRows.length + rows.count - 1;
    setActive({
      row: Math.min(last, at.row + step.row),
      column: Math.min(columns.length - 1, at.column + step.column),
    });
    if (leave !== 'stay') focusGrid();
  };
  const onKey = (event: KeyboardEvent) => {
    if (!mayEdit || !target || !column) return;
    if (event.key === 'Delete' && !isFixed(column)) {
      event.preventDefault();
      if (column.nullable) stage(active, null);
    } else if (event.key === 'Backspace' && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      change(withDeletion(store.get(), target));
    } else if (event.key.toLowerCase() === 's' && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (countOf(staged) > 0) setReviewing(true);
    }
  };

  const saving = useMutation({
    mutationFn: () => saveStaged(place, table.primary_key, store.get()),
    onSuccess: ({ saved, left }) => {
      store.set(left);
      client.invalidateQueries({ queryKey: placeKey(place) });
      if (countOf(left) > 0) return;
      announce(TEXT.tables.saved(saved));
      setReviewing(false);
      focusGrid();
    },
  });

  const count = countOf(staged);
  return (
    <section className="table-area" aria-label={table.name}>
      <div className="table-bar">
        <h1 className="mono truncate">
          {table.schema === 'public' ? '' : `${table.schema}.`}
          {table.name}
        </h1>
        <BranchName name={branch.branch_name} />
        <span className="grow" />
        {mayEdit && target && (
          <Button compact look="danger" icon="trash" onClick={() => change(withDeletion(store.get(), target))}>
            {staged[target.key]?.isDeleted ? TEXT.tables.keepRow : TEXT.tables.deleteRow}
          </Button>
        )}
        <Button compact icon="refresh" onClick={() => client.invalidateQueries({ queryKey: placeKey(place) })}>
          {TEXT.tables.reload}
        </Button>
      </div>
      <div className="table-notes">
        {reason !== null && <Note>{reason}</Note>}
        {rows.error !== null && <ErrorNote error={rows.error} onRetry={rows.refetch} />}
      </div>
      <div className="table-work">
        <Grid
          label={TEXT.tables.gridOf(table.name, branch.branch_name)}
          columns={columns}
          newRows={newRows}
          count={rows.count}
          rowAt={rows.rowAt as (index: number) => Row | undefined}
          isCut={rows.isCut}
          stagedAt={stagedAt}
          active={active}
          onActive={setActive}
          onEdit={onEdit}
          onKey={onKey}
          onVisible={onVisible}
          order={null}
          editor={
            editing && {
              position: editing.position,
              node: (
                <CellEditor
                  key={`${editing.position.row} ${editing.position.column}`}
                  column={columns[editing.position.column] as GridColumn}
                  value={(() => {
                    const about = targetAt(editing.position);
                    return about ? valueOf(staged, about, columns[editing.position.column]?.name ?? '') : undefined;
                  })()}
                  typed={editing.typed}
                  onCommit={(value, leave) => {
                    stage(editing.position, value);
                    endEditing(editing.position, leave);
                  }}
                  onCancel={() => {
                    setEditing(null);
                    focusGrid();
                  }}
                />
              ),
            }
          }
        />
        {column && target && (
          <CellPanel
            key={`${target.key} ${column.name}`}
            column={column}
            value={present}
            isCut={isCut}
            mayEdit={mayEdit}
            actions={{
              stage: (value) => stage(active, value),
              useDefault:
                target.id === null && present !== undefined
                  ? () => change(withoutValue(store.get(), target.key, column.name))
                  : null,
              revert:
                target.id !== null && Object.hasOwn(staged[target.key]?.values ?? {}, column.name)
                  ? () => change(withoutValue(store.get(), target.key, column.name))
                  : null,
              follow: null,
            }}
          />
        )}
      </div>
      {count > 0 && (
        <div className="staged-bar" role="status">
          <span className="grow">{TEXT.tables.staged(count)}</span>
          <Button compact onClick={() => store.set({})}>
            {TEXT.tables.discardAll}
          </Button>
          <Button compact look="primary" onClick={() => setReviewing(true)}>
            {TEXT.tables.reviewAction}
          </Button>
        </div>
      )}
      {isReviewing && count > 0 && (
        <ReviewDialog
          branch={branch.branch_name}
          columns={columns}
          staged={staged}
          isSaving={saving.isPending}
          error={saving.error}
          onSave={() => saving.mutate()}
          onDiscard={(key) => change(discard(store.get(), key))}
          onDecide={(key, choice) => change(decide(store.get(), key, choice))}
          onClose={() => setReviewing(false)}
        />
      )}
    </section>
  );
}

/** The staged value of a cell, otherwise the one that was read; undefined for the default of a new row. */
function valueOf(staged: Staged, { key, original }: { key: string; original: Row }, name: string): Value | undefined {
  const row = staged[key];
  return row && Object.hasOwn(row.values, name) ? row.values[name] : original[name];
}
