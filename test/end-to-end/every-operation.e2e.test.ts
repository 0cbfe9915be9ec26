import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, inject, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api, type ApiResponse, type ProjectBody } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { firstByDay } from '../support/nightly.ts';
import {
  callOperation,
  createIdentityProvider,
  createResources,
  type Ids,
  type Operation,
  PLATFORM_OPERATIONS,
  SOURCE_PASSWORD,
  USER_OPERATIONS,
} from '../support/operations.ts';
import { secretsIn } from '../support/sign-in/found-secrets.ts';
import { contentOfD1, readD1, type TokenOptions, tenantNamed, tokenOf } from '../support/tenants.ts';

const TENANT = 'driven';
const MAKER = { tenant: TENANT, email: 'maker@driven.example' };
/**
 * Callers that may change something; the permission of each operation limits them to own or all resources.
 */
const DRIVERS: Record<string, TokenOptions> = {
  "an owner, in another user's project": { tenant: TENANT, role: 'owner' },
  'an operator, in their own project': { ...MAKER, role: 'operator' },
  "an admin, in another user's project": { tenant: TENANT, role: 'admin' },
};

/** An order in which no operation needs a resource that is already deleted. */
const METHODS = ['POST', 'PUT', 'GET', 'PATCH', 'DELETE'];
const inOrder = (operations: readonly Operation[]) =>
  operations.toSorted((one, other) => {
    const later = METHODS.indexOf(one.method) - METHODS.indexOf(other.method);
    // The deletion of a project also deletes its API keys, whose path is shorter.
    const isLast = Number(one.id === 'deleteProject') - Number(other.id === 'deleteProject');
    return later || isLast || (one.method === 'DELETE' ? other.path.length - one.path.length : 0);
  });

const { devDir, url } = inject('stack');
const folder = devFolder(devDir);
const { PLATFORM_SECRET, CREDENTIAL_KEYS } = gatewaySecrets(folder);

/** Secrets that must not appear in a log or a table, by description. */
const secrets = new Map([
  ['secret of the platform', PLATFORM_SECRET],
  ['password of a source', SOURCE_PASSWORD],
  ['key that seals passwords', CREDENTIAL_KEYS.split(':')[1] ?? ''],
]);
/** Sealed passwords, which must appear only in their table. */
const sealed: string[] = [];
const requestIds: string[] = [];

async function apiOf(who: string, options: TokenOptions): Promise<Api> {
  const token = await tokenOf(options);
  secrets.set(`token of ${who}`, token);
  return new Api(url, token);
}

async function readPasswords(maker: Api, { project_id = '', branch_id = '' }: Ids): Promise<void> {
  for (const query of ['', '?role=read_only', '?role=owner']) {
    const { database_url, direct_url } = await maker.credentials(project_id, branch_id, query);
    for (const { username, password } of [new URL(database_url), new URL(direct_url)]) {
      secrets.set(`password of ${username}`, password);
    }
  }
}

const TRIED = firstByDay(1, Object.entries(DRIVERS));

/**
 * Refused to the provider's users, which the drivers are. `test/edge/people` and `test/edge/sign-in` test
 * them with accounts of the gateway.
 */
