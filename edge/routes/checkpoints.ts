import { and } from 'drizzle-orm';
import { z } from 'zod';
import { CHECKPOINTS_OF_BRANCH } from '../../shared/branch/snapshot.ts';
import { checkResetTo } from '../branches/branch.ts';
import { referencedBranchId } from '../branches/branch-reference.ts';
import { checkConfirmation } from '../branches/branch-settings.ts';
import { Checkpoint, isKeptCheckpoint, toCheckpoint, Undone, undoTarget } from '../branches/checkpoint.ts';
import { ofSnapshot } from '../branches/clone-source.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { snapshots } from '../database/schema.ts';
import { ApiError, unwrap } from '../errors.ts';
import { KEY_FAILURES, keyUseOf, recordedUses } from '../idempotency/idempotency-key.ts';
import { missing } from '../missing.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { actorOf } from '../pipeline/context.ts';
import { operation, operations, optionalJsonBody, response } from '../pipeline/operation.ts';
import {
  CreationHeaders,
  creationResponse,
  endOfCreation,
  HOST_WORK_FAILURES,
  PENDING,
  replay,
} from './creations.ts';
import { BranchRefParams, Confirm, inBranch, requireData } from './in-project.ts';

const tags = ['Snapshots'];

const NewCheckpoint = z
  .strictObject({
    label: z.string().trim().min(1).max(100).optional().meta({ example: 'before adding prices' }),
  })
  .meta({ example: { label: 'before adding prices' } });

const Undo = z
  .strictObject({
    to: z.uuid().toLowerCase().optional().meta({
      description: 'A checkpoint, or the `safety_checkpoint_id` of an earlier undo.',
    }),
    steps: z.int().min(1).max(CHECKPOINTS_OF_BRANCH).optional().meta({
      description: 'Without `to`: the n-th checkpoint back from where the branch is. Default: 1.',
      example: 1,
    }),
    confirm: Confirm,
  })
  .refine(({ to, steps }) => to === undefined || steps === undefined, {
    path: ['steps'],
    message: 'cannot be combined with to',
  })
  .meta({ example: { steps: 1 } });

const router = operations();

router.openapi(
  operation({
    access: 'branch.change',
    gives: 'record',
    operationId: 'createCheckpoint',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/checkpoints',
    summary: 'Take a checkpoint of a branch',
    description: `Clones the branch as it is now, as a state that an undo goes back to. A branch keeps the last ${CHECKPOINTS_OF_BRANCH}, and they end with it.`,
    tags,
    request: { params: BranchRefParams, headers: CreationHeaders, body: optionalJsonBody(NewCheckpoint) },
    responses: { 201: response('The checkpoint.', Checkpoint, 'Idempotency-Replayed'), 202: PENDING },
    failures: [
      ...KEY_FAILURES,
      'BRANCH_NOT_ACTIVE',
      'PROJECT_NOT_ACTIVE',
      'PROJECT_MOVING',
      'FILE_LIMIT_REACHED',
      'SOURCE_BUSY',
      'SOURCE_NOT_ACTIVE',
      ...HOST_WORK_FAILURES,
    ],
  }),
  async (c) => {
    const body = c.req.valid('json');
    const { prefer, 'idempotency-key': key } = c.req.valid('header');
    const keyUse = await keyUseOf(c.var.principal, c.req.path, key, body);
    const [project, branch, uses] = await inBranch(c, c.req.valid('param'), (db) => [
      recordedUses(db, keyUse, new Date()),
    ]);
    const replayed = replay(c, uses, keyUse);
    if (replayed) return c.json(replayed.body as z.input<typeof Checkpoint>, 201);
    requireData(c, project, branch);
    const actor = actorOf(c);
    const outcome = await coordinatorOf(c.env, project.id).takeSnapshot(
      {
        jobId: crypto.randomUUID(),
        snapshotId: crypto.randomUUID(),
        branch,
        name: body.label ?? null,
        kind: 'checkpoint',
        ttlSeconds: null,
        hostId: project.hostId,
        actor,
        createdBy: actor.userId,
        keyUse,
      },
      prefer,
    );
    return creationResponse<z.input<typeof Checkpoint>>(c, outcome);
  },
);

