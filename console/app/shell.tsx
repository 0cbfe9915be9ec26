import { useQuery } from '@tanstack/react-query';
import { createFileRoute, Link, Outlet, useRouterState } from '@tanstack/react-router';
import { lazy, Suspense, useEffect, useState } from 'react';
import { Button } from '../components/button.tsx';
import { ErrorNote } from '../components/feedback.tsx';
import { Icon, type IconName, Logo } from '../components/icon.tsx';
import { useParameters } from '../components/page.tsx';
import { branchesQuery, type Me, projectQuery } from '../data/resources.ts';
import { sessionStore, signOut } from '../data/session.ts';
import { useStore } from '../data/store.ts';
import { TEXT } from '../strings/common.ts';
import { BRANCH_PAGES, type PageGroup, PROJECT_PAGES, seenBy, TENANT_PAGES } from './pages.ts';
import { requireSession, useEndOfSession } from './require-session.ts';

function AccountMenu({ me }: { me: Me }) {
  const [state, setState] = useState<{ busy: boolean; error: unknown }>({ busy: false, error: null });
  const leave = async () => {
    setState({ busy: true, error: null });
    await signOut().catch((error: unknown) => setState({ busy: false, error }));
  };
  return (
    <div className="row account">
      <Link to="/account" className="button bare" title={TEXT.nav.account}>
        <Icon name="person" />
        <span className="truncate who">{me.email ?? TEXT.nav.account}</span>
      </Link>
      <Button
        look="bare"
        icon="leave"
        className="leave"
        aria-label="Sign out"
        title="Sign out"
        busy={state.busy}
        onClick={leave}
      >
        <span>Sign out</span>
      </Button>
      {state.error !== null && <ErrorNote error={state.error} />}
    </div>
  );
}

const CURRENT = { 'aria-current': 'page' } as const;

/** Addresses with which those of other pages begin. */
const BEGINNINGS: readonly string[] = ['/', '/projects/$projectId'];
const activeFor = (to: string) => ({ exact: BEGINNINGS.includes(to), includeSearch: false });

const GROUPS: readonly (readonly [PageGroup, string])[] = [
  ['data', TEXT.nav.data],
  ['access', TEXT.nav.access],
  ['operations', TEXT.nav.operations],
];

interface NavigationProps {
  /** Undefined outside of a project. */
  projectId: string | undefined;
  branch?: string | undefined;
  me: Me;
}

/** The pages of a branch name it, since those of the project are next to them. */
function Navigation({ projectId, branch, me }: NavigationProps) {
  const branches = useQuery({ ...branchesQuery(projectId ?? ''), enabled: projectId !== undefined }).data;
  const shown = branch ?? branches?.find(({ is_default }) => is_default)?.branch_name ?? 'main';
  const linkOf = (page: { to: string; icon: IconName; name: string }, params: Record<string, string>) => (
    <li key={page.to}>
      <Link
        to={page.to as never}
        params={params as never}
        activeOptions={activeFor(page.to)}
        activeProps={CURRENT}
      >
        <Icon name={page.icon} /> {page.name}
      </Link>
    </li>
  );
  return GROUPS.map(([group, title]) => {
    const ofGroup = <P extends { group: PageGroup }>(pages: readonly P[]) =>
      pages.filter((page) => page.group === group);
    const ofTenant = ofGroup(seenBy(TENANT_PAGES, me)).map((page) => linkOf(page, {}));
    if (projectId === undefined)
      return (
        ofTenant.length > 0 && (
          <div key={group}>
            <h2>{title}</h2>
            <ul>{ofTenant}</ul>
          </div>
        )
      );
    return (
      <div key={group}>
        <h2>
          {title} <span className={shown === 'main' ? 'mono main-name' : 'mono'}>{shown}</span>
        </h2>
        <ul>
          {ofGroup(BRANCH_PAGES).map((page) => linkOf(page, { projectId, branch: shown }))}
          {ofGroup(seenBy(PROJECT_PAGES, me)).map((page) => linkOf(page, { projectId }))}
          {ofTenant}
        </ul>
      </div>
    );
  });
}

const Palette = lazy(() => import('./palette.tsx').then(({ Palette }) => ({ default: Palette })));
const IS_APPLE = /Mac|iP(?:hone|ad)/.test(navigator.platform);

function Crumbs({ projectId, branch }: { projectId: string; branch?: string | undefined }) {
  const project = useQuery(projectQuery(projectId)).data;
  return (
    <nav className="crumbs" aria-label="You are here">
      <ol className="row">
        <li>
          <Link to="/projects/$projectId" params={{ projectId }} className="truncate">
            {project?.name ?? '…'}
          </Link>
        </li>
        {branch !== undefined && (
          <li>
            <span className={branch === 'main' ? 'mono main-name' : 'mono'}>{branch}</span>
          </li>
        )}
      </ol>
    </nav>
  );
}

/** Everything but the sign-in needs a session. */
export const Route = createFileRoute('/_inside')({
  beforeLoad: ({ location }) => requireSession(location),
  component: Shell,
  codeSplitGroupings: [],
});

/** The frame of every page behind the sign-in. */
function Shell() {
  useEndOfSession();
  const session = useStore(sessionStore);
  const { projectId, branch } = useParameters();
  const pathname = useRouterState({ select: ({ location }) => location.pathname });
  const [isOpen, setOpen] = useState(false);
  const [isSearching, setSearching] = useState(false);
  useEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.key.toLowerCase() !== 'k' || !(event.ctrlKey || event.metaKey) || event.altKey) return;
      event.preventDefault();
      setSearching(true);
    };
    document.addEventListener('keydown', onKeyDown);
    return () => document.removeEventListener('keydown', onKeyDown);
  }, []);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another page closes the menu
  useEffect(() => setOpen(false), [pathname]);
  if (session.state !== 'signed_in') return null;
  return (
    <div className="shell">
      <a className="skip" href="#content">
        Skip to the content
      </a>
      <header className="topbar">
        <Button
          look="bare"
          icon="menu"
          className="menu-button"
          aria-label="Menu"
          aria-expanded={isOpen}
          onClick={() => setOpen(!isOpen)}
        />
        <Link to="/" className="brand" aria-label="branchgate, all projects">
          <Logo />
          <span>{TEXT.name}</span>
        </Link>
        {projectId === undefined ? (
          <div className="grow" />
        ) : (
          <Crumbs projectId={projectId} branch={branch} />
        )}
        <Button
          look="bare"
          icon="search"
          className="palette-button"
          title="Search and commands"
          aria-label="Search and commands"
          aria-keyshortcuts="Control+K Meta+K"
          onClick={() => setSearching(true)}
        >
          <kbd>{IS_APPLE ? '⌘K' : 'Ctrl K'}</kbd>
        </Button>
        <AccountMenu me={session.me} />
      </header>
      <nav className="side" aria-label="Pages" data-open={isOpen || undefined}>
        <Navigation projectId={projectId} branch={branch} me={session.me} />
      </nav>
      <Outlet />
      {isSearching && (
        <Suspense>
          <Palette
            me={session.me}
            projectId={projectId}
            branch={branch}
            onClose={() => setSearching(false)}
          />
        </Suspense>
      )}
    </div>
  );
}
