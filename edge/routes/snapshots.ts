import { and, eq } from 'drizzle-orm';
import { z } from 'zod';
import { TtlSeconds } from '../../shared/branch/lifespan.ts';
import { Spares } from '../../shared/branch/snapshot.ts';
import { referencedBranchId } from '../branches/branch-reference.ts';
import { changeSnapshot, Snapshot, snapshotsOf, toSnapshotResponse } from '../branches/snapshot.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { snapshots } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { KEY_FAILURES, keyUseOf, recordedUses } from '../idempotency/idempotency-key.ts';
import { repeatIfLost } from '../lost-object.ts';
import { currentVersion } from '../masking/policy.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { actorOf } from '../pipeline/context.ts';
import { jsonBody, operation, operations, optionalJsonBody, response } from '../pipeline/operation.ts';
import { primaryOf } from '../pipeline/replica-choice.ts';
import { CreationHeaders, creationResponse, HOST_WORK_FAILURES, PENDING, replay } from './creations.ts';
import {
  BranchRefParams,
  inBranch,
  inProject,
  ProjectParams,
  requireData,
  SnapshotParams,
} from './in-project.ts';

const tags = ['Snapshots'];

const NewSnapshot = z
  .strictObject({
    name: z.string().trim().min(1).max(100).optional().meta({ example: 'before-migration' }),
    ttl_seconds: TtlSeconds.optional().meta({ description: 'Seconds until the snapshot is deleted.' }),
    data: z.enum(['full', 'masked']).default('full').meta({
      description:
        '`masked`: values are replaced by the masking policy of the project. It takes as long as writing the whole database.',
    }),
  })
  .meta({ example: { name: 'before-migration' } });

const SnapshotChange = z.strictObject({ spares: Spares }).meta({ example: { spares: 4 } });

const Deletion = z
  .strictObject({
    id: z.uuid(),
    status: z.literal('deleted'),
    deleted_at: z.iso.datetime(),
    job_id: z.uuid().meta({ description: 'The job that drops the database of the snapshot.' }),
  })
  .meta({ id: 'SnapshotDeletion' });

const router = operations();

router.openapi(
  operation({
    access: 'branch.change',
    gives: 'record',
    operationId: 'createSnapshot',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/snapshots',
    summary: 'Take a snapshot of a branch',
    description:
      'Clones the branch as it is now; nobody can connect to a snapshot, and it does not change. Branches can be created from it, and the branch can be reset to it. Snapshots do not count against the storage quota.',
    tags,
    request: { params: BranchRefParams, headers: CreationHeaders, body: optionalJsonBody(NewSnapshot) },
    responses: { 201: response('The snapshot.', Snapshot, 'Idempotency-Replayed'), 202: PENDING },
    failures: [
      ...KEY_FAILURES,
      'BRANCH_NOT_ACTIVE',
      'PROJECT_NOT_ACTIVE',
      'PROJECT_MOVING',
      'SNAPSHOT_LIMIT_REACHED',
      'MASKING_INCOMPLETE',
      'SOURCE_BUSY',
      'SOURCE_NOT_ACTIVE',
      ...HOST_WORK_FAILURES,
    ],
  }),
  async (c) => {
    const body = c.req.valid('json');
    const { prefer, 'idempotency-key': key } = c.req.valid('header');
    const keyUse = await keyUseOf(c.var.principal, c.req.path, key, body);
    const { project_id: projectId } = c.req.valid('param');
    const [project, branch, uses, [policy]] = await inBranch(c, c.req.valid('param'), (db) => [
      recordedUses(db, keyUse, new Date()),
      currentVersion(db, projectId),
    ]);
    const replayed = replay(c, uses, keyUse);
    if (replayed) return c.json(replayed.body as z.input<typeof Snapshot>, 201);
    // A branch that is masked already has masked data.
    const isMasked = body.data === 'masked' && branch.data !== 'masked';
    if (isMasked && !policy)
      throw new ApiError('MASKING_INCOMPLETE', {
        message: 'The project has no masking policy. Set one first, and repeat the request.',
        columns: [],
      });
    if (!isMasked) requireData(c, project, branch);
    const actor = actorOf(c);
    const outcome = await coordinatorOf(c.env, project.id).takeSnapshot(
      {
        jobId: crypto.randomUUID(),
        snapshotId: crypto.randomUUID(),
        branch,
        name: body.name ?? null,
        kind: 'manual',
        ttlSeconds: body.ttl_seconds ?? null,
        ...(isMasked && { maskingVersion: policy?.version }),
        hostId: project.hostId,
        actor,
        createdBy: actor.userId,
        keyUse,
      },
      prefer,
    );
    return creationResponse<z.input<typeof Snapshot>>(c, outcome);
  },
);

