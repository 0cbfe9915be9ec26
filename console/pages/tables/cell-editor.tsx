import { type KeyboardEvent, useEffect, useRef, useState } from 'react';
import { TABLES_TEXT } from '../../strings/tables.ts';
import type { GridColumn } from './columns.ts';
import type { Value } from './staged.ts';

export type Leave = 'down' | 'right' | 'stay';

interface Props {
  column: GridColumn;
  value: Value | undefined;
  /** What was typed to begin; null to edit what is there. */
  typed: string | null;
  onCommit: (value: Value, leave: Leave) => void;
  onCancel: () => void;
}

const BOOLEANS = ['true', 'false'];

/** The editor over a cell. Leaving it stages what it contains. */
export function CellEditor({ column, value, typed, onCommit, onCancel }: Props) {
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
  const shared = {
    ref: input,
    'aria-label': TABLES_TEXT.editorOf(column.name),
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
    <input
      {...shared}
      spellCheck={false}
      autoComplete="off"
      onChange={(event) => setText(event.target.value)}
    />
  );
}
