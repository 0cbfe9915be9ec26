import './tables.css';
import { useVirtualizer, type VirtualItem } from '@tanstack/react-virtual';
import { type KeyboardEvent, memo, type ReactNode, useEffect, useRef, useState } from 'react';
import { Icon } from '../../components/icon.tsx';
import { CellValue, type GridColumn, isFixed, isRightAligned, widthOf } from './cell.tsx';
import { type Row, STATE_NAMES, type StagedRow, stateOf } from './staged.ts';

/** Pixels of the number in front, as in the styles. */
const NUMBER_WIDTH = 60;

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
      data-state={state ?? undefined}
      style={{ transform: `translateY(${start}px)` }}
    >
      <div className="grid-number" role="rowheader" aria-colindex={1}>
        {state && <span className="visually-hidden">{STATE_NAMES[state]} </span>}
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
const GridRow = memo(
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

/** A cell of the grid; new rows count first. */
export interface Position {
  row: number;
  column: number;
}

interface Extent {
  rows: number;
  columns: number;
  /** Rows that are visible together. */
  page: number;
}

interface Key {
  key: string;
  ctrlKey: boolean;
  metaKey: boolean;
}

const clamp = (value: number, length: number) => Math.max(0, Math.min(length - 1, value));

/** Where a key leads from a cell; null if the key does not move. */
function moved(event: Key, { row, column }: Position, { rows, columns, page }: Extent): Position | null {
  const isFar = event.ctrlKey || event.metaKey;
  const to: Record<string, Position> = {
    ArrowUp: { row: isFar ? 0 : row - 1, column },
    ArrowDown: { row: isFar ? rows : row + 1, column },
    ArrowLeft: { row, column: isFar ? 0 : column - 1 },
    ArrowRight: { row, column: isFar ? columns : column + 1 },
    Home: { row: isFar ? 0 : row, column: 0 },
    End: { row: isFar ? rows : row, column: columns },
    PageUp: { row: row - page, column },
    PageDown: { row: row + page, column },
  };
  const next = Object.hasOwn(to, event.key) ? to[event.key] : undefined;
  return next ? { row: clamp(next.row, rows), column: clamp(next.column, columns) } : null;
}

const WIDTH_MIN = 48;
/** How far Alt+Shift with these keys moves the right edge of a column, in pixels. */
const RESIZES: Readonly<Record<string, number>> = { ArrowLeft: -16, ArrowRight: 16 };

/** @param width in pixels; null for that of its type */
type Resize = (column: string, width: number | null) => void;
type Widths = Readonly<Record<string, number>>;

/** The widths that a person has given to columns, which the browser keeps. */
function useWidths(key: string | undefined): [Widths, Resize] {
  const item = key === undefined ? null : `widths:${key}`;
  const [widths, setWidths] = useState<Widths>(() =>
    JSON.parse((item && localStorage.getItem(item)) || '{}'),
  );
  const resize: Resize = (column, width) => {
    const { [column]: _, ...others } = widths;
    const next = width === null ? others : { ...others, [column]: Math.max(WIDTH_MIN, Math.round(width)) };
    setWidths(next);
    if (item) localStorage.setItem(item, JSON.stringify(next));
  };
  return [widths, resize];
}

const ROW_HEIGHT = 32;
const HEAD_HEIGHT = 46;
const OVERSCAN = 8;

export interface GridProps {
  label: string;
  columns: readonly GridColumn[];
  /** Under which the browser keeps the widths of the columns. */
  widthsKey?: string;
  /** New rows come first. */
  newRows: readonly [string, StagedRow][];
  count: number;
  rowAt: (index: number) => Row | undefined;
  isCut: (index: number, column: string) => boolean;
  stagedAt: (row: Row | undefined) => StagedRow | undefined;
  active: Position;
  onActive: (position: Position) => void;
  /** The first key of what is typed, or null to edit what is there. */
  onEdit: (position: Position, typed: string | null) => void;
  /** The editor of a cell, placed over it. */
  editor: { position: Position; node: ReactNode } | null;
  onKey: (event: KeyboardEvent) => void;
  onVisible: (first: number, last: number) => void;
  order: { column: string; direction: 'asc' | 'desc' } | null;
  onOrder?: (column: string) => void;
}

export function Grid(props: GridProps) {
  const {
    label,
    columns,
    newRows,
    count,
    rowAt,
    isCut,
    stagedAt,
    active,
    onActive,
    onEdit,
    onKey,
    onVisible,
  } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const [isFocused, setFocused] = useState(false);
  const [widths, resize] = useWidths(props.widthsKey);
  const total = newRows.length + count;
  const rows = useVirtualizer({
    count: total,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: OVERSCAN,
    paddingStart: HEAD_HEIGHT,
    scrollPaddingStart: HEAD_HEIGHT,
  });
  const cells = useVirtualizer({
    horizontal: true,
    count: columns.length,
    getScrollElement: () => scroller.current,
    estimateSize: (index) => (columns[index] ? (widths[columns[index].name] ?? widthOf(columns[index])) : 0),
    overscan: 2,
    paddingStart: NUMBER_WIDTH,
    scrollPaddingStart: NUMBER_WIDTH,
  });
  const visibleRows = rows.getVirtualItems();
  const visibleCells = cells.getVirtualItems();
  const first = (visibleRows[0]?.index ?? 0) - newRows.length;
  const last = (visibleRows.at(-1)?.index ?? 0) - newRows.length;
  useEffect(() => onVisible(Math.max(0, first), Math.max(0, last)), [first, last, onVisible]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another table has other widths
  useEffect(() => cells.measure(), [columns, widths]);

  const go = (position: Position) => {
    onActive(position);
    rows.scrollToIndex(position.row, { align: 'auto' });
    cells.scrollToIndex(position.column, { align: 'auto' });
  };
  const pageRows = Math.max(1, Math.floor((scroller.current?.clientHeight ?? 400) / ROW_HEIGHT) - 2);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.target !== event.currentTarget) return;
    const step = RESIZES[event.key];
    if (step !== undefined && event.altKey && event.shiftKey) {
      const column = columns[active.column];
      if (column) resize(column.name, (widths[column.name] ?? widthOf(column)) + step);
      event.preventDefault();
      return;
    }
    const next = moved(event, active, { rows: total, columns: columns.length, page: pageRows });
    if (next) {
      event.preventDefault();
      go(next);
      return;
    }
    if ((event.key === 'Enter' && !event.ctrlKey && !event.metaKey) || event.key === 'F2') {
      event.preventDefault();
      onEdit(active, null);
      return;
    }
    const isTyped = event.key.length === 1 && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (isTyped) {
      event.preventDefault();
      onEdit(active, event.key);
      return;
    }
    onKey(event);
  };

  return (
    <div
      ref={scroller}
      role="grid"
      aria-label={label}
      aria-rowcount={total + 1}
      aria-colcount={columns.length + 1}
      aria-activedescendant={isFocused && total > 0 ? `cell-${active.row}-${active.column}` : undefined}
      tabIndex={0}
      className="grid"
      onKeyDown={onKeyDown}
      onFocus={() => setFocused(true)}
      onBlur={() => setFocused(false)}
    >
      <div
        className="grid-body"
        role="presentation"
        style={{ height: rows.getTotalSize(), width: cells.getTotalSize() }}
      >
        <div className="grid-head" role="row" aria-rowindex={1} style={{ height: HEAD_HEIGHT }}>
          <div className="grid-corner" role="columnheader" aria-colindex={1}>
            <span className="visually-hidden">Row</span>
          </div>
          {visibleCells.map(({ index, start, size }) => {
            const column = columns[index];
            return (
              column && (
                <Head
                  key={column.name}
                  column={column}
                  index={index}
                  start={start}
                  size={size}
                  resize={resize}
                  {...props}
                />
              )
            );
          })}
        </div>
        {visibleRows.map(({ index, start }) => {
          const isNew = index < newRows.length;
          const row = isNew ? undefined : rowAt(index - newRows.length);
          const staged = isNew ? newRows[index]?.[1] : stagedAt(row);
          return (
            <GridRow
              key={index}
              index={index}
              number={isNew ? null : index - newRows.length + 1}
              start={start}
              columns={columns}
              cells={visibleCells}
              row={row}
              staged={staged}
              isCut={isCut}
              cutIndex={index - newRows.length}
              activeColumn={active.row === index ? active.column : null}
              onPick={(column, edits) => {
                onActive({ row: index, column });
                if (edits) onEdit({ row: index, column }, null);
              }}
            />
          );
        })}
        {props.editor && (
          <div
            className="grid-editor"
            role="presentation"
            style={{
              height: ROW_HEIGHT,
              width: cells.measurementsCache[props.editor.position.column]?.size,
              transform: `translate(${cells.measurementsCache[props.editor.position.column]?.start}px, ${
                HEAD_HEIGHT + props.editor.position.row * ROW_HEIGHT
              }px)`,
            }}
          >
            {props.editor.node}
          </div>
        )}
      </div>
    </div>
  );
}

