import { useState } from 'react';
import { Button } from '../../components/button.tsx';
import { Dialog, TypedName } from '../../components/dialog.tsx';
import { ErrorNote, Note } from '../../components/feedback.tsx';

import { TABLES_TEXT } from '../../strings/tables.ts';
import { CellValue, type GridColumn } from './cell.tsx';

import { isSame, type Staged, type StagedRow } from './staged.ts';

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
  const heads = isConflict
    ? [TABLES_TEXT.column, TABLES_TEXT.before, TABLES_TEXT.mine, TABLES_TEXT.theirs]
    : [TABLES_TEXT.column, TABLES_TEXT.before, TABLES_TEXT.after];
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

const kindOf = ({ id, isDeleted, theirs }: StagedRow) => {
  if (theirs !== undefined) return 'conflict';
  if (id === null) return 'new';
  return isDeleted ? 'deleted' : 'changed';
};

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
      title={TABLES_TEXT.review(rows.length, branch)}
      large
      onClose={onClose}
      onSubmit={() => isAllowed && !isSaving && onSave()}
      footer={
        <>
          <Button onClick={onClose}>{TABLES_TEXT.goOn}</Button>
          <Button
            type="submit"
            look="primary"
            busy={isSaving}
            disabled={!isAllowed}
            {...(!isMain && { 'data-first-focus': true })}
          >
            {TABLES_TEXT.save(rows.length)}
          </Button>
        </>
      }
    >
      {isMain && (
        <>
          <Note tone="main">{TABLES_TEXT.onMain}</Note>
          <TypedName name={branch} value={typed} onChange={setTyped} isFirstFocus />
        </>
      )}
      {conflicts.length > 0 && <Note tone="bad">{TABLES_TEXT.conflicts(conflicts.length)}</Note>}
      {error !== null && <ErrorNote error={error} />}
      <div className="review">
        {rows.map(([key, row]) => {
          const kind = kindOf(row);
          return (
            <section
              className="review-row"
              key={key}
              aria-label={TABLES_TEXT.rowOf(row.id?.join(', ') ?? '')}
            >
              <header>
                <span className={`badge ${TONES[kind]}`}>{TABLES_TEXT.rowStates[kind]}</span>
                <code className="grow">{row.id?.join(', ') ?? ''}</code>
                {kind === 'conflict' ? (
                  <>
                    {row.theirs === null ? (
                      <span className="quiet">{TABLES_TEXT.gone}</span>
                    ) : (
                      <Button compact onClick={() => onDecide(key, 'mine')}>
                        {TABLES_TEXT.keepMine}
                      </Button>
                    )}
                    <Button compact onClick={() => onDecide(key, 'theirs')}>
                      {TABLES_TEXT.takeTheirs}
                    </Button>
                  </>
                ) : (
                  <Button compact look="bare" onClick={() => onDiscard(key)}>
                    {TABLES_TEXT.discard}
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
