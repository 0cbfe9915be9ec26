import { queryOptions, useQuery } from '@tanstack/react-query';
import { createFileRoute, Link, useNavigate } from '@tanstack/react-router';
import { lazy, Suspense, useEffect, useMemo, useRef, useState } from 'react';
import type { Selection } from 'react-aria-components';
import { dataOf } from '../../../client/response-error.ts';
import { bytes, plural } from '../../../shared/format.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Loaded, Note } from '../../components/feedback.tsx';
import { Icon } from '../../components/icon.tsx';
import { Page } from '../../components/page.tsx';
import { api } from '../../data/gateway.ts';
import { useLiveMeasurements } from '../../data/live.ts';
import { queryClient } from '../../data/query-client.ts';
import {
  type Branch,
  branchesQuery,
  deletedBranchesQuery,
  membersQuery,
  type Project,
  projectQuery,
  type Usage,
  usageQuery,
} from '../../data/resources.ts';
import { mayAdminister, mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { STORAGE_STATES, TEXT } from '../../strings/common.ts';
import { filtered, freeable, treeOf } from './branch-rows.ts';
import { type BranchAct, BranchMenu, type BranchPage, BranchTree } from './branch-tree.tsx';
import { FirstSteps } from './first-steps.tsx';

const COLUMNS = ['Name', 'State', 'Size', 'Connections', 'Age', 'Life'] as const;
const KEYS = [
  ['↑ ↓', 'move'],
  ['Space', 'select'],
  ['↵', 'connect'],
  ['t', 'tables'],
  ['c', 'new branch'],
  ['e', 'extend'],
  ['s', 'reset'],
  ['r', 'refresh'],
  ['d', 'delete'],
  ['/', 'filter'],
] as const;

/** @param focused id of the row that has the focus */
export type Shortcut = (focused: string | null) => void;

const TYPING = 'input:not([type=checkbox]), textarea, select, dialog, [role=menu], [role=grid]';

/** Single keys that act while nobody is typing. */
function useShortcuts(shortcuts: Readonly<Record<string, Shortcut>>): void {
  const current = useRef(shortcuts);
  current.current = shortcuts;
  useEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      const { target } = event;
      if (event.ctrlKey || event.metaKey || event.altKey || !(target instanceof Element)) return;
      const shortcut = current.current[event.key];
      if (!shortcut || target.closest(TYPING) || document.querySelector('dialog[open]')) return;
      event.preventDefault();
      shortcut(target.closest('[role=row]')?.getAttribute('data-key') ?? null);
    };
    document.addEventListener('keydown', onKeyDown);
    return () => document.removeEventListener('keydown', onKeyDown);
  }, []);
}

const EVERY_MS = 30_000;

/** The connections of each branch over the last hour. */
const connectionsQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['connections', projectId],
    queryFn: async ({ signal }) => {
      const params = { path: { project_id: projectId }, query: { metric: 'active_connections' as const } };
      const { branches } = await dataOf(api.GET('/api/v1/projects/{project_id}/metrics', { params, signal }));
      return new Map(branches.map(({ branch_id, values }) => [branch_id, values.map(({ value }) => value)]));
    },
    refetchInterval: EVERY_MS,
  });

const TONE: Record<Usage['storage_state'], string> = {
  normal: '',
  warning: 'warn',
  write_blocked: 'bad',
  closed: 'bad',
};

/** The used share of the storage quota. */
const QuotaMeter = ({ usage }: { usage: Usage }) => (
  <div
    className={`meter ${TONE[usage.storage_state]}`}
    role="meter"
    aria-label="Storage quota"
    aria-valuenow={Math.min(100, Math.round(usage.usage_percent))}
    aria-valuetext={`${usage.usage_percent} %`}
  >
    <i style={{ width: `${Math.min(100, usage.usage_percent)}%` }} />
  </div>
);

const SHOWN = 3;

