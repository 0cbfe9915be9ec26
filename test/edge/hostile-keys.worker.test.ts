import { afterAll, beforeAll, expect, test } from 'vitest';
import { openDatabase } from '../../edge/database/database.ts';
import { hosts, projects } from '../../edge/database/schema.ts';
import { TOOLS } from '../../mcp/tools.ts';
import { MAPS } from '../../shared/foreign-json.ts';
import { type HostileBody, hostileBodies, NAMES, queryNames } from '../support/hostile-keys.ts';
import { firstByDay } from '../support/nightly.ts';
import { OPERATIONS, type Operation, SCIM_OPERATIONS } from '../support/operations.ts';
import { addCompany, type Company } from '../support/sign-in/company-provider.ts';
import { type SignInGateway, startSignInGateway } from '../support/worker/sign-in-gateway.ts';
import { PLATFORM_SECRET } from '../support/worker/worker.ts';

/** Each name that leads to the intrinsics, in each position of each request that the description has. */

const ALL = [...OPERATIONS, ...SCIM_OPERATIONS];
const CONCURRENCY = 8;
const NO_LIMITS = {
  LIMIT_READS_PER_MINUTE: '1000000',
  LIMIT_WRITES_PER_MINUTE: '1000000',
};

let gateway: SignInGateway;
let company: Company;
let before: unknown;
let tokens: Record<Operation['access'], string | null>;
let scimToken: string;
let ids: Record<string, string>;

const shared = async () => (await fetch(`${gateway.url}/test/shared`)).json();

beforeAll(async () => {
  gateway = await startSignInGateway(
    { ...NO_LIMITS, TWO_FACTOR: 'off', IDP_URL: undefined },
    { script: 'hostile-worker' },
  );
  before = await shared();
  company = await addCompany(gateway, 'evil.example');
  const { api, userId, login } = company.owner;
  const path = `/api/v1/identity-providers/${company.id}/scim-token`;
  scimToken = (await api.post<{ token: string }>(path, {})).body.token;
  const token = login.access_token ?? null;
  tokens = { user: token, signed_in: token, pre_auth: token, public: null, platform: PLATFORM_SECRET };
  const now = new Date();
  const projectId = crypto.randomUUID();
  const ports = { directPort: 5432, pooledPort: 6432 };
  const host = { id: 'host', name: 'host', dbHost: 'db.example.com', ...ports, createdAt: now };
  const db = openDatabase(gateway.database);
  await db.batch([
    db.insert(hosts).values(host),
    db.insert(projects).values({
      id: projectId,
      name: 'Shop',
      appKey: 'shop',
      env: 'prod',
      status: 'active',
      hostId: host.id,
      createdBy: userId,
      tenantId: company.tenantId,
      createdAt: now,
      updatedAt: now,
    }),
  ]);
  ids = { project_id: projectId, provider_id: company.id, tenant_id: company.tenantId, branch_ref: 'main' };
});
afterAll(async () => {
  await company?.provider.stop();
  await gateway?.stop();
});

const operationOf = (id: string) => {
  const operation = ALL.find((each) => each.id === id);
  if (!operation) throw new Error(`no operation ${id}`);
  return operation;
};

async function send({ id, method, access }: Operation, target: string, body?: string) {
  const token = SCIM_OPERATIONS.some((each) => each.id === id) ? scimToken : tokens[access];
  const response = await fetch(gateway.url + target, {
    method,
    redirect: 'manual',
    headers: { ...(token && { authorization: `Bearer ${token}` }) },
    ...(body !== undefined && { body }),
  });
  return { status: response.status, text: await response.text() };
}

const filled = (path: string) =>
  path.replaceAll(/\{(\w+)\}/g, (_, name: string) => ids[name] ?? '00000000-0000-4000-8000-000000000000');

/** Does the work for each item, several concurrently. @returns what it found */
async function each<T>(items: readonly T[], work: (item: T) => Promise<string | null>): Promise<string[]> {
  const found: string[] = [];
  const left = items.values();
  const lane = async () => {
    for (const item of left) {
      const fault = await work(item);
      if (fault !== null) found.push(fault);
    }
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, lane));
  return found;
}

