import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api } from '../../support/api.ts';
import { callOperation, OPERATIONS, type Operation, SCIM_OPERATIONS } from '../../support/operations.ts';
import {
  addCompany,
  type Company,
  type CompanyProvider,
  startCompanyProvider,
} from '../../support/sign-in/company-provider.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

/** Generated from the description: what each other token can do to users and groups of a provider. */

const UNKNOWN = crypto.randomUUID();
const TABLES = ['provider_people', 'provider_groups', 'provider_group_members', 'users', 'audit_events'];
const VICTIM = { userName: 'ada@acme.example', externalId: 'ada-1' };
const GROUP = { displayName: 'admins', externalId: 'admins-1' };

let gateway: SignInGateway;
let companies: Company[] = [];
/** With the token of another tenant's provider, with that of another provider of the victim's tenant, and the victim's. */
let evil: Api;
let sibling: Api;
let acme: Api;
/** Of the victim's tenant and of the other one. */
let others: Record<string, string | null>;
let second: CompanyProvider;
let acmeTenant: string;
/** The victim's user or group by the path of the operation, and a group of the attacker. */
let victim: Record<'Users' | 'Groups', string>;

beforeAll(async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'off', IDP_URL: undefined });
  companies = [await addCompany(gateway, 'acme.example'), await addCompany(gateway, 'evil.example')];
  const [victims, attackers] = companies.map(({ owner }) => owner);
  if (!victims || !attackers) throw new Error('no companies');
  const scimOf = async (owner: typeof victims, id = '') => {
    const path = `/api/v1/identity-providers/${id}/scim-token`;
    return new Api(gateway.url, (await owner.api.post<{ token: string }>(path, {})).body.token);
  };
  acme = await scimOf(victims, companies[0]?.id);
  evil = await scimOf(attackers, companies[1]?.id);
  second = await startCompanyProvider();
  const another = {
    name: 'second',
    issuer: second.url,
    client_id: second.clientId,
    client_secret: second.secret,
    domains: ['second.example'],
  };
  const { body: made } = await victims.api.post<{ id: string }>('/api/v1/identity-providers', another);
  sibling = await scimOf(victims, made.id);
  const tokensOf = async ({ api, login }: typeof victims) => {
    const wanted = { name: 'Key', role: 'owner', scopes: ['read', 'write'], expires_in_days: 1 };
    const key = await api.post<{ key: string }>('/api/v1/api-keys', wanted);
    expect(key.status, JSON.stringify(key.body)).toBe(201);
    return [login.access_token ?? '', login.refresh_token ?? '', key.body.key];
  };
  const [access, refresh, key] = await tokensOf(victims);
  const [otherAccess, , otherKey] = await tokensOf(attackers);
  others = { access, refresh, key, otherAccess, otherKey, none: null } as Record<string, string | null>;
  acmeTenant = companies[0]?.tenantId ?? '';
  const { body: user } = await acme.post<{ id: string }>('/scim/v2/Users', VICTIM);
  const members = [{ value: user.id }];
  const { body: group } = await acme.post<{ id: string }>('/scim/v2/Groups', { ...GROUP, members });
  victim = { Users: user.id, Groups: group.id };
});
afterAll(async () => {
  await Promise.all([second, ...companies.map(({ provider }) => provider)].map((each) => each?.stop()));
  await gateway?.stop();
});

/** All rows of the victim. */
const rowsOfVictim = async () => {
  const rows = await Promise.all(
    TABLES.map((table) => gateway.database.prepare(`select * from ${table}`).all()),
  );
  const theirs = new Set([acmeTenant, companies[0]?.id, ...Object.values(victim)]);
  return rows.map(({ results }) =>
    results.filter((row) => Object.values(row).some((value) => theirs.has(value as string))),
  );
};

async function expectUnchanged(work: () => Promise<void>): Promise<void> {
  const before = await rowsOfVictim();
  expect(before[0]).toHaveLength(1);
  expect(before[2]).toHaveLength(1);
  await work();
  expect(await rowsOfVictim()).toEqual(before);
}

const idOf = ({ path }: Operation) => victim[path.includes('/Users') ? 'Users' : 'Groups'];
const ON_ONE = SCIM_OPERATIONS.filter(({ ids }) => ids.length > 0);

