import { useMutation } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { lazy, Suspense, useCallback, useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { plural } from '../../../shared/format.ts';
import { BranchName } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { announce, ErrorNote, Note, ReadError } from '../../components/feedback.tsx';
import { HostAwayNote } from '../../components/host-away.tsx';
import type { MenuEntry } from '../../components/menu.tsx';
import { csvOf, saveFile } from '../../data/csv.ts';
import { api } from '../../data/gateway.ts';
import { type Branch, inBranch, type Table } from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { CellEditor } from './cell.tsx';
import { FilterBar } from './filter-bar.tsx';
import { Grid } from './grid.tsx';
import { Inspector } from './inspector.tsx';
import { Review } from './review.tsx';
import type { Filter, Order, Selection } from './rows.ts';
import { countOf, type Row } from './staged.ts';
import { selectOf } from './table-sql.ts';
import { type TableEditing, useEditing } from './use-editing.ts';
import { cellOf, type TableView, useTable } from './use-table.ts';

const ImportDialog = lazy(() =>
  import('./import-dialog.tsx').then(({ ImportDialog }) => ({ default: ImportDialog })),
);

interface Props {
  projectId: string;
  branch: Branch;
  table: Table;
  selection: Selection;
}

/** Ascending, then descending, then the order of the key again. */
function nextOrder(order: Order | null, column: string): Order | null {
  if (order?.column !== column) return { column, direction: 'asc' };
  return order.direction === 'asc' ? { column, direction: 'desc' } : null;
}

interface BarProps {
  entries: MenuEntry[];
  branch: string;
  table: Table;
  view: TableView;
  editing: TableEditing;
  isInspecting: boolean;
  onInspect: (isOpen: boolean) => void;
}

function TableBar({ entries, branch, table, view, editing, isInspecting, onInspect }: BarProps) {
  const { mayEdit, target } = editing;
  return (
    <div className="table-bar">
      <h1 className="mono truncate">
        {table.schema === 'public' ? '' : `${table.schema}.`}
        {table.name}
      </h1>
      <BranchName name={branch} />
      <span className="grow" />
      {mayEdit && (
        <Button compact icon="plus" onClick={editing.addRow}>
          Add row
        </Button>
      )}
      {mayEdit && target && (
        <Button compact icon="trash" look="danger" onClick={() => editing.markDeleted(target)}>
          {view.staged[target.key]?.isDeleted ? 'Keep row' : 'Delete row'}
        </Button>
      )}
      <Button compact icon="refresh" onClick={view.reload}>
        Reload
      </Button>
      <Button compact icon="eye" aria-pressed={isInspecting} onClick={() => onInspect(!isInspecting)}>
        Inspect cell
      </Button>
      {entries.map(({ id, label, icon, onAction }) => (
        <Button key={id} compact icon={icon} onClick={onAction}>
          {label}
        </Button>
      ))}
    </div>
  );
}

function EditedCell({ view, editing }: { view: TableView; editing: TableEditing }) {
  const { edited } = editing;
  if (!edited) return null;
  return (
    <CellEditor
      key={`${edited.target.key} ${edited.column.name}`}
      column={edited.column}
      value={cellOf(view.staged, edited.target, edited.column.name)}
      typed={edited.typed}
      onCommit={(value, leave) => editing.commit(edited, value, leave)}
      onCancel={editing.cancel}
    />
  );
}

/** Rows, with changes that are staged until a person has reviewed them. */
export function TableEditor({ projectId, branch, table, selection }: Props) {
  const navigate = useNavigate();
  const view = useTable(projectId, branch, table, selection);
  const { columns, rows, newRows, setVisible } = view;
  const [inspector, setInspector] = useState<'closed' | 'open' | 'focused'>('closed');
  const [isReviewing, setReviewing] = useState(false);
  const [isImporting, setImporting] = useState(false);
  const editing = useEditing(view, {
    onInspect: () => setInspector('focused'),
    onReview: () => setReviewing(countOf(view.latest()) > 0),
  });
  const { active, edited } = editing;
  const onVisible = useCallback((first: number, last: number) => setVisible({ first, last }), [setVisible]);

  const select = (next: { filters?: Filter[]; order?: Order | null }) => {
    const { filters, order } = { ...selection, ...next };
    navigate({
      to: '/projects/$projectId/branches/$branch/tables',
      params: { projectId, branch: branch.branch_name },
      search: {
        schema: table.schema,
        table: table.name,
        ...(filters.length > 0 && { where: JSON.stringify(filters) }),
        ...(order && { order: JSON.stringify(order) }),
      },
      replace: true,
    });
  };

  const ask = async (what: string) => {
    const { sql, params } = selectOf(table, what, selection);
    return dataOf(
      api.POST('/api/v1/projects/{project_id}/branches/{branch_ref}/query', {
        params: inBranch(projectId, branch.id),
        body: { sql, params, role: 'read_only' },
      }),
    );
  };
  const asking = useMutation({
    mutationFn: async (what: 'count' | 'export') => {
      if (what === 'count') {
        const { rows: counted } = await ask('count(*)');
        const found = Number(counted[0]?.[0]);
        announce(`${plural(found, 'row')}${selection.filters.length > 0 ? ' match the filters' : ''}.`);
        return;
      }
      const { columns: named, rows: read, has_more: hasMore, truncated } = await ask('*');
      saveFile(
        `${table.name}.csv`,
        csvOf(
          named.map(({ name }) => name),
          read,
        ),
      );
      const cut =
        truncated.length > 0 ? ` ${plural(truncated.length, 'long value is', 'long values are')} cut.` : '';
      announce(
        `${plural(read.length, 'row')} saved.${hasMore ? ' The table has more than fit into 1 MiB: use \\copy of psql.' : ''}${cut}`,
      );
    },
  });
  const isGuarded = branch.is_default || branch.protected;
  const entries: MenuEntry[] = [
    { id: 'count', label: 'Count', icon: 'list', onAction: () => asking.mutate('count') },
    { id: 'export', label: 'Export CSV', icon: 'share', onAction: () => asking.mutate('export') },
    ...(isGuarded || view.readOnly !== null
      ? []
      : [
          {
            id: 'import',
            label: 'Import CSV',
            icon: 'plus' as const,
            onAction: () => setImporting(true),
          },
        ]),
  ];

  const count = countOf(view.staged);
  const isEmpty = rows.count + newRows.length === 0 && !rows.isLoading && rows.error === null;
  return (
    <section className="table-area" aria-label={table.name}>
      <TableBar
        entries={entries}
        branch={branch.branch_name}
        table={table}
        view={view}
        editing={editing}
        isInspecting={inspector !== 'closed'}
        onInspect={(isOpen) => setInspector(isOpen ? 'open' : 'closed')}
      />
      <FilterBar columns={columns} filters={selection.filters} onChange={(filters) => select({ filters })} />
      <div className="table-notes">
        <HostAwayNote projectId={projectId} />
        {view.readOnly !== null && <Note>{view.readOnly}</Note>}
        {asking.isError && <ErrorNote error={asking.error} />}
        {rows.error !== null && <ReadError error={rows.error} onRetry={rows.refetch} />}
      </div>
      <div className="table-work" data-inspector={inspector}>
        <Grid
          label={`Rows of ${table.name} on ${branch.branch_name}`}
          columns={columns}
          widthsKey={`${projectId} ${table.schema}.${table.name}`}
          newRows={newRows}
          count={rows.count}
          rowAt={rows.rowAt as (index: number) => Row | undefined}
          isCut={rows.isCut}
          stagedAt={view.stagedAt}
          active={active}
          onActive={editing.setActive}
          onEdit={editing.edit}
          onKey={editing.onKey}
          onVisible={onVisible}
          order={selection.order}
          onOrder={(name) => select({ order: nextOrder(selection.order, name) })}
          editor={edited && { position: edited.position, node: <EditedCell view={view} editing={editing} /> }}
        />
        {isEmpty && (
          <p className="no-rows" role="status">
            {selection.filters.length > 0 ? 'No rows match the filters.' : 'No rows'}
          </p>
        )}
        {inspector !== 'closed' && (
          <Inspector
            projectId={projectId}
            branch={branch.branch_name}
            view={view}
            editing={editing}
            isFocused={inspector === 'focused'}
            onClose={() => setInspector('closed')}
          />
        )}
      </div>
      <CommandLine command={(project) => COMMANDS.rows(project, branch.branch_name, table, selection)} />
      {count > 0 && (
        <div className="staged-bar" role="status">
          <span className="grow">{plural(count, 'changed row')}, not saved yet</span>
          <Button compact onClick={() => view.change({})}>
            Discard
          </Button>
          <Button compact look="primary" onClick={() => setReviewing(true)}>
            Review and save
          </Button>
        </div>
      )}
      <Suspense>
        {isImporting && (
          <ImportDialog
            projectId={projectId}
            branch={branch.branch_name}
            into={{ table, columns }}
            onDone={view.reload}
            onClose={() => setImporting(false)}
          />
        )}
      </Suspense>
      {isReviewing && count > 0 && <Review view={view} branch={branch} onClose={() => setReviewing(false)} />}
    </section>
  );
}
