import { useEffect, useState } from 'react';
import { Button } from '../../components/button.tsx';
import { CopyButton } from '../../components/copy.tsx';
import { Note } from '../../components/feedback.tsx';
import { absentText, type GridColumn, isFixed, isText } from './cell.tsx';

import type { Value } from './staged.ts';

export interface CellActions {
  stage: (value: Value) => void;
  /** A new row takes the default of the column again. */
  useDefault: (() => void) | null;
  revert: (() => void) | null;
  follow: (() => void) | null;
}

interface Props {
  column: GridColumn;
  value: Value | undefined;
  isCut: boolean;
  mayEdit: boolean;
  actions: CellActions;
}

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

/** The active cell in full, with everything that can be done to it. */
export function CellPanel({ column, value, isCut, mayEdit, actions }: Props) {
  const shown = readable(value, column);
  const [text, setText] = useState(shown);
  useEffect(() => setText(shown), [shown]);
  const fixed = isFixed(column);
  const isEditable = mayEdit && !fixed && !isCut;
  const facts = [
    column.type,
    column.nullable ? null : 'not null',
    column.is_primary_key ? 'primary key' : null,
    (column.default ?? null) === null ? null : `default ${column.default ?? ''}`,
    fixed ? 'generated' : null,
  ];
  return (
    <aside className="cell-panel" aria-label="Active cell">
      <h2 className="mono">{column.name}</h2>
      <p className="small quiet">{facts.filter(Boolean).join(' · ')}</p>
      {isCut && (
        <Note>Only the beginning of this value is shown, so it cannot be changed here. Use psql.</Note>
      )}
      <textarea
        className="input mono"
        aria-label={`Value of ${column.name}`}
        placeholder={value === null ? 'NULL' : value === undefined ? absentText(column) : 'empty'}
        rows={8}
        value={text}
        readOnly={!isEditable}
        spellCheck={false}
        onChange={(event) => setText(event.target.value)}
      />
      <div className="row">
        {isEditable && (
          <Button compact look="primary" disabled={text === shown} onClick={() => actions.stage(text)}>
            Stage
          </Button>
        )}
        {isEditable && column.nullable && value !== null && (
          <Button compact onClick={() => actions.stage(null)}>
            Set NULL
          </Button>
        )}
        {isEditable && isText(column) && value !== '' && (
          <Button compact onClick={() => actions.stage('')}>
            Set empty text
          </Button>
        )}
        {isEditable && actions.useDefault && (
          <Button compact onClick={actions.useDefault}>
            Use the default
          </Button>
        )}
        {actions.revert && (
          <Button compact onClick={actions.revert}>
            Undo
          </Button>
        )}
        {actions.follow && (
          <Button compact icon="link" onClick={actions.follow}>
            Open the referenced row
          </Button>
        )}
        {typeof value === 'string' && value !== '' && <CopyButton text={value} label="Copy the value" />}
      </div>
    </aside>
  );
}
