import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Outlet,
  redirect,
} from '@tanstack/react-router';
import { Loading, Toasts } from '../components/feedback.tsx';
import { restoreSession } from '../data/session.ts';
import { Connection } from './connection.tsx';
import { ProblemPage, UnknownPage } from './problem-pages.tsx';
import { ProjectShell, Shell } from './shell.tsx';

const text = (value: unknown): string | undefined =>
  typeof value === 'string' && value !== '' ? value : undefined;
const whole = (value: unknown): number | undefined =>
  typeof value === 'number' && Number.isInteger(value) && value >= 0 ? value : undefined;

/** Search parameters without the absent ones. */
const present = <T extends object>(search: T): { [K in keyof T]?: Exclude<T[K], undefined> } =>
  Object.fromEntries(Object.entries(search).filter(([, value]) => value !== undefined)) as never;

const rootRoute = createRootRoute({
  component: () => (
    <>
      <Outlet />
      <Connection />
      <Toasts />
    </>
  ),
  notFoundComponent: UnknownPage,
});

const signInRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: '/sign-in',
  validateSearch: (search: Record<string, unknown>) =>
    present({
      return_to: text(search.return_to),
      sign_in_error: text(search.sign_in_error),
      way: text(search.way),
      invitation: text(search.invitation),
    }),
  component: lazyRouteComponent(() => import('../pages/sign-in/sign-in-page.tsx'), 'SignInPage'),
});

/** Everything else needs a session. */
const insideRoute = createRoute({
  getParentRoute: () => rootRoute,
  id: 'inside',
  beforeLoad: async ({ location }) => {
    const session = await restoreSession();
    if (session.state !== 'signed_in') {
      const error = (location.search as Record<string, unknown>).sign_in_error;
      throw redirect({
        to: '/sign-in',
        search: present({
          return_to: location.href === '/' ? undefined : location.href,
          sign_in_error: text(error),
        }),
      });
    }
  },
  component: Shell,
});

const page = <P extends string>(path: P, component: ReturnType<typeof lazyRouteComponent>) =>
  createRoute({ getParentRoute: () => insideRoute, path, component });

const projectsRoute = page(
  '/',
  lazyRouteComponent(() => import('../pages/projects/projects-page.tsx'), 'ProjectsPage'),
);
const newProjectRoute = page(
  '/new',
  lazyRouteComponent(() => import('../pages/projects/new-project-page.tsx'), 'NewProjectPage'),
);
const accountRoute = page(
  '/account',
  lazyRouteComponent(() => import('../pages/account/account-page.tsx'), 'AccountPage'),
);
const secondFactorRoute = page(
  '/account/second-factor',
  lazyRouteComponent(() => import('../pages/account/second-factor-page.tsx'), 'SecondFactorPage'),
);
const membersRoute = page(
  '/members',
  lazyRouteComponent(() => import('../pages/members/members-page.tsx'), 'MembersPage'),
);
const keysRoute = page(
  '/keys',
  lazyRouteComponent(() => import('../pages/machine-access/api-keys-page.tsx'), 'ApiKeysPage'),
);

const auditSearch = (search: Record<string, unknown>) =>
  present({
    name: text(search.name),
    project: text(search.project),
    actor_type: text(search.actor_type),
    actor: text(search.actor),
  });

const auditRoute = createRoute({
  getParentRoute: () => insideRoute,
  path: '/audit',
  validateSearch: auditSearch,
  component: lazyRouteComponent(() => import('../pages/audit/audit-page.tsx'), 'AuditPage'),
});

const projectRoute = createRoute({
  getParentRoute: () => insideRoute,
  path: '/projects/$projectId',
  component: ProjectShell,
});

const inProject = <P extends string>(path: P, component: ReturnType<typeof lazyRouteComponent>) =>
  createRoute({ getParentRoute: () => projectRoute, path, component });

