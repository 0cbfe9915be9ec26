import { z } from 'zod';
import { noActor } from '../audit/audit-event.ts';
import { unwrap } from '../errors.ts';
import {
  IdempotencyHeader,
  KEY_FAILURES,
  keyUseOf,
  OPERATOR,
  recordedUses,
} from '../idempotency/idempotency-key.ts';
import { verifyDomain } from '../identity-providers/domains.ts';
import {
  changeProvider,
  createProvider,
  createScimToken,
  deleteProvider,
  IdentityProvider,
  IdentityProviderChange,
  listProviders,
  NewIdentityProvider,
  type ProviderRequest,
  providerOf,
  ScimToken,
  toProviderResponse,
} from '../identity-providers/provider.ts';
import { ProviderTest, testProvider } from '../identity-providers/test-provider.ts';
import { type AppContext, actorOf, clientOf } from '../pipeline/context.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import {
  ChangedSignInPolicy,
  changePolicy,
  readPolicy,
  replaceOwnerCode,
  SignInPolicy,
} from '../sign-in/sign-in-policy.ts';
import { replay } from './creations.ts';
import { ProviderDomainParams, ProviderParams, TenantParams } from './in-project.ts';
import { signInContextOf } from './sign-in-context.ts';

const tags = ['Company sign-in'];

const Providers = z.strictObject({ identity_providers: z.array(IdentityProvider) });

/** Who manages the providers of a tenant, and how its operations are named and guarded. */
interface Side {
  base: string;
  params: z.ZodRawShape;
  /** Added to the ID and the summary of an operation. */
  name: (verb: string, noun: string) => string;
  read: 'providers.read' | 'platform';
  change: 'providers.change' | 'platform';
  verifiedBy: 'dns' | 'operator';
  requestOf: (c: AppContext) => ProviderRequest;
}

const common = (c: AppContext) => ({ db: databaseOf(c), settings: readSettings(c.env), now: new Date() });

const SIDES: readonly Side[] = [
  {
    base: '/api/v1/identity-providers',
    params: {},
    name: (verb, noun) => `${verb}${noun}`,
    read: 'providers.read',
    change: 'providers.change',
    verifiedBy: 'dns',
    requestOf: (c) => ({ ...common(c), tenantId: c.var.principal.tenantId, actor: actorOf(c) }),
  },
  {
    base: '/platform/v1/tenants/{tenant_id}/identity-providers',
    params: TenantParams.shape,
    name: (verb, noun) => `${verb}Tenant${noun}`,
    read: 'platform',
    change: 'platform',
    verifiedBy: 'operator',
    requestOf: (c) => {
      const tenantId = c.req.param('tenant_id') ?? '';
      return { ...common(c), tenantId, actor: { ...noActor(tenantId), ...clientOf(c) } };
    },
  },
];

/** The use that the request makes of its key, and the response to the first one. */
async function repeatedRequest(
  c: AppContext,
  request: ProviderRequest,
  key: string | undefined,
  body: unknown,
) {
  const { db, tenantId, actor, now } = request;
  const keyUse = await keyUseOf({ tenantId, userId: actor.userId ?? OPERATOR }, c.req.path, key, body);
  return { keyUse, replayed: replay(c, await recordedUses(db, keyUse, now), keyUse) };
}

const router = operations();

