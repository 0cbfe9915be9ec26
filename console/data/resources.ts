import { queryOptions } from '@tanstack/react-query';
import type { Schemas } from '../../client/client.ts';
import { dataOf, ResponseError } from '../../client/response-error.ts';
import { api, gateway } from './gateway.ts';
import { createStore } from './store.ts';

/** The project whose changes arrive as events; null while its pages have to poll. */
export const liveProject = createStore<string | null>(null);

export type Project = Schemas['Project'];
export type ProjectDetails = Schemas['ProjectDetails'];
export type Branch = Schemas['Branch'];
export type Job = Schemas['Job'];
export type Snapshot = Schemas['Snapshot'];
export type ChangeSummary = Schemas['ChangeSummary'];
export type NetworkRule = Schemas['NetworkRule'];
export type AuditEvent = Schemas['AuditEvent'];
export type Table = Schemas['Table'];
export type RowPage = Schemas['RowPage'];
export type Credentials = Schemas['Credentials'];
export type Usage = Schemas['ProjectUsage'];
export type IdentityProvider = Schemas['IdentityProvider'];
export type Me = Schemas['Me'];
export type MetricName = Schemas['MetricsSeries']['series'][number]['metric'];
export type Lifespan = '7d' | '1m' | '6m' | '1y' | 'forever';

const SOON_MS = 1_000;
/** While the host of a project is away. */
const AWAY_MS = 3_000;
const REGULAR_MS = 10_000;
export const SELDOM_MS = 30_000;
/** A family that a network drops without a word delays what needs the address by no more than this. */
const OTHER_FAMILY_MS = 1_000;

/** How often to read what events report, while no events arrive. */
const unlessLive = (projectId: string, ms: number): number | false =>
  liveProject.get() === projectId ? false : ms;

/**
 * Events report each change of what they are about, so pages that are changed quickly need not read it again.
 */
const freshWhileLive = (projectId: string) => ({
  staleTime: () => (liveProject.get() === projectId ? SELDOM_MS : SOON_MS),
});

/** Every record of a list. */
export async function everyRecord<R>(records: AsyncGenerator<R>): Promise<R[]> {
  const all: R[] = [];
  for await (const record of records) all.push(record);
  return all;
}

/** The gateway responds with the job immediately, so that its steps can be shown. */
export const AT_ONCE = { header: { prefer: 'wait=0' } };

const inProject = (projectId: string) => ({ path: { project_id: projectId } });
export const inBranch = (projectId: string, branch: string) => ({
  path: { project_id: projectId, branch_ref: branch },
});

export const projectsQuery = () =>
  queryOptions({
    queryKey: ['projects'],
    queryFn: ({ signal }) => everyRecord(gateway.all('/api/v1/projects', { signal })),
    refetchInterval: SELDOM_MS,
  });

/** Where a new project can be; empty if hosts are not divided into regions. */
export const regionsQuery = () =>
  queryOptions({
    queryKey: ['regions'],
    queryFn: async ({ signal }) => (await dataOf(api.GET('/api/v1/regions', { signal }))).regions,
    staleTime: SELDOM_MS,
  });

/** What the command line tool calls a project: its name, or its ID where another one has that name. */
export function projectWord(projects: readonly Project[], id: string): string {
  const name = projects.find((project) => project.id === id)?.name;
  const isOnly = projects.filter((project) => project.name === name).length === 1;
  return name !== undefined && isOnly ? name : id;
}

export const projectQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['project', projectId],
    ...freshWhileLive(projectId),
    queryFn: ({ signal }) =>
      dataOf(api.GET('/api/v1/projects/{project_id}', { params: inProject(projectId), signal })),
    refetchInterval: () => unlessLive(projectId, REGULAR_MS),
  });

const isChanging = ({ status }: Branch) => status === 'creating' || status === 'deleting';

/** No event says that a lease was renewed or that a block has ended. */
const changesSilently = ({ blocked, lease_ends_at }: Branch) => blocked !== null || lease_ends_at !== null;

export const branchesQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['branches', projectId],
    ...freshWhileLive(projectId),
    queryFn: async ({ signal }) => {
      const params = inProject(projectId);
      const { branches } = await dataOf(
        api.GET('/api/v1/projects/{project_id}/branches', { params, signal }),
      );
      return branches;
    },
    refetchInterval: ({ state }) =>
      state.data?.some(changesSilently)
        ? REGULAR_MS
        : unlessLive(projectId, state.data?.some(isChanging) ? SOON_MS : REGULAR_MS),
  });

/** Deleted branches that can be restored. */
export const deletedBranchesQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['deleted-branches', projectId],
    ...freshWhileLive(projectId),
    queryFn: async ({ signal }) => {
      const params = { ...inProject(projectId), query: { status: 'deleted' as const } };
      const { branches } = await dataOf(
        api.GET('/api/v1/projects/{project_id}/branches', { params, signal }),
      );
      return branches;
    },
    refetchInterval: () => unlessLive(projectId, REGULAR_MS),
  });

