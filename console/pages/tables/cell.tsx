import { type KeyboardEvent, useEffect, useRef, useState } from 'react';
import type { Value } from './staged.ts';
import './cell.css';

/** A column as the API describes it. */
export interface GridColumn {
  name: string;
  /** What is shown instead of the name. */
  label?: string;
  type: string;
  nullable: boolean;
  is_primary_key: boolean;
  default?: string | null;
  identity?: 'always' | 'by_default' | null;
  generated?: 'stored' | 'virtual' | null;
  enum_values?: string[] | null;
}

const RIGHT = /^(?:smallint|integer|bigint|numeric|real|double precision|money)\b/;
const WIDTHS: readonly (readonly [RegExp, number])[] = [
  [/^boolean/, 96],
  [RIGHT, 128],
  [/^uuid/, 308],
  [/^timestamp/, 244],
  [/^(?:json|bytea|xml)|\[\]$/, 280],
  [/^date/, 124],
];
const WIDTH = 208;
const CHARACTER = 8;
const PADDING = 56;

/** Pixels of a column: those of its type, but at least those of its name. */
export const widthOf = ({ name, label = name, type }: GridColumn): number =>
  Math.max(WIDTHS.find(([form]) => form.test(type))?.[1] ?? WIDTH, (label.length + 2) * CHARACTER + PADDING);

export const isRightAligned = ({ type }: GridColumn): boolean => RIGHT.test(type) && !type.endsWith('[]');

/** Types whose values are better read and written in the panel. */
export const isLong = ({ type }: GridColumn): boolean => /^(?:json|jsonb|xml|bytea|text)\b|\[\]$/.test(type);

/** Columns whose value nobody can write. */
export const isFixed = ({ generated, identity }: GridColumn): boolean =>
  (generated ?? null) !== null || identity === 'always';

/** Types of which an empty text is a value. */
export const isText = ({ type }: GridColumn): boolean =>
  /^(?:text|character|citext|bpchar|name)\b(?!.*\[\])/.test(type);

/** More characters are never visible in a cell. */
const SHOWN = 400;

/** What a new row gets in a column that has no value yet. */
export function absentText(column: GridColumn): string {
  if (isFixed(column)) return 'generated';
  return (column.default ?? null) === null ? 'not set' : 'default';
}

interface CellValueProps {
  value: Value | undefined;
  column: GridColumn;
  /** The value is only the beginning of the real one. */
  isCut: boolean;
}

/** A value so that NULL, an empty text, a default and a cut value look different from any text. */
export function CellValue({ value, column, isCut }: CellValueProps) {
  if (value === undefined) return <span className="cell-mark">{absentText(column)}</span>;
  if (value === null) return <span className="cell-mark null">NULL</span>;
  if (value === '') return <span className="cell-mark">empty</span>;
  const text = typeof value === 'string' && value.length > SHOWN ? value.slice(0, SHOWN) : String(value);
  return (
    <>
      {column.type === 'bytea' && <span className="cell-mark">base64</span>}
      <span className="cell-text">{text}</span>
      {isCut && <span className="cell-mark">…</span>}
    </>
  );
}

export type Leave = 'down' | 'right' | 'stay';

interface CellEditorProps {
  column: GridColumn;
  value: Value | undefined;
  /** What was typed to begin; null to edit what is there. */
  typed: string | null;
  onCommit: (value: Value, leave: Leave) => void;
  onCancel: () => void;
}

const BOOLEANS = ['true', 'false'];

interface Picker {
  column: RegExp;
  input: string;
  value: RegExp;
  /** Follows each value: the API writes times with a zone in UTC. */
  zone?: string;
}

const MOMENT = '\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d(?:\\.\\d{1,3})?';

/** The pickers of the browser, for the values that they can hold: `infinity` and years before Christ they cannot. */
const PICKERS: readonly Picker[] = [
  { column: /^date$/, input: 'date', value: /^\d{4}-\d\d-\d\d$/ },
  {
    column: /^timestamp(?:\(\d\))? without time zone$/,
    input: 'datetime-local',
    value: new RegExp(`^${MOMENT}$`),
  },
  {
    column: /^timestamp(?:\(\d\))? with time zone$/,
    input: 'datetime-local',
    value: new RegExp(`^${MOMENT}\\+00$`),
    zone: '+00',
  },
  {
    column: /^time(?:\(\d\))? without time zone$/,
    input: 'time',
    value: /^\d\d:\d\d:\d\d(?:\.\d{1,3})?$/,
  },
];

/** The picker for a value, or for what is typed in its place. */
const pickerOf = ({ type }: GridColumn, before: string, typed: string | null): Picker | undefined =>
  PICKERS.find(
    ({ column, value }) => typed === null && column.test(type) && (before === '' || value.test(before)),
  );

/** The editor over a cell. Leaving it stages what it contains. */
export function CellEditor({ column, value, typed, onCommit, onCancel }: CellEditorProps) {
  const before = value === null || value === undefined ? '' : String(value);
  const [text, setText] = useState(typed ?? before);
  const isDone = useRef(false);
  const input = useRef<HTMLInputElement & HTMLSelectElement>(null);
  useEffect(() => {
    input.current?.focus();
    if (typed === null && input.current instanceof HTMLInputElement) input.current.select();
  }, [typed]);
  const finish = (leave: Leave) => {
    if (isDone.current) return;
    isDone.current = true;
    // Nothing was typed: NULL and a default stay what they are.
    if (text === before && (value === null || value === undefined)) onCancel();
    else onCommit(text, leave);
  };
  const cancel = () => {
    isDone.current = true;
    onCancel();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const leaves: Record<string, Leave> = { Enter: 'down', Tab: 'right' };
    const leave = leaves[event.key];
    if (leave) {
      event.preventDefault();
      finish(leave);
    } else if (event.key === 'Escape') {
      event.preventDefault();
      cancel();
    }
  };
  const options = column.enum_values ?? (column.type === 'boolean' ? BOOLEANS : null);
  const picker = pickerOf(column, before, typed);
  const zone = picker?.zone;
  const shared = {
    ref: input,
    'aria-label': `Value of ${column.name}${zone ? ', in UTC' : ''}`,
    value: text,
    onKeyDown,
    onBlur: () => finish('stay'),
  };
  if (options) {
    return (
      <select {...shared} onChange={(event) => setText(event.target.value)}>
        {!options.includes(text) && <option value={text}>{text}</option>}
        {options.map((option) => (
          <option key={option}>{option}</option>
        ))}
      </select>
    );
  }
  return (
    <>
      <input
        {...shared}
        type={picker?.input ?? 'text'}
        step="any"
        value={picker?.input === 'datetime-local' ? text.replace(zone ?? '', '').replace(' ', 'T') : text}
        spellCheck={false}
        autoComplete="off"
        onChange={({ target: { value: picked } }) =>
          setText(zone && picked !== '' ? `${picked.replace('T', ' ')}${zone}` : picked)
        }
      />
      {zone && <span className="zone">UTC</span>}
    </>
  );
}