for (const { base, params, name, read, change, verifiedBy, requestOf } of SIDES) {
  const OfTenant = z.strictObject(params);
  const OfProvider = ProviderParams.extend(params);
  const OfDomain = ProviderDomainParams.extend(params);

  router.openapi(
    operation({
      access: change,
      machines: 'none',
      operationId: name('create', 'IdentityProvider'),
      method: 'post',
      path: base,
      summary: 'Add an identity provider',
      description:
        'People sign in by it as soon as one of its domains is verified. Register its `redirect_uri` at the provider.',
      tags,
      request: { params: OfTenant, headers: IdempotencyHeader, body: jsonBody(NewIdentityProvider) },
      responses: {
        201: response('The provider, without its secret.', IdentityProvider, 'Idempotency-Replayed'),
      },
      failures: [...KEY_FAILURES, 'NOT_FOUND', 'IDENTITY_PROVIDER_EXISTS', 'IDENTITY_PROVIDER_LIMIT_REACHED'],
    }),
    async (c) => {
      const request = requestOf(c);
      const body = c.req.valid('json');
      const { 'idempotency-key': key } = c.req.valid('header');
      const { keyUse, replayed } = await repeatedRequest(c, request, key, body);
      if (replayed) return c.json(replayed.body as z.input<typeof IdentityProvider>, 201);
      return c.json(unwrap(await createProvider(request, body, keyUse)), 201);
    },
  );

  router.openapi(
    operation({
      access: read,
      machines: 'none',
      operationId: name('list', 'IdentityProviders'),
      method: 'get',
      path: base,
      summary: 'List the identity providers, oldest first',
      tags,
      request: { params: OfTenant },
      responses: { 200: response('All of them: at most ten.', Providers) },
      failures: ['NOT_FOUND'],
    }),
    async (c) => {
      const { db, tenantId, settings } = requestOf(c);
      const found = unwrap(await listProviders(db, tenantId));
      return c.json({ identity_providers: found.map((one) => toProviderResponse(one, settings)) }, 200);
    },
  );

  router.openapi(
    operation({
      access: read,
      machines: 'none',
      operationId: name('get', 'IdentityProvider'),
      method: 'get',
      path: `${base}/{provider_id}`,
      summary: 'Get an identity provider',
      tags,
      request: { params: OfProvider },
      responses: { 200: response('The provider.', IdentityProvider) },
    }),
    async (c) => {
      const { db, tenantId, settings } = requestOf(c);
      const found = unwrap(await providerOf(db, tenantId, providerIdOf(c)));
      return c.json(toProviderResponse(found, settings), 200);
    },
  );

  router.openapi(
    operation({
      access: change,
      machines: 'none',
      operationId: name('update', 'IdentityProvider'),
      method: 'patch',
      path: `${base}/{provider_id}`,
      summary: 'Change an identity provider',
      description:
        'The issuer cannot be changed, because it is a part of the identity of its people. A domain that is added has to be verified; one that is left out of `domains` does not count any more.',
      tags,
      request: { params: OfProvider, body: jsonBody(IdentityProviderChange) },
      responses: { 200: response('The provider.', IdentityProvider) },
    }),
    async (c) => {
      const request = requestOf(c);
      const changed = unwrap(await changeProvider(request, providerIdOf(c), c.req.valid('json')));
      return c.json(toProviderResponse(changed, request.settings), 200);
    },
  );

  router.openapi(
    operation({
      access: change,
      machines: 'none',
      operationId: name('delete', 'IdentityProvider'),
      method: 'delete',
      path: `${base}/{provider_id}`,
      summary: 'Delete an identity provider',
      description:
        'Its people have no access any more: their sessions and API keys end within 30 seconds. What they made stays.',
      tags,
      request: { params: OfProvider },
      responses: { 204: emptyResponse('The provider is deleted.') },
      failures: ['LAST_OWNER'],
    }),
    async (c) => {
      unwrap(await deleteProvider(requestOf(c), providerIdOf(c)));
      return c.body(null, 204);
    },
  );

  router.openapi(
    operation({
      access: change,
      machines: 'none',
      operationId: name('test', 'IdentityProvider'),
      method: 'post',
      path: `${base}/{provider_id}/test`,
      summary: 'Test an identity provider',
      description: 'Reads its discovery document and its keys, and says what is wrong. Nobody is signed in.',
      tags,
      request: { params: OfProvider },
      responses: { 200: response('What was found.', ProviderTest) },
    }),
    async (c) => {
      const { db, tenantId, settings } = requestOf(c);
      const found = unwrap(await providerOf(db, tenantId, providerIdOf(c)));
      return c.json(await testProvider(found, settings), 200);
    },
  );

  router.openapi(
    operation({
      access: change,
      machines: 'none',
      operationId: name('verify', 'ProviderDomain'),
      method: 'post',
      path: `${base}/{provider_id}/domains/{domain}/verify`,
      summary: verifiedBy === 'dns' ? 'Verify a domain by its TXT record' : 'Verify a domain for a tenant',
      description:
        verifiedBy === 'dns'
          ? 'Publish the `txt_record` of the domain first. A domain belongs to one tenant.'
          : 'The operator vouches for the domain, and no TXT record is read. A domain belongs to one tenant.',
      tags,
      request: { params: OfDomain },
      responses: { 200: response('The provider.', IdentityProvider) },
      failures:
        verifiedBy === 'dns'
          ? ['DOMAIN_NOT_VERIFIED', 'DOMAIN_TAKEN', 'DOMAIN_LOOKUP_FAILED']
          : ['DOMAIN_TAKEN'],
    }),
    async (c) => {
      const request = requestOf(c);
      const domain = (c.req.param('domain') ?? '').toLowerCase();
      const verified = unwrap(await verifyDomain(request, providerIdOf(c), domain, verifiedBy));
      return c.json(toProviderResponse(verified, request.settings), 200);
    },
  );

  router.openapi(
    operation({
      access: change,
      machines: 'none',
      operationId: name('create', 'ScimToken'),
      method: 'post',
      path: `${base}/{provider_id}/scim-token`,
      summary: 'Make the bearer token of SCIM',
      description:
        'The provider sends it to create and remove people. It replaces the one before. It is stored nowhere and cannot be shown again, not even to a repeated request with the same `Idempotency-Key`.',
      tags,
      request: { params: OfProvider, headers: IdempotencyHeader },
      responses: { 201: response('The token.', ScimToken, 'Idempotency-Replayed') },
      failures: KEY_FAILURES,
    }),
    async (c) => {
      const request = requestOf(c);
      const { 'idempotency-key': key } = c.req.valid('header');
      const { keyUse, replayed } = await repeatedRequest(c, request, key, null);
      if (replayed) return c.json(replayed.body as z.input<typeof ScimToken>, 201);
      return c.json(unwrap(await createScimToken(request, providerIdOf(c), keyUse)), 201);
    },
  );
}

