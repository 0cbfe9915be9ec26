import type { OpenAPIHono } from '@hono/zod-openapi';
import { createConfig, lintFromString } from '@redocly/openapi-core';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { app } from '../../../edge/app.ts';
import { descriptionOf } from '../../../edge/documentation/describe.ts';
import { nameOf, referenceOf, resolve } from '../../../edge/documentation/openapi.ts';
import { boundBody } from '../../../edge/pipeline/bounded-body.ts';
import type { AppEnv } from '../../../edge/pipeline/context.ts';
import { OF_JOBS_ONLY } from '../../../edge/pipeline/failures.ts';
import { emptyResponse, operation, operations, optionalJsonBody } from '../../../edge/pipeline/operation.ts';
import { FAILURES, type FailureCode } from '../../../shared/failures.ts';

/** The public operations. A new one has to be added here too. */
const PUBLIC = [
  ...[
    'isAlive',
    'isReady',
    'getVersion',
    'getAddress',
    'setDnsChallenge',
    'issueHostCertificate',
    'getHostMember',
    'admitStandby',
    'enrolHost',
    'openLink',
    'getDescription',
    'readDescription',
  ],
  ...[
    'startProviderSignIn',
    'completeProviderSignIn',
    'logIn',
    'signUp',
    'startMagicLink',
    'verifyMagicLink',
    ...['startPasswordReset', 'resetPassword', 'acceptInvitation'],
  ],
  ...['listSignInMethods', 'startCompanySignIn', 'completeCompanySignIn', 'recoverOwner'],
  ...['getMcpMetadata', 'getResourceMetadata', 'getAuthorizationServerMetadata'],
  ...['authorizeClient', 'registerClient', 'issueAgentTokens', 'revokeAgentToken'],
  ...['startCliSignIn', 'exchangeCliCode', 'renewTokens', 'renewPageSession', 'exchangeToken'],
];

const DESCRIPTION = descriptionOf(app);

function operationsOf(api: OpenAPIHono<AppEnv>) {
  return Object.entries(descriptionOf(api).paths ?? {}).flatMap(([path, item]) =>
    (['get', 'post', 'put', 'patch', 'delete'] as const).flatMap((method) => {
      const found = item[method];
      return found ? { route: `${method.toUpperCase()} ${path}`, described: found } : [];
    }),
  );
}

const OPERATIONS = operationsOf(app);

/** Operations that are not public but have no access rule either. */
const unguarded = (api: OpenAPIHono<AppEnv>) =>
  operationsOf(api)
    .filter(({ described: { operationId = '', security, 'x-action': action } }) => {
      const [scheme] = Object.keys(security?.[0] ?? {});
      if (scheme === 'access_token') return action === undefined;
      if (['platform_secret', 'pre_auth_token', 'scim_token'].includes(scheme ?? '')) return false;
      return !(security?.length === 0 && PUBLIC.includes(operationId));
    })
    .map(({ route }) => route);

/** Routes that are missing in the document, except middleware, which has every path. */
function undescribed(api: OpenAPIHono<AppEnv>): string[] {
  const described = new Set(operationsOf(api).map(({ route }) => route));
  const registered = api.routes
    .filter(({ method, path }) => !(method === 'ALL' && path === '/*'))
    .map(({ method, path }) => `${method} ${path.replaceAll(/:(\w+)/g, '{$1}')}`);
  return [...new Set(registered)].filter((route) => !described.has(route));
}

test('the linter reports no errors and no warnings for the document', async () => {
  const config = await createConfig({
    extends: ['recommended'],
    // Opening a link responds with 101, which is not 2XX.
    rules: { 'operation-2xx-response': 'off' },
  });
  const problems = await lintFromString({ source: JSON.stringify(DESCRIPTION), config });
  expect(
    problems.map(({ ruleId, message, location }) => `${ruleId} ${location[0]?.pointer} ${message}`),
  ).toEqual([]);
});

describe('every route', () => {
  test('is described', () => {
    expect(OPERATIONS.length).toBeGreaterThan(20);
    // SQL over HTTP has the protocol of its clients, and the Model Context Protocol describes itself, by `tools/list`.
    expect(undescribed(app)).toEqual(['POST /sql', 'ALL /mcp']);
    const planted = operations();
    planted.get('/planted/:id', (c) => c.text(''));
    planted.all('/planted', (c) => c.text(''));
    expect(undescribed(planted)).toEqual(['GET /planted/{id}', 'ALL /planted']);
  });

  test('declares who may call it', () => {
    expect(unguarded(app)).toEqual([]);
    const route = { method: 'get', responses: { 204: emptyResponse('') } } as const;
    const opened = { access: 'public' as const, operationId: 'opened', summary: '', tags: [] };
    const planted = operations();
    planted.openapi({ ...route, path: '/unguarded' }, (c) => c.body(null, 204));
    planted.openapi(operation({ ...route, ...opened, path: '/opened' }), (c) => c.body(null, 204));
    expect(unguarded(planted)).toEqual(['GET /unguarded', 'GET /opened']);
  });
});

