import { useNavigate } from '@tanstack/react-router';
import { type KeyboardEvent, useCallback, useState } from 'react';
import { BranchName } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { announce, ErrorNote, Note } from '../../components/feedback.tsx';
import type { Branch, Table } from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { plural } from '../../strings/format.ts';
import { CellEditor, type GridColumn, isFixed, isLong, type Leave } from './cell.tsx';
import { FilterBar } from './filter-bar.tsx';
import { Grid, type Position } from './grid.tsx';
import { CellPanel } from './inspector.tsx';
import { ReviewDialog } from './review-dialog.tsx';
import { type Filter, type Order, referencedRow, type Selection } from './rows.ts';

import {
  countOf,
  decide,
  discard,
  type Row,
  type Value,
  withDeletion,
  withNewRow,
  withoutValue,
  withValue,
} from './staged.ts';
import { cellOf, type Target, useTable } from './use-table.ts';

interface Editing {
  target: Target;
  position: Position;
  typed: string | null;
}

interface Props {
  projectId: string;
  branch: Branch;
  table: Table;
  selection: Selection;
}

const STEPS: Record<Leave, Position> = {
  down: { row: 1, column: 0 },
  right: { row: 0, column: 1 },
  stay: { row: 0, column: 0 },
};

const focusGrid = () => document.querySelector<HTMLElement>('[role=grid]')?.focus();

const isTyping = () => document.activeElement?.closest('.grid-editor, .cell-panel') != null;

