import { exampleFor } from '../../edge/documentation/example.ts';
import {
  operationsOf,
  type ReadableOperation,
  resolve,
  type Schema,
} from '../../edge/documentation/openapi.ts';
import type { Reach } from '../../edge/permissions.ts';
import type { Api, ApiResponse } from './api.ts';
import { DESCRIPTION } from './contract.ts';
import { query } from './database.ts';
import { dropBranch } from './records/jobs.ts';

/** One operation of the API description: who may call it, and what a test needs to call it. */
export interface Operation {
  id: string;
  method: string;
  path: string;
  access: 'public' | 'pre_auth' | 'signed_in' | 'platform' | 'user';
  /** Row of the permission table; only for users' operations. */
  action: string | undefined;
  reaches: Partial<Record<string, Reach>>;
  scope: 'read' | 'write' | undefined;
  /** Names of the resources in its path. */
  ids: string[];
  /** Names of other resources, in its query or its body. */
  references: { location: 'query' | 'body'; name: string }[];
  query: Record<string, string>;
  /** Whether the body is a form. */
  isForm: boolean;
  body: Record<string, unknown> | undefined;
  /** Whether it has a body that a request may leave out. */
  isBodyOptional: boolean;
}

/** Replaces the description's example where it is not usable. */
const QUERIES: Record<string, Record<string, string>> = {
  lookUpBranch: { name: 'main' },
  // No host of these stacks keeps its past.
  previewReset: { at: '2026-11-23T10:15:00Z' },
  listChangedRows: { table: 'book' },
  getMetricOfBranches: { metric: 'active_connections' },
  // Otherwise the streams would stay open for minutes.
  streamProjectMetrics: { seconds: '0' },
  streamBranchMetrics: { seconds: '0' },
  streamEvents: { seconds: '0' },
};
/** An identity provider at an address on which nothing listens. */
function newProvider() {
  const name = crypto.randomUUID();
  return {
    name,
    issuer: `http://127.0.0.1:9/${name}`,
    client_id: 'gateway',
    client_secret: 'a secret of the client',
    domains: [`${name}.example`],
  };
}
/** The password of the source that `probeSource` and the imports name. */
export const SOURCE_PASSWORD = 'password-of-a-source-elsewhere';

const ELSEWHERE = { source_url: `postgresql://app:${SOURCE_PASSWORD}@10.255.255.1:5432/shop` };

const BODIES: Record<string, Record<string, unknown>> = {
  // An app key is unique in the whole service; without it the gateway generates one.
  createProject: { name: 'Shop' },
  // A draining host accepts no more projects.
  updateHost: { draining: false },
  // Without an address outside of this machine.
  createWebhook: { url: 'http://127.0.0.1:9/', events: ['storage.changed'] },
  // The example has a branch that the project lacks.
  createChange: { sql: 'alter table book add note text' },
  // The table that `createResources` makes.
  previewMasking: { table: 'book' },
  // An address that no host connects to.
  probeSource: ELSEWHERE,
  startFollowing: ELSEWHERE,
  probeImport: ELSEWHERE,
  importSource: ELSEWHERE,
  // The example is less than tests create.
  setTenantCaps: { project_limit: 1000 },
  createTenant: {
    tenant_id: `made-${crypto.randomUUID()}`,
    name: 'Made',
    owner_email: `${crypto.randomUUID()}@example.com`,
  },
  createIdentityProvider: newProvider(),
  createTenantIdentityProvider: newProvider(),
};

/** Extensions of the description beyond OpenAPI. */
interface Extensions {
  security?: Record<string, unknown>[];
  'x-action'?: string;
  'x-roles'?: Record<string, Reach>;
  'x-scope'?: 'read' | 'write';
}

function isId(schema: Schema | undefined): boolean {
  const { format, anyOf = [] } = resolve(DESCRIPTION, schema ?? {});
  return format === 'uuid' || anyOf.some((variant) => isId(variant));
}

/** Used instead of an action where an access token suffices. */
const SIGNED_IN = 'signed_in';

function accessOf(
  { isPublic }: ReadableOperation,
  { security = [], 'x-action': action }: Extensions,
): Operation['access'] {
  if (isPublic) return 'public';
  if (security.some((way) => 'platform_secret' in way)) return 'platform';
  if (security.some((way) => 'pre_auth_token' in way)) return 'pre_auth';
  return action === SIGNED_IN ? 'signed_in' : 'user';
}

function described(readable: ReadableOperation): Operation {
  const { id, method, path, parameters, body } = readable;
  const extensions = (DESCRIPTION.paths?.[path]?.[method] ?? {}) as Extensions;
  const [media] = Object.values(body?.content ?? {});
  const { properties = {} } = resolve(DESCRIPTION, media?.schema ?? {});
  const example = media && (BODIES[id] ?? (exampleFor(DESCRIPTION, media) as Operation['body']));
  if (media && !example) throw new Error(`no example of a body for ${id}`);
  return {
    id,
    method: method.toUpperCase(),
    path,
    access: accessOf(readable, extensions),
    action: extensions['x-action'],
    reaches: extensions['x-roles'] ?? {},
    scope: extensions['x-scope'],
    ids: parameters.filter((parameter) => parameter.in === 'path').map(({ name }) => name),
    references: [
      ...parameters
        .filter((parameter) => parameter.in === 'query' && isId(parameter.schema as Schema))
        .map(({ name }) => ({ location: 'query' as const, name })),
      ...Object.keys(properties)
        .filter((name) => isId(properties[name]))
        .map((name) => ({ location: 'body' as const, name })),
    ],
    query: QUERIES[id] ?? {},
    isForm: Object.keys(body?.content ?? {}).includes('application/x-www-form-urlencoded'),
    body: example,
    isBodyOptional: body !== null && body.required !== true,
  };
}