interface HeadProps extends Pick<GridProps, 'order' | 'onOrder'> {
  column: GridColumn;
  index: number;
  start: number;
  size: number;
  resize: Resize;
}

function Head({ column, index, start, size, resize, order, onOrder }: HeadProps) {
  const grip = useRef<{ pointer: number; width: number }>(undefined);
  const direction = order?.column === column.name ? order.direction : null;
  const sorted = direction === 'asc' ? 'ascending' : direction === 'desc' ? 'descending' : undefined;
  const name = (
    <>
      {column.is_primary_key && <Icon name="key" />}
      <span className="truncate">{column.label ?? column.name}</span>
      {direction && <span aria-hidden="true">{direction === 'asc' ? '↑' : '↓'}</span>}
    </>
  );
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: its button is for the keyboard
    <div
      className={isRightAligned(column) ? 'grid-name right' : 'grid-name'}
      onClick={() => onOrder?.(column.name)}
      role="columnheader"
      aria-colindex={index + 2}
      aria-sort={sorted}
      style={{ width: size, transform: `translateX(${start}px)` }}
      title={`${column.label ?? column.name} ${column.type}`}
    >
      {onOrder ? (
        <button type="button" tabIndex={-1}>
          {name}
        </button>
      ) : (
        <span className="name">{name}</span>
      )}
      <span className="type truncate">
        {column.type}
        {column.nullable ? '' : ' not null'}
      </span>
      <i
        className="grid-grip"
        aria-hidden="true"
        onClick={(event) => event.stopPropagation()}
        onPointerDown={({ currentTarget, pointerId, clientX }) => {
          currentTarget.setPointerCapture(pointerId);
          grip.current = { pointer: clientX, width: size };
        }}
        onPointerMove={({ clientX }) => {
          if (grip.current) resize(column.name, grip.current.width + clientX - grip.current.pointer);
        }}
        onLostPointerCapture={() => {
          grip.current = undefined;
        }}
        onDoubleClick={() => resize(column.name, null)}
      />
    </div>
  );
}
