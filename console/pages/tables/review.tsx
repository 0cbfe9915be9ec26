import { useState } from 'react';
import { plural } from '../../../shared/format.ts';
import { Button } from '../../components/button.tsx';
import { Dialog, TypedName } from '../../components/dialog.tsx';
import { announce, ErrorNote, Note } from '../../components/feedback.tsx';
import type { Branch } from '../../data/resources.ts';
import { CellValue, type GridColumn } from './cell.tsx';
import { decide, discard, isSame, STATE_NAMES, type StagedRow, stateOf } from './staged.ts';
import { focusGrid } from './use-editing.ts';
import type { TableView } from './use-table.ts';

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

const isTyping = () => document.activeElement?.closest('.grid-editor, .inspector') != null;

interface Props {
  view: TableView;
  branch: Branch;
  onClose: () => void;
}

/** All staged changes before they are saved together, and the conflicts after it. */
export function Review({ view, branch, onClose }: Props) {
  const { columns, staged, saving, change, latest } = view;
  const [typed, setTyped] = useState('');
  const rows = Object.entries(staged);
  const conflicts = rows.filter(([, { theirs }]) => theirs !== undefined);
  const { branch_name: name, is_default: isMain, protected: isProtected } = branch;
  const isGuarded = isMain || isProtected;
  const save = () =>
    saving.mutate(undefined, {
      onSuccess: (saved) => {
        const left = Object.values(latest());
        if (left.some(({ theirs }) => theirs !== undefined)) return;
        announce(`${plural(saved, 'row')} saved.`);
        // What a person changed during the save is not saved yet.
        if (left.length > 0) return;
        onClose();
        if (!isTyping()) focusGrid();
      },
    });
  const isAllowed = conflicts.length === 0 && (!isGuarded || typed === name);
  return (
    <Dialog
      title={`Save ${plural(rows.length, 'row')} on ${name}?`}
      large
      onClose={onClose}
      onSubmit={() => isAllowed && !saving.isPending && save()}
      footer={
        <>
          <Button onClick={onClose}>Continue editing</Button>
          <Button
            type="submit"
            look="primary"
            busy={saving.isPending}
            disabled={!isAllowed}
            {...(!isGuarded && { 'data-first-focus': true })}
          >
            Save {plural(rows.length, 'row')}
          </Button>
        </>
      }
    >
      {isGuarded && (
        <>
          <Note tone="main">
            {isMain
              ? 'This changes main, which every new branch is cloned from.'
              : `This changes ${name}, which is protected.`}
          </Note>
          <TypedName name={name} value={typed} onChange={setTyped} isFirstFocus />
        </>
      )}
      {conflicts.length > 0 && (
        <Note tone="bad">
          {plural(conflicts.length, 'row')} changed in the meantime. Nothing is overwritten: decide for each
          one.
        </Note>
      )}
      {saving.isError && <ErrorNote error={saving.error} />}
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
                      <Button compact onClick={() => change(decide(latest(), key, 'mine'))}>
                        Keep mine
                      </Button>
                    )}
                    <Button compact onClick={() => change(decide(latest(), key, 'theirs'))}>
                      Take theirs
                    </Button>
                  </>
                ) : (
                  <Button compact look="bare" onClick={() => change(discard(latest(), key))}>
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
