import { and, eq } from 'drizzle-orm';
import { z } from 'zod';
import { lesserRole } from '../authentication/principal.ts';
import { sha256 } from '../crypto/encoding.ts';
import type { Role } from '../database/column-types.ts';
import { apiKeys, trusts } from '../database/people-schema.ts';
import { projects } from '../database/schema.ts';
import { isLocalGateway } from '../destination.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { IdempotencyHeader, KEY_FAILURES, keyUseOf, recordedUses } from '../idempotency/idempotency-key.ts';
import {
  ApiKey,
  CreatedApiKey,
  deleteApiKey,
  insertApiKey,
  makeApiKey,
  NewApiKey,
  toApiKeyResponse,
} from '../machines/api-keys.ts';
import { ACCESS_TOKEN, exchangeToken, GRANT_TYPE, ID_TOKEN } from '../machines/token-exchange.ts';
import {
  deleteTrust,
  insertTrust,
  issuerAddressProblem,
  NewTrust,
  Trust,
  toTrustResponse,
} from '../machines/trusts.ts';
import { missing } from '../missing.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { type AppContext, actorOf, clientOf } from '../pipeline/context.ts';
import { emptyResponse, formBody, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import { visible } from '../tenancy/project-access.ts';
import { replay } from './creations.ts';
import { ApiKeyParams, inProject, ProjectParams, TrustParams } from './in-project.ts';

const tags = ['Machine access'];
const DAY_MS = 86_400_000;

/** @throws ApiError FORBIDDEN for a role above the caller's */
export function requireRole({ var: { principal } }: AppContext, wanted: Role): void {
  if (lesserRole(wanted, principal.role) === wanted) return;
  throw new ApiError('FORBIDDEN', { required: `role ${wanted}` }, 'a machine above its creator');
}

/**
 * Checked outside the schema, because the name of the service is a setting.
 * @throws ApiError VALIDATION_FAILED
 */
function readScopes(service: string, scopes: readonly string[]): ('read' | 'write')[] {
  const names = scopes.map((scope) => scope.replace(`${service}:`, ''));
  const wrong = names.findIndex((name) => name !== 'read' && name !== 'write');
  if (wrong === -1) return [...new Set(names)] as ('read' | 'write')[];
  const details = [{ path: `scopes.${wrong}`, message: `Expected ${service}:read or ${service}:write` }];
  throw new ApiError('VALIDATION_FAILED', { details });
}

const router = operations();

router.openapi(
  operation({
    access: 'machines.change',
    machines: 'none',
    operationId: 'createApiKey',
    method: 'post',
    path: '/api/v1/api-keys',
    summary: 'Create an API key',
    description:
      'The response contains the key, which is stored nowhere and cannot be shown again, not even to a repeated request with the same `Idempotency-Key`. The key acts in the name of the caller, with at most the role of the caller. With a `branch_pattern` it can use only matching branches, and read the record of `main`; everything else is reported as not found.',
    tags,
    request: { headers: IdempotencyHeader, body: jsonBody(NewApiKey) },
    responses: { 201: response('The new key.', CreatedApiKey, 'Idempotency-Replayed') },
    failures: [...KEY_FAILURES, 'API_KEY_LIMIT_REACHED'],
  }),
  async (c) => {
    const body = c.req.valid('json');
    const { SERVICE_NAME } = readSettings(c.env);
    requireRole(c, body.role);
    const scopes = readScopes(SERVICE_NAME, body.scopes);
    const { principal, reach } = c.var;
    const keyUse = await keyUseOf(principal, c.req.path, c.req.valid('header')['idempotency-key'], body);
    const db = databaseOf(c);
    const ofProject = and(eq(projects.id, body.project_id ?? ''), visible(db, principal, reach));
    const [uses, projectRows] = await db.batch([
      recordedUses(db, keyUse, new Date()),
      db.select({ id: projects.id }).from(projects).where(ofProject),
    ]);
    if (body.project_id) found(projectRows, missing('project'));
    const replayed = replay(c, uses, keyUse);
    if (replayed) return c.json(replayed.body as z.input<typeof CreatedApiKey>, 201);
    const { id, secret, key } = makeApiKey();
    const actor = actorOf(c);
    const now = new Date();
    const row = {
      id,
      name: body.name,
      secretHash: await sha256(secret),
      role: body.role,
      scopes,
      permissions: body.permissions,
      projectId: body.project_id,
      branchPattern: body.branch_pattern,
      cidrs: body.cidrs,
      expiresAt: new Date(now.getTime() + body.expires_in_days * DAY_MS),
      lastUsedAt: null,
      createdBy: actor.userId,
      tenantId: actor.tenantId,
      createdAt: now,
    };
    const record = toApiKeyResponse(row, SERVICE_NAME);
    const repeated = { status: 201, body: { ...record, key: null } };
    unwrap(await insertApiKey(db, row, actor, keyUse, repeated));
    return c.json({ ...record, key }, 201);
  },
);

router.openapi(
  operation({
    access: 'machines.read',
    machines: 'none',
    operationId: 'listApiKeys',
    method: 'get',
    path: '/api/v1/api-keys',
    summary: 'List the API keys of the tenant, oldest first',
    tags,
    request: { query: PageQuery },
    responses: { 200: response('A page of keys.', pageOf('api_keys', ApiKey)) },
  }),
  async (c) => {
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(apiKeys, 'oldest_first', query);
    const rows = await databaseOf(c)
      .select()
      .from(apiKeys)
      .where(and(eq(apiKeys.tenantId, c.var.principal.tenantId), beyond))
      .orderBy(...orderBy)
      .limit(query.limit + 1);
    const { page, next_cursor } = cutPage(rows, query);
    const { SERVICE_NAME } = readSettings(c.env);
    return c.json({ api_keys: page.map((row) => toApiKeyResponse(row, SERVICE_NAME)), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'machines.change',
    machines: 'none',
    operationId: 'deleteApiKey',
    method: 'delete',
    path: '/api/v1/api-keys/{key_id}',
    summary: 'Delete an API key',
    description: 'The key stops working within 10 seconds.',
    tags,
    request: { params: ApiKeyParams },
    responses: { 204: emptyResponse('The key is deleted.') },
  }),
  async (c) => {
    const { key_id: id } = c.req.valid('param');
    unwrap(await deleteApiKey(databaseOf(c), id, actorOf(c), new Date()));
    return c.body(null, 204);
  },
);

router.openapi(
  operation({
    access: 'machines.change',
    machines: 'none',
    operationId: 'createTrust',
    method: 'post',
    path: '/api/v1/projects/{project_id}/trusts',
    summary: 'Trust the workloads of an OpenID Connect issuer',
    description:
      'A workload whose ID token has this issuer, this audience and these claims can exchange it for an access token at `/api/v1/auth/token`. It acts in the name of the caller, in this project only.',
    tags,
    request: { params: ProjectParams, headers: IdempotencyHeader, body: jsonBody(NewTrust) },
    responses: { 201: response('The new trust.', Trust, 'Idempotency-Replayed') },
    failures: [...KEY_FAILURES, 'TRUST_LIMIT_REACHED'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const body = c.req.valid('json');
    requireRole(c, body.role);
    const key = c.req.valid('header')['idempotency-key'];
    const keyUse = await keyUseOf(c.var.principal, c.req.path, key, body);
    const [, uses] = await inProject(c, projectId, (db) => [recordedUses(db, keyUse, new Date())]);
    const replayed = replay(c, uses, keyUse);
    if (replayed) return c.json(replayed.body as z.input<typeof Trust>, 201);
    const problem = issuerAddressProblem(body.issuer, isLocalGateway(readSettings(c.env)));
    if (problem) {
      throw new ApiError('VALIDATION_FAILED', { details: [{ path: 'issuer', message: problem }] });
    }
    const actor = actorOf(c);
    const row = {
      id: crypto.randomUUID(),
      projectId,
      issuer: body.issuer,
      audience: body.audience,
      claims: body.claims,
      role: body.role,
      branchPattern: body.branch_pattern,
      lastUsedAt: null,
      createdBy: actor.userId,
      createdAt: new Date(),
    };
    const db = databaseOf(c);
    unwrap(await insertTrust(db, row, actor, keyUse));
    return c.json(toTrustResponse(row), 201);
  },
);

router.openapi(
  operation({
    access: 'machines.read',
    machines: 'none',
    operationId: 'listTrusts',
    method: 'get',
    path: '/api/v1/projects/{project_id}/trusts',
    summary: 'List the trusts of a project, oldest first',
    tags,
    request: { params: ProjectParams, query: PageQuery },
    responses: { 200: response('A page of trusts.', pageOf('trusts', Trust)) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(trusts, 'oldest_first', query);
    const [, rows] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(trusts)
        .where(and(eq(trusts.projectId, projectId), beyond))
        .orderBy(...orderBy)
        .limit(query.limit + 1),
    ]);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ trusts: page.map(toTrustResponse), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'machines.change',
    machines: 'none',
    operationId: 'deleteTrust',
    method: 'delete',
    path: '/api/v1/projects/{project_id}/trusts/{trust_id}',
    summary: 'Delete a trust',
    description: 'The access tokens that it has issued stop working within 10 seconds.',
    tags,
    request: { params: TrustParams },
    responses: { 204: emptyResponse('The trust is deleted.') },
  }),
  async (c) => {
    const { project_id: projectId, trust_id: trustId } = c.req.valid('param');
    await inProject(c, projectId, () => []);
    unwrap(await deleteTrust(databaseOf(c), projectId, trustId, actorOf(c), new Date()));
    return c.body(null, 204);
  },
);

const RESOURCE = 'https://branchgate.example.com/api/v1/projects/3f2b8c1e-6d4a-4b0f-9a57-1c2d3e4f5a6b';

/** Other parameters are ignored, as RFC 6749 section 3.2 requires. */
const Exchange = z
  .object({
    grant_type: z.string().meta({ example: GRANT_TYPE }),
    subject_token_type: z.string().meta({ example: ID_TOKEN }),
    subject_token: z
      .string()
      .meta({ description: 'An ID token of OpenID Connect.', example: 'eyJhbGciOiJSUzI1NiIs…' }),
    resource: z.string().meta({
      description: 'The URL of the project whose trust is meant.',
      example: RESOURCE,
    }),
  })
  .meta({
    example: {
      grant_type: GRANT_TYPE,
      subject_token_type: ID_TOKEN,
      subject_token: 'eyJhbGciOiJSUzI1NiIs…',
      resource: RESOURCE,
    },
  });

const IssuedToken = z
  .strictObject({
    access_token: z.string().meta({ example: 'eyJhbGciOiJIUzI1NiIs…' }),
    issued_token_type: z.literal(ACCESS_TOKEN),
    token_type: z.literal('Bearer'),
    expires_in: z.int().meta({ description: 'Seconds.', example: 900 }),
    scope: z.string().meta({ example: 'branchgate:read branchgate:write' }),
  })
  .meta({ id: 'IssuedToken' });

router.openapi(
  operation({
    access: 'public',
    operationId: 'exchangeToken',
    method: 'post',
    path: '/api/v1/auth/token',
    summary: 'Exchange the ID token of a workload for an access token',
    description:
      'OAuth 2.0 token exchange (RFC 8693). An ID token is accepted once, and only if it is valid for at most an hour. The access token is valid for 15 minutes and limited as the trust says. Every refusal has the same description, so that it reveals no trust.',
    tags: ['Machine access'],
    request: { body: formBody(Exchange) },
    responses: { 200: response('The access token.', IssuedToken) },
    failures: ['invalid_request', 'invalid_target', 'unsupported_grant_type', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    const issued = await exchangeToken(c.req.valid('form'), {
      limiters: c.env,
      settings: readSettings(c.env),
      database: c.env.DB,
      client: clientOf(c),
      now: new Date(),
      waitUntil: (work) => c.executionCtx.waitUntil(work),
    });
    const { token, expiresInSeconds, scopes } = unwrap(issued);
    return c.json(
      {
        access_token: token,
        issued_token_type: ACCESS_TOKEN as typeof ACCESS_TOKEN,
        token_type: 'Bearer' as const,
        expires_in: expiresInSeconds,
        scope: scopes.join(' '),
      },
      200,
    );
  },
);

export const machineAccessRoutes = router;
