import { isDeepStrictEqual } from 'node:util';
import { decodeJwt } from 'jose';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../../dev/stack/dev-folder.ts';
import { app } from '../../../edge/app.ts';
import { type Action, requirement } from '../../../edge/permissions.ts';
import { Api } from '../../support/api.ts';
import { DESCRIPTION } from '../../support/contract.ts';
import { eventually } from '../../support/eventually.ts';
import {
  CALLERS,
  type Caller,
  callersWith,
  reachesAdas,
  USERS,
  type User,
} from '../../support/host/access-table.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { signInClient, tokensOf } from '../../support/oauth/client-app.ts';
import {
  callOperation,
  createResources,
  type Ids,
  OPERATIONS,
  type Operation,
  PLATFORM_OPERATIONS,
  PRE_AUTH_OPERATIONS,
  PUBLIC_OPERATIONS,
  SCIM_OPERATIONS,
  SIGNED_IN_OPERATIONS,
  USER_OPERATIONS,
} from '../../support/operations.ts';
import { deliveredMails } from '../../support/sign-in/mails.ts';
import { ownTokens } from '../../support/sign-in/own-tokens.ts';
import { expectSameAnswer } from '../../support/sign-in/same-response.ts';
import { signUp } from '../../support/sign-in/sign-in.ts';
import type { Stack } from '../../support/stack/stack.ts';
import { contentOfD1, type TokenOptions, tenantNamed, tokenOf } from '../../support/tenants.ts';

/** Writes an audit event on every call (specification 4.3). */
const AUDITED = 'getCredentials';
const UNKNOWN = '00000000-0000-4000-8000-000000000000';
/** Reads whose subject is not there: the project follows nothing, no trial became a job, and the host keeps no archive. */
const REFUSED: Record<string, number> = { getFollowing: 404, getTrial: 404, previewReset: 422 };
/** Well-formed ids of resources that do not exist. */
const nowhere = ({ ids }: Operation): Ids => Object.fromEntries(ids.map((name) => [name, UNKNOWN]));

type MakeToken = () => Promise<string> | string | null;

/**
 * Authorization tests for every operation. They are generated from the API's description, so that a new
 * operation is covered automatically. A refused call must leave every row of every table unchanged.
 */