const OF_ACCOUNTS: Record<string, [status: number, error: string]> = {
  createInvitation: [409, 'MANAGED_BY_PROVIDER'],
  revokeInvitation: [404, 'NOT_FOUND'],
  changeMemberRole: [409, 'MANAGED_BY_PROVIDER'],
  removeMember: [409, 'MANAGED_BY_PROVIDER'],
  // They have not signed in by the provider of the tenant, which therefore is not required.
  updateTenant: [409, 'SSO_NOT_TRIED'],
  replaceOwnerRecoveryCode: [404, 'NOT_FOUND'],
  // The host of the example is unknown, and nothing moves.
  moveProject: [404, 'NOT_FOUND'],
  getMove: [404, 'NOT_FOUND'],
  cancelMove: [404, 'NOT_FOUND'],
  getDrain: [404, 'NOT_FOUND'],
  // The job is none of a trial.
  getTrial: [404, 'NOT_FOUND'],
  // No event has the example's ID.
  confirmAuditExport: [404, 'NOT_FOUND'],
  // The resolver of this stack is an address on which nothing listens.
  verifyProviderDomain: [503, 'DOMAIN_LOOKUP_FAILED'],
  // The host of the stack keeps no past.
  previewReset: [422, 'TIME_NOT_RECOVERABLE'],
  startBisection: [422, 'TIME_NOT_RECOVERABLE'],
  probeBisection: [404, 'NOT_FOUND'],
  endBisection: [404, 'NOT_FOUND'],
  // The client of the example asks for another gateway, and nobody has signed one in: `test/edge/oauth` does.
  previewOAuthGrant: [400, 'invalid_target'],
  createOAuthGrant: [400, 'invalid_target'],
  deleteOAuthGrant: [404, 'NOT_FOUND'],
  // The host is no standby.
  promoteHost: [409, 'HOST_NOT_STANDBY'],
  // The change is closed.
  ...Object.fromEntries(
    ['rehearseChange', 'approveChange', 'applyChange', 'undoChange'].map(
      (id) => [id, [409, 'CHANGE_STATE']] as const,
    ),
  ),
  // The source is at a private address.
  probeSource: [422, 'SOURCE_UNSUITABLE'],
  probeImport: [422, 'SOURCE_UNSUITABLE'],
  importSource: [422, 'SOURCE_UNSUITABLE'],
  cancelImport: [404, 'NOT_FOUND'],
  // No comparison is long enough.
  cancelDiff: [404, 'NOT_FOUND'],
  startFollowing: [422, 'SOURCE_UNSUITABLE'],
  ...Object.fromEntries(
    ['getFollowing', 'stopFollowing', 'resumeFollowing', 'cutOver', 'callOffCutover'].map(
      (id) => [id, [404, 'NOT_FOUND']] as const,
    ),
  ),
};

function expectDone(operation: Operation, { status, headers, body }: ApiResponse): void {
  const refusal = OF_ACCOUNTS[operation.id];
  if (refusal) expect([status, body.error], operation.id).toEqual(refusal);
  else expect([200, 201, 202, 204], `${operation.id}: ${JSON.stringify(body)}`).toContain(status);
  requestIds.push(headers.get('x-request-id') ?? '');
  // Its ID is no secret, but must not reach a log either.
  if (typeof body?.key === 'string')
    secrets.set(`key ${secrets.size}`, body.key.slice('bg_0123456789abcdef_'.length));
  if (typeof body?.token === 'string') secrets.set(`token of SCIM ${secrets.size}`, body.token);
  if (typeof body?.secret === 'string') secrets.set(`secret of webhook ${body.id}`, body.secret);
}

describe.each(TRIED)('%s', (who, options) => {
  let api: Api;
  let resources: Ids;

  beforeAll(async () => {
    const maker = await apiOf(`maker for ${who}`, { ...MAKER, role: 'operator' });
    api = await apiOf(who, options);
    const owner = new Api(url, await tokenOf({ tenant: TENANT, role: 'owner' }));
    resources = await createResources(maker, owner);
    await readPasswords(maker, resources);
    sealed.push(
      ...readD1<{ sealed_password: string }>(
        'select sealed_password from branch_credentials join project_branches on id = branch_id where project_id = ?',
        resources.project_id ?? '',
      ).map(({ sealed_password }) => sealed_password),
    );
  });

  const permitted = USER_OPERATIONS.filter(({ reaches }) => reaches[options.role ?? '']);
  test.each(inOrder(permitted))('may $method $path', async (operation) => {
    expectDone(operation, await callOperation(api, operation, resources));
  });
});

/** An operation that needs more than the resources has none of them in a new project. */
const WITHOUT_BODY: Record<string, [status: number, error: string]> = {
  checkMasking: [409, 'MASKING_INCOMPLETE'],
};

describe('without its optional body', () => {
  let api: Api;
  let resources: Ids;
  beforeAll(async () => {
    api = await apiOf('owner without bodies', { tenant: TENANT, role: 'owner' });
    resources = await createResources(api);
    await readPasswords(api, resources);
  });

  test.each(inOrder(USER_OPERATIONS.filter(({ isBodyOptional }) => isBodyOptional)))(
    '$method $path answers as with it',
    async (operation) => {
      const response = await callOperation(api, { ...operation, body: undefined }, resources);
      const refusal = WITHOUT_BODY[operation.id];
      if (refusal) expect([response.status, response.body.error]).toEqual(refusal);
      else expectDone(operation, response);
    },
  );
});

let provider: Promise<Ids> | undefined;
/** The provider that the platform manages, and deletes last. */
async function providerOnce(): Promise<Ids> {
  provider ??= tokenOf({ tenant: TENANT, role: 'owner' }).then((token) =>
    createIdentityProvider(new Api(url, token)),
  );
  return provider;
}