router.openapi(
  operation({
    access: 'branch.read',
    gives: 'record',
    operationId: 'listCheckpoints',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/checkpoints',
    summary: 'List the checkpoints of a branch, newest first',
    tags,
    request: { params: BranchRefParams, query: PageQuery },
    responses: { 200: response('A page of checkpoints.', pageOf('checkpoints', Checkpoint)) },
  }),
  async (c) => {
    const params = c.req.valid('param');
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(snapshots, 'newest_first', query);
    const branchId = referencedBranchId(params.project_id, params.branch_ref, c.var.principal);
    const [, , rows] = await inBranch(c, params, (db) => [
      db
        .select()
        .from(snapshots)
        .where(and(isKeptCheckpoint(branchId), beyond))
        .orderBy(...orderBy)
        .limit(query.limit + 1),
    ]);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ checkpoints: page.map(toCheckpoint), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    gives: 'record',
    operationId: 'undoBranch',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/undo',
    summary: 'Take a branch back to a checkpoint',
    description:
      'A reset to the checkpoint: its id, name, connection URLs, passwords and rules stay, and its sessions end. The next undo goes further back. The first checkpoint after an undo ends those ahead of it.',
    tags,
    request: { params: BranchRefParams, headers: CreationHeaders, body: optionalJsonBody(Undo) },
    responses: {
      200: response('What the branch was taken back to.', Undone, 'Idempotency-Replayed'),
      202: PENDING,
    },
    failures: [
      ...KEY_FAILURES,
      'BRANCH_PROTECTED',
      'BRANCH_NOT_ACTIVE',
      'BRANCH_FOLLOWING',
      'PROJECT_NOT_ACTIVE',
      'PROJECT_MOVING',
      'STORAGE_QUOTA_EXCEEDED',
      'FILE_LIMIT_REACHED',
      'SOURCE_NOT_ACTIVE',
      ...HOST_WORK_FAILURES,
    ],
  }),
  async (c) => {
    const params = c.req.valid('param');
    const { to, steps = 1, confirm } = c.req.valid('json');
    const { prefer, 'idempotency-key': key } = c.req.valid('header');
    const keyUse = await keyUseOf(c.var.principal, c.req.path, key, { to, steps });
    const branchId = referencedBranchId(params.project_id, params.branch_ref, c.var.principal);
    const [project, branch, uses, [target]] = await inBranch(c, params, (db) => [
      recordedUses(db, keyUse, new Date()),
      undoTarget(db, branchId, { to, steps }),
    ]);
    const replayed = replay(c, uses, keyUse);
    if (replayed) return c.json(replayed.body as z.input<typeof Undone>, 200);
    unwrap(checkConfirmation(branch, confirm));
    if (!target) {
      const { fields } = missing('checkpoint', to);
      throw new ApiError('NOT_FOUND', {
        ...fields,
        ...(to === undefined && {
          message: `The branch has no ${steps} checkpoint${steps === 1 ? '' : 's'} behind it. List its checkpoints, or take one first.`,
        }),
      });
    }
    const source = ofSnapshot(target, true);
    requireData(c, project, source.content);
    unwrap(checkResetTo(project, branch, source.content));
    const outcome = await coordinatorOf(c.env, project.id).resetBranch(
      {
        jobId: crypto.randomUUID(),
        snapshotId: crypto.randomUUID(),
        branch,
        source,
        life: null,
        hostId: project.hostId,
        actor: actorOf(c),
        keyUse,
        asCreation: false,
        undo: { to: toCheckpoint(target), position: target.number, steps: to === undefined ? steps : null },
      },
      prefer,
    );
    const end = await endOfCreation(c, outcome);
    return 'job' in end ? c.json(end.job, 202) : c.json(end.body as z.input<typeof Undone>, 200);
  },
);

export const checkpointRoutes = router;
