import { existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { beforeAll, describe, expect, inject, test } from 'vitest';
import { readSettings as readAgentSettings } from '../../agent/process/settings.ts';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { readSettings } from '../../edge/settings.ts';
import { authorizationUrl } from '../../edge/sign-in/provider-client.ts';
import { Api, type BranchBody, type Credentials, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { attempt, attempts, HERE, targetOfUrl } from '../support/host/attempts.ts';
import { deliveredMails } from '../support/sign-in/mails.ts';
import { logIn, signUp } from '../support/sign-in/sign-in.ts';
import { readStackFile } from '../support/stack/started-stack.ts';
import { apiOf, ownerOf, readD1, tenantNamed, tokenOf } from '../support/tenants.ts';
import { type SpecifiedRow, specifiedRows } from './tables.ts';

/** Each row of the tables of the specification, against the running gateway, its D1 and its host. */

const ROOT = join(import.meta.dirname, '../..');
const ROWS = specifiedRows();
const DAY_SECONDS = 86_400;
const { url, devDir } = inject('stack');
const platform = new Api(url, gatewaySecrets(devFolder(devDir)).PLATFORM_SECRET);

let owner: Api;
let project: ProjectBody;
let branch: BranchBody;
let credentials: Credentials;
/** A project with ten branches, of which two expire and one has a lease. */
let full: ProjectBody;
/** Of one of those that expire. */
let brief: Credentials;
const path = (of: ProjectBody, more = '') => `/api/v1/projects/${of.id}/branches${more}`;

beforeAll(async () => {
  owner = await ownerOf('specification');
  full = await owner.project('Full');
  await owner.allow(full.id);
  await owner.branch(full.id, 'brief', { ttl_seconds: 60 });
  brief = await owner.credentials(full.id, 'brief');
  await owner.branch(full.id, 'revived', { ttl_seconds: 60 });
  // The service deletes no protected branch.
  for (const name of ['brief', 'revived'])
    expect((await owner.patch(path(full, `/${name}`), { protected: true })).status).toBe(200);
  await owner.branch(full.id, 'leased', { lease_seconds: 3600 });
  const many = { count: 6, name_prefix: 'many-' };
  expect(await owner.post(path(full, '/batch'), many, FROM_LOOPBACK)).toMatchObject({ status: 201 });
  used = usedProject();
  used.catch(() => {});
  project = await owner.project('Specified');
  await owner.allow(project.id);
  const main = await owner.credentials(project.id, 'main');
  await query(
    main.direct_url,
    'create table item as select n, n::text as name from generate_series(1, 120) n',
  );
  await query(main.direct_url, 'alter table item add primary key (n)');
  branch = await owner.branch(project.id, 'specified');
  credentials = await owner.credentials(project.id, 'specified');
});

const untilExpired = async () => {
  for (const name of ['brief', 'revived'])
    await eventually(async () => {
      const { body } = await owner.get(path(full, `/${name}`));
      expect(body).toMatchObject({ status: 'expired' });
    }, 120);
};

type Check = { says: string } & (
  | { run: (row: SpecifiedRow) => Promise<void> | void }
  /** The test of this title in this file checks the row. */
  | { file: string; title: string }
);
const check = (says: string, run: (row: SpecifiedRow) => Promise<void> | void): Check => ({ says, run });
const testOf = (file: string, title: string): Check => ({ says: title, file, title });

/** @returns the cell. @throws Error if the row has none of that name */
const cell = ({ cells }: SpecifiedRow, name: string): string => {
  const text = cells[name];
  if (text === undefined) throw new Error(`no column ${name}`);
  return text;
};
const codes = (text: string) => [...text.matchAll(/`([^`]+)`/g)].map(([, code = '']) => code);
const numberIn = (text: string) => Number(/\d[\d.]*/.exec(text)?.[0]);

interface Column {
  name: string;
  notnull: number;
  dflt_value: string | null;
}
const columnsOf = (table: string) => readD1<Column>('select * from pragma_table_info(?)', table);

const table = (name: string, ...columns: string[]) =>
  check(`D1 has \`${name}\` with ${columns.map((column) => `\`${column}\``).join(', ')}`, () => {
    expect(columnsOf(name).map((column) => column.name)).toEqual(expect.arrayContaining(columns));
  });

const UUID = /^[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$/;
const TIMESTAMP = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/;
const isA: Record<string, (value: unknown) => boolean> = {
  UUID: (value) => UUID.test(String(value)),
  text: (value) => typeof value === 'string',
  timestamp: (value) => TIMESTAMP.test(String(value)),
  bigint: (value) => Number.isInteger(value),
  boolean: (value) => typeof value === 'boolean',
  integer: (value) => Number.isInteger(value),
  number: (value) => typeof value === 'number',
};

const NOT_IN_CREATION = ['deleted_at', 'updated_at'];
const DEFAULTS: Record<string, string> = { active: "'active'", '7d': "'7d'", false: 'false' };

const branchField = check('the column of D1 and the response to a creation', (row) => {
  const [name, type, rules] = ['Field', 'Type', 'Rules'].map((head) => cell(row, head)) as [
    string,
    string,
    string,
  ];
  const column = columnsOf('project_branches').find((one) => one.name === name);
  if (!column) throw new Error(`no column ${name}`);
  const isNullable = type.includes('nullable');
  expect(column.notnull, 'not null').toBe(isNullable || name === 'id' ? column.notnull : 1);
  if (isNullable) expect(column.notnull, 'nullable').toBe(0);
  const given = /Default (?:`(\w+)`|(false))/.exec(rules);
  if (given) expect(column.dflt_value).toBe(DEFAULTS[given[1] ?? given[2] ?? '']);
  if (NOT_IN_CREATION.includes(name)) return expect(created).not.toHaveProperty(name);
  const [kind = ''] = type.split(',');
  expect(isA[kind]?.(created[name]), `${name}: ${created[name]}`).toBe(true);
  if (name === 'ttl_seconds') expect(created[name]).toBe(7 * DAY_SECONDS);
});
/** The response to the creation of a branch from `main`. */
let created: BranchBody;
beforeAll(async () => {
  created = await owner.branch(project.id, 'created');
});

const lifespan = check('each spelling, in the response to a change', async (row) => {
  const [value = ''] = codes(cell(row, 'Value')).length ? codes(cell(row, 'Value')) : [cell(row, 'Value')];
  const days = numberIn(cell(row, 'Duration'));
  for (const spelling of [value, ...cell(row, 'Accepted aliases').split(', ')]) {
    const { status, body } = await owner.patch(path(project, '/created'), { lifespan: spelling });
    expect([status, body.lifespan, body.ttl_seconds]).toEqual([
      200,
      value,
      value === 'forever' ? null : days * DAY_SECONDS,
    ]);
    if (value === 'forever') expect(body.expires_at).toBeNull();
  }
});

const credentialField = (expected: () => RegExp | string) =>
  check('the credentials of a branch', (row) => {
    const value = credentials[cell(row, 'Field')];
    const wanted = expected();
    if (typeof wanted === 'string') expect(value).toBe(wanted);
    else expect(value).toMatch(wanted);
  });
const upper = () => branch.database_name.replace(/^db_/, '').toUpperCase().replaceAll('-', '_');
const connectionUrl = (port: string) => {
  const { pooled_port, direct_port } = portsOf();
  const at = port === '6432' ? pooled_port : direct_port;
  return new RegExp(`^postgresql://[^:]+:[^@]+@[^:/]+:${at}/${branch.database_name}\\?sslmode=require$`);
};
/** The local stack has other ports than the specification's 6432 and 5432. */
const portsOf = () =>
  readD1<{ pooled_port: number; direct_port: number }>(
    'select pooled_port, direct_port from hosts limit 1',
  )[0] ?? {
    pooled_port: 0,
    direct_port: 0,
  };