/** How many branches the project may still have, and how much they may hold. */
function Slots({
  project,
  branches,
  usage,
}: {
  project: Project;
  branches: readonly Branch[];
  usage: Usage | undefined;
}) {
  const isFull = project.branch_count >= project.branch_limit;
  const first = freeable(branches).slice(0, SHOWN);
  const main = branches.find(({ is_default }) => is_default);
  const next = usage?.branches.find(({ branch_id }) => branch_id === main?.id)?.next_branch_bytes;
  return (
    <>
      <dl className="facts in-line">
        <div>
          <dt>Branches</dt>
          <dd>
            {project.branch_count} of {project.branch_limit}
            {project.leased_branch_count > 0 && (
              <span className="quiet">, {project.leased_branch_count} leased</span>
            )}
          </dd>
        </div>
        <div>
          <dt>Storage</dt>
          <dd>
            <Link to="/projects/$projectId/storage" params={{ projectId: project.id }}>
              {usage
                ? `${bytes(usage.storage_used_bytes)} / ${bytes(usage.storage_limit_bytes)}`
                : TEXT.states.measuring}
            </Link>
            {usage && <QuotaMeter usage={usage} />}
            {next !== undefined && (
              <span className="quiet">the next branch of main counts {bytes(next)}</span>
            )}
          </dd>
        </div>
        <div>
          <dt>Database host</dt>
          <dd>
            <span className="mono">{[project.host, project.region].filter(Boolean).join(', ')}</span>
            {usage && (
              <span className={usage.host_connected ? 'badge good' : 'badge warn'}>
                {usage.host_connected ? 'Connected' : 'Not connected'}
              </span>
            )}
          </dd>
        </div>
      </dl>
      {isFull && (
        <Note tone="warn">
          <p>
            The project has reached its branch limit, which counts expired and leased branches too. Delete a
            branch to create another one, or ask the platform operator to raise the limit.
          </p>
          {first.length > 0 && (
            <p className="small">
              Those with the least life left:{' '}
              {first.map(({ id, branch_name }) => (
                <code key={id}>{branch_name} </code>
              ))}
            </p>
          )}
        </Note>
      )}
      {project.storage_state !== 'normal' && (
        <Note tone={project.storage_state === 'warning' ? 'warn' : 'bad'}>
          <p>{STORAGE_STATES[project.storage_state]}</p>
        </Note>
      )}
    </>
  );
}

const BranchDialog = lazy(() =>
  import('./branch-dialogs.tsx').then(({ BranchDialog }) => ({ default: BranchDialog })),
);

type Act = { what: BranchAct; branches: Branch[] } | null;

export const Route = createFileRoute('/_inside/projects/$projectId/')({ component: BranchesPage });

