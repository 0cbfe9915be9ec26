import { useQuery } from '@tanstack/react-query';
import { createFileRoute, Link, useNavigate } from '@tanstack/react-router';
import { lazy, Suspense, useEffect, useState } from 'react';
import { bytes, compact } from '../../../shared/format.ts';
import { BranchName } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { Snippet } from '../../components/copy.tsx';
import { Empty, Loaded } from '../../components/feedback.tsx';
import { HostAwayNote } from '../../components/host-away.tsx';
import { Icon } from '../../components/icon.tsx';
import { branchesQuery, type Table, tablesQuery } from '../../data/resources.ts';
import { texts } from '../../data/search.ts';
import { mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { TEXT } from '../../strings/common.ts';
import { selectionOf } from './rows.ts';
import { TableEditor } from './table-editor.tsx';

interface Props {
  projectId: string;
  branch: string;
  tables: readonly Table[];
  chosen: Table | undefined;
  /** Null: no table can be made here. */
  onImport: (() => void) | null;
}

const ImportDialog = lazy(() =>
  import('./import-dialog.tsx').then(({ ImportDialog }) => ({ default: ImportDialog })),
);

/** On a phone, the list shows three tables. */
const show = (link: HTMLElement | null) => link?.scrollIntoView({ block: 'nearest' });

/** The tables and views of a branch by their schema. */
function TableList({ projectId, branch, tables, chosen, onImport }: Props) {
  const [wanted, setWanted] = useState('');
  const shown = tables.filter(({ schema, name }) => `${schema}.${name}`.includes(wanted.trim()));
  const schemas = Map.groupBy(shown, ({ schema }) => schema);
  return (
    <nav className="table-list" aria-label={TEXT.nav.tables}>
      <input
        className="input"
        type="search"
        aria-label="Filter tables"
        placeholder="Filter tables"
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
                  ref={table === chosen ? show : undefined}
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
      {shown.length === 0 && <p className="quiet small">There is no such table.</p>}
      {onImport && (
        <Button compact look="bare" icon="plus" onClick={onImport}>
          Import CSV
        </Button>
      )}
    </nav>
  );
}

/** Most people look for their tables, which are in `public` unless they chose another schema. */
const bySchema = (one: Table, other: Table) =>
  Number(other.schema === 'public') - Number(one.schema === 'public');

const EXAMPLE = 'create table item (id int generated always as identity primary key, name text not null);';

export const Route = createFileRoute('/_inside/projects/$projectId/branches/$branch/tables')({
  validateSearch: texts('schema', 'table', 'where', 'order'),
  component: TablesPage,
});

function TablesPage() {
  const { projectId, branch } = Route.useParams();
  const search = Route.useSearch();
  const navigate = useNavigate();
  const tables = useQuery(tablesQuery(projectId, branch));
  const record = useQuery(branchesQuery(projectId)).data?.find(({ branch_name }) => branch_name === branch);
  const all = (tables.data ?? []).toSorted(bySchema);
  const chosen =
    all.find(({ schema, name }) => schema === (search.schema ?? 'public') && name === search.table) ??
    (search.table === undefined ? all[0] : undefined);
  const session = useStore(sessionStore);
  const [isImporting, setImporting] = useState(false);
  // Of `main`, the console makes the first tables only.
  const isOpen = record !== undefined && (record.is_default ? all.length === 0 : !record.protected);
  const mayImport = isOpen && session.state === 'signed_in' && mayChange(session.me);
  useEffect(() => {
    document.title = `Tables of ${branch} · ${TEXT.name}`;
  }, [branch]);
  return (
    <main id="content" tabIndex={-1} className={branch === 'main' ? 'tables-page on-main' : 'tables-page'}>
      {tables.data && all.length > 0 ? (
        <>
          <TableList
            projectId={projectId}
            branch={branch}
            tables={all}
            chosen={chosen}
            onImport={mayImport ? () => setImporting(true) : null}
          />
          {chosen && record ? (
            <TableEditor
              key={`${record.id} ${chosen.schema}.${chosen.name}`}
              projectId={projectId}
              branch={record}
              table={chosen}
              selection={selectionOf(search)}
            />
          ) : (
            <Empty icon="table" heading="h1" title="There is no such table." />
          )}
        </>
      ) : (
        <div className="page tables-none">
          <div className="inner">
            <h1>
              {TEXT.nav.tables} <BranchName name={branch} />
            </h1>
            <HostAwayNote projectId={projectId} />
            <Loaded query={tables}>
              {() => (
                <div className="card">
                  <Empty icon="table" title="No tables yet">
                    <p>Create one on the SQL page, with psql or your migrations. Its rows appear here.</p>
                    <Snippet code={EXAMPLE} label="Copy the command" />
                    {mayImport && (
                      <Button icon="plus" onClick={() => setImporting(true)}>
                        Import a CSV file
                      </Button>
                    )}
                  </Empty>
                </div>
              )}
            </Loaded>
          </div>
        </div>
      )}
      <Suspense>
        {isImporting && (
          <ImportDialog
            projectId={projectId}
            branch={branch}
            into={null}
            onDone={({ schema, name }) =>
              navigate({
                to: '/projects/$projectId/branches/$branch/tables',
                params: { projectId, branch },
                search: { schema, table: name },
              })
            }
            onClose={() => setImporting(false)}
          />
        )}
      </Suspense>
    </main>
  );
}