const summaryField = check('the metrics summary of a branch', async (row) => {
  const { body } = await owner.get(path(project, '/specified/metrics/summary'));
  for (const name of cell(row, 'Field').split(', ')) {
    const value = name.split('.').reduce<unknown>((at, part) => (at as Record<string, unknown>)[part], body);
    const [kind = ''] = cell(row, 'Type').split(',');
    expect(isA[kind]?.(value), `${name}: ${value}`).toBe(true);
    if (cell(row, 'Type').includes('0 to 1')) expect(Number(value)).toBeLessThanOrEqual(1);
  }
});

const metric = check('the series of a branch', async (row) => {
  const name = cell(row, 'Metric');
  const { status, body } = await owner.get(path(project, `/specified/metrics?metric=${name}`));
  expect([status, (body.series as { metric: string }[]).map((one) => one.metric)]).toEqual([200, [name]]);
});

const me = async (api: Api) => api.get('/api/v1/me');

/** A project whose usage is known. */
let used: Promise<ProjectBody>;
async function usedProject() {
  const made = await owner.project('Used');
  await owner.allow(made.id);
  await eventually(async () => expect(await usedBytes(made)).toBeGreaterThan(1_000_000), 150);
  return made;
}
const usedBytes = async ({ id }: ProjectBody) =>
  Number((await owner.get(`/api/v1/projects/${id}/usage`)).body.storage_used_bytes);

/** Sets the quota so that its usage is this share of it. */
async function usedTo(share: number): Promise<ProjectBody> {
  const made = await used;
  const storage_quota_gib = (await usedBytes(made)) / share / 2 ** 30;
  expect((await owner.patch(`/v1/projects/${made.id}`, { storage_quota_gib })).status).toBe(200);
  return made;
}
const stateOf = async (made: ProjectBody) =>
  (await owner.get(`/api/v1/projects/${made.id}/usage`)).body.storage_state;
const storageState = (share: number, state: string) =>
  check(`a project at ${Math.round(share * 100)} % of its quota is \`${state}\``, async () =>
    expect(await stateOf(await usedTo(share))).toBe(state),
  );
const writeBlock = check('the logins of a project at 101 % of its quota', async () => {
  const blocked = await usedTo(1.01);
  expect(await stateOf(blocked)).toBe('write_blocked');
  const main = await owner.credentials(blocked.id, 'main');
  const readOnly = await owner.credentials(blocked.id, 'main', '?role=read_only');
  await query(main.direct_url, 'create table if not exists written (n int)');
  await query(main.direct_url, 'insert into written values (1)');
  for (const login of [main.database_url, readOnly.direct_url])
    await expect(query(login, 'insert into written values (2)')).rejects.toThrow();
});

