import './difference.css';
import { useInfiniteQuery, useIsFetching } from '@tanstack/react-query';
import { Button } from '../../components/button.tsx';
import { Loaded } from '../../components/feedback.tsx';
import { CellValue, type GridColumn } from '../tables/cell.tsx';
import { type ChangedRows, changedRowsQuery, differenceQuery, type Sides } from './differences.ts';

const CHANGES = { inserted: 'Added', updated: 'Changed', deleted: 'Deleted' } as const;

type ChangedRow = ChangedRows['rows'][number];
type Column = ChangedRows['columns']['before'][number];

const TONES = { inserted: 'good', updated: 'warn', deleted: 'bad' } as const;

const asGridColumn = ({ name, type }: Column): GridColumn => ({
  name,
  type,
  nullable: true,
  is_primary_key: false,
});

/** The columns of both sides, those of the branch first. */
function columnsOf({ columns: { before, after } }: ChangedRows): Column[] {
  const names = new Set(after.map(({ name }) => name));
  return [...after, ...before.filter(({ name }) => !names.has(name))];
}

interface RowProps {
  page: ChangedRows;
  row: ChangedRow;
  index: number;
}

/** One row with the columns that differ; all of them if only one side has the row. */
function RowDifference({ page, row, index }: RowProps) {
  const { before, after, change } = row;
  const id = page.primary_key.map((name) => String((after ?? before)?.[name])).join(', ');
  const differs = ({ name }: Column) =>
    change !== 'updated' ||
    (before as Record<string, unknown>)[name] !== (after as Record<string, unknown>)[name];
  const isCut = (side: 'before' | 'after', name: string) =>
    page.truncated.some((cell) => cell.row === index && cell.side === side && cell.column === name);
  const cell = (side: 'before' | 'after', column: Column) => {
    const value = row[side]?.[column.name];
    if (value === undefined) return '–';
    return <CellValue value={value} column={asGridColumn(column)} isCut={isCut(side, column.name)} />;
  };
  return (
    <li className="changed-row">
      <p className="row">
        <span className={`badge ${TONES[change]}`}>{CHANGES[change]}</span>
        <span className="mono">Row {id}</span>
      </p>
      <div className="table-scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">Column</th>
              {change !== 'inserted' && <th scope="col">Was</th>}
              {change !== 'deleted' && <th scope="col">Becomes</th>}
            </tr>
          </thead>
          <tbody>
            {columnsOf(page)
              .filter(differs)
              .map((column) => (
                <tr key={column.name}>
                  <th scope="row" className="mono">
                    {column.name}
                  </th>
                  {change !== 'inserted' && <td className="before">{cell('before', column)}</td>}
                  {change !== 'deleted' && <td className="after">{cell('after', column)}</td>}
                </tr>
              ))}
          </tbody>
        </table>
      </div>
    </li>
  );
}

interface Props {
  sides: Sides;
  schema: string;
  table: string;
  onClose: () => void;
}

/** The rows of a table that differ, before and after. */
export function ChangedRowsCard({ sides, schema, table, onClose }: Props) {
  // A project has few operations on its databases at a time.
  const isCounting = useIsFetching({ queryKey: differenceQuery(sides, 'rows').queryKey }) > 0;
  const rows = useInfiniteQuery({ ...changedRowsQuery(sides, schema, table), enabled: !isCounting });
  return (
    <section className="card" aria-labelledby="changed-rows">
      <header>
        <h2 id="changed-rows">Rows of {table} that differ</h2>
        <Button compact look="bare" icon="close" aria-label="Close the rows" onClick={onClose} />
      </header>
      <div className="body stack">
        <Loaded query={rows}>
          {({ pages }) => (
            <ul className="changed-rows">
              {pages.flatMap((page, at) =>
                page.rows.map((row, index) => (
                  // biome-ignore lint/suspicious/noArrayIndexKey: pages and their rows only become more
                  <RowDifference key={`${at} ${index}`} page={page} row={row} index={index} />
                )),
              )}
            </ul>
          )}
        </Loaded>
        {rows.hasNextPage && (
          <div>
            <Button busy={rows.isFetchingNextPage} onClick={() => rows.fetchNextPage()}>
              Load more
            </Button>
          </div>
        )}
      </div>
    </section>
  );
}
