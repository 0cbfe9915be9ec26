import { useState } from 'react';
import { Button } from '../../components/button.tsx';
import { Dialog, TypedName } from '../../components/dialog.tsx';
import { ErrorNote, Note } from '../../components/feedback.tsx';
import { plural } from '../../strings/format.ts';

import { CellValue, type GridColumn } from './cell.tsx';

import { isSame, STATE_NAMES, type Staged, type StagedRow, stateOf } from './staged.ts';

interface Props {
  branch: string;
  columns: readonly GridColumn[];
  staged: Staged;
  isSaving: boolean;
  error: unknown;
  onSave: () => void;
  onDiscard: (key: string) => void;
  onDecide: (key: string, choice: 'mine' | 'theirs') => void;
  onClose: () => void;
}

function RowReview({
  columns,
  row,
  isConflict,
}: {
  columns: readonly GridColumn[];
  row: StagedRow;
  isConflict: boolean;
}) {
  const { theirs } = row;
  const isShown = ({ name }: GridColumn) =>
    Object.hasOwn(row.values, name) ||
    (isConflict && theirs != null && !isSame(theirs[name], row.original[name]));
  const shown = columns.filter(isShown);
  if (shown.length === 0) return null;
  const heads = isConflict ? ['Column', 'Was', 'Mine', 'Theirs'] : ['Column', 'Was', 'Becomes'];
  return (
    <table>
      <thead>
        <tr>
          {heads.map((head) => (
            <th key={head} scope="col">
              {head}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {shown.map((column) => (
          <tr key={column.name}>
            <th scope="row" className="mono">
              {column.name}
            </th>
            <td className="before">
              <CellValue value={row.original[column.name]} column={column} isCut={false} />
            </td>
            <td>
              {Object.hasOwn(row.values, column.name) ? (
                <CellValue value={row.values[column.name]} column={column} isCut={false} />
              ) : (
                '–'
              )}
            </td>
            {isConflict && theirs != null && (
              <td>
                <CellValue value={theirs[column.name]} column={column} isCut={false} />
              </td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

const TONES = { conflict: 'bad', new: 'good', deleted: 'bad', changed: 'warn' } as const;

/** All staged changes before they are saved together, and the conflicts after it. */
export function ReviewDialog({
  branch,
  columns,
  staged,
  isSaving,
  error,
  onSave,
  onDiscard,
  onDecide,
  onClose,
}: Props) {
  const [typed, setTyped] = useState('');
  const rows = Object.entries(staged);
  const conflicts = rows.filter(([, { theirs }]) => theirs !== undefined);
  const isMain = branch === 'main';
  const isAllowed = conflicts.length === 0 && (!isMain || typed === branch);
  return (
    <Dialog
      title={`Save ${plural(rows.length, 'row')} on ${branch}?`}
      large
      onClose={onClose}
      onSubmit={() => isAllowed && !isSaving && onSave()}
      footer={
        <>
          <Button onClick={onClose}>Continue editing</Button>
          <Button
            type="submit"
            look="primary"
            busy={isSaving}
            disabled={!isAllowed}
            {...(!isMain && { 'data-first-focus': true })}
          >
            Save {plural(rows.length, 'row')}
          </Button>
        </>
      }
    >
      {isMain && (
        <>
          <Note tone="main">This changes main, which every new branch is cloned from.</Note>
          <TypedName name={branch} value={typed} onChange={setTyped} isFirstFocus />
        </>
      )}
      {conflicts.length > 0 && (
        <Note tone="bad">
          {plural(conflicts.length, 'row')} changed in the meantime. Nothing is overwritten: decide for each
          one.
        </Note>
      )}
      {error !== null && <ErrorNote error={error} />}
      <div className="review">
        {rows.map(([key, row]) => {
          const kind = stateOf(row) ?? 'changed';
          return (
            <section
              className="review-row"
              key={key}
              aria-label={row.id === null ? 'New row' : `Row ${row.id.join(', ')}`}
            >
              <header>
                <span className={`badge ${TONES[kind]}`}>{STATE_NAMES[kind]}</span>
                <code className="grow">{row.id?.join(', ') ?? ''}</code>
                {kind === 'conflict' ? (
                  <>
                    {row.theirs === null ? (
                      <span className="quiet">The row was deleted.</span>
                    ) : (
                      <Button compact onClick={() => onDecide(key, 'mine')}>
                        Keep mine
                      </Button>
                    )}
                    <Button compact onClick={() => onDecide(key, 'theirs')}>
                      Take theirs
                    </Button>
                  </>
                ) : (
                  <Button compact look="bare" onClick={() => onDiscard(key)}>
                    Discard
                  </Button>
                )}
              </header>
              <RowReview
                columns={columns}
                row={row}
                isConflict={kind === 'conflict' && row.theirs !== null}
              />
            </section>
          );
        })}
      </div>
    </Dialog>
  );
}
