import { TABLES_TEXT } from '../../strings/tables.ts';
import { type GridColumn, isFixed } from './columns.ts';
import type { Value } from './staged.ts';

/** More characters are never visible in a cell. */
const SHOWN = 400;

/** What a new row gets in a column that has no value yet. */
export function absentText(column: GridColumn): string {
  if (isFixed(column)) return TABLES_TEXT.generated;
  return (column.default ?? null) === null ? TABLES_TEXT.none : TABLES_TEXT.default;
}

interface Props {
  value: Value | undefined;
  column: GridColumn;
  /** The value is only the beginning of the real one. */
  isCut: boolean;
}

/** A value so that NULL, an empty text, a default and a cut value look different from any text. */
export function CellValue({ value, column, isCut }: Props) {
  if (value === undefined) return <span className="cell-mark">{absentText(column)}</span>;
  if (value === null) return <span className="cell-mark null">NULL</span>;
  if (value === '') return <span className="cell-mark">{TABLES_TEXT.empty}</span>;
  const text = typeof value === 'string' && value.length > SHOWN ? value.slice(0, SHOWN) : String(value);
  return (
    <>
      {column.type === 'bytea' && <span className="cell-mark">base64</span>}
      <span className="cell-text">{text}</span>
      {isCut && <span className="cell-mark">{TABLES_TEXT.cut}</span>}
    </>
  );
}
