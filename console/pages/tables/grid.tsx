import { useVirtualizer } from '@tanstack/react-virtual';
import { type KeyboardEvent, type ReactNode, useEffect, useRef, useState } from 'react';
import { Icon } from '../../components/icon.tsx';
import { TABLES_TEXT } from '../../strings/tables.ts';
import { type GridColumn, isRightAligned, widthOf } from './columns.ts';
import { GridRow, NUMBER_WIDTH } from './grid-row.tsx';
import { moved, type Position } from './movement.ts';
import type { Row, StagedRow } from './staged.ts';

const ROW_HEIGHT = 32;
const HEAD_HEIGHT = 46;
const OVERSCAN = 8;

export interface GridProps {
  label: string;
  columns: readonly GridColumn[];
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
    estimateSize: (index) => (columns[index] ? widthOf(columns[index]) : 0),
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
  useEffect(() => cells.measure(), [columns]);

  const go = (position: Position) => {
    onActive(position);
    rows.scrollToIndex(position.row, { align: 'auto' });
    cells.scrollToIndex(position.column, { align: 'auto' });
  };
  const pageRows = Math.max(1, Math.floor((scroller.current?.clientHeight ?? 400) / ROW_HEIGHT) - 2);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.target !== event.currentTarget) return;
    const next = moved(event, active, { rows: total, columns: columns.length, page: pageRows });
    if (next) {
      event.preventDefault();
      go(next);
      return;
    }
    if (event.key === 'Enter' || event.key === 'F2') {
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
            <span className="visually-hidden">{TABLES_TEXT.row}</span>
          </div>
          {visibleCells.map(({ index, start, size }) => {
            const column = columns[index];
            return column && <Head key={column.name} {...{ column, index, start, size }} {...props} />;
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
}

function Head({ column, index, start, size, order, onOrder }: HeadProps) {
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
    <div
      className={isRightAligned(column) ? 'grid-name right' : 'grid-name'}
      role="columnheader"
      aria-colindex={index + 2}
      aria-sort={sorted}
      style={{ width: size, transform: `translateX(${start}px)` }}
      title={`${column.label ?? column.name} ${column.type}`}
    >
      {onOrder ? (
        <button type="button" tabIndex={-1} onClick={() => onOrder(column.name)}>
          {name}
        </button>
      ) : (
        <span className="name">{name}</span>
      )}
      <span className="type truncate">
        {column.type}
        {column.nullable ? '' : TABLES_TEXT.notNull}
      </span>
    </div>
  );
}