const site = { url, mails: () => deliveredMails({ state: readStackFile(devDir) }) };
let loggedIn: Record<string, unknown> | null = null;
const login = async () => {
  const email = `${crypto.randomUUID()}@example.com`;
  const session = await signUp(site, email);
  loggedIn ??= (await logIn(site, email)).body as unknown as Record<string, unknown>;
  return { session: session as unknown as Record<string, unknown>, login: loggedIn };
};
const loginField = check(
  'a login with a set-up of the second factor, and the sign-up before it',
  async (row) => {
    const both = await login();
    const isOf: Record<string, (value: unknown) => boolean> = {
      'string or null': (value) => value === null || typeof value === 'string',
      boolean: (value) => typeof value === 'boolean',
      'null, or `totp` when a code is required': (value) => value === null || value === 'totp',
      'null, or {`id`, `email`, `role`}': (value) =>
        value === null || ['id', 'email', 'role'].every((name) => name in (value as object)),
    };
    for (const body of [both.session, both.login])
      expect(isOf[cell(row, 'Type')]?.(body[cell(row, 'Field')])).toBe(true);
    expect(both.login).toMatchObject({
      access_token: null,
      requires_2fa_setup: true,
      pre_auth_token: expect.any(String),
    });
  },
);

const roleRow = check('what a user of the role can do', async (row) => {
  const role = cell(row, 'Role');
  const user = await apiOf({ tenant: 'specification', role });
  const { status } = await user.post('/api/v1/projects', { name: `Of ${role}` });
  expect(status).toBe(cell(row, 'Create projects') === 'yes' ? 201 : 403);
  const all = await user.get(`/api/v1/projects/${project.id}`);
  expect(all.status).toBe(cell(row, 'See all projects') === 'yes' ? 200 : 404);
  const own = await user.get<{ projects: ProjectBody[] }>('/api/v1/projects');
  const [first = project] = own.body.projects;
  const rule = await user.post(`/api/v1/projects/${first.id}/network-rules`, {
    cidr: `198.51.100.${['owner', 'admin', 'operator', 'viewer'].indexOf(role)}/32`,
  });
  expect(rule.status === 201).toBe(cell(row, 'Manage network') === 'yes');
});

const audited = check('the audit log', async (row) => {
  const { body } = await owner.get<{ audit_events: unknown[] }>(
    `/api/v1/audit-events?project_id=${project.id}&name=${cell(row, 'Name').replaceAll('`', '')}`,
  );
  expect(body.audit_events.length).toBeGreaterThan(0);
});

const rowsPath = (name: string) => path(project, `/${name}/tables/item/rows`);
let guarded: Promise<BranchBody> | undefined;
/** A protected branch: only the body of the specification is sent. */
const protectedBranch = async () => {
  guarded ??= owner.branch(project.id, 'guarded');
  await guarded;
  await owner.patch(path(project, '/guarded'), { protected: true });
};