let capped: Promise<ProjectBody> | undefined;
/** A project that no operation of the platform deletes. */
async function projectOnce(): Promise<ProjectBody> {
  capped ??= apiOf('maker for the platform', { ...MAKER, role: 'operator' }).then((maker) =>
    maker.project('Capped'),
  );
  return capped;
}

test.each(inOrder(PLATFORM_OPERATIONS))('the platform may $method $path', async (operation) => {
  const platform = new Api(url, PLATFORM_SECRET);
  const hosts = await platform.get<{ hosts: { id: string }[] }>('/platform/v1/hosts');
  const project = await projectOnce();
  const ids = {
    project_id: project.id,
    host_id: hosts.body.hosts[0]?.id ?? '',
    tenant_id: String(project.tenant_id),
    ...(operation.ids.includes('provider_id') && (await providerOnce())),
  };
  // The host of the stack has projects, and stays.
  if (['drainHost', 'removeHost'].includes(operation.id)) {
    const spare = { name: `spare-${operation.id.toLowerCase()}`, db_host: 'spare.example.com' };
    ids.host_id = (await platform.post<{ host_id: string }>('/platform/v1/hosts', spare)).body.host_id;
  }
  if (operation.isBodyOptional)
    expectDone(operation, await callOperation(platform, { ...operation, body: undefined }, ids));
  const response = await callOperation(platform, operation, ids);
  expectDone(operation, response);
  // A removal has no body.
  const { enrolment_token } = response.body ?? {};
  if (typeof enrolment_token === 'string') secrets.set('token of an enrolment', enrolment_token);
});

test('a request with a secret in a wrong place is refused', async () => {
  const token = await tokenOf({ tenant: TENANT });
  secrets.set('token in a wrong place', token);
  const api = new Api(url, token);
  const misplaced = await Promise.all([
    api.get(`/api/v1/projects?access_token=${token}`),
    api.get(`/api/v1/projects/${token}`),
    api.get(`/api/v1/${token}`),
    api.post('/api/v1/projects', { name: 'Shop', [token]: token }),
    api.call('POST', '/api/v1/projects', { body: `{"name":"Shop","password":"${token}` }),
    new Api(url, `${token}x`).get('/api/v1/projects'),
    new Api(url, `${PLATFORM_SECRET}x`).get('/platform/v1/hosts'),
  ]);
  expect(misplaced.map(({ status }) => status)).toEqual([422, 404, 404, 422, 400, 401, 401]);
  requestIds.push(...misplaced.map(({ headers }) => headers.get('x-request-id') ?? ''));
});

/** Descriptions of the secrets that the text contains, in full or truncated. */
const foundIn = (text: string) => secretsIn(text, secrets);

test('the search has secrets to find', () => {
  expect(secrets.size).toBeGreaterThan(4 * TRIED.length);
  for (const [what, secret] of secrets) expect(secret.length, what).toBeGreaterThanOrEqual(20);
  expect(sealed.length).toBeGreaterThanOrEqual(6 * TRIED.length);
  expect(foundIn(`… ${PLATFORM_SECRET.slice(0, 30)} …`)).toEqual(['secret of the platform']);
});

test('no audit event contains a secret, and no row of any table contains one in plain text', () => {
  const { audit_events = [], ...tables } = contentOfD1();
  const events = JSON.stringify(audit_events);
  expect(events).toContain(tenantNamed(TENANT));
  expect(foundIn(events)).toEqual([]);
  expect(sealed.filter((text) => events.includes(text))).toEqual([]);
  for (const [table, rows] of Object.entries(tables))
    expect(foundIn(JSON.stringify(rows)), table).toEqual([]);
});

test('no log line contains a secret', async () => {
  const logs = globSync('*.log', { cwd: folder.logs });
  expect(logs).toEqual(expect.arrayContaining(['gateway.log', 'agent.log']));
  const read = (name: string) => readFileSync(join(folder.logs, name), 'utf8');
  await eventually(async () => {
    const gateway = read('gateway.log');
    expect(requestIds.filter((id) => !gateway.includes(id))).toEqual([]);
  });
  for (const name of logs) {
    const text = read(name);
    expect(foundIn(text), name).toEqual([]);
    expect(
      sealed.filter((one) => text.includes(one)),
      name,
    ).toEqual([]);
  }
});
