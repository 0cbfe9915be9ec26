import { z } from 'zod';
import { Credentials } from '../access/credentials.ts';
import { creatorNetwork } from '../access/network-rule.ts';
import type { Principal } from '../authentication/principal.ts';
import { CreatedBranch } from '../branches/branch.ts';
import { sourceQueries } from '../branches/clone-source.ts';
import type { BranchRequest } from '../branches/create-branches.ts';
import { checkDatabaseNames, choicesOf, NewBatch, NewBranch, namesOf } from '../branches/new-branch.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { KEY_FAILURES, keyUseOf, recordedUses } from '../idempotency/idempotency-key.ts';
import { allow } from '../permissions.ts';
import { type AppContext, actorOf, connectingIp } from '../pipeline/context.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { matchesPattern } from '../tenancy/branch-pattern.ts';
import { CreationHeaders, endOfCreation, HOST_CREATION_FAILURES, PENDING, replay } from './creations.ts';
import { inProject } from './in-project.ts';
import { ProjectParams } from './parameters.ts';
import { withCredentials } from './shown-credentials.ts';

const tags = ['Branches'];

const shown = {
  credentials: Credentials.optional().meta({ description: 'Only if the request includes them.' }),
};

/** A branch as the response to its creation shows it. */
const BranchCreation = CreatedBranch.extend({
  created: z.boolean().meta({ description: 'False: the branch existed before the request.' }),
  ...shown,
}).meta({ id: 'BranchCreation' });
const BatchCreation = z
  .strictObject({ branches: z.array(CreatedBranch.extend(shown).meta({ id: 'BatchBranch' })) })
  .meta({ id: 'BatchCreation' });

const FAILURES = [
  ...KEY_FAILURES,
  'DATABASE_NAME_TOO_LONG',
  'BRANCH_EXISTS',
  'BRANCH_NOT_ACTIVE',
  'PROJECT_NOT_ACTIVE',
  'STORAGE_QUOTA_EXCEEDED',
  'SOURCE_BUSY',
  'SOURCE_NOT_ACTIVE',
  'NO_SNAPSHOT',
  'BRANCH_PROTECTED',
  'BRANCH_LIMIT_REACHED',
  'LEASED_BRANCH_LIMIT_REACHED',
  'RULE_LIMIT_REACHED',
  ...HOST_CREATION_FAILURES,
] as const;

const router = operations();

/** What a client asks for, whether of one branch or of a batch. */
interface Wanted {
  kind: BranchRequest['kind'];
  names: string[];
  onExists: BranchRequest['onExists'];
  body: Omit<z.output<typeof NewBranch>, 'branch_name' | 'on_exists'>;
}

/** Before anything is read, because whether another name is taken is unknown to the caller too. */
function checkBranchNames({ machine }: Principal, names: readonly string[]): void {
  const pattern = machine?.branchPattern ?? null;
  if (pattern === null || names.every((name) => matchesPattern(pattern, name))) return;
  throw new ApiError('NOT_FOUND', { message: `Not found. Choose branch names that match ${pattern}.` });
}

/** Creates the branches, or finds the response to an earlier request with the same key. */
async function createBranches(c: AppContext, wanted: Wanted, prefer: number, key: string | undefined) {
  const { kind, names, onExists, body } = wanted;
  checkBranchNames(c.var.principal, names);
  if (body.include.includes('credentials')) allow(c.var.principal, 'credentials.read');
  const projectId = c.req.param('project_id') ?? '';
  const creatorCidr = creatorNetwork(connectingIp(c));
  const choices = unwrap(choicesOf(body, creatorCidr));
  const keyUse = await keyUseOf(c.var.principal, c.req.path, key, { names, onExists, ...body });
  const { source, ...wantedSource } = sourceQueries(projectId, body, c.var.principal);
  const [project, branches, snapshots, uses] = await inProject(c, projectId, (db) => [
    wantedSource.branches(db),
    wantedSource.snapshots(db),
    recordedUses(db, keyUse, new Date()),
  ]);
  const replayed = replay(c, uses, keyUse);
  if (replayed) return { project, end: replayed };
  unwrap(checkDatabaseNames(project, names));
  const outcome = await coordinatorOf(c.env, projectId).createBranches(
    {
      jobId: crypto.randomUUID(),
      kind,
      branches: names.map((name) => ({ id: crypto.randomUUID(), name })),
      project,
      source: source(branches, snapshots),
      creatorCidr,
      onExists,
      actor: actorOf(c),
      keyUse,
      ...choices,
    },
    prefer,
  );
  return { project, end: await endOfCreation(c, outcome) };
}

router.openapi(
  operation({
    access: 'branch.change',
    machines: 'of_branches',
    operationId: 'createBranch',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches',
    summary: 'Create a branch',
    description:
      'Clones an active branch with copy-on-write. After a 201 response the credentials of the new branch work on both ports, and a network rule lets the address of the caller connect.',
    tags,
    request: { params: ProjectParams, headers: CreationHeaders, body: jsonBody(NewBranch) },
    responses: {
      200: response('The branch that had the name already, on request.', BranchCreation),
      201: response('The new branch.', BranchCreation, 'Idempotency-Replayed'),
      202: PENDING,
    },
    failures: FAILURES,
  }),
  async (c) => {
    const { branch_name, on_exists: onExists, ...body } = c.req.valid('json');
    const { prefer, 'idempotency-key': key } = c.req.valid('header');
    const wanted: Wanted = { kind: 'branch.create', names: [branch_name], onExists, body };
    const { project, end } = await createBranches(c, wanted, prefer, key);
    if ('job' in end) return c.json(end.job, 202);
    const made = end.body as z.input<typeof BranchCreation>;
    const records = body.include.length > 0 ? await withCredentials(c, project, [made]) : [made];
    return c.json(found(records), end.status === 200 ? 200 : 201);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    machines: 'of_branches',
    operationId: 'createBranches',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/batch',
    summary: 'Create several branches in one request',
    description:
      'Clones an active branch up to 32 times, all or none of them. The clients of the source are held only during the first clone. All branches have the same content.',
    tags,
    request: { params: ProjectParams, headers: CreationHeaders, body: jsonBody(NewBatch) },
    responses: {
      201: response(
        'The new branches, in the order of their names in the request.',
        BatchCreation,
        'Idempotency-Replayed',
      ),
      202: PENDING,
    },
    failures: FAILURES,
  }),
  async (c) => {
    const request = c.req.valid('json');
    const { count: _count, name_prefix: _prefix, names: _names, ...body } = request;
    const names = unwrap(namesOf(request));
    const { prefer, 'idempotency-key': key } = c.req.valid('header');
    const wanted: Wanted = { kind: 'branch.create_batch', names, onExists: 'fail', body };
    const { project, end } = await createBranches(c, wanted, prefer, key);
    if ('job' in end) return c.json(end.job, 202);
    const { branches } = end.body as z.input<typeof BatchCreation>;
    const isIncluded = body.include.length > 0;
    return c.json({ branches: isIncluded ? await withCredentials(c, project, branches) : branches }, 201);
  },
);

export const branchCreationRoutes = router;