const CHECKS: Record<string, Check> = {
  '2.1 user': table('users', 'email', 'role', 'tenant_id'),
  '2.1 organization': table('organizations', 'idp_tenant_id'),
  '2.1 organization_member': table('organization_members', 'organization_id', 'user_id'),
  '2.1 project': table('projects', 'storage_quota_gib'),
  '2.1 project_branch': table('project_branches', 'project_id'),
  '2.1 network rule': table('network_rules', 'project_id', 'branch_id', 'cidr'),
  '2.1 audit event': table('audit_events', 'name'),
  ...Object.fromEntries(
    ROWS.filter(({ section }) => section === '2.2').map(({ key }) => [key, branchField] as const),
  ),
  ...Object.fromEntries(
    ['7d', '1m', '6m', '1y', 'forever'].map((value) => [`2.3 ${value}`, lifespan] as const),
  ),
  '2.5 project_id': credentialField(() => project.id),
  '2.5 branch_id': credentialField(() => branch.id),
  '2.5 branch_name': credentialField(() => branch.branch_name),
  '2.5 database': credentialField(() => branch.database_name),
  '2.5 runtime_key': credentialField(() => `DATABASE_URL_${upper()}`),
  '2.5 direct_key': credentialField(() => `DIRECT_URL_${upper()}`),
  '2.5 database_url': credentialField(() => connectionUrl('6432')),
  '2.5 direct_url': credentialField(() => connectionUrl('5432')),
  '2.6 project_id, branch_id': summaryField,
  '2.6 branch_name, database': summaryField,
  '2.6 metrics.database_size_bytes': summaryField,
  '2.6 metrics.active_connections': summaryField,
  '2.6 metrics.cache_hit_ratio': summaryField,
  '2.6 usage.storageUsedBytes': summaryField,
  '2.6 usage.storageLimitBytes': summaryField,
  ...Object.fromEntries(
    [
      'cpu_seconds',
      'active_connections',
      'total_connections',
      'transactions_committed',
      'transactions_rolled_back',
      'rows_fetched',
      'rows_inserted',
      'rows_updated',
      'rows_deleted',
    ].map((name) => [`2.7 ${name}`, metric] as const),
  ),
  '2.8 gid': check('a user of D1 has the claim of its token', async () => {
    await me(owner);
    const users = readD1<{ gid: string }>(
      'select gid from users where tenant_id = ?',
      tenantNamed('specification'),
    );
    expect(users.every(({ gid }) => gid.length > 0) && users.length > 0).toBe(true);
  }),
  '2.8 email': check('`GET /api/v1/me`', async () =>
    expect((await me(owner)).body).toMatchObject({ email: `owner@specification.example` }),
  ),
  '2.8 role': check('`GET /api/v1/me` of a user of each role', async (row) => {
    for (const role of codes(cell(row, 'Meaning'))) {
      const body = (await me(await apiOf({ tenant: 'specification', role }))).body;
      expect(body).toMatchObject({ role });
    }
  }),
  '2.8 scp': check('a token without the scope for writing', async () => {
    const reader = await apiOf({ tenant: 'specification', scope: 'read' });
    expect((await reader.get(`/api/v1/projects/${project.id}`)).status).toBe(200);
    expect((await reader.post('/api/v1/projects', { name: 'Refused' })).status).toBe(403);
  }),
  '2.8 exp': check('an expired token', async () => {
    const late = new Api(url, await tokenOf({ tenant: 'specification', expiresIn: -1 }));
    expect((await me(late)).status).toBe(401);
  }),
  '2.8 nbf': testOf('test/edge/authentication/claims.test.ts', 'nbf 30 s ahead'),
  '2.8 ctx.tenant_id': check('a token without a tenant', async () => {
    const nowhere = await apiOf({ tenant: null });
    expect(await nowhere.get('/api/v1/projects')).toMatchObject({ status: 403 });
    expect(await nowhere.post('/api/v1/projects', { name: 'Refused' })).toMatchObject({ status: 403 });
  }),
  '3.1 (none)': check('a creation, its audit event and its rule', async () => {
    expect(branch).toMatchObject({ status: 'active' });
    const { body } = await owner.get<{ network_rules: object[] }>(
      `/api/v1/projects/${project.id}/network-rules`,
    );
    expect(body.network_rules).toContainEqual(
      expect.objectContaining({ branch_id: branch.id, source: 'creator_ip', cidr: '127.0.0.1/32' }),
    );
    const events = readD1(
      'select id from audit_events where branch_id = ? and name = ?',
      branch.id,
      'branch.created',
    );
    expect(events).toHaveLength(1);
  }),
  '3.1 active': check('the end of a life of a minute, and a login after it', async () => {
    const target = targetOfUrl((await owner.credentials(full.id, 'many-1')).direct_url);
    expect(await attempt(target)).toBe('in');
    await untilExpired();
    const late = targetOfUrl(brief.direct_url);
    await eventually(async () => expect(await attempt(late)).not.toBe('in'));
  }),
  '3.1 any non-deleted': check('a deletion', async () => {
    const gone = await owner.branch(project.id, 'gone');
    expect((await owner.delete(path(project, '/gone'))).status).toBe(202);
    const [record] = readD1<{ status: string; deleted_at: number | null }>(
      'select status, deleted_at from project_branches where id = ?',
      gone.id,
    );
    expect(record).toMatchObject({ status: 'deleted', deleted_at: expect.any(Number) });
  }),
  '3.2 normal': storageState(0.75, 'normal'),
  '3.2 warning': storageState(0.9, 'warning'),
  '3.2 write-blocked': writeBlock,
  '3.3 password login: credentials valid, 2FA enrolled': testOf(
    'test/edge/sign-in/second-factor.worker.test.ts',
    'a sign-up, the enrolment of an app, and a login with its code',
  ),
  '3.3 password login: credentials valid, 2FA setup required': check('a login of a new account', async () => {
    expect((await login()).login).toMatchObject({ requires_2fa_setup: true, access_token: null });
  }),
  '3.3 password login: credentials valid, no 2FA step': testOf(
    'test/edge/sign-in/account-sign-in.worker.test.ts',
    'is completed by the mailed code, and its tokens are accepted',
  ),
  '3.3 2FA verify-login, verify-setup or skip': testOf(
    'test/edge/sign-in/second-factor.worker.test.ts',
    'is skipped until the next login, and the token is then used up',
  ),
  '4.1 GET /api/v1/auth/idp/login': check('with discovery and without', async (row) => {
    const [endpoint = ''] = codes(cell(row, 'Response')).map((code) => code.replace('{idp_url}', ''));
    const { headers } = await new Api(url, null).get('/api/v1/auth/idp/login?return_to=/');
    const location = new URL(headers.get('location') ?? '');
    expect(location.origin + location.pathname).toBe(`${readStackFile(devDir).idp_url}${endpoint}`);
    const bare = createServer((_request, response) => response.writeHead(404).end());
    await new Promise<void>((resolve) => bare.listen(0, HERE, resolve));
    const IDP_URL = `http://${HERE}:${(bare.address() as AddressInfo).port}`;
    const settings = readSettings({ ...SETTINGS, IDP_URL });
    const parameters = { redirect_uri: `${url}/x`, state: 's', code_challenge: 'c' };
    const without = await authorizationUrl(settings, 'gateway', parameters);
    bare.close();
    expect(without).toMatchObject({ ok: true, value: expect.stringMatching(`^${IDP_URL}${endpoint}\\?`) });
  }),
  '4.1 GET /api/v1/auth/idp/callback': testOf(
    'test/end-to-end/provider-sign-in.e2e.test.ts',
    'goes through the form of the provider and returns tokens that the API accepts',
  ),
  '4.1 POST /api/v1/auth/login': check('each provider of the specification', async (row) => {
    const email = `${crypto.randomUUID()}@example.com`;
    await signUp(site, email);
    const names = codes(cell(row, 'Request')).filter((name) => /^(?:base|<service>)/.test(name));
    for (const name of names) {
      const provider = name.replace('<service>', 'branchgate').toUpperCase();
      expect((await logIn(site, email, undefined, provider)).status).toBe(200);
    }
    expect(names).toHaveLength(4);
  }),
  '4.1 POST /api/v1/auth/signup': check('a sign-up', async () => {
    const email = `${crypto.randomUUID()}@example.com`;
    const request = { name: 'Ada', email, password: 'correct horse battery', provider: 'base' };
    expect(await new Api(url, null).post('/api/v1/auth/signup', request)).toMatchObject({
      status: 202,
      body: {
        email,
        message: expect.any(String),
        verification: { challenge_id: expect.any(String), channel: 'email', expires_at: expect.any(String) },
        requires_2fa: expect.any(Boolean),
        requires_2fa_setup: expect.any(Boolean),
        method: 'email_otp',
      },
    });
  }),
  '4.1 POST /api/v1/auth/magic-link/start': check('a magic link', async () =>
    expect(
      await new Api(url, null).post('/api/v1/auth/magic-link/start', { email: 'x@example.com' }),
    ).toMatchObject({
      status: 202,
      body: { challenge_id: expect.any(String), channel: 'email', expires_at: expect.any(String) },
    }),
  ),
  '4.1 POST /api/v1/auth/magic-link/verify': check('the code of a sign-up', async () => {
    expect((await login()).session).toMatchObject({
      access_token: expect.any(String),
      refresh_token: expect.any(String),
    });
  }),
  '4.1 POST /api/v1/auth/cli/start': check('a sign-in of a command line', async () => {
    const request = {
      redirect_uri: 'http://127.0.0.1:1234/auth/callback',
      state: 'state',
      code_challenge: 'A'.repeat(43),
      code_challenge_method: 'S256',
    };
    expect(await new Api(url, null).post('/api/v1/auth/cli/start', request)).toMatchObject({
      status: 200,
      body: {
        authorization_url: expect.any(String),
        client_id: expect.any(String),
        scopes: 'openid profile email branchgate:read branchgate:write',
      },
    });
  }),
  '4.1 POST /api/v1/auth/cli/exchange': testOf(
    'test/end-to-end/provider-sign-in.e2e.test.ts',
    'returns tokens that the API accepts, and is audited',
  ),
  '4.1 POST /api/v1/auth/refresh': testOf(
    'test/end-to-end/session.e2e.test.ts',
    'returns a new pair of tokens that the API accepts',
  ),
  '4.1 POST /api/v1/auth/2fa/setup': testOf(
    'test/edge/sign-in/second-factor.worker.test.ts',
    'a sign-up, the enrolment of an app, and a login with its code',
  ),
  '4.1 POST /api/v1/auth/2fa/verify-setup': testOf(
    'test/edge/sign-in/second-factor.worker.test.ts',
    'a sign-up, the enrolment of an app, and a login with its code',
  ),
  '4.1 POST /api/v1/auth/2fa/verify-login': testOf(
    'test/end-to-end/second-factor.e2e.test.ts',
    'on the local stack: an app is enrolled, its next code signs in, and both are audited',
  ),
  '4.1 POST /api/v1/auth/2fa/skip': check('the pre-auth token of a login', async () => {
    const email = `${crypto.randomUUID()}@example.com`;
    await signUp(site, email);
    const { body } = await logIn(site, email);
    const skipped = await new Api(url, body.pre_auth_token).call('POST', '/api/v1/auth/2fa/skip');
    expect(skipped).toMatchObject({ status: 200, body: { access_token: expect.any(String) } });
    expect((await logIn(site, email)).body).toMatchObject({ requires_2fa_setup: true });
  }),
  ...Object.fromEntries(
    [
      'access_token',
      'refresh_token',
      'pre_auth_token',
      'requires_2fa',
      'requires_2fa_setup',
      'method',
      'user',
    ].map((name) => [`4.2 ${name}`, loginField] as const),
  ),
  '4.3 POST /api/v1/projects/:project_id/branches': check('a creation with the defaults', () => {
    const fields = ROWS.filter(({ section }) => section === '2.2').map((row) => cell(row, 'Field'));
    expect(Object.keys(created)).toEqual(
      expect.arrayContaining(fields.filter((name) => !NOT_IN_CREATION.includes(name))),
    );
    expect(created).toMatchObject({ parent_branch_id: project.main_branch.id, lifespan: '7d' });
  }),
  '4.3 GET /api/v1/projects/:project_id/branches': check('the order of the list', async () => {
    const { body } = await owner.get<{ branches: BranchBody[] }>(path(project));
    const order = body.branches.map(({ is_default, created_at }) => `${is_default ? 0 : 1} ${created_at}`);
    expect(order).toEqual([...order].sort());
  }),
  '4.3 GET /api/v1/projects/:project_id/branches/lookup': check('by name and by ID', async () => {
    for (const wanted of ['name=specified', `id=${branch.id}`])
      expect((await owner.get(path(project, `/lookup?${wanted}`))).body).toMatchObject({
        matches: [{ id: branch.id }],
        is_duplicate: true,
      });
    expect((await owner.get(path(project, '/lookup?name=free-name'))).body).toEqual({
      matches: [],
      is_duplicate: false,
    });
  }),
  '4.3 GET /api/v1/projects/:project_id/branches/:branch_ref/credentials': check(
    'two calls, two events',
    async (row) => {
      const [name = ''] = codes(cell(row, 'Response'));
      const count = () =>
        readD1('select id from audit_events where branch_id = ? and name = ?', branch.id, name).length;
      const before = count();
      for (const reference of ['specified', branch.id]) await owner.credentials(project.id, reference);
      expect(count()).toBe(before + 2);
    },
  ),
  '4.3 GET /api/v1/projects/:project_id/branches/:branch_ref/metrics/summary': check(
    'by name and by ID',
    async () => {
      for (const reference of ['specified', branch.id])
        expect((await owner.get(path(project, `/${reference}/metrics/summary`))).status).toBe(200);
    },
  ),
  '4.3 GET /api/v1/projects/:project_id/branches/:branch_ref/tables': check(
    'the tables of a branch',
    async () =>
      expect((await owner.get(path(project, '/specified/tables'))).body).toMatchObject({
        tables: [{ name: 'item' }],
      }),
  ),
  '4.3 GET /api/v1/projects/:project_id/branches/:branch_ref/tables/:table/rows': check(
    'two pages',
    async (row) => {
      const limit = numberIn(/up to (\d+)/.exec(cell(row, 'Request'))?.[0] ?? '');
      const page = async (query: string) =>
        (await owner.get<{ rows: { n: number }[] }>(`${rowsPath('specified')}?${query}`)).body.rows.map(
          ({ n }) => n,
        );
      expect(await page(`limit=${limit}&offset=50`)).toEqual(Array.from({ length: limit }, (_, n) => n + 51));
      expect((await owner.get(`${rowsPath('specified')}?limit=${limit + 1}`)).status).toBe(422);
    },
  ),
  '4.3 PATCH /api/v1/projects/:project_id/branches/:branch_ref/tables/:table/rows': check(
    'one cell of a protected branch, with no other fields than these',
    async (row) => {
      await protectedBranch();
      const body = { column: 'name', id: 1, primary_key: 'n', value: 'changed' };
      expect(Object.keys(body)).toEqual(codes(cell(row, 'Request')));
      expect((await owner.patch(rowsPath('guarded'), body)).status).toBe(200);
      const viewer = await apiOf({ tenant: 'specification', role: 'viewer' });
      expect([403, 404]).toContain((await viewer.patch(rowsPath('guarded'), body)).status);
    },
  ),
  '4.3 DELETE /api/v1/projects/:project_id/branches/:branch_ref/tables/:table/rows': check(
    'rows of a protected branch, with no other fields than these',
    async (row) => {
      await protectedBranch();
      const body = { ids: [2, 3], primary_key: 'n' };
      expect(Object.keys(body)).toEqual(codes(cell(row, 'Request')));
      expect(await owner.call('DELETE', rowsPath('guarded'), { body })).toMatchObject({
        status: 200,
        body: { deleted: 2 },
      });
    },
  ),
  '4.3 DELETE /api/v1/projects/:project_id/branches/:branch_id': check('a deletion', async () => {
    const gone = await owner.branch(project.id, 'gone-too');
    expect(await owner.delete(path(project, `/${gone.id}`))).toMatchObject({
      status: 202,
      body: { status: 'deleted' },
    });
    expect((await owner.get(path(project, `/${gone.id}`))).status).toBe(404);
  }),
  '5 PASETO v4 public': testOf('test/edge/authentication/authenticate.test.ts', 'identifies its bearer'),
  '5 Legacy JWT access': check('the default of the setting', (row) =>
    expect(readSettings(SETTINGS).JWT_ACCESS_TTL_SECONDS).toBe(numberIn(cell(row, 'Lifetime')) * 60),
  ),
  '5 Legacy JWT refresh': check('the default of the setting', (row) =>
    expect(readSettings(SETTINGS).JWT_REFRESH_TTL_SECONDS).toBe(
      numberIn(cell(row, 'Lifetime')) * DAY_SECONDS,
    ),
  ),
  '5 Pre-auth token': testOf(
    'test/edge/sign-in/second-factor.worker.test.ts',
    'a sign-up, the enrolment of an app, and a login with its code',
  ),
  '5 owner': roleRow,
  '5 admin': roleRow,
  '5 operator': roleRow,
  '5 viewer': roleRow,
  '6 STORAGE_WARNING': testOf(
    'test/end-to-end/metrics-and-quota.e2e.test.ts',
    'is warned, blocked, and unblocked when data is deleted',
  ),
  '6 WRITE_BLOCKED': writeBlock,
  '6 branch.created': audited,
  '6 branch.deleted': audited,
  '6 branch.credentials.viewed': audited,
  '6 <service>.cli.login': testOf(
    'test/end-to-end/provider-sign-in.e2e.test.ts',
    'returns tokens that the API accepts, and is audited',
  ),
  '7 Project already holds 10 active branches (count of statuses creating, active, expired)': check(
    'a creation in a project with ten branches, one of them expired and one leased',
    async (row) => {
      await untilExpired();
      const limit = numberIn(cell(row, 'Condition'));
      const { status, body } = await owner.post(path(full), { branch_name: 'eleventh' }, FROM_LOOPBACK);
      expect([status, body]).toEqual([
        Number(cell(row, 'Status')),
        {
          error: codes(cell(row, 'Body'))[1],
          // The limit by its name, and who raises it.
          message: expect.stringMatching(/\(branch_limit\).*platform operator/),
          limit,
          current: 10,
          retry_after: null,
          request_id: expect.any(String),
        },
      ]);
      // A revival takes no slot, and leaves none.
      const revival = await owner.patch(path(full, '/revived'), { lifespan: '7d' });
      expect(revival.body).toMatchObject({ status: 'active' });
      expect((await owner.post(path(full), { branch_name: 'eleventh' }, FROM_LOOPBACK)).status).toBe(429);
    },
  ),
  '7 Delete of a protected or default branch (always main)': check(
    'deletions, with `confirm` too',
    async (row) => {
      await protectedBranch();
      for (const name of ['main', 'guarded'])
        expect((await owner.delete(path(project, `/${name}`))).status).toBe(numberIn(cell(row, 'Status')));
      expect((await owner.delete(path(project, '/guarded?confirm=guarded'))).status).toBeGreaterThanOrEqual(
        400,
      );
      await owner.patch(path(project, '/guarded'), { protected: false });
      expect((await owner.delete(path(project, '/guarded'))).status).toBe(202);
    },
  ),
  '7 Rate limit exceeded': check('the sixth rotation of a branch', async (row) => {
    const { status, body } = await sixthRotation();
    expect([status, body]).toEqual([
      Number(cell(row, 'Status')),
      {
        error: codes(cell(row, 'Body'))[1],
        message: expect.any(String),
        retry_after: expect.any(Number),
        request_id: expect.any(String),
      },
    ]);
  }),
  '7 Derived database name longer than 63 characters': check('a name that is too long', async () => {
    const long = await owner.project('Long', { app_key: 'a'.repeat(45) });
    const { status } = await owner.post(path(long), { branch_name: 'b'.repeat(20) }, FROM_LOOPBACK);
    expect(status).toBe(422);
  }),
  '7 Writes when storage is at 100%': writeBlock,
  '8 Active branches': check('leased branches count; the operator raises the limit', async (row) => {
    const [limit, raised] = [...cell(row, 'Value').matchAll(/\d+/g)].map(Number);
    const { body } = await owner.get(`/api/v1/projects/${full.id}`);
    expect(body).toMatchObject({ branch_limit: limit, branch_count: limit, leased_branch_count: 1 });
    const leased = { branch_name: 'another', lease_seconds: 600 };
    expect((await owner.post(path(full), leased, FROM_LOOPBACK)).status).toBe(429);
    const caps = `/platform/v1/projects/${full.id}`;
    expect((await platform.patch(caps, { branch_limit: Number(raised) + 1 })).status).toBe(422);
    expect((await platform.patch(caps, { branch_limit: raised })).status).toBe(200);
    expect((await owner.post(path(full), leased, FROM_LOOPBACK)).status).toBe(201);
  }),
  '8 main branch': check('a new project', async () => {
    const { body } = await owner.get<{ branches: BranchBody[] }>(path(project));
    expect(body.branches.filter(({ is_default }) => is_default)).toMatchObject([
      { branch_name: 'main', protected: true, lifespan: 'forever', expires_at: null },
    ]);
    expect((await owner.delete(path(project, '/main'))).status).toBe(403);
  }),
  '8 Concurrent branch creations': testOf(
    'test/edge/jobs/job-runner.worker.test.ts',
    'three creations run in parallel, the others wait in order',
  ),
  '8 Branch slug length': check('names of 2, 3, 48 and 49 characters', async (row) => {
    const [max, min] = [...cell(row, 'Value').matchAll(/\d+/g)].map(Number) as [number, number];
    const short = await owner.project('Short', {
      app_key: `s${Date.now().toString(36).slice(-3)}`,
      env: 'e',
    });
    const statusOf = async (length: number) =>
      (await owner.post(path(short), { branch_name: 'n'.repeat(length) }, FROM_LOOPBACK)).status;
    expect([
      await statusOf(min - 1),
      await statusOf(min),
      await statusOf(max),
      await statusOf(max + 1),
    ]).toEqual([422, 201, 201, 422]);
  }),
  '8 Database name length': check('the longest branch name of a project', async (row) => {
    const project_ = await owner.project('Named', {
      app_key: `n${Date.now().toString(36)}${'x'.repeat(25)}`,
    });
    const longest = 'b'.repeat(Number(project_.max_slug_length));
    const { database_name } = await owner.branch(project_.id, longest);
    expect(database_name).toHaveLength(numberIn(cell(row, 'Value')));
    expect((await owner.post(path(project_), { branch_name: `${longest}b` }, FROM_LOOPBACK)).status).toBe(
      422,
    );
  }),
  '8 Default storage quota': check('a new project', (row) =>
    expect(project.storage_quota_gib).toBe(numberIn(cell(row, 'Value'))),
  ),
  '8 Maximum storage quota': check('the largest quota that a user can set, and more', async (row) => {
    const max = numberIn(cell(row, 'Value'));
    const set = async (storage_quota_gib: number) =>
      (await owner.patch(`/v1/projects/${project.id}`, { storage_quota_gib })).status;
    expect([await set(max + 0.01), await set(max)]).toEqual([422, 200]);
  }),
  '8 Storage measurement': check('the default of the setting; usage with an expired branch', async (row) => {
    expect(readSettings(SETTINGS).MEASURE_INTERVAL_SECONDS).toBe(numberIn(cell(row, 'Value')));
    await eventually(async () => {
      const { body } = await owner.get<{
        storage_used_bytes: number;
        branches: { branch_name: string; database_size_bytes: number }[];
      }>(`/api/v1/projects/${full.id}/usage`);
      const sizes = body.branches.map(({ database_size_bytes }) => database_size_bytes);
      expect(
        body.branches.find(({ branch_name }) => branch_name === 'brief')?.database_size_bytes,
      ).toBeGreaterThan(0);
      expect(body.storage_used_bytes).toBe(sizes.reduce((sum, size) => sum + size, 0));
    }, 150);
  }),
  '8 Warning threshold': storageState(0.81, 'warning'),
  '8 Write-block threshold': writeBlock,
  '8 Client connections through the pooler': check(
    'the default and the highest value of the setting',
    (row) => {
      const [count, raised] = [...cell(row, 'Value').matchAll(/\d+/g)].map(Number);
      expect(readAgentSettings({}).POOLER_MAX_CLIENTS).toBe(count);
      expect(readAgentSettings({ POOLER_MAX_CLIENTS: String(raised) }).POOLER_MAX_CLIENTS).toBe(raised);
      expect(() => readAgentSettings({ POOLER_MAX_CLIENTS: String(Number(raised) + 1) })).toThrow();
    },
  ),
  '8 Table row browse': check('as many rows, and one more', async (row) => {
    const max = numberIn(cell(row, 'Value'));
    const { body } = await owner.get<{ rows: unknown[] }>(rowsPath('specified'));
    expect(body.rows).toHaveLength(max);
    expect((await owner.get(`${rowsPath('specified')}?limit=${max + 1}`)).status).toBe(422);
  }),
  '8 Row delete': check('as many ids, and one more', async (row) => {
    const max = numberIn(cell(row, 'Value'));
    const remove = async (count: number) => {
      const body = { ids: Array.from({ length: count }, (_, n) => n + 1000), primary_key: 'n' };
      return (await owner.call('DELETE', rowsPath('specified'), { body })).status;
    };
    expect([await remove(max), await remove(max + 1)]).toEqual([200, 422]);
  }),
  '8 API reads': check('the default of the setting', (row) =>
    expect(readSettings(SETTINGS).LIMIT_READS_PER_MINUTE).toBe(numberIn(cell(row, 'Value'))),
  ),
  '8 API writes': check('the default of the setting', (row) =>
    expect(readSettings(SETTINGS).LIMIT_WRITES_PER_MINUTE).toBe(numberIn(cell(row, 'Value'))),
  ),
  '8 Connection attempts': check('attempts from two admitted addresses and one that is not', async (row) => {
    const max = numberIn(cell(row, 'Value'));
    const elsewhere = '127.0.0.3';
    const { id } = await owner.branch(project.id, 'attempted');
    await owner.allow(project.id, `${elsewhere}/32`, id);
    const { direct_url } = await owner.credentials(project.id, 'attempted');
    const target = targetOfUrl(direct_url);
    await attempts(max, target, { address: '127.0.0.2' });
    for (const address of [HERE, elsewhere])
      expect(await attempts(max / 2 - 1, target, { address })).toEqual(Array(max / 2 - 1).fill('in'));
    for (const address of [HERE, elsewhere]) await attempts(1, target, { address });
    // Asked of the API, because each look by a connection is an attempt more.
    await eventually(async () => {
      const { body } = await owner.get(path(project, '/attempted'));
      expect(body.closed_to).toMatchObject([{ network: null, attempts: max }]);
    }, 30);
    for (const address of [HERE, elsewhere]) expect(await attempt(target, address)).toBe('refused');
    expect(await attempt(targetOfUrl(credentials.direct_url))).toBe('in');
  }),
  '8 Credential rotations': check('a rotation of the project and five of its branch', async () => {
    expect((await sixthRotation()).status).toBe(429);
  }),
};

