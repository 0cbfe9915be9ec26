import { and, eq } from 'drizzle-orm';
import type { z } from 'zod';
import { lesserRole } from '../authentication/principal.ts';
import { sha256 } from '../crypto/encoding.ts';
import type { Role } from '../database/column-types.ts';
import { apiKeys } from '../database/people-schema.ts';
import { projects } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import {
  createUnderKey,
  IdempotencyHeader,
  KEY_FAILURES,
  keyUseOf,
  recordedUses,
} from '../idempotency/idempotency-key.ts';
import {
  ApiKey,
  CreatedApiKey,
  deleteApiKey,
  insertApiKey,
  makeApiKey,
  NewApiKey,
  toApiKeyResponse,
} from '../machines/api-keys.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { type AppContext, actorOf } from '../pipeline/context.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import { visible } from '../tenancy/project-access.ts';
import { replay } from './creations.ts';
import { ApiKeyParams } from './parameters.ts';

const tags = ['Machine access'];
const DAY_MS = 86_400_000;

/** @throws ApiError FORBIDDEN for a role above the caller's */
export function requireRole({ var: { principal } }: AppContext, wanted: Role): void {
  if (lesserRole(wanted, principal.role) === wanted) return;
  throw new ApiError('FORBIDDEN', { required: `role ${wanted}` }, 'a machine above its creator');
}

/** Checked outside the schema, because the name of the service is a setting. @throws ApiError VALIDATION_FAILED */
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
    if (body.project_id) found(projectRows);
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
    unwrap(await createUnderKey(db, keyUse, () => insertApiKey(db, row, actor, keyUse, repeated)));
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

export const apiKeyRoutes = router;
