import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api } from '../../support/api.ts';
import { callOperation, type Operation, SCIM_OPERATIONS } from '../../support/operations.ts';
import { addCompany, type Company } from '../../support/sign-in/company-provider.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

/** Generated from the description: what the token of one provider can do to users and groups of another. */

const UNKNOWN = crypto.randomUUID();
const TABLES = ['provider_people', 'provider_groups', 'provider_group_members', 'users', 'audit_events'];
const VICTIM = { userName: 'ada@acme.example', externalId: 'ada-1' };
const GROUP = { displayName: 'admins', externalId: 'admins-1' };

let gateway: SignInGateway;
let companies: Company[] = [];
/** With the token of the attacker's provider, and with the victim's. */
let evil: Api;
let acme: Api;
let acmeTenant: string;
/** The victim's user or group by the path of the operation, and a group of the attacker. */
let victim: Record<'Users' | 'Groups', string>;

beforeAll(async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'off', IDP_URL: undefined });
  companies = [await addCompany(gateway, 'acme.example'), await addCompany(gateway, 'evil.example')];
  [acme, evil] = (await Promise.all(
    companies.map(async ({ id, owner }) => {
      const path = `/api/v1/identity-providers/${id}/scim-token`;
      return new Api(gateway.url, (await owner.api.post<{ token: string }>(path, {})).body.token);
    }),
  )) as [Api, Api];
  acmeTenant = companies[0]?.tenantId ?? '';
  const { body: user } = await acme.post<{ id: string }>('/scim/v2/Users', VICTIM);
  const members = [{ value: user.id }];
  const { body: group } = await acme.post<{ id: string }>('/scim/v2/Groups', { ...GROUP, members });
  victim = { Users: user.id, Groups: group.id };
});
afterAll(async () => {
  await Promise.all(companies.map(({ provider }) => provider.stop()));
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
      const theirs = await callOperation(evil, asked, { id: idOf(operation) });
      const unknown = await callOperation(evil, asked, { id: UNKNOWN });
      expect([theirs.status, theirs.body]).toEqual([404, unknown.body]);
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
    for (const query of ['', ...filters.map((filter) => `?${new URLSearchParams({ filter })}`)]) {
      const { body } = await evil.get<{ totalResults: number }>(`/scim/v2/${kind}${query}`);
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
