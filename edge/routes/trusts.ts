import { and, eq } from 'drizzle-orm';
import type { z } from 'zod';
import { trusts } from '../database/people-schema.ts';
import { isLocalGateway } from '../destination.ts';
import { ApiError, unwrap } from '../errors.ts';
import {
  createUnderKey,
  IdempotencyHeader,
  KEY_FAILURES,
  keyUseOf,
  recordedUses,
} from '../idempotency/idempotency-key.ts';
import {
  deleteTrust,
  insertTrust,
  issuerAddressProblem,
  NewTrust,
  Trust,
  toTrustResponse,
} from '../machines/trusts.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { actorOf } from '../pipeline/context.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import { requireRole } from './api-keys.ts';
import { replay } from './creations.ts';
import { inProject } from './in-project.ts';
import { ProjectParams, TrustParams } from './parameters.ts';

const tags = ['Machine access'];

const router = operations();

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
    unwrap(await createUnderKey(db, keyUse, () => insertTrust(db, row, actor, keyUse)));
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

export const trustRoutes = router;
