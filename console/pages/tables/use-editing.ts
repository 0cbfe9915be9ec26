import { type KeyboardEvent, useState } from 'react';
import { type GridColumn, isFixed, isLong, type Leave } from './cell.tsx';
import type { Position } from './grid.tsx';
import { type Value, withDeletion, withNewRow, withValue } from './staged.ts';
import { cellOf, type TableView, type Target } from './use-table.ts';

interface Editing {
  target: Target;
  position: Position;
  typed: string | null;
}

const STEPS: Record<Leave, Position> = {
  down: { row: 1, column: 0 },
  right: { row: 0, column: 1 },
  stay: { row: 0, column: 0 },
};

export const focusGrid = () => document.querySelector<HTMLElement>('[role=grid]')?.focus();

interface Elsewhere {
  /** Shows the active cell in full. */
  onInspect: () => void;
  onReview: () => void;
}

/** Which cell of a table is active and which one is edited, and what keys and buttons do to them. */
export function useEditing(view: TableView, { onInspect, onReview }: Elsewhere) {
  const { columns, rows, newRows, staged, change, latest, targetAt, indexOf, saving } = view;
  const [active, setActive] = useState<Position>({ row: 0, column: 0 });
  const [editing, setEditing] = useState<Editing | null>(null);
  const mayEdit = view.readOnly === null;
  const column = columns[active.column];
  const target = targetAt(active);

  /** A new row that is being saved has no key yet by which a change could reach it. */
  const isBeingSaved = (about: Target) => about.id === null && saving.isPending;
  const stage = (about: Target | null, { name }: GridColumn, value: Value) => {
    if (about && !isBeingSaved(about)) change(withValue(latest(), about, name, value));
  };
  const markDeleted = (about: Target) => !isBeingSaved(about) && change(withDeletion(latest(), about));

  const edit = (position: Position, typed: string | null) => {
    const edited = columns[position.column];
    const about = targetAt(position);
    if (!mayEdit || !edited || isFixed(edited) || !about || staged[about.key]?.isDeleted) return;
    if (isBeingSaved(about)) return;
    if (about.id !== null && view.isCutAt(position, edited.name)) return;
    const value = cellOf(staged, about, edited.name);
    // An input would lose the line breaks.
    if (isLong(edited) && typeof value === 'string' && value.includes('\n')) onInspect();
    else setEditing({ target: about, position, typed });
  };

  const leave = (at: Position, to: Leave) => {
    setEditing(null);
    const step = STEPS[to];
    setActive({
      row: Math.min(newRows.length + rows.count - 1, at.row + step.row),
      column: Math.min(columns.length - 1, at.column + step.column),
    });
    if (to !== 'stay') focusGrid();
  };

  const addRow = () => {
    change(withNewRow(latest(), `new:${crypto.randomUUID()}`));
    const writable = columns.findIndex((each) => !isFixed(each));
    setActive({ row: newRows.length, column: Math.max(0, writable) });
    focusGrid();
  };

  const onKey = (event: KeyboardEvent) => {
    if (!target || !column) return;
    const isCommand = event.ctrlKey || event.metaKey;
    const actions: Record<string, () => void> = {
      ...(isCommand && { enter: onInspect }),
      ...(mayEdit && {
        delete: () => column.nullable && !isFixed(column) && stage(target, column, null),
        ...(isCommand && { backspace: () => markDeleted(target), s: onReview }),
      }),
    };
    const action = actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  };

  /** The cell under the editor, which a save may have moved. */
  const editedCell = () => {
    if (!editing) return null;
    const row = indexOf(editing.target.key);
    const position = { ...editing.position, row: row ?? editing.position.row };
    const about = row === null ? editing.target : targetAt({ row, column: 0 });
    const edited = columns[position.column];
    return about && edited ? { position, column: edited, target: about, typed: editing.typed } : null;
  };

  return {
    mayEdit,
    active,
    setActive,
    column,
    target,
    edited: editedCell(),
    edit,
    commit: (cell: NonNullable<ReturnType<typeof editedCell>>, value: Value, to: Leave) => {
      stage(cell.target, cell.column, value);
      leave(cell.position, to);
    },
    cancel: () => {
      setEditing(null);
      focusGrid();
    },
    stage,
    markDeleted,
    addRow,
    onKey,
  };
}

export type TableEditing = ReturnType<typeof useEditing>;
