import { and, eq } from 'drizzle-orm';
import { z } from 'zod';
import { MaskingRules, PREVIEW_ROWS_MAX, TableReference, UNLISTED } from '../../shared/masking.ts';
import type { Database } from '../database/database.ts';
import { projectBranches } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { callHostForClient } from '../hosts/host-client.ts';
import {
  ComparedPolicy,
  changeMasking,
  currentPolicy,
  MaskingCheck,
  MaskingPolicy,
  MaskingPreview,
  NewMaskingPolicy,
  noPolicy,
  previewKey,
  toMaskingResponse,
} from '../masking/policy.ts';
import { missing } from '../missing.ts';
import { allow } from '../permissions.ts';
import { actorOf } from '../pipeline/context.ts';
import { jsonBody, operation, operations, optionalJsonBody, response } from '../pipeline/operation.ts';
import { primaryOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import {
  BranchRefParams,
  HOST_FAILURES,
  inBranch,
  inProject,
  ProjectParams,
  requireFullData,
  usableBranch,
} from './in-project.ts';

const tags = ['Masking'];
const PATH = '/api/v1/projects/{project_id}/masking';

const IfMatchHeader = z.object({
  'if-match': z.string().max(1000).optional().meta({
    description: 'The `etag` that was read. The policy is then only changed if it is still that one.',
    example: '"3"',
  }),
});

const NewPreview = z
  .strictObject({
    table: TableReference,
    limit: z.int().min(1).max(PREVIEW_ROWS_MAX).default(5),
    rules: MaskingRules.optional().meta({ description: 'Instead of the rules of the policy.' }),
  })
  .meta({ example: { table: 'customer', limit: 5 } });

const NewCheck = z
  .strictObject({
    rules: MaskingRules.optional().meta({ description: 'Instead of the rules of the policy.' }),
    unlisted: z.enum(UNLISTED).optional().meta({
      description: 'With `rules`. Default: `refuse_likely_personal`.',
    }),
  })
  .refine(({ rules, unlisted }) => rules !== undefined || unlisted === undefined, {
    path: ['unlisted'],
    message: 'Provide it with rules, and only then.',
  })
  .meta({ example: { rules: [{ table: 'customer', column: 'email', with: 'email' }] } });

const mainOf = (db: Database, projectId: string) =>
  db
    .select()
    .from(projectBranches)
    .where(
      and(
        eq(projectBranches.projectId, projectId),
        eq(projectBranches.isDefault, true),
        eq(projectBranches.status, 'active'),
      ),
    );

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
    responses: {
      200: response(
        'The policy, compared with `main`. Without one it has version 0.',
        ComparedPolicy,
        'ETag',
      ),
    },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const [project, [row], [main]] = await inProject(c, projectId, (db) => [
      currentPolicy(db, projectId),
      mainOf(db, projectId),
    ]);
    const policy = toMaskingResponse(row);
    const { rules, unlisted } = policy;
    // The policy is there while the host is away.
    const compared = main && {
      branch_id: main.id,
      database: main.databaseName,
      rules,
      unlisted,
      sample: true,
    };
    const outcome = compared && (await callHostForClient(c.env, project.hostId, 'masking.inspect', compared));
    const { problems, suggestions } = outcome?.ok ? outcome.value : { problems: null, suggestions: null };
    c.header('ETag', policy.etag);
    return c.json({ ...policy, problems, suggestions }, 200);
  },
);

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'previewMasking',
    method: 'post',
    path: `${PATH}/preview`,
    summary: 'Show rows of `main` before and after masking',
    description:
      'For those who may see unmasked data. With `rules`, which only owners and admins may send, a policy is tried that is not stored.',
    tags,
    request: { params: ProjectParams, body: jsonBody(NewPreview) },
    responses: { 200: response('The rows, before and after.', MaskingPreview) },
    failures: HOST_FAILURES,
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { table, limit, rules } = c.req.valid('json');
    if (rules !== undefined) unwrap(allow(c.var.principal, 'masking.change'));
    const [project, [row], [main]] = await inProject(c, projectId, (db) => [
      currentPolicy(db, projectId),
      mainOf(db, projectId),
    ]);
    requireFullData(c, project);
    const { database, call } = usableBranch(c, project, found(main ? [main] : []), 'read');
    const key = await previewKey(primaryOf(c), readSettings(c.env).CREDENTIAL_KEYS, projectId);
    const tried = { rules: rules ?? row?.rules ?? [], key, table, limit };
    const shown = await call('masking.preview', { ...database, ...tried }).catch((error: unknown) => {
      const isMissing = error instanceof ApiError && error.failure.code === 'NOT_FOUND';
      throw isMissing ? ApiError.of(missing('table', table)) : error;
    });
    return c.json({ table, ...shown }, 200);
  },
);

router.openapi(
  operation({
    access: 'masking.read',
    // Of unmasked data nothing is shown but the names and types of columns.
    gives: 'record',
    operationId: 'checkMasking',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/masking/check',
    summary: 'Compare the masking policy with a branch',
    description:
      'For instance with a branch on which a migration was run: a new column that looks personal and has no rule is a problem. With `rules`, a policy is compared that is not stored. Changes nothing.',
    tags,
    request: { params: BranchRefParams, body: optionalJsonBody(NewCheck) },
    responses: { 200: response('Whether the policy covers the branch.', MaskingCheck) },
    failures: [...HOST_FAILURES, 'MASKING_INCOMPLETE'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const sent = c.req.valid('json');
    const [project, branch, [row]] = await inBranch(c, c.req.valid('param'), (db) => [
      currentPolicy(db, projectId),
    ]);
    const { database, call } = usableBranch(c, project, branch, 'read');
    if (!sent.rules && !row) throw ApiError.of(noPolicy());
    const { rules, unlisted } = sent.rules
      ? { rules: sent.rules, unlisted: sent.unlisted ?? 'refuse_likely_personal' }
      : toMaskingResponse(row);
    const compared = await call('masking.inspect', { ...database, rules, unlisted, sample: true });
    const about = { branch_id: branch.id, branch_name: branch.branchName };
    const version = sent.rules ? null : (row?.version ?? null);
    return c.json({ ...about, version, covered: compared.problems.length === 0, ...compared }, 200);
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
    const [project] = await inProject(c, projectId, () => []);
    requireFullData(c, project);
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