const branchesRoute = inProject(
  '/',
  lazyRouteComponent(() => import('../pages/branches/branches-page.tsx'), 'BranchesPage'),
);
const createBranchRoute = createRoute({
  getParentRoute: () => projectRoute,
  path: '/create-branch',
  validateSearch: (search: Record<string, unknown>) =>
    present({ from: text(search.from), snapshot: text(search.snapshot) }),
  component: lazyRouteComponent(
    () => import('../pages/create-branch/create-branch-page.tsx'),
    'CreateBranchPage',
  ),
});
const rulesRoute = inProject(
  '/network-rules',
  lazyRouteComponent(() => import('../pages/network-rules/network-rules-page.tsx'), 'NetworkRulesPage'),
);
const storageRoute = inProject(
  '/storage',
  lazyRouteComponent(() => import('../pages/storage/storage-page.tsx'), 'StoragePage'),
);
const snapshotsRoute = inProject(
  '/snapshots',
  lazyRouteComponent(() => import('../pages/snapshots/snapshots-page.tsx'), 'SnapshotsPage'),
);
const deletedBranchesRoute = inProject(
  '/deleted-branches',
  lazyRouteComponent(
    () => import('../pages/deleted-branches/deleted-branches-page.tsx'),
    'DeletedBranchesPage',
  ),
);
const sharingRoute = inProject(
  '/sharing',
  lazyRouteComponent(() => import('../pages/sharing/sharing-page.tsx'), 'SharingPage'),
);
const jobsRoute = inProject(
  '/jobs',
  lazyRouteComponent(() => import('../pages/jobs/jobs-page.tsx'), 'JobsPage'),
);
const trustsRoute = inProject(
  '/trusts',
  lazyRouteComponent(() => import('../pages/machine-access/trusts-page.tsx'), 'TrustsPage'),
);
const settingsRoute = inProject(
  '/settings',
  lazyRouteComponent(() => import('../pages/settings/settings-page.tsx'), 'SettingsPage'),
);
const connectRoute = createRoute({
  getParentRoute: () => projectRoute,
  path: '/branches/$branch/connect',
  validateSearch: (search: Record<string, unknown>) =>
    present({ role: text(search.role), snippet: text(search.snippet) }),
  component: lazyRouteComponent(() => import('../pages/connect/connect-page.tsx'), 'ConnectPage'),
});
const tablesRoute = createRoute({
  getParentRoute: () => projectRoute,
  path: '/branches/$branch/tables',
  validateSearch: (search: Record<string, unknown>) =>
    present({
      schema: text(search.schema),
      table: text(search.table),
      where: text(search.where),
      order: text(search.order),
    }),
  component: lazyRouteComponent(() => import('../pages/tables/tables-page.tsx'), 'TablesPage'),
});
const monitoringRoute = createRoute({
  getParentRoute: () => projectRoute,
  path: '/branches/$branch/monitoring',
  validateSearch: (search: Record<string, unknown>) =>
    present({ range: text(search.range), compare: text(search.compare), step: whole(search.step) }),
  component: lazyRouteComponent(() => import('../pages/monitoring/monitoring-page.tsx'), 'MonitoringPage'),
});

const differenceRoute = createRoute({
  getParentRoute: () => projectRoute,
  path: '/branches/$branch/difference',
  validateSearch: (search: Record<string, unknown>) =>
    present({
      against: text(search.against),
      part: text(search.part),
      schema: text(search.schema),
      table: text(search.table),
    }),
  component: lazyRouteComponent(() => import('../pages/difference/difference-page.tsx'), 'DifferencePage'),
});

const sqlRoute = inProject(
  '/branches/$branch/sql',
  lazyRouteComponent(() => import('../pages/sql/sql-page.tsx'), 'SqlPage'),
);

const routeTree = rootRoute.addChildren([
  signInRoute,
  insideRoute.addChildren([
    projectsRoute,
    newProjectRoute,
    accountRoute,
    secondFactorRoute,
    membersRoute,
    keysRoute,
    auditRoute,
    projectRoute.addChildren([
      branchesRoute,
      createBranchRoute,
      connectRoute,
      tablesRoute,
      monitoringRoute,
      differenceRoute,
      sqlRoute,
      rulesRoute,
      storageRoute,
      snapshotsRoute,
      deletedBranchesRoute,
      sharingRoute,
      jobsRoute,
      trustsRoute,
      settingsRoute,
    ]),
  ]),
]);

export const router = createRouter({
  routeTree,
  defaultPreload: 'intent',
  defaultPendingComponent: Loading,
  defaultErrorComponent: ProblemPage,
  scrollRestoration: true,
});

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router;
  }
}
