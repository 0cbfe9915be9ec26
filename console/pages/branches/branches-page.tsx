import { useQuery } from '@tanstack/react-query';
import { Link, useNavigate, useParams } from '@tanstack/react-router';
import { lazy, Suspense, useMemo, useRef, useState } from 'react';
import type { Selection } from 'react-aria-components';
import { useLiveMeasurements } from '../../app/live.ts';
import { queryClient } from '../../app/query-client.ts';
import {
  type Branch,
  branchesQuery,
  deletedBranchesQuery,
  projectQuery,
  usageQuery,
} from '../../app/resources.ts';
import { mayAdminister, mayChange, sessionStore } from '../../app/session.ts';
import { Page } from '../../app/shell.tsx';
import { useStore } from '../../app/store.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Loaded, Note } from '../../components/feedback.tsx';
import { Icon } from '../../components/icon.tsx';
import { useShortcuts } from '../../components/shortcuts.ts';
import { BRANCHES_TEXT } from '../../strings/branches.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { type BranchAct, BranchMenu, type BranchPage } from './branch-menu.tsx';
import { filtered, treeOf } from './branch-rows.ts';
import { BranchTree } from './branch-tree.tsx';
import { connectionsQuery } from './connections.ts';
import { Slots } from './slots.tsx';
import './branches.css';

const DeleteDialog = lazy(() =>
  import('./delete-dialog.tsx').then(({ DeleteDialog }) => ({ default: DeleteDialog })),
);
const ExtendDialog = lazy(() =>
  import('./extend-dialog.tsx').then(({ ExtendDialog }) => ({ default: ExtendDialog })),
);

const ProtectDialog = lazy(() =>
  import('./protect-dialog.tsx').then(({ ProtectDialog }) => ({ default: ProtectDialog })),
);
const ResetDialog = lazy(() =>
  import('./reset-dialog.tsx').then(({ ResetDialog }) => ({ default: ResetDialog })),
);

type Act = { what: BranchAct; branches: Branch[] } | null;

export function BranchesPage() {
  const { projectId } = useParams({ from: '/inside/projects/$projectId' });
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
  const measures = { sizes, connections: connections ?? new Map() };
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

  const about = ({ branches: chosen }: NonNullable<Act>) => ({
    projectId,
    branches: chosen,
    onClose: () => setAct(null),
  });

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
      title={BRANCHES_TEXT.title}
      about={BRANCHES_TEXT.about}
      actions={
        mayEdit && (
          <Link className="button primary" to="/projects/$projectId/create-branch" params={{ projectId }}>
            <Icon name="plus" /> {BRANCHES_TEXT.create} <kbd>c</kbd>
          </Link>
        )
      }
    >
      {!mayEdit && <Note>{TEXT.states.readOnly}</Note>}
      {project && <Slots project={project} branches={all} usage={usage.data} />}
      <div className="card">
        <header>
          <input
            ref={filter}
            className="input branch-filter"
            type="search"
            aria-label={BRANCHES_TEXT.filter}
            placeholder={BRANCHES_TEXT.filterHint}
            value={wanted}
            onChange={(event) => setWanted(event.target.value)}
          />
          <div className="row">
            {chosen.length > 0 && (
              <>
                <span className="quiet">{BRANCHES_TEXT.selected(chosen.length)}</span>
                <Button compact icon="clock" onClick={() => start('extend', chosen)}>
                  {BRANCHES_TEXT.extend}
                </Button>
                <Button compact icon="trash" look="danger" onClick={() => start('delete', chosen)}>
                  {BRANCHES_TEXT.delete}
                </Button>
              </>
            )}
          </div>
        </header>
        <Loaded query={branches}>
          {() => (
            <div className="table-scroll">
              <div className="branch-columns" aria-hidden="true">
                {BRANCHES_TEXT.columns.map((column) => (
                  <span key={column}>{column}</span>
                ))}
              </div>
              {nodes.length === 0 ? (
                <p className="nothing">{BRANCHES_TEXT.noMatch}</p>
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
            {BRANCHES_TEXT.deletedOnes(deleted)}
          </Link>
        </p>
      )}
      <p className="small quiet keys">
        {BRANCHES_TEXT.keys.map(([key, meaning]) => (
          <span key={key}>
            <kbd>{key}</kbd> {meaning}
          </span>
        ))}
      </p>
      <CommandLine command={COMMANDS.listBranches(projectId)} />
      <Suspense>
        {act?.what === 'delete' && <DeleteDialog {...about(act)} usage={usage.data} />}
        {act?.what === 'extend' && <ExtendDialog {...about(act)} />}
        {act?.what === 'protect' && act.branches[0] && (
          <ProtectDialog {...about(act)} branch={act.branches[0]} />
        )}
        {act?.what === 'reset' && act.branches[0] && <ResetDialog {...about(act)} branch={act.branches[0]} />}
      </Suspense>
    </Page>
  );
}