const providerIdOf = (c: AppContext): string => (c.req.param('provider_id') ?? '').toLowerCase();

router.openapi(
  operation({
    access: 'providers.read',
    machines: 'none',
    operationId: 'getTenant',
    method: 'get',
    path: '/api/v1/tenant',
    summary: 'Get the settings of the tenant',
    tags,
    responses: { 200: response('The settings.', SignInPolicy) },
  }),
  async (c) => c.json(await readPolicy(databaseOf(c), c.var.principal.tenantId), 200),
);

router.openapi(
  operation({
    access: 'providers.change',
    machines: 'none',
    operationId: 'updateTenant',
    method: 'patch',
    path: '/api/v1/tenant',
    summary: 'Require the identity provider of the tenant, or not any more',
    description:
      'Refused until you have signed in by it once. Then members with an address in a verified domain can use nothing else, and their other sessions end. The response has a recovery code for the day on which the provider is away. Every owner gets a mail, so this is limited to 10 changes an hour.',
    tags,
    request: {
      body: jsonBody(z.strictObject({ sso_required: z.boolean() }).meta({ example: { sso_required: true } })),
    },
    responses: { 200: response('The settings, and the new recovery code.', ChangedSignInPolicy) },
    failures: ['SSO_NOT_TRIED'],
  }),
  async (c) => {
    const { sso_required: required } = c.req.valid('json');
    return c.json(unwrap(await changePolicy(signInContextOf(c), c.var.principal, required)), 200);
  },
);

router.openapi(
  operation({
    access: 'providers.change',
    machines: 'none',
    operationId: 'replaceOwnerRecoveryCode',
    method: 'post',
    path: '/api/v1/tenant/recovery-code',
    summary: 'Replace the recovery code of the owners',
    description: 'Only while `sso_required` is on. The former code is not valid any more.',
    tags,
    responses: { 200: response('The settings, and the new recovery code.', ChangedSignInPolicy) },
    failures: ['NOT_FOUND'],
  }),
  async (c) => c.json(unwrap(await replaceOwnerCode(signInContextOf(c), c.var.principal)), 200),
);

export const identityProviderRoutes = router;
