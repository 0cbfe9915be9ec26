import { and, asc, desc, eq } from 'drizzle-orm';
import { z } from 'zod';
import { BRANCH_STATUSES } from '../../shared/branch/branch-status.ts';
import { LabelFilter } from '../../shared/branch/labels.ts';
import { LeaseSeconds } from '../../shared/branch/lease.ts';
import { lifeOf } from '../../shared/branch/lifespan.ts';
import { Branch, toBranchResponse } from '../branches/branch.ts';
import {
  hasLabel,
  knownBranchesOf,
  referencedBranch,
  restorableBranchesOf,
} from '../branches/branch-reference.ts';
import { BranchChange } from '../branches/new-branch.ts';
import { storeProtection } from '../branches/protect-branch.ts';
import { keptBranch, requirePurgeable } from '../branches/restore-branch.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { projectBranches } from '../database/schema.ts';
import { found, unwrap } from '../errors.ts';
import { repeatIfLost } from '../lost-object.ts';
import { allow } from '../permissions.ts';
import { actorOf } from '../pipeline/context.ts';
import { jsonBody, operation, operations, optionalJsonBody, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { inBranch, inProject } from './in-project.ts';
import { BranchRefParams, Confirm, ProjectParams } from './parameters.ts';

const tags = ['Branches'];

const ListQuery = z.strictObject({
  label: LabelFilter.optional(),
  status: z
    .enum(BRANCH_STATUSES)
    .optional()
    .meta({ description: 'Only branches with this status. `deleted`: only those that can be restored.' }),
});

const Lease = z
  .strictObject({ lease_seconds: LeaseSeconds.optional() })
  .meta({ example: { lease_seconds: 300 } });

const Lookup = z
  .strictObject({ name: z.string().max(100).optional(), id: z.uuid().toLowerCase().optional() })
  .refine(
    ({ name, id }) => (name === undefined) !== (id === undefined),
    'Provide exactly one of name and id.',
  );

const Deletion = z
  .strictObject({
    id: z.uuid(),
    status: z.literal('deleted'),
    deleted_at: z.iso.datetime(),
    job_id: z.uuid().meta({ description: 'The job that drops or keeps the database of the branch.' }),
  })
  .meta({ id: 'BranchDeletion' });

const DeletionQuery = z.strictObject({
  purge: z
    .enum(['true', 'false'])
    .default('false')
    .transform((text) => text === 'true')
    .meta({
      description:
        'Drops the database immediately, so that the branch cannot be restored; also that of a branch which was deleted before, by its id.',
    }),
  confirm: Confirm,
});

const router = operations();

router.openapi(
  operation({
    access: 'branch.read',
    machines: 'of_branches',
    operationId: 'listBranches',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches',
    summary: 'List branches, `main` first, then the oldest first',
    tags,
    request: { params: ProjectParams, query: ListQuery },
    responses: {
      200: response(
        'The branches, without deleted ones unless the query asks for them.',
        z.strictObject({ branches: z.array(Branch) }),
      ),
    },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { label, status } = c.req.valid('query');
    const [, branches] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(projectBranches)
        .where(
          and(
            status === 'deleted'
              ? restorableBranchesOf(projectId, c.var.principal)
              : knownBranchesOf(projectId, c.var.principal),
            label && hasLabel(label),
            status && eq(projectBranches.status, status),
          ),
        )
        .orderBy(desc(projectBranches.isDefault), asc(projectBranches.createdAt), asc(projectBranches.id)),
    ]);
    return c.json({ branches: branches.map(toBranchResponse) }, 200);
  },
);