/** What a response must not be; null if nothing. A key of a declared map is data. */
function faultOf({ operation, text, name, isMap }: HostileBody, status: number, answer: string) {
  const { access } = operationOf(operation);
  const isRefused = status === 422 || status === 400;
  const isRight = isMap && name !== '__proto__' ? status < 500 || status === 503 : isRefused;
  // A token for the second step is used up by one request.
  return isRight || (access === 'pre_auth' && status === 401)
    ? null
    : `${operation} ${status} ${text} ${answer}`;
}

test('the maps of the schemas, and no other objects, are those whose keys are data', () => {
  const bodies = hostileBodies();
  expect(bodies.length).toBeGreaterThan(300);
  const named = bodies
    .filter(({ isMap, name }) => isMap && name === 'prototype')
    .map(({ text }) => /"(\w+)":\{"prototype"/.exec(text)?.[1]);
  expect(new Set(named)).toEqual(new Set(MAPS));
});

test('no body of an operation has such a key, and none stops the gateway', async () => {
  const faults = await each(hostileBodies(), async (body) => {
    const operation = operationOf(body.operation);
    const { status, text } = await send(operation, filled(operation.path), body.text);
    return faultOf(body, status, text);
  });
  expect(faults.slice(0, 5)).toEqual([]);
  expect(await shared()).toEqual(before);
});

test('each name in each part of a path and each parameter of a query is a value like others', async () => {
  const targets = ALL.flatMap((operation) =>
    firstByDay(1, NAMES).flatMap((name) => {
      const inPath = operation.ids.map((id) => filled(operation.path.replace(`{${id}}`, name)));
      const parameters = queryNames(operation.id);
      // A removal would take away what the next requests name.
      if (operation.method === 'DELETE' || (operation.method !== 'GET' && parameters.length === 0))
        return inPath.map((target) => ({ operation, target }));
      const values = [name, `{"${name}":{"0":"x"}}`, `[{"column":"${name}","operator":"eq","value":"x"}]`];
      const added = [name, `${name}[0]`, `constructor[${name}][0]`];
      const queries = values.map(
        (value) => new URLSearchParams([...parameters, ...added].map((parameter) => [parameter, value])),
      );
      return [...inPath, ...queries.map((query) => `${filled(operation.path)}?${query}`)].map((target) => ({
        operation,
        target,
      }));
    }),
  );
  const faults = await each(
    // Streams would stay open, and the session is still needed.
    targets.filter(({ operation: { id } }) => !/^stream|^openLink$|^end/.test(id)),
    async ({ operation, target }) => {
      const { status, text } = await send(operation, target, operation.method === 'GET' ? undefined : '{}');
      return status < 500 || status === 503 ? null : `${operation.id} ${target} ${status} ${text}`;
    },
  );
  expect(faults.slice(0, 5)).toEqual([]);
  expect(await shared()).toEqual(before);
});

test('no call of the protocol of agents has such a key', async () => {
  const key = (name: string) => `"${name}":{"hostile":"x"}`;
  const bodies = TOOLS.flatMap(({ name: tool }) =>
    NAMES.flatMap((name) => [
      `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"${tool}","arguments":{${key(name)}}}}`,
      `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"${tool}","arguments":{},${key(name)}}}`,
      `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"${tool}","arguments":{"of":[{${key(name)}}]}}}`,
      `{"jsonrpc":"2.0","id":1,"method":"tools/call",${key(name)},"params":{"name":"${tool}","arguments":{}}}`,
    ]),
  );
  const faults = await each(bodies, async (body) => {
    const response = await fetch(`${gateway.url}/mcp`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${company.owner.login.access_token}`,
        accept: 'application/json, text/event-stream',
        'content-type': 'application/json',
      },
      body,
    });
    const text = await response.text();
    return response.status === 422 ? null : `${response.status} ${body} ${text}`;
  });
  expect(faults.slice(0, 5)).toEqual([]);
  expect(await shared()).toEqual(before);
});

test('no form has more than names of fields', async () => {
  for (const name of NAMES) {
    const body = new URLSearchParams({ [name]: 'x', [`${name}[x]`]: 'x', grant_type: name });
    const headers = { 'content-type': 'application/x-www-form-urlencoded' };
    const response = await fetch(`${gateway.url}/api/v1/auth/token`, { method: 'POST', headers, body });
    expect([name, response.status]).toEqual([name, 400]);
  }
  expect(await shared()).toEqual(before);
});