/** The settings without a default. */
const SETTINGS = {
  BASE_URL: 'https://api.example.com',
  JWT_KEYS: `1:${Buffer.alloc(32).toString('base64')}`,
  CREDENTIAL_KEYS: `1:${Buffer.alloc(32).toString('base64')}`,
  PLATFORM_SECRET: 'x'.repeat(32),
};

/** The response to the sixth rotation within an hour, of which the first is one of the whole project. */
let rotated: ReturnType<Api['post']> | null = null;
const sixthRotation = () => {
  rotated ??= (async () => {
    const own = await owner.project('Rotated');
    const change = { masked_only: true, rotate_credentials: 'all' };
    expect((await owner.patch(`/api/v1/projects/${own.id}`, change)).status).toBe(200);
    const rotate = () => owner.post(path(own, '/main/credentials/rotate'), {});
    for (let n = 2; n <= 5; n++) expect((await rotate()).status).toBe(200);
    return rotate();
  })();
  return rotated;
};

const HERE_FILE = 'test/specification/specification.e2e.test.ts';

describe('each row of the specification', () => {
  test.each(ROWS.map((row) => [row.key, row] as const))('%s', async (key, row) => {
    const named = CHECKS[key];
    if (!named) throw new Error(`no check of the row ${key}`);
    if ('run' in named) return named.run(row);
    expect(existsSync(join(ROOT, named.file)), named.file).toBe(true);
    expect(readFileSync(join(ROOT, named.file), 'utf8')).toContain(`'${named.title}'`);
  });

  test('and no check is of another row', () => {
    expect(Object.keys(CHECKS).sort()).toEqual(ROWS.map(({ key }) => key).sort());
  });
});