router.openapi(
  operation({
    access: 'branch.read',
    machines: 'of_branches',
    operationId: 'lookUpBranch',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/lookup',
    summary: 'Find a branch by name or by id',
    tags,
    request: { params: ProjectParams, query: Lookup },
    responses: {
      200: response(
        'The matching branches.',
        z.strictObject({
          matches: z.array(Branch),
          is_duplicate: z.boolean().meta({ description: 'A branch with that name or id exists.' }),
        }),
      ),
    },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { id, name = '' } = c.req.valid('query');
    const wanted = id ? eq(projectBranches.id, id) : eq(projectBranches.branchName, name);
    const [, matches] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(projectBranches)
        .where(and(knownBranchesOf(projectId, c.var.principal), wanted)),
    ]);
    return c.json({ matches: matches.map(toBranchResponse), is_duplicate: matches.length > 0 }, 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    operationId: 'updateBranch',
    method: 'patch',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}',
    summary: 'Change the lifespan or the protection of a branch',
    description:
      'The new lifespan starts at the time of the request. An expired branch becomes active again, for which the project needs a free slot.',
    tags,
    request: { params: BranchRefParams, body: jsonBody(BranchChange) },
    responses: { 200: response('The updated branch.', Branch) },
    failures: ['BRANCH_PROTECTED', 'BRANCH_NOT_ACTIVE', 'STORAGE_QUOTA_EXCEEDED', 'BRANCH_LIMIT_REACHED'],
  }),
  async (c) => {
    const { protected: isProtected, ...life } = c.req.valid('json');
    if (isProtected !== undefined) allow(c.var.principal, 'branch.protect');
    const [project, found] = await inBranch(c, c.req.valid('param'), () => []);
    const actor = actorOf(c);
    const branch =
      isProtected === undefined
        ? found
        : unwrap(await storeProtection(databaseOf(c), found, isProtected, actor, new Date()));
    if (life.lifespan === undefined && life.ttl_seconds === undefined)
      return c.json(toBranchResponse(branch), 200);
    const changed = await coordinatorOf(c.env, project.id).changeLifespan({
      branch,
      life: lifeOf(life),
      hostId: project.hostId,
      actor,
    });
    return c.json(toBranchResponse(unwrap(changed)), 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    operationId: 'renewLease',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/lease',
    summary: 'Renew the lease of a branch',
    description:
      'The lease then ends `lease_seconds` after the request; left out, it lasts as long as before. A branch whose lease has ended is deleted, and cannot be renewed.',
    tags,
    request: { params: BranchRefParams, body: optionalJsonBody(Lease) },
    responses: { 200: response('The branch with its new lease.', Branch) },
    failures: ['BRANCH_NOT_ACTIVE', 'BRANCH_NOT_LEASED'],
  }),
  async (c) => {
    const { lease_seconds: leaseSeconds = null } = c.req.valid('json');
    const [project, branch] = await inBranch(c, c.req.valid('param'), () => []);
    const renewal = { branch, leaseSeconds, actor: actorOf(c) };
    const renewed = await repeatIfLost(() => coordinatorOf(c.env, project.id).renewLease(renewal));
    return c.json(toBranchResponse(unwrap(renewed)), 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    operationId: 'deleteBranch',
    method: 'delete',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}',
    summary: 'Delete a branch',
    description:
      'Its name can be reused immediately. Its database is kept for some time, so that the branch can be restored (`deletes_at` in the list of deleted branches); that of a branch with a lease is dropped.',
    tags,
    request: { params: BranchRefParams, query: DeletionQuery },
    responses: { 202: response('The branch is deleted.', Deletion) },
    failures: ['BRANCH_PROTECTED', 'HOST_BUSY'],
  }),
  async (c) => {
    const { project_id: projectId, branch_ref: reference } = c.req.valid('param');
    const { purge, confirm } = c.req.valid('query');
    const [project, branches, deletedBranches, keptDatabases] = await inProject(c, projectId, (db) => [
      referencedBranch(db, projectId, reference, c.var.principal),
      ...keptBranch(db, projectId, reference),
    ]);
    const [deletedBranch] = deletedBranches;
    const [snapshot] = keptDatabases;
    if (branches.length === 0 && purge && deletedBranch && snapshot) {
      requirePurgeable(c.var.principal, deletedBranch, snapshot, confirm);
      const deletion = { snapshot, hostId: project.hostId, actor: actorOf(c) };
      const job = unwrap(await coordinatorOf(c.env, projectId).history.deleteSnapshot(deletion));
      const { id, deletedAt } = deletedBranch;
      const deleted_at = (deletedAt ?? job.createdAt).toISOString();
      return c.json({ id, status: 'deleted' as const, deleted_at, job_id: job.id }, 202);
    }
    const branch = found(branches);
    const deleted = await coordinatorOf(c.env, project.id).deleteBranch({
      id: crypto.randomUUID(),
      projectId: project.id,
      branchId: branch.id,
      hostId: project.hostId,
      actor: actorOf(c),
      purge,
      confirm,
    });
    const { job } = unwrap(deleted);
    const deleted_at = job.createdAt.toISOString();
    return c.json({ id: branch.id, status: 'deleted' as const, deleted_at, job_id: job.id }, 202);
  },
);

export const branchRoutes = router;
