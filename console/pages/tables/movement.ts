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
export function moved(
  event: Key,
  { row, column }: Position,
  { rows, columns, page }: Extent,
): Position | null {
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
