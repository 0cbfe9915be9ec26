import { useQuery } from '@tanstack/react-query';
import { Link, Outlet, useNavigate, useParams, useRouterState } from '@tanstack/react-router';
import { lazy, type ReactNode, Suspense, useEffect, useState } from 'react';
import { Button } from '../components/button.tsx';
import { Loaded } from '../components/feedback.tsx';
import { Logo } from '../components/icon.tsx';
import { TEXT } from '../strings/common.ts';
import { AccountMenu } from './account-menu.tsx';
import { useLiveProject } from './live.ts';
import { ProjectNavigation, TenantNavigation } from './navigation.tsx';
import { branchesQuery, projectQuery } from './resources.ts';
import { sessionStore } from './session.ts';
import { useStore } from './store.ts';

const Palette = lazy(() => import('./palette.tsx').then(({ Palette }) => ({ default: Palette })));
const IS_APPLE = /Mac|iP(?:hone|ad)/.test(navigator.platform);

const useParameters = () => useParams({ strict: false }) as { projectId?: string; branch?: string };

/** Leads to the sign-in when the session has ended, and back to this page after it. */
function useEndOfSession(): void {
  const session = useStore(sessionStore);
  const navigate = useNavigate();
  const href = useRouterState({ select: ({ location }) => location.href });
  useEffect(() => {
    if (session.state !== 'signed_out') return;
    const search = session.reason === 'ended' ? { return_to: href } : {};
    navigate({ to: '/sign-in', search, replace: true });
  }, [session, navigate, href]);
}

function Crumbs({ projectId, branch }: { projectId: string; branch?: string | undefined }) {
  const project = useQuery(projectQuery(projectId)).data;
  return (
    <nav className="crumbs" aria-label={TEXT.nav.crumbs}>
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

/** The frame of every page behind the sign-in. */
export function Shell() {
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
        {TEXT.nav.skip}
      </a>
      <header className="topbar">
        <Button
          look="bare"
          icon="menu"
          className="menu-button"
          aria-label={TEXT.nav.menu}
          aria-expanded={isOpen}
          onClick={() => setOpen(!isOpen)}
        />
        <Link to="/" className="brand" aria-label={TEXT.nav.home}>
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
          title={TEXT.nav.palette}
          aria-label={TEXT.nav.palette}
          aria-keyshortcuts="Control+K Meta+K"
          onClick={() => setSearching(true)}
        >
          <kbd>{IS_APPLE ? '⌘K' : 'Ctrl K'}</kbd>
        </Button>
        <AccountMenu me={session.me} />
      </header>
      <nav className="side" aria-label={TEXT.nav.label} data-open={isOpen || undefined}>
        {projectId !== undefined && (
          <ProjectNavigation projectId={projectId} branch={branch} me={session.me} />
        )}
        <TenantNavigation me={session.me} />
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

/** Loads the project before any of its pages. */
export function ProjectShell() {
  const { projectId = '' } = useParameters();
  const project = useQuery(projectQuery(projectId));
  useQuery(branchesQuery(projectId));
  useLiveProject(project.data === undefined ? null : projectId);
  if (project.data !== undefined) return <Outlet />;
  return (
    <Page title={TEXT.nav.project}>
      <Loaded query={project}>{() => null}</Loaded>
    </Page>
  );
}

interface PageProps {
  title: ReactNode;
  /** For the tab of the browser, when the title is not plain text. */
  name?: string;
  about?: ReactNode;
  actions?: ReactNode;
  width?: 'narrow' | 'wide';
  children: ReactNode;
}

/** The content of a page: its title, what it is about, what can be done, and the rest. */
export function Page({ title, name, about, actions, width, children }: PageProps) {
  const { branch } = useParameters();
  const label = name ?? String(title);
  useEffect(() => {
    document.title = `${label} · ${TEXT.name}`;
  }, [label]);
  return (
    <main id="content" tabIndex={-1} className={branch === 'main' ? 'page on-main' : 'page'}>
      <div className={width ? `inner ${width}` : 'inner'}>
        <div className="page-head">
          <div className="grow">
            <h1>{title}</h1>
            {about && <p>{about}</p>}
          </div>
          {actions && <div className="row">{actions}</div>}
        </div>
        {children}
      </div>
    </main>
  );
}