/** Rows, with changes that are staged until a person has reviewed them. */
export function TableEditor({ projectId, branch, table, selection }: Props) {
  const navigate = useNavigate();
  const view = useTable(projectId, branch, table, selection);
  const { columns, rows, newRows, staged, change, latest, targetAt, indexOf, saving, setVisible } = view;
  const [active, setActive] = useState<Position>({ row: 0, column: 0 });
  const [editing, setEditing] = useState<Editing | null>(null);
  const [isReviewing, setReviewing] = useState(false);
  const mayEdit = view.readOnly === null;
  const onVisible = useCallback((first: number, last: number) => setVisible({ first, last }), [setVisible]);
  const column = columns[active.column];
  const target = targetAt(active);
  const present = target && column ? cellOf(staged, target, column.name) : undefined;
  const count = countOf(staged);

  const select = (next: { filters?: Filter[]; order?: Order | null }) => {
    const { filters, order } = { ...selection, ...next };
    navigate({
      to: '/projects/$projectId/branches/$branch/tables',
      params: { projectId, branch: branch.branch_name },
      search: {
        schema: table.schema,
        table: table.name,
        ...(filters.length > 0 && { where: JSON.stringify(filters) }),
        ...(order && { order: JSON.stringify(order) }),
      },
      replace: true,
    });
  };
  /** A new row that is being saved has no key yet by which a change could reach it. */
  const isBeingSaved = (about: Target) => about.id === null && saving.isPending;
  const stage = (about: Target | null, at: Position, value: Value) => {
    const name = columns[at.column]?.name;
    if (about && name !== undefined && !isBeingSaved(about)) change(withValue(latest(), about, name, value));
  };
  const markDeleted = (about: Target) => !isBeingSaved(about) && change(withDeletion(latest(), about));
  const onEdit = (position: Position, typed: string | null) => {
    const edited = columns[position.column];
    const about = targetAt(position);
    if (!mayEdit || !edited || isFixed(edited) || !about || staged[about.key]?.isDeleted) return;
    if (isBeingSaved(about)) return;
    if (about.id !== null && view.isCutAt(position, edited.name)) return;
    const value = cellOf(staged, about, edited.name);
    // An input would lose the line breaks; such values are edited in the panel.
    if (isLong(edited) && typeof value === 'string' && value.includes('\n')) {
      document.querySelector<HTMLTextAreaElement>('.cell-panel textarea')?.focus();
      return;
    }
    setEditing({ target: about, position, typed });
  };
  const endEditing = (at: Position, leave: Leave) => {
    setEditing(null);
    const step = STEPS[leave];
    const last = newRows.length + rows.count - 1;
    setActive({
      row: Math.min(last, at.row + step.row),
      column: Math.min(columns.length - 1, at.column + step.column),
    });
    if (leave !== 'stay') focusGrid();
  };
  const addRow = () => {
    change(withNewRow(latest(), `new:${crypto.randomUUID()}`));
    setActive({
      row: newRows.length,
      column: Math.max(
        0,
        columns.findIndex((each) => !isFixed(each)),
      ),
    });
    focusGrid();
  };
  const onKey = (event: KeyboardEvent) => {
    if (!mayEdit || !target || !column) return;
    const isCommand = event.ctrlKey || event.metaKey;
    const actions: Record<string, () => void> = {
      delete: () => column.nullable && !isFixed(column) && stage(target, active, null),
      ...(isCommand && {
        backspace: () => markDeleted(target),
        s: () => count > 0 && setReviewing(true),
      }),
    };
    const action = actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  };
  const save = () =>
    saving.mutate(undefined, {
      onSuccess: (saved) => {
        const left = Object.values(latest());
        if (left.some(({ theirs }) => theirs !== undefined)) return;
        announce(`${plural(saved, 'row')} saved.`);
        // What a person changed during the save is not saved yet.
        if (left.length > 0) return;
        setReviewing(false);
        if (!isTyping()) focusGrid();
      },
    });
  const follow = target && column ? referencedRow(view.details, target.original, column.name) : null;
  const editedRow = editing && indexOf(editing.target.key);
  const editedAt = editing && { ...editing.position, row: editedRow ?? editing.position.row };
  const editedColumn = editedAt && columns[editedAt.column];
  const editedTarget =
    editing && editedRow !== null ? targetAt({ row: editedRow, column: 0 }) : editing?.target;

  return (
    <section className="table-area" aria-label={table.name}>
      <div className="table-bar">
        <h1 className="mono truncate">
          {table.schema === 'public' ? '' : `${table.schema}.`}
          {table.name}
        </h1>
        <BranchName name={branch.branch_name} />
        <span className="grow" />
        {mayEdit && (
          <Button compact icon="plus" onClick={addRow}>
            Add row
          </Button>
        )}
        {mayEdit && target && (
          <Button compact icon="trash" look="danger" onClick={() => markDeleted(target)}>
            {staged[target.key]?.isDeleted ? 'Keep row' : 'Delete row'}
          </Button>
        )}
        <Button compact icon="refresh" onClick={view.reload}>
          Reload
        </Button>
      </div>
      <FilterBar columns={columns} filters={selection.filters} onChange={(filters) => select({ filters })} />
      {(view.readOnly !== null || rows.error !== null) && (
        <div className="table-notes">
          {view.readOnly !== null && <Note>{view.readOnly}</Note>}
          {rows.error !== null && <ErrorNote error={rows.error} onRetry={rows.refetch} />}
        </div>
      )}
      <div className="table-work">
        <Grid
          label={`Rows of ${table.name} on ${branch.branch_name}`}
          columns={columns}
          newRows={newRows}
          count={rows.count}
          rowAt={rows.rowAt as (index: number) => Row | undefined}
          isCut={rows.isCut}
          stagedAt={view.stagedAt}
          active={active}
          onActive={setActive}
          onEdit={onEdit}
          onKey={onKey}
          onVisible={onVisible}
          order={selection.order}
          onOrder={(name) => select({ order: nextOrder(selection.order, name) })}
          editor={
            !editing || !editedAt || !editedColumn || !editedTarget
              ? null
              : {
                  position: editedAt,
                  node: (
                    <CellEditor
                      key={`${editing.target.key} ${editedColumn.name}`}
                      column={editedColumn as GridColumn}
                      value={cellOf(staged, editedTarget, editedColumn.name)}
                      typed={editing.typed}
                      onCommit={(value, leave) => {
                        stage(editedTarget, editedAt, value);
                        endEditing(editedAt, leave);
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
            isCut={target.id !== null && view.isCutAt(active, column.name)}
            mayEdit={mayEdit}
            actions={{
              stage: (value) => stage(target, active, value),
              useDefault:
                target.id === null && present !== undefined
                  ? () => change(withoutValue(latest(), target.key, column.name))
                  : null,
              revert:
                target.id !== null && Object.hasOwn(staged[target.key]?.values ?? {}, column.name)
                  ? () => change(withoutValue(latest(), target.key, column.name))
                  : null,
              follow:
                follow &&
                (() =>
                  navigate({
                    to: '/projects/$projectId/branches/$branch/tables',
                    params: { projectId, branch: branch.branch_name },
                    search: {
                      schema: follow.schema,
                      table: follow.table,
                      where: JSON.stringify(follow.filters),
                    },
                  })),
            }}
          />
        )}
      </div>
      <CommandLine command={(project) => COMMANDS.rows(project, branch.branch_name, table, selection)} />
      {count > 0 && (
        <div className="staged-bar" role="status">
          <span className="grow">{plural(count, 'changed row')}, not saved yet</span>
          <Button compact onClick={() => change({})}>
            Discard
          </Button>
          <Button compact look="primary" onClick={() => setReviewing(true)}>
            Review and save
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
          onSave={save}
          onDiscard={(key) => change(discard(latest(), key))}
          onDecide={(key, choice) => change(decide(latest(), key, choice))}
          onClose={() => setReviewing(false)}
        />
      )}
    </section>
  );
}

/** Ascending, then descending, then the order of the key again. */
function nextOrder(order: Order | null, column: string): Order | null {
  if (order?.column !== column) return { column, direction: 'asc' };
  return order.direction === 'asc' ? { column, direction: 'desc' } : null;
}