export function describeAccess(running: () => Stack): void {
  let stack: Stack;
  let platformSecret: string;
  let own: ReturnType<typeof ownTokens>;
  /** An account of the gateway, with a session. */
  let account: { account: string; session: string; tenant: string };
  /** The tokens of a client of `/mcp` that Ada has signed in. */
  let ofClient: Awaited<ReturnType<typeof tokensOf>>;
  const callers = new Map<string, Api>();
  /** One resource of each kind of Ada's, and of the others what the paths of operations with references name. */
  const resources = {} as Record<User, Ids>;
  let otherOfAda: string;
  /** A user without a tenant. */
  let homeless: Api;
  /** A user whose role is unknown. */
  let guest: Api;
  /** Bearers that are no secret of the platform, and no token of SCIM. */
  let refusedBearers: Record<'platform' | 'scim', [string, string | null][]>;

  const apiWith = (token: string | null) => new Api(stack.url, token);
  const apiOf = async (options: TokenOptions) => apiWith(await tokenOf(options, stack.devDir));
  const named = ({ user, role, scope }: Caller) => `${user} ${role} ${scope}`;

  function apiFor(caller: Caller): Api {
    const api = callers.get(named(caller));
    if (!api) throw new Error(`no caller ${named(caller)}`);
    return api;
  }
  const ownerApi = (user: User) => apiFor({ user, role: 'owner', scope: 'write' });

  beforeAll(async () => {
    stack = running();
    platformSecret = gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET;
    own = ownTokens(stack);
    const site = { url: stack.url, mails: () => deliveredMails(stack) };
    const {
      sub = '',
      sid,
      tenant_id,
    } = decodeJwt((await signUp(site, 'own@acme.example')).access_token ?? '');
    account = { account: sub, session: String(sid), tenant: String(tenant_id) };
    for (const { user, role, scope } of CALLERS) {
      const api = await apiOf({ ...USERS[user], role, scope });
      // The first request inserts the user record, so that later calls write nothing.
      await api.get('/api/v1/projects');
      callers.set(named({ user, role, scope }), api);
    }
    resources.ada = await createResources(ownerApi('ada'));
    const signedIn = await signInClient(stack.url, stack.url, ownerApi('ada'));
    resources.ada.grant_id = signedIn.grantId;
    ofClient = await tokensOf(stack.url, signedIn.form);
    for (const user of ['colleague', 'outsider'] as const) {
      const { id: project_id } = await ownerApi(user).project('Own');
      resources[user] = { project_id, branch_ref: (await ownerApi(user).branch(project_id, 'own')).id };
    }
    otherOfAda = (await ownerApi('ada').project('Other')).id;
    homeless = await apiOf({ tenant: null });
    guest = await apiOf({ tenant: 'acme', role: 'guest' });
    await guest.get('/api/v1/projects');
    const both: [string, string | null][] = [
      ['none', null],
      ["an owner's token", await tokenOf(USERS.ada, stack.devDir)],
      ['an access token of the gateway', await own.access(account)],
      ['a refresh token', await own.refresh()],
    ];
    refusedBearers = {
      platform: [
        ...both,
        ['a wrong secret', `${platformSecret.slice(1)}x`],
        ['more than the secret', `${platformSecret}x`],
        ['a token without a tenant', await tokenOf({ tenant: null }, stack.devDir)],
        ['a pre-auth token', await own.preAuth()],
      ],
      scim: [
        ...both,
        ['an unknown token of SCIM', `bgscim_${'x'.repeat(43)}`],
        ["the platform's secret", platformSecret],
      ],
    };
  });

  const isDenial = ({ name }: Record<string, unknown>) => name === 'access.denied';

  /**
   * All records, except audit events of denied access, the state of the host that each reconciliation records,
   * and events on their way.
   */
  function recordsWithoutDenials() {
    const { audit_events = [], hosts = [], event_outbox, ...tables } = contentOfD1(stack.devDir);
    return {
      ...tables,
      hosts: hosts.map(({ free_bytes: _, description: __, described_at: ___, ...host }) => host),
      audit_events: audit_events.filter((event) => !isDenial(event)),
    };
  }

  const inParallel = async <T>(items: readonly T[], test: (item: T) => Promise<void>): Promise<void> => {
    await Promise.all(items.map(test));
  };

  /** The tests of this `describe` change no record. Reading all of them takes longer than a refused call. */
  function expectNoWrites(): void {
    let before: ReturnType<typeof recordsWithoutDenials>;
    beforeAll(() => {
      before = recordsWithoutDenials();
    });
    afterAll(() => {
      const after = recordsWithoutDenials();
      // The matcher takes far longer, and says what differs.
      if (!isDeepStrictEqual(after, before)) expect(after).toEqual(before);
    });
  }

  describe('the generated tests', () => {
    test('come from the served description', async () => {
      const { body } = await apiWith(null).get('/api/v1/openapi.json');
      expect(body).toEqual(JSON.parse(JSON.stringify(DESCRIPTION)));
    });

    test('cover every registered route', () => {
      const registered = app.routes
        // SQL over HTTP is a door of the database: sql-over-http.e2e.test.ts tries who may use it.
        .filter(({ method, path }) => method !== 'ALL' && path !== '/sql')
        .map(({ method, path }) => `${method} ${path.replaceAll(/:(\w+)/g, '{$1}')}`);
      expect(new Set(ALL_OPERATIONS.map(({ method, path }) => `${method} ${path}`))).toEqual(
        new Set(registered),
      );
    });

    test('exclude exactly these public operations', () => {
      const health = ['isAlive', 'isReady', 'getVersion', 'getAddress'];
      const signIn = [
        ...['startProviderSignIn', 'completeProviderSignIn', 'logIn', 'signUp', 'startMagicLink'],
        ...['verifyMagicLink', 'startPasswordReset', 'resetPassword', 'startCliSignIn', 'exchangeCliCode'],
        ...['renewTokens', 'renewPageSession'],
        ...['listSignInMethods', 'startCompanySignIn', 'completeCompanySignIn', 'recoverOwner'],
      ];
      const workloads = ['exchangeToken'];
      const clients = [
        ...['getMcpMetadata', 'getResourceMetadata', 'getAuthorizationServerMetadata'],
        ...['authorizeClient', 'registerClient', 'issueAgentTokens', 'revokeAgentToken'],
      ];
      const agents = [
        'enrolHost',
        'openLink',
        'setDnsChallenge',
        'issueHostCertificate',
        'getHostMember',
        'admitStandby',
      ];
      const description = ['getDescription', 'readDescription'];
      const ofMachines = [...workloads, ...clients, ...agents];
      const expected = [...health, 'acceptInvitation', ...ofMachines, ...signIn, ...description];
      expect(PUBLIC_OPERATIONS.map(({ id }) => id).toSorted()).toEqual(expected.toSorted());
    });

    test('know exactly these operations without a row of the permission table', () => {
      const expected = ['changePassword', 'signOut', 'getMe', 'listSessions', 'endAllSessions', 'endSession'];
      expect(SIGNED_IN_OPERATIONS.map(({ id }) => id).toSorted()).toEqual(expected.toSorted());
      for (const { path } of PRE_AUTH_OPERATIONS) expect(path).toMatch(/^\/api\/v1\/auth\/2fa\//);
    });

    test('find platform operations only where the pipeline requires the secret', () => {
      for (const { path } of PLATFORM_OPERATIONS) expect(path).toMatch(/^\/platform\/v1\//);
    });

    test.each(USER_OPERATIONS)('$id has a row of the permission table that fits its method', (operation) => {
      const { action, reaches: roles, scope, method, ids } = operation;
      expect(requirement(action as Action)).toEqual({ roles, scope });
      // These read, or end a comparison that a reader has begun; a query or a trial as another login and a
      // preview of unsaved rules need more.
      const ofReaders = ['runQuery', 'tryStatements', 'cancelDiff', 'previewMasking', 'checkMasking'];
      if (method !== 'GET' && !ofReaders.includes(operation.id)) {
        expect(scope).toBe('write');
        const leaders = ['owner', 'admin'];
        const isOfTenant = /^(?:members|machines|webhooks|follow|masking)\./.test(action ?? '');
        const isOfOwners = action?.startsWith('providers.');
        const reaching = isOfTenant ? leaders : [...leaders, 'operator'];
        // Everybody signs in and signs out their own agents.
        const isOfEverybody = action?.startsWith('grants.');
        if (isOfEverybody) expect(Object.keys(roles)).toEqual([...leaders, 'operator', 'viewer']);
        else expect(Object.keys(roles)).toEqual(isOfOwners ? ['owner'] : reaching);
      }
      if (ids.length > 0) expect(roles.operator ?? 'own').toBe('own');
      expect(roles.viewer ?? 'own').toBe('own');
    });
  });

  const GOOD = { access: () => own.access(account), pre_auth: () => own.preAuth() };

  const madeBearers = new Map<keyof typeof GOOD, Promise<[string, string | null][]>>();

  /** Bearer tokens that no operation for this kind of token accepts. They are made once. */
  function wrongBearers(kind: keyof typeof GOOD): Promise<[string, string | null][]> {
    const made = madeBearers.get(kind) ?? makeWrongBearers(kind);
    madeBearers.set(kind, made);
    return made;
  }

  async function makeWrongBearers(kind: keyof typeof GOOD): Promise<[string, string | null][]> {
    const others: Record<keyof typeof GOOD, [string, MakeToken][]> = {
      access: [
        ["the provider's token after expiry", () => tokenOf({ ...USERS.ada, expiresIn: -60 }, stack.devDir)],
        ['an expired access token of the gateway', () => own.access({ ...account, expiresIn: -60 })],
        [
          'an access token of a session that ended',
          () => own.access({ ...account, session: crypto.randomUUID() }),
        ],
        [
          "an access token of another account's session",
          () => own.access({ ...account, account: crypto.randomUUID() }),
        ],
        ['a pre-auth token', () => own.preAuth()],
        ['the token of a client of /mcp', () => ofClient.access_token],
        ['the refresh token of a client of /mcp', () => ofClient.refresh_token],
      ],
      pre_auth: [
        ["the provider's token", () => tokenOf(USERS.ada, stack.devDir)],
        ['an access token of the gateway', () => own.access(account)],
        ['an expired pre-auth token', () => own.preAuth({ expiresIn: -60 })],
      ],
    };
    const bearers: [string, MakeToken][] = [
      ['no token', () => null],
      ['a malformed token', () => 'v4.public.AAAA'],
      ["the platform's secret", () => platformSecret],
      ['a refresh token', () => own.refresh()],
      ...others[kind],
      ...(await own.forgeries(GOOD[kind])),
    ];
    return Promise.all(
      bearers.map(async ([name, make]): Promise<[string, string | null]> => [name, await make()]),
    );
  }

  const ALL_OPERATIONS = [...OPERATIONS, ...SCIM_OPERATIONS];

  /**
   * By day, each operation gets a tenth of the cases, each time others, and at least one; by night all of them.
   */
  function shareOf<T>(operation: Operation, cases: readonly T[]): T[] {
    const shares = IS_NIGHTLY ? 1 : Math.min(10, cases.length);
    return cases.filter((_, n) => n % shares === ALL_OPERATIONS.indexOf(operation) % shares);
  }

  /** Tries wrong bearer tokens, so that a new operation or a new kind of token is tested automatically. */
  async function expectUnauthenticated(operation: Operation, kind: keyof typeof GOOD): Promise<void> {
    const bearers = shareOf(operation, await wrongBearers(kind));
    await inParallel(bearers, async ([name, token]) => {
      const response = await callOperation(apiWith(token), operation, resources.ada);
      expect(response, name).toMatchObject({ status: 401, body: { error: 'UNAUTHENTICATED' } });
      expect(response.headers.get('www-authenticate'), name).toBe('Bearer error="invalid_token"');
    });
  }

  describe('tokens of the gateway', () => {
    test('have this many forgeries', async () => {
      expect(await wrongBearers('access')).toHaveLength(17);
      expect(await wrongBearers('pre_auth')).toHaveLength(13);
    });

    test('are accepted where they are valid, so nothing else causes the refusals', async () => {
      const bearer = apiWith(await GOOD.access());
      for (const operation of [...USER_OPERATIONS, ...SIGNED_IN_OPERATIONS].filter(
        ({ method }) => method === 'GET',
      )) {
        // Not Ada's resources, which are another tenant's: the attempt would be audited there.
        const { status } = await callOperation(bearer, operation, nowhere(operation));
        expect(status, operation.id).toBe(operation.ids.length > 0 ? 404 : 200);
      }
      for (const operation of PRE_AUTH_OPERATIONS.filter(({ id }) => id === 'setUpSecondFactor')) {
        expect((await callOperation(apiWith(await GOOD.pre_auth()), operation, {})).status).toBe(200);
      }
    });
  });

  describe('without a row of the permission table', () => {
    expectNoWrites();

    test.each(SIGNED_IN_OPERATIONS)('$id: anything but an access token → 401', (operation) =>
      expectUnauthenticated(operation, 'access'),
    );

    test.each(PRE_AUTH_OPERATIONS)('$id: anything but a pre-auth token → 401', (operation) =>
      expectUnauthenticated(operation, 'pre_auth'),
    );
  });

  /** What a list has of Ada's; null for one that nobody or only others can fill. */
  const listedOf = ({ id }: Operation): string | null => {
    // Regions, and the networks that rules can name, are the same for everyone.
    if (['listInvitations', 'listNamedNetworks', 'listRegions'].includes(id)) return null;
    if (id === 'listOAuthGrants') return resources.ada.grant_id ?? '';
    if (id === 'listIdentityProviders') return resources.ada.provider_id ?? '';
    if (id === 'getTenant') return resources.ada.tenant_id ?? '';
    return id === 'listMembers' ? USERS.ada.email : (resources.ada.project_id ?? '');
  };

  /** What both of two equal responses repeat, because they were asked for it. */
  const references = () => [...Object.values(resources.ada), UNKNOWN];

  /** The callers that may read what an operation shows; `every-operation.e2e.test.ts` tests those that change something. */
  async function expectReadable(operation: Operation): Promise<void> {
    for (const caller of shareOf(operation, callersWith(operation, 'allowed'))) {
      const { status, body } = await callOperation(apiFor(caller), operation, resources.ada);
      expect(status, named(caller)).toBe(REFUSED[operation.id] ?? 200);
      const listed = listedOf(operation);
      if (operation.ids.length > 0 || listed === null) continue;
      expect(JSON.stringify(body).includes(listed), named(caller)).toBe(reachesAdas(operation, caller));
    }
  }

  /** The operation with this id where its query or body refers to another resource. */
  const naming = (operation: Operation, { location, name }: Operation['references'][number], id: string) => ({
    ...operation,
    [location]: { ...(location === 'body' && operation.body), [name]: id },
  });

  const UNAUTHORISED: readonly Caller[] = [
    { user: 'outsider', role: 'owner', scope: 'write' },
    { user: 'colleague', role: 'operator', scope: 'write' },
  ];

  describe('an operation of users', () => {
    // By night it is known which one has written something.
    if (!IS_NIGHTLY) expectNoWrites();

    describe.each(USER_OPERATIONS)('$id', (operation) => {
      if (IS_NIGHTLY) expectNoWrites();

      test('anything but an access token → 401', () => expectUnauthenticated(operation, 'access'));

      test('a token without a tenant → 403', async () => {
        const response = await callOperation(homeless, operation, resources.ada);
        expect(response).toMatchObject({ status: 403, body: { error: 'TENANT_REQUIRED' } });
      });

      test('an unknown role → 403', async () => {
        const response = await callOperation(guest, operation, resources.ada);
        expect(response).toMatchObject({ status: 403, body: { error: 'FORBIDDEN' } });
      });

      test('a caller without the role or the scope → 403 with the required one', () =>
        inParallel(
          shareOf(operation, callersWith(operation, 'role', 'scope')),
          async ({ decision, ...caller }) => {
            const roles = `role ${Object.keys(operation.reaches).join(', ')}`;
            const required = decision === 'role' ? roles : `scope branchgate:${operation.scope}`;
            const response = await callOperation(apiFor(caller), operation, resources.ada);
            expect(response, named(caller)).toMatchObject({
              status: 403,
              body: { error: 'FORBIDDEN', required },
            });
          },
        ));

      test('a caller who does not reach the resource → 404, identical to the response for an unknown id', () =>
        inParallel(shareOf(operation, callersWith(operation, 'unknown')), async (caller) => {
          const call = (ids: Ids) => callOperation(apiFor(caller), operation, ids);
          const { status } = await expectSameAnswer(
            call(resources.ada),
            call(nowhere(operation)),
            operation.ids.includes('domain') ? references() : [],
          );
          expect(status, named(caller)).toBe(404);
        }));

      if (operation.method === 'GET' && operation.id !== AUDITED)
        test('every other caller → 200, and nothing is changed', () => expectReadable(operation));

      // A member of the tenant is known in each of its projects.
      if (operation.ids.includes('project_id') && operation.ids.length > 1 && operation.id !== 'shareProject')
        test('a resource of one project is unknown under another', async () => {
          const call = (ids: Ids) =>
            callOperation(ownerApi('ada'), operation, { ...ids, project_id: otherOfAda });
          const { status } = await expectSameAnswer(
            call(resources.ada),
            call(nowhere(operation)),
            references(),
          );
          expect(status).toBe(404);
        });

      for (const reference of operation.references)
        test(`${reference.name} in its ${reference.location}: Ada's is unknown to others`, () =>
          inParallel(
            UNAUTHORISED.filter(({ role }) => operation.reaches[role]),
            async (caller) => {
              const adas = resources.ada[reference.name] ?? resources.ada.branch_id ?? '';
              const call = (id: string) =>
                callOperation(apiFor(caller), naming(operation, reference, id), resources[caller.user]);
              await expectSameAnswer(call(adas), call(UNKNOWN));
            },
          ));
    });
  });

  test.each(USER_OPERATIONS.filter(({ id }) => id === AUDITED))(
    '$id: every other caller → 200',
    expectReadable,
  );

  /** The update of the host ends its drain, and a provider is needed until it is deleted. */
  const placeOf = ({ id, method }: Operation) => (id === 'drainHost' ? 0 : method === 'DELETE' ? 2 : 1);
  const PLATFORM_IN_ORDER = PLATFORM_OPERATIONS.toSorted((one, other) => placeOf(one) - placeOf(other));

  /** What becomes of operations of the only host, which has projects. */
  const OF_ONLY_HOST: Record<string, number[]> = {
    removeHost: [409],
    // The event of the example is unknown.
    confirmAuditExport: [404],
    // It is no standby.
    promoteHost: [409],
    // The host of the example is unknown, and nothing moves.
    moveProject: [404],
    getMove: [404],
    cancelMove: [404],
    getDrain: [404],
    drainHost: [202],
  };

  describe('only the platform', () => {
    let ids: Ids;
    beforeAll(async () => {
      const { body } = await apiWith(platformSecret).get<{ hosts: { id: string }[] }>('/platform/v1/hosts');
      ids = { ...resources.ada, host_id: body.hosts[0]?.id ?? '' };
    });

    describe('and nobody else', () => {
      expectNoWrites();

      test.each(PLATFORM_OPERATIONS)('$id: anything but the secret → 401', (operation) =>
        inParallel(shareOf(operation, refusedBearers.platform), async ([name, token]) => {
          const response = await callOperation(apiWith(token), operation, ids);
          expect(response, name).toMatchObject({ status: 401, body: { error: 'UNAUTHENTICATED' } });
        }),
      );
    });

    test.each(PLATFORM_IN_ORDER)('$id: the secret is accepted', async (operation) => {
      const api = apiWith(platformSecret);
      const { status } = await callOperation(api, operation, ids);
      expect(OF_ONLY_HOST[operation.id] ?? [200, 201, 204], operation.id).toContain(status);
      if (operation.ids.length > 0)
        expect((await callOperation(api, operation, nowhere(operation))).status).toBe(404);
    });
  });

  describe('SCIM', () => {
    expectNoWrites();

    test.each(SCIM_OPERATIONS)('$id: anything but a token of SCIM → 401', (operation) =>
      inParallel(shareOf(operation, refusedBearers.scim), async ([name, token]) => {
        const response = await callOperation(apiWith(token), operation, { id: UNKNOWN });
        expect(response, name).toMatchObject({ status: 401, body: { status: '401' } });
      }),
    );
  });

  test('a client without a token cannot find out which routes exist', async () => {
    // Every other path is a page of the console, which finds out by the API.
    for (const path of ['/api/v1/nowhere', '/v1/nowhere', '/platform/v1/nowhere']) {
      expect(await apiWith(null).get(path), path).toMatchObject({ status: 401 });
    }
    expect(await ownerApi('ada').get('/api/v1/nowhere')).toMatchObject({ status: 404 });
  });

  test("denied access of another tenant is audited once in Ada's tenant", async () => {
    const intruder = ownerApi('outsider');
    await intruder.get(`/api/v1/projects/${resources.ada.project_id}`);
    const denials = await eventually(async () => {
      const { audit_events = [] } = contentOfD1(stack.devDir);
      expect(audit_events.some(isDenial)).toBe(true);
      return audit_events.filter(isDenial);
    });
    expect(denials).toHaveLength(1);
    expect(denials[0]).toMatchObject({
      tenant_id: tenantNamed(USERS.ada.tenant),
      project_id: resources.ada.project_id,
      actor_email: null,
    });
    const { body } = await intruder.get('/api/v1/audit-events?limit=100');
    for (const id of [...Object.values(resources.ada), tenantNamed(USERS.ada.tenant)]) {
      expect(JSON.stringify(body)).not.toContain(id);
    }
  });
}
