import { Link } from '@tanstack/react-router';
import { useEffect, useRef, useState } from 'react';
import { Button } from '../../components/button.tsx';
import { CopyButton } from '../../components/copy.tsx';
import { Note } from '../../components/feedback.tsx';
import { Icon } from '../../components/icon.tsx';
import { absentText, type GridColumn, isFixed, isText } from './cell.tsx';
import { referencedRow } from './rows.ts';
import { type Value, withoutValue } from './staged.ts';
import { formProblem } from './table-sql.ts';
import type { TableEditing } from './use-editing.ts';
import { cellOf, type TableView, type Target } from './use-table.ts';

/** JSON for a person to read; other text as it is. The value that is saved is the text of the box. */
function readable(value: Value | undefined, { type }: GridColumn): string {
  if (value === null || value === undefined) return '';
  if (!/^jsonb?$/.test(type)) return String(value);
  try {
    const parsed = JSON.parse(String(value));
    const pretty = JSON.stringify(parsed, null, 2);
    // Numbers with more digits than JavaScript keeps would change.
    return JSON.stringify(parsed).replaceAll(/\s/g, '') === String(value).replaceAll(/\s/g, '')
      ? pretty
      : String(value);
  } catch {
    return String(value);
  }
}

interface BoxProps {
  column: GridColumn;
  target: Target;
  isCut: boolean;
  view: TableView;
  editing: TableEditing;
  /** The text box takes the focus. */
  isFocused: boolean;
}

/** The value of a cell as text, with what can be done to it. */
function ValueBox({ column, target, isCut, view, editing, isFocused }: BoxProps) {
  const { staged, change, latest } = view;
  const value = cellOf(staged, target, column.name);
  const shown = readable(value, column);
  const [text, setText] = useState(shown);
  const box = useRef<HTMLTextAreaElement>(null);
  useEffect(() => setText(shown), [shown]);
  useEffect(() => {
    if (isFocused) box.current?.focus();
  }, [isFocused]);
  const isEditable = editing.mayEdit && !isFixed(column) && !isCut;
  const isStaged = Object.hasOwn(staged[target.key]?.values ?? {}, column.name);
  const stage = (next: Value) => editing.stage(target, column, next);
  const problem = text === shown ? null : formProblem(column, text);
  const unstage = () => change(withoutValue(latest(), target.key, column.name));
  return (
    <>
      {isCut && (
        <Note>Only the beginning of this value is shown, so it cannot be changed here. Use psql.</Note>
      )}
      <textarea
        ref={box}
        className="input mono"
        aria-label={`Value of ${column.name}`}
        placeholder={value === null ? 'NULL' : value === undefined ? absentText(column) : 'empty'}
        rows={8}
        value={text}
        readOnly={!isEditable}
        spellCheck={false}
        aria-invalid={problem !== null}
        onChange={(event) => setText(event.target.value)}
      />
      {problem !== null && (
        <p className="problem small" role="alert">
          {problem}
        </p>
      )}
      <div className="row">
        {isEditable && (
          <Button
            compact
            look="primary"
            disabled={text === shown || problem !== null}
            onClick={() => stage(text)}
          >
            Stage
          </Button>
        )}
        {isEditable && column.nullable && value !== null && (
          <Button compact onClick={() => stage(null)}>
            Set NULL
          </Button>
        )}
        {isEditable && isText(column) && value !== '' && (
          <Button compact onClick={() => stage('')}>
            Set empty text
          </Button>
        )}
        {isStaged && (
          <Button compact onClick={unstage}>
            {target.id === null ? 'Use the default' : 'Undo'}
          </Button>
        )}
        {typeof value === 'string' && value !== '' && <CopyButton text={value} label="Copy the value" />}
      </div>
    </>
  );
}

interface InspectorProps {
  projectId: string;
  branch: string;
  view: TableView;
  editing: TableEditing;
  isFocused: boolean;
  onClose: () => void;
}

/** The active cell in full, with its column and where its foreign key leads. */
export function Inspector({ projectId, branch, view, editing, isFocused, onClose }: InspectorProps) {
  const { column, target, active } = editing;
  const follow = target && column ? referencedRow(view.details, target.original, column.name) : null;
  const facts = column && [
    column.type,
    column.nullable ? null : 'not null',
    column.is_primary_key ? 'primary key' : null,
    (column.default ?? null) === null ? null : `default ${column.default ?? ''}`,
    isFixed(column) ? 'generated' : null,
  ];
  return (
    <aside className="inspector" aria-label="Active cell">
      <div className="row">
        <h2 className="mono grow truncate">{column?.name ?? 'No cell'}</h2>
        <Button compact look="bare" icon="close" aria-label="Close the inspector" onClick={onClose} />
      </div>
      {facts && <p className="small quiet">{facts.filter(Boolean).join(' · ')}</p>}
      {column && target && (
        <ValueBox
          key={`${target.key} ${column.name}`}
          column={column}
          target={target}
          isCut={target.id !== null && view.isCutAt(active, column.name)}
          view={view}
          editing={editing}
          isFocused={isFocused}
        />
      )}
      {follow && (
        <Link
          className="button compact"
          to="/projects/$projectId/branches/$branch/tables"
          params={{ projectId, branch }}
          search={{ schema: follow.schema, table: follow.table, where: JSON.stringify(follow.filters) }}
        >
          <Icon name="link" /> Open the referenced row
        </Link>
      )}
    </aside>
  );
}