/** How many sessions a clone of the branch ends. */
export const directSessionsQuery = (projectId: string, branch: string, isWanted: boolean) =>
  queryOptions({
    queryKey: ['direct-sessions', projectId, branch],
    queryFn: async ({ signal }) => {
      const params = inBranch(projectId, branch);
      const path = '/api/v1/projects/{project_id}/branches/{branch_ref}/sessions';
      return (await dataOf(api.GET(path, { params, signal }))).direct_sessions;
    },
    enabled: isWanted,
    refetchInterval: REGULAR_MS,
    // The page is useful without it.
    retry: false,
  });

/** The address by which requests of this computer reach the gateway; null: it is not known. */
export const ownAddressQuery = () =>
  queryOptions({
    queryKey: ['own-address'],
    queryFn: async ({ signal }) => (await dataOf(api.GET('/api/v1/address', { signal }))).address,
    staleTime: SELDOM_MS,
  });

/** Browsers know no other literal address in the policy of a page. */
const isName = (url: string) => /^127\.0\.0\.1$|[a-z]$/i.test(new URL(url).hostname);

/**
 * The address of this computer in the family by which its requests do not reach the gateway; null if it has
 * none, or if the gateway has no name of that family.
 */
export const otherAddressQuery = () =>
  queryOptions({
    queryKey: ['other-address'],
    queryFn: async ({ signal }) => {
      try {
        const own = await dataOf(api.GET('/api/v1/address', { signal }));
        if (own.address === null) return null;
        const url = own.address.includes(':') ? own.ipv4_url : own.ipv6_url;
        if (url === null || !isName(url)) return null;
        const within = AbortSignal.any([signal, AbortSignal.timeout(OTHER_FAMILY_MS)]);
        const response = await fetch(`${url}/api/v1/address`, { credentials: 'omit', signal: within });
        const { address } = (await response.json()) as Schemas['Address'];
        return address !== null && address.includes(':') !== own.address.includes(':') ? address : null;
      } catch {
        // A computer with one family only.
        return null;
      }
    },
    staleTime: SELDOM_MS,
  });

/** Read by itself, because an event cancels and repeats what the query reads. */
export const readSnapshots = (projectId: string, signal?: AbortSignal) =>
  everyRecord(
    gateway.all('/api/v1/projects/{project_id}/snapshots', {
      params: inProject(projectId),
      ...(signal && { signal }),
    }),
  );

export const snapshotsQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['snapshots', projectId],
    ...freshWhileLive(projectId),
    queryFn: ({ signal }) => readSnapshots(projectId, signal),
    refetchInterval: () => unlessLive(projectId, REGULAR_MS),
  });

export const projectMembersQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['project-members', projectId],
    queryFn: ({ signal }) =>
      everyRecord(
        gateway.all('/api/v1/projects/{project_id}/members', { params: inProject(projectId), signal }),
      ),
  });

export const usageQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['usage', projectId],
    queryFn: ({ signal }) =>
      dataOf(api.GET('/api/v1/projects/{project_id}/usage', { params: inProject(projectId), signal })),
    refetchInterval: ({ state }) => (state.data?.host_connected === false ? AWAY_MS : SELDOM_MS),
  });

export const rulesQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['rules', projectId],
    ...freshWhileLive(projectId),
    queryFn: ({ signal }) =>
      everyRecord(
        gateway.all('/api/v1/projects/{project_id}/network-rules', { params: inProject(projectId), signal }),
      ),
    refetchInterval: ({ state }) =>
      unlessLive(projectId, state.data?.some(({ status }) => status === 'pending') ? 2 * SOON_MS : SELDOM_MS),
  });

/** The networks that rules can name, with their ranges. */
export const namedNetworksQuery = () =>
  queryOptions({
    queryKey: ['named-networks'],
    queryFn: async ({ signal }) =>
      (await dataOf(api.GET('/api/v1/named-networks', { signal }))).named_networks,
    staleTime: SELDOM_MS,
  });

/** The newest jobs, and whether there are more. */
export const jobPageQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['jobs', projectId],
    ...freshWhileLive(projectId),
    queryFn: ({ signal }) =>
      dataOf(api.GET('/api/v1/projects/{project_id}/jobs', { params: inProject(projectId), signal })),
    refetchInterval: ({ state }) =>
      unlessLive(
        projectId,
        state.data?.jobs.some(({ status }) => status === 'queued' || status === 'running')
          ? SOON_MS
          : REGULAR_MS,
      ),
  });

export const checkpointsQuery = (projectId: string, branch: string) =>
  queryOptions({
    queryKey: ['checkpoints', projectId, branch],
    queryFn: ({ signal }) =>
      everyRecord(
        gateway.all('/api/v1/projects/{project_id}/branches/{branch_ref}/checkpoints', {
          params: { path: { project_id: projectId, branch_ref: branch } },
          signal,
        }),
      ),
    refetchInterval: REGULAR_MS,
  });