const READABLE = Map.groupBy(operationsOf(DESCRIPTION), ({ bearer }) => bearer === 'scim_token');

/** Every operation of the API, except those of SCIM. */
export const OPERATIONS: Operation[] = (READABLE.get(false) ?? []).map(described);
/** Their bodies and errors are those of RFC 7644. */
export const SCIM_OPERATIONS: Operation[] = (READABLE.get(true) ?? []).map(described);

const withAccess = (wanted: Operation['access']) => OPERATIONS.filter(({ access }) => access === wanted);

export const USER_OPERATIONS = withAccess('user');
export const SIGNED_IN_OPERATIONS = withAccess('signed_in');
export const PRE_AUTH_OPERATIONS = withAccess('pre_auth');
export const PLATFORM_OPERATIONS = withAccess('platform');
export const PUBLIC_OPERATIONS = withAccess('public');

/** Ids of resources by their names in paths. */
export type Ids = Record<string, string>;

/** An object may have no text of its own. */
const textOf = (value: unknown) => (typeof value === 'string' ? value : (JSON.stringify(value) ?? ''));

export const formOf = (body: Record<string, unknown>) =>
  new URLSearchParams(Object.entries(body).map(([name, value]) => [name, textOf(value)])).toString();

/** Calls the operation on these resources. */
export function callOperation(
  api: Api,
  { method, path, query, body, isForm }: Pick<Operation, 'method' | 'path' | 'query' | 'body' | 'isForm'>,
  ids: Ids,
): Promise<ApiResponse> {
  const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => {
    const id = ids[name];
    if (id === undefined) throw new Error(`the test has no ${name}`);
    return id;
  });
  const search = new URLSearchParams(query).toString();
  const sent = isForm ? formOf(body ?? {}) : body;
  return api.call(method, search ? `${filled}?${search}` : filled, body === undefined ? {} : { body: sent });
}

/** Creates an API key and a trust of the project. */
export async function createMachines(manager: Api, project_id: string): Promise<Ids> {
  const key = { name: 'Made', role: 'viewer', scopes: ['read'], project_id, expires_in_days: 1 };
  const made = await manager.post<{ id: string }>('/api/v1/api-keys', key);
  const trust = {
    issuer: 'https://ci.example.com',
    audience: 'made',
    claims: { sub: 'made' },
    role: 'viewer',
  };
  const trusted = await manager.post<{ id: string }>(`/api/v1/projects/${project_id}/trusts`, trust);
  return { key_id: made.body.id, trust_id: trusted.body.id };
}

/** Creates an identity provider of the tenant. @param owner of the tenant */
export async function createIdentityProvider(owner: Api): Promise<Ids> {
  const wanted = newProvider();
  const { body } = await owner.post<{ id: string }>('/api/v1/identity-providers', wanted);
  return { provider_id: body.id, domain: wanted.domains[0] ?? '' };
}

/** Creates a project with one resource of each kind. @param manager owner or admin of the same tenant */
export async function createResources(api: Api, manager = api): Promise<Ids> {
  const { id: project_id, tenant_id } = await api.project('Made');
  const { id: rule_id } = await api.allow(project_id);
  // In `main`, so that a reset to the parent keeps it.
  await query(
    (await api.credentials(project_id, 'main')).direct_url,
    "create table book (id int primary key, title text); insert into book values (7, 'Seven'), (8, 'Eight')",
  );
  // With a lease, so that it can be renewed.
  const { id: branch_id } = await api.branch(project_id, 'made', { lease_seconds: 3600 });
  const { body } = await api.get<{ jobs: { id: string }[] }>(`/api/v1/projects/${project_id}/jobs`);
  const { body: me } = await api.get<{ id: string }>('/api/v1/me');
  const job_id = body.jobs[0]?.id ?? '';
  const { id: deleted_branch_id } = await api.branch(project_id, 'undone');
  await dropBranch(api, project_id, deleted_branch_id);
  const path = `/api/v1/projects/${project_id}/branches/${branch_id}/snapshots`;
  const snapshot = await api.post<{ id: string }>(path, {});
  await api.post(`/api/v1/projects/${project_id}/branches/${branch_id}/rehearsal`, {});
  const change = { sql: 'alter table book add note text' };
  const { id: change_id } = (await api.post<{ id: string }>(`/api/v1/projects/${project_id}/changes`, change))
    .body;
  // A closed one refuses whatever would change `main`.
  await api.call('DELETE', `/api/v1/projects/${project_id}/changes/${change_id}`);
  return {
    project_id,
    branch_id,
    branch_ref: branch_id,
    rule_id,
    job_id,
    deleted_branch_id,
    change_id,
    snapshot_id: snapshot.body.id,
    ...(await createMachines(manager, project_id)),
    ...(await createIdentityProvider(manager)),
    webhook_id: await manager.webhook(project_id),
    table: 'book',
    tenant_id: String(tenant_id),
    user_id: me.id,
    // Only the gateway's own accounts have them.
    invitation_id: crypto.randomUUID(),
    session_id: crypto.randomUUID(),
    // No host of these stacks keeps its past.
    bisection_id: crypto.randomUUID(),
    grant_id: crypto.randomUUID(),
  };
}