const INTRODUCTION = `# Coverage of the specification

The check of each row in the tables of the specification, and what else has tests. A path is a test file, in the second part
without its suffix. Deviations are stated in [specification.md](specification.md), in the section they belong to. This page
is written by \`npm test -- test/specification -u\`.`;

/** The page that names the check of each row. `npm test -- test/specification -u` writes it. */
test('docs/spec-coverage.md is current', async () => {
  const inCell = (text: string) => text.replaceAll('|', '\\|');
  const line = ({ key, section }: SpecifiedRow) => {
    const named = CHECKS[key];
    if (!named) return '';
    const where = 'file' in named ? named.file : HERE_FILE;
    return `| ${inCell(key.slice(section.length + 1))} | ${inCell(named.says)} | \`${where}\` |`;
  };
  const sections = [...Map.groupBy(ROWS, ({ section }) => section)].map(([section, rows]) =>
    [`## ${section}`, '', '| row | check | test |', '|---|---|---|', ...rows.map(line)].join('\n'),
  );
  const further = readFileSync(join(import.meta.dirname, 'further-tests.md'), 'utf8');
  const text = `${INTRODUCTION}\n\n${sections.join('\n\n')}\n\n${further}`;
  await expect(text).toMatchFileSnapshot('../../docs/spec-coverage.md');
});