test.each(OPERATIONS)(
  '$route has a name, a summary and a tag',
  ({ described: { operationId, summary, tags } }) => {
    expect(operationId).toMatch(/^[a-z][A-Za-z]+$/);
    expect(summary).toMatch(/^[A-Z`].*[^.]$/);
    expect(tags).toHaveLength(1);
  },
);

test('the tags are those of the operations', () => {
  const used = new Set(OPERATIONS.flatMap(({ described: { tags = [] } }) => tags));
  expect(DESCRIPTION.tags?.map(({ name }) => name).toSorted()).toEqual([...used].toSorted());
});

const BODIES = app.openAPIRegistry.definitions.flatMap((definition) => {
  if (definition.type !== 'route') return [];
  const { operationId, request } = definition.route;
  const { content: contents = {}, required = false } = request?.body ?? {};
  return Object.values(contents).map((content) => ({ operationId, content, required }));
});

test('every POST that creates something takes an Idempotency-Key, except those named here', () => {
  const creating = OPERATIONS.filter(({ described: { responses } }) => '201' in (responses ?? {}));
  const keyless = creating.filter(
    ({ described: { parameters = [] } }) =>
      !parameters.some((parameter) => 'name' in parameter && parameter.name === 'idempotency-key'),
  );
  expect(creating.length).toBeGreaterThan(keyless.length);
  // A repeated rehearsal is a new one, and so are a code and a registration. A host has one token, which the next request replaces. SCIM finds a user
  // or group by its name. A tenant has one bisection.
  const named = keyless.map(({ described: { operationId } }) => operationId);
  expect(named.toSorted()).toEqual([
    'createOAuthGrant',
    'registerClient',
    'registerHost',
    'renewHostEnrolment',
    'scimCreateGroup',
    'scimCreateUser',
    'startBisection',
    'startRehearsal',
  ]);
});

test.each(BODIES)('$operationId has a valid example of its body', ({ content }) => {
  const schema = content && 'schema' in content && content.schema;
  if (!(schema instanceof z.ZodType)) throw new Error('the body has no schema of zod');
  expect(schema.safeParse(schema.meta()?.example)).toMatchObject({ success: true });
});

const OPTIONAL = BODIES.filter(({ required }) => !required);

test.each(OPTIONAL)('$operationId accepts an empty object, as which an absent body counts', ({ content }) => {
  const schema = content && 'schema' in content && content.schema;
  expect(schema instanceof z.ZodType && schema.safeParse({}).success).toBe(true);
});

test('an absent optional body gets the defaults of its schema', async () => {
  expect(OPTIONAL.length).toBeGreaterThan(8);
  const planted = operations();
  const ofRoute = { access: 'public' as const, operationId: 'cut', summary: '', tags: [] as string[] };
  const body = optionalJsonBody(z.strictObject({ stopped: z.boolean().default(false) }));
  const route = {
    method: 'post',
    path: '/cut',
    request: { body },
    responses: { 204: emptyResponse('') },
  } as const;
  planted.use(boundBody);
  planted.openapi(operation({ ...ofRoute, ...route }), (c) => c.json(c.req.valid('json' as never)) as never);
  for (const sent of [{}, { body: '' }, { body: '{}' }, { body: '{"stopped":true}' }])
    expect(await (await planted.request('/cut', { method: 'POST', ...sent })).json()).toEqual({
      stopped: sent.body?.includes('true') ?? false,
    });
});

describe('failures', () => {
  const { responses = {} } = DESCRIPTION.components ?? {};
  const codesOf = (name: string) => name.split('.') as FailureCode[];

  test('are described once, and operations refer to them', () => {
    const given = OPERATIONS.flatMap(({ described }) => Object.entries(described.responses ?? {}));
    // Those of SCIM have the form of RFC 7644, and no code.
    const failing = given.filter(([status, response]) => status >= '400' && '$ref' in response);
    for (const [status, response] of failing) {
      for (const code of codesOf(nameOf(referenceOf(response) ?? ''))) {
        expect(FAILURES[code].status).toBe(Number(status));
      }
    }
    expect(failing.length).toBeGreaterThan(100);
  });

  test.each(Object.entries(responses))('%s describes each code', (name, response) => {
    const { description } = resolve(DESCRIPTION, response);
    for (const code of codesOf(name)) {
      expect(description).toContain(`\`${code}\`: ${FAILURES[code].message}`);
    }
  });

  test('each is a response of some operation', () => {
    const codes = new Set(Object.keys(responses).flatMap(codesOf));
    const expected = Object.keys(FAILURES).filter((code) => !OF_JOBS_ONLY.has(code));
    expect([...codes].sort()).toEqual(expected.sort());
  });
});
