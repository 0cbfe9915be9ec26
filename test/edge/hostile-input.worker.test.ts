import { decodeJwt } from 'jose';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { TOOLS } from '../../mcp/tools.ts';
import { Api } from '../support/api.ts';
import { addCompany, type Company } from '../support/sign-in/company-provider.ts';
import { newMember, newOwner, type TestPerson } from '../support/sign-in/people.ts';
import { askMagicLink, mailTo, readCode, verifyCode } from '../support/sign-in/sign-in.ts';
import { SteadyClient } from '../support/steady-client.ts';
import { type SignInGateway, startSignInGateway } from '../support/worker/sign-in-gateway.ts';

/**
 * A tenant who writes to what all tenants share. Whoever signs up for free has a provider with a token of SCIM,
 * whose PATCH names attributes by paths.
 */

interface Shared {
  names: string[][];
  open: string[];
}

let gateway: SignInGateway;
let evil: Company;
let victim: TestPerson;
let victimTenant: string;
let scim: Api;
let userPath: string;
let before: Shared;

const shared = async () => (await (await fetch(`${gateway.url}/test/shared`)).json()) as Shared;

beforeAll(async () => {
  gateway = await startSignInGateway(
    { TWO_FACTOR: 'off', IDP_URL: undefined },
    { script: 'hostile-worker', isolates: 2 },
  );
  before = await shared();
  victim = await newOwner(gateway, 'owner@victim.example');
  victimTenant = (await victim.api.get<{ tenant_id: string }>('/api/v1/me')).body.tenant_id;
  evil = await addCompany(gateway, 'evil.example');
  const path = `/api/v1/identity-providers/${evil.id}/scim-token`;
  scim = new Api(gateway.url, (await evil.owner.api.post<{ token: string }>(path, {})).body.token);
  const { body: user } = await scim.post<{ id: string }>('/scim/v2/Users', {
    userName: 'eve@evil.example',
    emails: [{ value: 'eve@evil.example' }],
  });
  userPath = `/scim/v2/Users/${user.id}`;
});
afterAll(async () => {
  await evil?.provider.stop();
  await gateway?.stop();
});

const patch = (...Operations: object[]) => scim.call('PATCH', userPath, { body: { Operations } });

async function expectUnharmed(): Promise<void> {
  expect(await shared()).toEqual(before);
  expect((await victim.api.get('/api/v1/me')).status).toBe(200);
}

/** The ways to `Array.prototype` and `Object.prototype` from the attributes of a user. */
const waysTo = (name: string, value: unknown) =>
  [
    `emails.constructor.prototype.${name}`,
    `constructor.prototype.${name}`,
    `emails.__proto__.${name}`,
    `__proto__.${name}`,
  ].flatMap((path) => [
    { op: 'add', value: { [path]: value } },
    { op: 'replace', value: { [path]: value } },
    { op: 'add', path, value },
    { op: 'replace', path, value },
  ]);

test('no account of another tenant is made up', async () => {
  const email = 'leaver@evil.example';
  const leaver = await newMember(evil.owner, gateway, email, 'viewer');
  const known = gateway.mails().filter(({ to }) => to === email).length;
  const { challenge_id } = (await askMagicLink(gateway, email)).body;
  const code = readCode(await mailTo(gateway, email, known + 1));
  expect((await evil.owner.api.delete(`/api/v1/members/${leaver.userId}`)).status).toBe(204);
  // The account of the attacker, which has a session, as one of the other tenant.
  const { sub: id } = decodeJwt(evil.owner.login.access_token ?? '');
  const account = {
    id,
    tenantId: victimTenant,
    email: evil.owner.email,
    name: 'Eve',
    role: 'owner',
    passwordHash: '',
    version: 0,
  };
  for (const operation of waysTo('0', account)) {
    const { status } = await patch(operation);
    const { body } = await verifyCode(gateway, email, challenge_id, code);
    const token = body.access_token;
    const seen = token ? (await new Api(gateway.url, token).get('/api/v1/me')).body : null;
    expect([status, seen]).toEqual([400, null]);
  }
  await expectUnharmed();
});

test('no request stops the requests of others', async () => {
  const reading = await SteadyClient.start(async () => {
    const { status } = await victim.api.get('/api/v1/me');
    if (status !== 200) throw new Error(`status ${status}`);
  });
  for (const name of ['map', 'then', 'toString', 'status'])
    for (const operation of waysTo(name, 'x')) expect((await patch(operation)).status).toBe(400);
  reading.expectUndisturbed();
  await reading.end();
  await expectUnharmed();
});

test('no filter takes time that grows with more than its length', async () => {
  const filter = encodeURIComponent(`userName eq "${'\n'.repeat(200)}`);
  expect((await scim.get(`/scim/v2/Users?filter=${filter}`)).status).toBe(400);
  expect((await patch({ op: 'remove', path: `emails[value eq "${'\n'.repeat(200)}]` })).status).toBe(400);
  await expectUnharmed();
});

describe('what all requests share', () => {
  test('is frozen', () => {
    expect(before.open).toEqual([]);
  });

  test('is complete enough for the protocol of agents, in an isolate that has served nothing before', async () => {
    const url = await gateway.isolateUrl(1);
    let id = 0;
    const call = async (method: string, params: object) => {
      const response = await fetch(`${url}/mcp`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${victim.login.access_token}`,
          accept: 'application/json, text/event-stream',
          'content-type': 'application/json',
        },
        body: JSON.stringify({ jsonrpc: '2.0', id: id++, method, params }),
      });
      expect(response.status).toBe(200);
      // An event stream of one message, or the message.
      const json = (await response.text()).replace(/^[\s\S]*?^data: /m, '');
      return JSON.parse(json) as { result?: Record<string, never>; error?: unknown };
    };
    const protocolVersion = '2025-06-18';
    const clientInfo = { name: 'test', version: '1' };
    expect(
      (await call('initialize', { protocolVersion, capabilities: {}, clientInfo })).error,
    ).toBeUndefined();
    const { result } = await call('tools/list', {});
    const listed = (result as { tools?: { name: string }[] } | undefined)?.tools ?? [];
    expect(listed.map(({ name }) => name).toSorted()).toEqual(TOOLS.map(({ name }) => name).toSorted());
    const INPUT = {
      project_id: crypto.randomUUID(),
      branch: 'b',
      branch_name: 'b',
      labels: { constructor: 'x', toString: 'y' },
      table: 't',
      sql: 'select 1',
      before: 'main',
      after: 'b',
      email: 'x@example.com',
    } as Record<string, unknown>;
    for (const { name, input } of TOOLS) {
      const known = Object.keys((input as { shape?: object }).shape ?? {});
      const fields = Object.entries(INPUT).filter(([field]) => known.includes(field));
      const answer = await call('tools/call', { name, arguments: Object.fromEntries(fields) });
      expect(answer.error, name).toBeUndefined();
      // The text of a failure that nobody expected.
      expect(JSON.stringify(answer.result), name).not.toMatch(/The call failed|read.only|not extensible/);
    }
  });
});
