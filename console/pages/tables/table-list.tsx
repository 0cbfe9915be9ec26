import { Link } from '@tanstack/react-router';
import { useState } from 'react';
import { bytes, compact } from '../../app/format.ts';
import type { Table } from '../../app/resources.ts';
import { Icon } from '../../components/icon.tsx';
import { TEXT } from '../../strings/common.ts';
import { TABLES_TEXT } from '../../strings/tables.ts';

interface Props {
  projectId: string;
  branch: string;
  tables: readonly Table[];
  chosen: Table | undefined;
}

/** The tables and views of a branch by their schema. */
export function TableList({ projectId, branch, tables, chosen }: Props) {
  const [wanted, setWanted] = useState('');
  const shown = tables.filter(({ schema, name }) => `${schema}.${name}`.includes(wanted.trim()));
  const schemas = Map.groupBy(shown, ({ schema }) => schema);
  return (
    <nav className="table-list" aria-label={TEXT.nav.tables}>
      <input
        className="input"
        type="search"
        aria-label={TABLES_TEXT.filter}
        placeholder={TABLES_TEXT.filter}
        value={wanted}
        onChange={(event) => setWanted(event.target.value)}
      />
      {[...schemas].map(([schema, list]) => (
        <div key={schema}>
          <h2 className="mono">{schema}</h2>
          <ul>
            {list.map((table) => (
              <li key={table.name}>
                <Link
                  to="/projects/$projectId/branches/$branch/tables"
                  params={{ projectId, branch }}
                  search={{ schema, table: table.name }}
                  aria-current={table === chosen ? 'page' : undefined}
                  title={table.size_bytes === null ? table.name : `${table.name}, ${bytes(table.size_bytes)}`}
                >
                  <Icon name={table.kind.includes('view') ? 'eye' : 'table'} />
                  <span className="truncate grow">{table.name}</span>
                  {table.estimated_rows !== null && (
                    <span className="quiet">{compact(table.estimated_rows)}</span>
                  )}
                </Link>
              </li>
            ))}
          </ul>
        </div>
      ))}
      {shown.length === 0 && <p className="quiet small">{TABLES_TEXT.noTable}</p>}
    </nav>
  );
}