router.openapi(
  operation({
    access: 'branch.read',
    gives: 'record',
    operationId: 'listSnapshots',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/snapshots',
    summary: 'List the snapshots of a branch, newest first',
    tags,
    request: { params: BranchRefParams, query: PageQuery },
    responses: { 200: response('A page of snapshots.', pageOf('snapshots', Snapshot)) },
  }),
  async (c) => {
    const params = c.req.valid('param');
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(snapshots, 'newest_first', query);
    const { project_id: projectId, branch_ref: reference } = params;
    const { principal } = c.var;
    const branchId = referencedBranchId(projectId, reference, principal);
    const [, , rows] = await inBranch(c, params, (db) => [
      db
        .select()
        .from(snapshots)
        .where(and(snapshotsOf(projectId, principal), eq(snapshots.branchId, branchId), beyond))
        .orderBy(...orderBy)
        .limit(query.limit + 1),
    ]);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ snapshots: page.map(toSnapshotResponse), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'branch.read',
    machines: 'of_branches',
    operationId: 'listProjectSnapshots',
    method: 'get',
    path: '/api/v1/projects/{project_id}/snapshots',
    summary: 'List the snapshots of a project, newest first',
    description: 'Also those of branches that are deleted.',
    tags,
    request: { params: ProjectParams, query: PageQuery },
    responses: { 200: response('A page of snapshots.', pageOf('snapshots', Snapshot)) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(snapshots, 'newest_first', query);
    const [, rows] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(snapshots)
        .where(and(snapshotsOf(projectId, c.var.principal), beyond))
        .orderBy(...orderBy)
        .limit(query.limit + 1),
    ]);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ snapshots: page.map(toSnapshotResponse), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    gives: 'record',
    machines: 'of_branches',
    operationId: 'updateSnapshot',
    method: 'patch',
    path: '/api/v1/projects/{project_id}/snapshots/{snapshot_id}',
    summary: 'Change how many clones of a snapshot are kept ready',
    description:
      'A branch of a snapshot with a spare takes that instead of a clone. Spares cost no quota and count against no limit of branches.',
    tags,
    request: { params: SnapshotParams, body: jsonBody(SnapshotChange) },
    responses: { 200: response('The changed snapshot.', Snapshot) },
    failures: ['PROJECT_NOT_ACTIVE'],
  }),
  async (c) => {
    const { project_id: projectId, snapshot_id: id } = c.req.valid('param');
    const [, rows] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(snapshots)
        .where(and(snapshotsOf(projectId, c.var.principal), eq(snapshots.id, id))),
    ]);
    const coordinator = () => coordinatorOf(c.env, projectId);
    // Its alarm is then set, in case the host does not learn it from this request.
    await repeatIfLost(() => coordinator().wake());
    const change = { snapshot: found(rows), ...c.req.valid('json'), actor: actorOf(c) };
    const changed = unwrap(await changeSnapshot(primaryOf(c), change, new Date()));
    await repeatIfLost(() => coordinator().applyAccess());
    return c.json(toSnapshotResponse(changed), 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    machines: 'of_branches',
    operationId: 'deleteSnapshot',
    method: 'delete',
    path: '/api/v1/projects/{project_id}/snapshots/{snapshot_id}',
    summary: 'Delete a snapshot',
    description: 'Branches that were created from it stay. The job of the response drops its database.',
    tags,
    request: { params: SnapshotParams },
    responses: { 202: response('The snapshot is deleted.', Deletion) },
  }),
  async (c) => {
    const { project_id: projectId, snapshot_id: id } = c.req.valid('param');
    const [project, rows] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(snapshots)
        .where(and(snapshotsOf(projectId, c.var.principal), eq(snapshots.id, id))),
    ]);
    const deleted = await coordinatorOf(c.env, projectId).deleteSnapshot({
      snapshot: found(rows),
      hostId: project.hostId,
      actor: actorOf(c),
    });
    const job = unwrap(deleted);
    const deleted_at = job.createdAt.toISOString();
    return c.json({ id, status: 'deleted' as const, deleted_at, job_id: job.id }, 202);
  },
);

export const snapshotRoutes = router;
