import type { VirtualItem } from '@tanstack/react-virtual';
import { memo } from 'react';
import { TABLES_TEXT } from '../../strings/tables.ts';
import { CellValue } from './cell-value.tsx';
import { type GridColumn, isFixed, isRightAligned } from './columns.ts';
import type { Row, StagedRow } from './staged.ts';

/** Pixels of the number in front, as in the styles. */
export const NUMBER_WIDTH = 60;

interface RowProps {
  index: number;
  /** Shown in front; null for a new row. */
  number: number | null;
  start: number;
  columns: readonly GridColumn[];
  cells: readonly VirtualItem[];
  /** Undefined while it is read. */
  row: Row | undefined;
  staged: StagedRow | undefined;
  isCut: (index: number, column: string) => boolean;
  cutIndex: number;
  activeColumn: number | null;
  onPick: (column: number, edits: boolean) => void;
}

function stateOf(staged: StagedRow | undefined): string {
  if (!staged) return '';
  if (staged.theirs !== undefined) return 'conflict';
  if (staged.id === null) return 'new';
  return staged.isDeleted ? 'deleted' : 'changed';
}

function View({
  index,
  number,
  start,
  columns,
  cells,
  row,
  staged,
  isCut,
  cutIndex,
  activeColumn,
  onPick,
}: RowProps) {
  const state = stateOf(staged);
  return (
    <div
      role="row"
      aria-rowindex={index + 2}
      className="grid-row"
      data-state={state || undefined}
      style={{ transform: `translateY(${start}px)` }}
    >
      <div className="grid-number" role="rowheader" aria-colindex={1}>
        {state && <span className="visually-hidden">{TABLES_TEXT.rowStates[state]} </span>}
        {number ?? '+'}
      </div>
      {cells.map(({ index: at, start: left, size }, position) => {
        const column = columns[at];
        if (!column) return null;
        const isStaged = staged !== undefined && Object.hasOwn(staged.values, column.name);
        const value = isStaged ? staged.values[column.name] : row?.[column.name];
        const classes = [
          'grid-cell',
          isRightAligned(column) && 'right',
          isStaged && 'staged',
          isFixed(column) && 'fixed',
          activeColumn === at && 'active',
        ];
        return (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the grid handles the keys of its cells
          <div
            key={column.name}
            id={`cell-${index}-${at}`}
            role="gridcell"
            aria-colindex={at + 2}
            aria-selected={activeColumn === at}
            aria-readonly={isFixed(column) || undefined}
            className={classes.filter(Boolean).join(' ')}
            style={position === 0 ? { width: size, marginLeft: left - NUMBER_WIDTH } : { width: size }}
            onClick={() => onPick(at, false)}
            onDoubleClick={() => onPick(at, true)}
          >
            {row === undefined && staged?.id !== null ? (
              <i className="grid-pending" />
            ) : (
              <CellValue value={value} column={column} isCut={!isStaged && isCut(cutIndex, column.name)} />
            )}
          </div>
        );
      })}
    </div>
  );
}

/** A row is drawn again only when it, its staged change or the visible columns change. */
export const GridRow = memo(
  View,
  (before, after) =>
    before.row === after.row &&
    before.staged === after.staged &&
    before.start === after.start &&
    before.index === after.index &&
    before.number === after.number &&
    before.columns === after.columns &&
    before.cells === after.cells &&
    before.activeColumn === after.activeColumn,
);