function BranchesPage() {
  const { projectId } = Route.useParams();
  const navigate = useNavigate();
  const session = useStore(sessionStore);
  const me = session.state === 'signed_in' ? session.me : null;
  const mayEdit = me !== null && mayChange(me);
  const branches = useQuery(branchesQuery(projectId));
  const project = useQuery(projectQuery(projectId)).data;
  const usage = useQuery(usageQuery(projectId));
  const connections = useQuery(connectionsQuery(projectId)).data;
  const deleted = useQuery(deletedBranchesQuery(projectId)).data?.length ?? 0;
  useLiveMeasurements(projectId);
  const [wanted, setWanted] = useState('');
  const [selected, setSelected] = useState<Selection>(new Set());
  const [act, setAct] = useState<Act>(null);
  const filter = useRef<HTMLInputElement>(null);
  const all = branches.data ?? [];
  const nodes = useMemo(() => filtered(treeOf(all), wanted), [all, wanted]);
  const sizes = new Map(
    usage.data?.branches.map((each) => [
      each.branch_id,
      { size: each.database_size_bytes, own: each.own_bytes },
    ]),
  );
  const members = useQuery({ ...membersQuery(), enabled: me !== null && mayAdminister(me) }).data ?? [];
  const makers = new Map(members.map(({ id, email }) => [id, email]));
  if (typeof me?.id === 'string') makers.set(me.id, 'you');
  const measures = { sizes, connections: connections ?? new Map(), makers };
  const isChosen = ({ id, is_default }: Branch) => !is_default && (selected === 'all' || selected.has(id));
  const chosen = all.filter(isChosen);

  const open = (page: BranchPage, branch: Branch) =>
    navigate({
      to: `/projects/$projectId/branches/$branch/${page}`,
      params: { projectId, branch: branch.branch_name },
    });
  const create = (from?: Branch) =>
    navigate({
      to: '/projects/$projectId/create-branch',
      params: { projectId },
      search: from ? { from: from.branch_name } : {},
    });
  const withId = (id: string | null) => all.find((branch) => branch.id === id);
  /** The branches that a shortcut is about: those that are selected, otherwise the focused one. */
  const targets = (focused: string | null) =>
    chosen.length > 0 ? chosen : all.filter(({ id, is_default }) => id === focused && !is_default);
  const start = (what: BranchAct, about: Branch[]) => {
    if (mayEdit && about.length > 0) setAct({ what, branches: about });
  };

  useShortcuts({
    '/': () => filter.current?.focus(),
    c: () => mayEdit && create(),
    d: (focused) => start('delete', targets(focused)),
    e: (focused) => start('extend', targets(focused)),
    r: () => queryClient.invalidateQueries(),
    s: (focused) =>
      start(
        'reset',
        all.filter(({ id, status }) => id === focused && status === 'active'),
      ),
    t: (focused) => {
      const branch = withId(focused);
      if (branch) open('tables', branch);
    },
  });

  const menuOf = (branch: Branch) => (
    <BranchMenu
      branch={branch}
      mayEdit={mayEdit}
      mayProtect={me !== null && mayAdminister(me)}
      onOpen={(page) => open(page, branch)}
      onCreate={() => create(branch)}
      onAct={(what) => start(what, [branch])}
    />
  );

  return (
    <Page
      title="Branches"
      about="Each branch is an independent copy of the one above it."
      actions={
        mayEdit && (
          <Link className="button primary" to="/projects/$projectId/create-branch" params={{ projectId }}>
            <Icon name="plus" /> New branch <kbd>c</kbd>
          </Link>
        )
      }
    >
      {!mayEdit && <Note>{TEXT.states.readOnly}</Note>}
      {project && <Slots project={project} branches={all} usage={usage.data} />}
      {mayEdit && branches.data && all.every(({ is_default }) => is_default) && (
        <FirstSteps projectId={projectId} isUsed={[...measures.connections.values()].flat().some(Boolean)} />
      )}
      <div className="card">
        <header>
          <input
            ref={filter}
            className="input branch-filter"
            type="search"
            aria-label="Filter branches"
            placeholder="Filter by name or label"
            value={wanted}
            onChange={(event) => setWanted(event.target.value)}
          />
          <div className="row">
            {chosen.length > 0 && (
              <>
                <span className="quiet">{chosen.length} selected</span>
                <Button compact icon="clock" onClick={() => start('extend', chosen)}>
                  Extend
                </Button>
                <Button compact icon="trash" look="danger" onClick={() => start('delete', chosen)}>
                  Delete
                </Button>
              </>
            )}
          </div>
        </header>
        <Loaded query={branches}>
          {() => (
            <div className="table-scroll">
              <div className="branch-columns" aria-hidden="true">
                {COLUMNS.map((column) => (
                  <span key={column}>{column}</span>
                ))}
              </div>
              {nodes.length === 0 ? (
                <p className="nothing">No branch matches.</p>
              ) : (
                <BranchTree
                  key={all.length}
                  nodes={nodes}
                  measures={measures}
                  selected={selected}
                  onSelect={setSelected}
                  onOpen={(id) => {
                    const branch = withId(id);
                    if (branch) open('connect', branch);
                  }}
                  menuOf={menuOf}
                />
              )}
            </div>
          )}
        </Loaded>
      </div>
      {deleted > 0 && (
        <p className="quiet">
          <Link to="/projects/$projectId/deleted-branches" params={{ projectId }}>
            {plural(deleted, 'deleted branch', 'deleted branches')} can be restored.
          </Link>
        </p>
      )}
      <p className="small quiet keys">
        {KEYS.map(([key, meaning]) => (
          <span key={key}>
            <kbd>{key}</kbd> {meaning}
          </span>
        ))}
      </p>
      <CommandLine command={COMMANDS.listBranches} />
      <Suspense>
        {act && (
          <BranchDialog {...act} projectId={projectId} usage={usage.data} onClose={() => setAct(null)} />
        )}
      </Suspense>
    </Page>
  );
}