/** A change of main, compared with main as it is now. */
export const changeQuery = (projectId: string, changeId: string) =>
  queryOptions({
    queryKey: ['change', projectId, changeId],
    ...freshWhileLive(projectId),
    queryFn: ({ signal }) => {
      const params = { path: { project_id: projectId, change_id: changeId } };
      return dataOf(api.GET('/api/v1/projects/{project_id}/changes/{change_id}', { params, signal }));
    },
    refetchInterval: () => unlessLive(projectId, REGULAR_MS),
  });

export const changesQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['changes', projectId],
    ...freshWhileLive(projectId),
    queryFn: ({ signal }) =>
      everyRecord(
        gateway.all('/api/v1/projects/{project_id}/changes', { params: inProject(projectId), signal }),
      ),
    refetchInterval: () => unlessLive(projectId, REGULAR_MS),
  });

/** The newest jobs. */
export const jobsQuery = (projectId: string) => ({
  ...jobPageQuery(projectId),
  select: ({ jobs }: { jobs: Job[] }) => jobs,
});

export const tablesQuery = (projectId: string, branch: string) =>
  queryOptions({
    queryKey: ['tables', projectId, branch],
    queryFn: async ({ signal }) => {
      const path = '/api/v1/projects/{project_id}/branches/{branch_ref}/tables';
      const { tables } = await dataOf(api.GET(path, { params: inBranch(projectId, branch), signal }));
      return tables;
    },
    staleTime: SELDOM_MS,
  });

/**
 * What `main` follows, or has followed last; null: nothing. No event says how far it is behind.
 * @param mayExist whether the project may have a record of following: a browser reports each request for what is not
 *   there. Undefined: that is not known yet
 */
export const followQuery = (projectId: string, mayExist?: boolean) =>
  queryOptions({
    queryKey: ['follow', projectId, ...(mayExist === undefined ? [] : [mayExist])],
    enabled: mayExist !== undefined,
    queryFn: async ({ signal }) => {
      if (!mayExist) return null;
      const read = api.GET('/api/v1/projects/{project_id}/follow', { params: inProject(projectId), signal });
      return dataOf(read).catch((error: unknown) => {
        if (error instanceof ResponseError && error.code === 'NOT_FOUND') return null;
        throw error;
      });
    },
    refetchInterval: ({ state }) => (state.data?.state === 'following' ? 2 * SOON_MS : REGULAR_MS),
  });

/** The masking policy, compared with `main`. */
export const maskingQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['masking', projectId],
    queryFn: ({ signal }) =>
      dataOf(api.GET('/api/v1/projects/{project_id}/masking', { params: inProject(projectId), signal })),
    // A draft is not replaced while it is edited.
    staleTime: Number.POSITIVE_INFINITY,
    refetchOnMount: 'always',
  });

/** The stored policy, compared with another branch. */
export const maskingCheckQuery = (projectId: string, branch: string, policy: Schemas['MaskingPolicy']) =>
  queryOptions({
    queryKey: ['masking-check', projectId, branch, policy.version],
    queryFn: ({ signal }) => {
      const path = '/api/v1/projects/{project_id}/branches/{branch_ref}/masking/check';
      const { rules, unlisted } = policy;
      return dataOf(
        api.POST(path, { params: inBranch(projectId, branch), body: { rules, unlisted }, signal }),
      );
    },
    staleTime: 0,
  });

export const membersQuery = () =>
  queryOptions({
    queryKey: ['members'],
    queryFn: ({ signal }) => everyRecord(gateway.all('/api/v1/members', { signal })),
  });

export const identityProvidersQuery = () =>
  queryOptions({
    queryKey: ['identity-providers'],
    queryFn: async ({ signal }) =>
      (await dataOf(api.GET('/api/v1/identity-providers', { signal }))).identity_providers,
  });

/** How the people of the tenant sign in. */
export const tenantQuery = () =>
  queryOptions({
    queryKey: ['tenant'],
    queryFn: ({ signal }) => dataOf(api.GET('/api/v1/tenant', { signal })),
  });

export const apiKeysQuery = () =>
  queryOptions({
    queryKey: ['api-keys'],
    queryFn: ({ signal }) => everyRecord(gateway.all('/api/v1/api-keys', { signal })),
  });

export const oauthGrantsQuery = () =>
  queryOptions({
    queryKey: ['oauth-grants'],
    queryFn: ({ signal }) => everyRecord(gateway.all('/api/v1/oauth-grants', { signal })),
  });

export const trustsQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['trusts', projectId],
    queryFn: ({ signal }) =>
      everyRecord(
        gateway.all('/api/v1/projects/{project_id}/trusts', { params: inProject(projectId), signal }),
      ),
  });

export const sessionsQuery = () =>
  queryOptions({
    queryKey: ['sessions'],
    queryFn: ({ signal }) => everyRecord(gateway.all('/api/v1/auth/sessions', { signal })),
  });