/** Bodies that would change the victim's user or group if it was found. */
const BODIES: Record<string, Record<string, unknown>> = {
  scimReplaceUser: { ...VICTIM, active: false },
  scimReplaceGroup: { ...GROUP, members: [] },
  scimPatchUser: { Operations: [{ op: 'replace', path: 'active', value: false }] },
  scimPatchGroup: { Operations: [{ op: 'remove', path: 'members' }] },
};

describe('the token of another provider', () => {
  test('is tried at each operation on one resource', () => {
    expect(ON_ONE.map(({ id }) => id).toSorted()).toEqual(
      ['Get', 'Replace', 'Patch', 'Delete']
        .flatMap((verb) => [`scim${verb}User`, `scim${verb}Group`])
        .toSorted(),
    );
  });

  test.each(ON_ONE)('$id: as for an unknown id, and nothing is changed', (operation) =>
    expectUnchanged(async () => {
      const asked = { ...operation, body: BODIES[operation.id] ?? operation.body };
      for (const attacker of [evil, sibling]) {
        const theirs = await callOperation(attacker, asked, { id: idOf(operation) });
        const unknown = await callOperation(attacker, asked, { id: UNKNOWN });
        expect([theirs.status, theirs.body]).toEqual([404, unknown.body]);
      }
    }),
  );

  test.each(['Users', 'Groups'] as const)('a list of %s does not have them, by any filter', async (kind) => {
    const own = await acme.get<{ totalResults: number }>(`/scim/v2/${kind}`);
    expect(own.body.totalResults).toBe(1);
    const filters = [
      `id eq "${victim[kind]}"`,
      'externalId pr',
      ...Object.entries(kind === 'Users' ? VICTIM : GROUP).map(([name, value]) => `${name} eq "${value}"`),
    ];
    for (const query of ['', ...filters.map((filter) => `?${new URLSearchParams({ filter })}`)])
      for (const attacker of [evil, sibling]) {
        const { body } = await attacker.get<{ totalResults: number }>(`/scim/v2/${kind}${query}`);
        expect([query, body.totalResults]).toEqual([query, 0]);
      }
  });

  test('a user or group with the same names is another one', () =>
    expectUnchanged(async () => {
      const user = await evil.post<{ id: string }>('/scim/v2/Users', VICTIM);
      expect(user.status).toBe(201);
      expect(user.body.id).not.toBe(victim.Users);
      const renamed = await evil.post<{ id: string }>('/scim/v2/Users', { userName: 'eve@evil.example' });
      const own = { userName: 'ada@acme.example', externalId: 'x' };
      await evil.delete(`/scim/v2/Users/${user.body.id}`);
      expect((await evil.call('PUT', `/scim/v2/Users/${renamed.body.id}`, { body: own })).status).toBe(200);
      const group = await evil.post<{ id: string }>('/scim/v2/Groups', GROUP);
      expect(group.status).toBe(201);
      expect(group.body.id).not.toBe(victim.Groups);
    }));

  test('no group has a member of another provider', () =>
    expectUnchanged(async () => {
      const members = [{ value: victim.Users }];
      const created = await evil.post<{ id: string; members: object[] }>('/scim/v2/Groups', {
        displayName: 'owners',
        members,
      });
      expect([created.status, created.body.members]).toEqual([201, []]);
      const path = `/scim/v2/Groups/${created.body.id}`;
      for (const [method, body] of [
        ['PUT', { displayName: 'owners', members }],
        ['PATCH', { Operations: [{ op: 'add', path: 'members', value: members }] }],
      ] as const) {
        const changed = await evil.call<{ members: object[] }>(method, path, { body });
        expect([method, changed.body.members]).toEqual([method, []]);
      }
    }));
});

test.each(SCIM_OPERATIONS)('$id is refused with every token of another kind', (operation) =>
  expectUnchanged(async () => {
    const asked = { ...operation, body: BODIES[operation.id] ?? operation.body };
    for (const [kind, token] of Object.entries(others)) {
      const { status } = await callOperation(new Api(gateway.url, token), asked, { id: idOf(operation) });
      expect([kind, status]).toEqual([kind, 401]);
    }
  }),
);

test('the token of a provider is refused by every operation that is not of SCIM', async () => {
  for (const operation of OPERATIONS.filter(({ access }) => access !== 'public')) {
    const ids = Object.fromEntries(operation.ids.map((name) => [name, UNKNOWN]));
    const { status } = await callOperation(acme, operation, ids);
    expect([operation.id, status]).toEqual([operation.id, 401]);
  }
});
