import { useQuery } from '@tanstack/react-query';
import { Link, useNavigate, useParams } from '@tanstack/react-router';
import { lazy, Suspense, useMemo, useRef, useState } from 'react';
import type { Selection } from 'react-aria-components';
import { type Branch, branchesQuery, projectQuery, usageQuery } from '../../app/resources.ts';
import { mayChange, sessionStore } from '../../app/session.ts';
import { Page } from '../../app/shell.tsx';
import { useStore } from '../../app/store.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Loaded, Note } from '../../components/feedback.tsx';
import { Icon } from '../../components/icon.tsx';
import { ActionMenu } from '../../components/menu.tsx';
import { BRANCHES_TEXT } from '../../strings/branches.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { filtered, treeOf } from './branch-rows.ts';
import { BranchTree } from './branch-tree.tsx';
import { connectionsQuery } from './connections.ts';
import { useShortcuts } from './shortcuts.ts';
import { Slots } from './slots.tsx';
import './branches.css';

const DeleteDialog = lazy(() =>
  import('./delete-dialog.tsx').then(({ DeleteDialog }) => ({ default: DeleteDialog })),
);
const ExtendDialog = lazy(() =>
  import('./extend-dialog.tsx').then(({ ExtendDialog }) => ({ default: ExtendDialog })),
);

type Act = { what: 'delete' | 'extend'; branches: Branch[] } | null;

export function BranchesPage() {
  const { projectId } = useParams({ from: '/inside/projects/$projectId' });
  const navigate = useNavigate();
  const session = useStore(sessionStore);
  const mayEdit = session.state === 'signed_in' && mayChange(session.me);
  const branches = useQuery(branchesQuery(projectId));
  const project = useQuery(projectQuery(projectId)).data;
  const usage = useQuery(usageQuery(projectId));
  const connections = useQuery(connectionsQuery(projectId)).data;
  const [wanted, setWanted] = useState('');
  const [selected, setSelected] = useState<Selection>(new Set());
  const [act, setAct] = useState<Act>(null);
  const filter = useRef<HTMLInputElement>(null);
  const all = branches.data ?? [];
  const nodes = useMemo(() => filtered(treeOf(all), wanted), [all, wanted]);
  const sizes = new Map(usage.data?.branches.map((each) => [each.branch_id, each.database_size_bytes]));
  const measures = { sizes, connections: connections ?? new Map() };
  const isChosen = ({ id, is_default }: Branch) => !is_default && (selected === 'all' || selected.has(id));
  const chosen = all.filter(isChosen);

  const open = (page: 'connect' | 'tables' | 'monitoring', branch: Branch) =>
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
  /** The branches that a shortcut is about: those that are selected, otherwise the focused one. */
  const targets = (focused: string | null) =>
    chosen.length > 0 ? chosen : all.filter(({ id, is_default }) => id === focused && !is_default);
  const start = (what: 'delete' | 'extend', about: Branch[]) => {
    if (mayEdit && about.length > 0) setAct({ what, branches: about });
  };

  const onKeyDown = useShortcuts({
    '/': () => filter.current?.focus(),
    c: () => mayEdit && create(),
    d: (focused) => start('delete', targets(focused)),
    e: (focused) => start('extend', targets(focused)),
    t: (focused) => {
      const branch = all.find(({ id }) => id === focused);
      if (branch) open('tables', branch);
    },
  });

  const menuOf = (branch: Branch) => (
    <ActionMenu
      label={BRANCHES_TEXT.actionsOf(branch.branch_name)}
      entries={[
        {
          id: 'connect',
          label: TEXT.nav.connect,
          icon: 'link',
          shortcut: '↵',
          onAction: () => open('connect', branch),
        },
        {
          id: 'tables',
          label: TEXT.nav.tables,
          icon: 'table',
          shortcut: 't',
          onAction: () => open('tables', branch),
        },
        {
          id: 'monitoring',
          label: TEXT.nav.monitoring,
          icon: 'graph',
          onAction: () => open('monitoring', branch),
        },
        {
          id: 'create',
          label: BRANCHES_TEXT.createFrom,
          icon: 'branch',
          isDisabled: !mayEdit,
          onAction: () => create(branch),
        },
        {
          id: 'extend',
          label: BRANCHES_TEXT.extend,
          icon: 'clock',
          shortcut: 'e',
          isDisabled: !mayEdit || branch.is_default,
          onAction: () => start('extend', [branch]),
        },
        {
          id: 'delete',
          label: BRANCHES_TEXT.delete,
          icon: 'trash',
          shortcut: 'd',
          isDangerous: true,
          isDisabled: !mayEdit || branch.protected,
          onAction: () => start('delete', [branch]),
        },
      ]}
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
      {/* biome-ignore lint/a11y/noStaticElementInteractions: shortcuts for what the buttons inside do too */}
      <div className="card" onKeyDown={onKeyDown}>
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
                    const branch = all.find((each) => each.id === id);
                    if (branch) open('connect', branch);
                  }}
                  menuOf={menuOf}
                />
              )}
            </div>
          )}
        </Loaded>
      </div>
      <p className="small quiet keys">
        {BRANCHES_TEXT.keys.map(([key, meaning]) => (
          <span key={key}>
            <kbd>{key}</kbd> {meaning}
          </span>
        ))}
      </p>
      <CommandLine command={COMMANDS.listBranches(projectId)} />
      <Suspense>
        {act?.what === 'delete' && (
          <DeleteDialog projectId={projectId} branches={act.branches} onClose={() => setAct(null)} />
        )}
        {act?.what === 'extend' && (
          <ExtendDialog projectId={projectId} branches={act.branches} onClose={() => setAct(null)} />
        )}
      </Suspense>
    </Page>
  );
}
