import { z } from 'zod';
import { unwrap } from '../errors.ts';
import {
  changeMasking,
  currentPolicy,
  MaskingPolicy,
  NewMaskingPolicy,
  toMaskingResponse,
} from '../masking/policy.ts';
import { actorOf } from '../pipeline/context.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { primaryOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';

import { inProject, ProjectParams } from './in-project.ts';

const tags = ['Masking'];
const PATH = '/api/v1/projects/{project_id}/masking';

const IfMatchHeader = z.object({
  'if-match': z.string().max(1000).optional().meta({
    description: 'The `etag` that was read. The policy is then only changed if it is still that one.',
    example: '"3"',
  }),
});

const router = operations();

router.openapi(
  operation({
    access: 'masking.read',
    operationId: 'getMasking',
    method: 'get',
    path: PATH,
    summary: 'Get the masking policy of a project',
    tags,
    request: { params: ProjectParams },
    responses: { 200: response('The policy. Without one it has version 0.', MaskingPolicy, 'ETag') },
  }),
  async (c) => {
    const [, [row]] = await inProject(c, c.req.valid('param').project_id, (db) => [
      currentPolicy(db, c.req.valid('param').project_id),
    ]);
    const policy = toMaskingResponse(row);
    c.header('ETag', policy.etag);
    return c.json(policy, 200);
  },
);

router.openapi(
  operation({
    access: 'masking.change',
    operationId: 'setMasking',
    method: 'put',
    path: PATH,
    summary: 'Replace the masking policy of a project',
    description:
      'Makes a new version, unless the policy is the same as before. Tables and columns are looked up when data is masked, not here.',
    tags,
    request: { params: ProjectParams, headers: IfMatchHeader, body: jsonBody(NewMaskingPolicy) },
    responses: { 200: response('The current version of the policy.', MaskingPolicy, 'ETag') },
    failures: ['PROJECT_NOT_ACTIVE', 'MASKING_CHANGED'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    await inProject(c, projectId, () => []);
    const { CREDENTIAL_KEYS } = readSettings(c.env);
    const change = {
      projectId,
      ...c.req.valid('json'),
      ifMatch: c.req.valid('header')['if-match'],
      actor: actorOf(c),
    };
    const changed = await changeMasking(primaryOf(c), CREDENTIAL_KEYS, change, new Date());
    const policy = toMaskingResponse(unwrap(changed));
    c.header('ETag', policy.etag);
    return c.json(policy, 200);
  },
);

export const maskingRoutes = router;
