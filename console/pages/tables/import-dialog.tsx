import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { plural } from '../../../shared/format.ts';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Note } from '../../components/feedback.tsx';
import { Field } from '../../components/field.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { api } from '../../data/gateway.ts';
import { refresh } from '../../data/query-client.ts';
import { inBranch, type Table, tablesQuery } from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import type { GridColumn } from './cell.tsx';
import {
  type CsvCell,
  type CsvColumn,
  columnsFor,
  createOf,
  insertOf,
  parseCsv,
  typeOf,
} from './table-sql.ts';

/** Characters of the statements, which are one transaction of the API. */
const SQL_MAX = 250_000;

interface Csv {
  columns: CsvColumn[];
  rows: CsvCell[][];
}

/** @param into the table that gets the rows; null: a new one. @throws Error for a file that does not fit */
function read(text: string, into: readonly GridColumn[] | null): Csv {
  const [names = [], ...rows] = parseCsv(text);
  if (rows.length === 0) throw new Error('The file has no rows. Its first row names the columns.');
  if (into) return { columns: columnsFor(names, into), rows };
  if (names.some((name) => name === null) || new Set(names).size < names.length)
    throw new Error('The first row has to name each column, and no two the same.');
  const columns = names.map((name, at) => ({
    name: name ?? '',
    type: typeOf(rows.map((cells) => cells[at] ?? null)),
  }));
  return { columns, rows };
}

interface Props {
  projectId: string;
  branch: string;
  /** Null: the file becomes a table. */
  into: { table: Table; columns: readonly GridColumn[] } | null;
  onDone: (table: Pick<Table, 'schema' | 'name'>) => void;
  onClose: () => void;
}

/** Loads a CSV file, all of it or nothing. */
export function ImportDialog({ projectId, branch, into, onDone, onClose }: Props) {
  const [csv, setCsv] = useState<Csv | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [name, setName] = useState(into?.table.name ?? '');
  const table = into?.table ?? { schema: 'public', name };
  const choose = async (file: File | undefined) => {
    setCsv(null);
    setProblem(null);
    if (!file) return;
    try {
      setCsv(read(await file.text(), into?.columns ?? null));
      if (!into && name === '')
        setName(
          file.name
            .replace(/\.\w+$/, '')
            .toLowerCase()
            .replaceAll(/\W+/g, '_'),
        );
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  const statements = csv && [
    ...(into ? [] : [createOf(table, csv.columns, csv.rows)]),
    insertOf(table, csv.columns, csv.rows),
  ];
  const sql = statements?.join(';\n') ?? '';
  const isTooLarge = sql.length > SQL_MAX;
  const load = () =>
    dataOf(
      api.POST('/api/v1/projects/{project_id}/branches/{branch_ref}/query', {
        params: inBranch(projectId, branch),
        body: { sql, role: into ? 'read_write' : 'owner' },
      }),
    );
  return (
    <ActionDialog
      title={into ? `Import CSV into ${table.name}` : 'Import CSV as a new table'}
      action="Import"
      isForm
      isReady={csv !== null && !isTooLarge && table.name !== ''}
      run={load}
      onDone={() => {
        refresh(tablesQuery(projectId, branch));
        announce(`${plural(csv?.rows.length ?? 0, 'row')} imported into ${table.name}.`);
        onDone(table);
      }}
      onClose={onClose}
      command={(project) =>
        COMMANDS.copyCsv(project, branch, table, !into && csv ? createOf(table, csv.columns, csv.rows) : '')
      }
    >
      <Field
        label="CSV file"
        type="file"
        accept=".csv,text/csv"
        hint="UTF-8, with commas. The first row names the columns, and an empty cell is NULL."
        problem={problem}
        onChange={({ target }) => choose(target.files?.[0])}
      />
      {!into && (
        <Field
          label="Name of the table"
          className="mono"
          value={name}
          onChange={({ target }) => setName(target.value)}
          autoComplete="off"
          spellCheck={false}
        />
      )}
      {csv && (
        <>
          <p>
            {plural(csv.rows.length, 'row')}, imported together or not at all.
            {!into && ' The types are those that all values of a column have.'}
          </p>
          <ListTable columns={['Column', 'Type', 'First value']} hasActions={false}>
            {csv.columns.map((column, at) => (
              <tr key={column.name}>
                <td className="mono">{column.name}</td>
                <td>{column.type}</td>
                <td className="mono truncate">{csv.rows[0]?.[at] ?? 'NULL'}</td>
              </tr>
            ))}
          </ListTable>
        </>
      )}
      {isTooLarge && (
        <Note tone="warn">
          The file is larger than one request of the API, about 200 KB. Load it with the command below.
        </Note>
      )}
    </ActionDialog>
  );
}
