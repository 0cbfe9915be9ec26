import { useQuery } from '@tanstack/react-query';
import { useParams, useSearch } from '@tanstack/react-router';
import { useEffect } from 'react';
import { branchesQuery, tablesQuery } from '../../app/resources.ts';
import { BranchName } from '../../components/branch-status.tsx';
import { Snippet } from '../../components/copy.tsx';
import { Empty, Loaded } from '../../components/feedback.tsx';
import { TEXT } from '../../strings/common.ts';
import { TABLES_TEXT } from '../../strings/tables.ts';
import { selectionOf } from './row-source.ts';
import { TableEditor } from './table-editor.tsx';
import { TableList } from './table-list.tsx';
import './tables.css';

const EXAMPLE = 'create table item (id int generated always as identity primary key, name text not null);';

export function TablesPage() {
  const { projectId, branch } = useParams({ from: '/inside/projects/$projectId/branches/$branch/tables' });
  const search = useSearch({ from: '/inside/projects/$projectId/branches/$branch/tables' });
  const tables = useQuery(tablesQuery(projectId, branch));
  const record = useQuery(branchesQuery(projectId)).data?.find(({ branch_name }) => branch_name === branch);
  const all = tables.data ?? [];
  const chosen =
    all.find(({ schema, name }) => schema === (search.schema ?? 'public') && name === search.table) ??
    (search.table === undefined ? all[0] : undefined);
  useEffect(() => {
    document.title = `${TABLES_TEXT.name(branch)} · ${TEXT.name}`;
  }, [branch]);
  return (
    <main id="content" tabIndex={-1} className={branch === 'main' ? 'tables-page on-main' : 'tables-page'}>
      {tables.data && all.length > 0 ? (
        <>
          <TableList projectId={projectId} branch={branch} tables={all} chosen={chosen} />
          {chosen && record ? (
            <TableEditor
              key={`${record.id} ${chosen.schema}.${chosen.name}`}
              projectId={projectId}
              branch={record}
              table={chosen}
              selection={selectionOf(search)}
            />
          ) : (
            <Empty icon="table" heading="h1" title={TABLES_TEXT.noTable} />
          )}
        </>
      ) : (
        <div className="page tables-none">
          <div className="inner">
            <h1>
              {TEXT.nav.tables} <BranchName name={branch} />
            </h1>
            <Loaded query={tables}>
              {() => (
                <div className="card">
                  <Empty icon="table" title={TABLES_TEXT.noTables}>
                    <p>{TABLES_TEXT.noTablesHint}</p>
                    <Snippet code={EXAMPLE} label={TEXT.actions.copyCommand} />
                  </Empty>
                </div>
              )}
            </Loaded>
          </div>
        </div>
      )}
    </main>
  );
}
