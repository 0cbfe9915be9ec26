import { and, eq } from 'drizzle-orm';
import { z } from 'zod';
import { BranchName } from '../../shared/branch/branch-name.ts';
import { lifeOf, TtlSeconds } from '../../shared/branch/lifespan.ts';
import { Branch, BranchReset, checkResetTo, toResetResponse } from '../branches/branch.ts';
import { knownBranchesOf } from '../branches/branch-reference.ts';
import { checkDatabaseNames, checkPastTime, PastTime } from '../branches/branch-request.ts';
import { checkConfirmation } from '../branches/branch-settings.ts';
import { ofBranch, ofSnapshot } from '../branches/clone-source.ts';
import { keptBranch } from '../branches/kept-branch.ts';
import { ofEarlier, withData } from '../branches/prepared-source.ts';
import { cloneableSnapshot } from '../branches/snapshot.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { projectBranches } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { KEY_FAILURES, keyUseOf, recordedUses } from '../idempotency/idempotency-key.ts';
import { currentVersion } from '../masking/policy.ts';
import { actorOf } from '../pipeline/context.ts';
import { jsonBody, operation, operations, optionalJsonBody, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { matchesPattern } from '../tenancy/branch-pattern.ts';
import {
  CreationHeaders,
  endOfCreation,
  HOST_CREATION_FAILURES,
  HOST_WORK_FAILURES,
  PENDING,
  replay,
} from './creations.ts';
import {
  BranchRefParams,
  Confirm,
  DeletedBranchParams,
  inBranch,
  inProject,
  requireData,
} from './in-project.ts';

const tags = ['Branches'];

const router = operations();

const PARENT = 'parent';
const TIME = 'time';

const Reset = z
  .strictObject({
    to: z.union([z.literal(PARENT), z.literal(TIME), z.uuid().toLowerCase()]).meta({
      description:
        '`parent`: what the branch was cloned from, as it is now, masked or emptied as before; `time`: what the branch itself had `at` that time; or the id of a snapshot.',
      example: PARENT,
    }),
    at: PastTime.optional(),
    ttl_seconds: TtlSeconds.optional().meta({
      description: 'Also gives the branch a new life, counted from now.',
    }),
    confirm: Confirm,
  })
  .refine(({ to, at }) => (to === TIME) === (at !== undefined), {
    message: 'Provide at with to time, and only then.',
    path: ['at'],
  })
  .meta({ example: { to: PARENT } });

const Restore = z
  .strictObject({
    branch_name: BranchName.optional().meta({ description: 'Default: its former name.' }),
  })
  .meta({ example: { branch_name: 'checkout-redesign-2' } });

router.openapi(
  operation({
    access: 'branch.change',
    gives: 'record',
    operationId: 'resetBranch',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/reset',
    summary: 'Reset a branch to its parent, to a snapshot or to an earlier time',
    description:
      'Its id, name, connection URLs, passwords and rules stay. Its sessions end. What it held before is kept as a snapshot of the kind `safety` for 24 hours.',
    tags,
    request: { params: BranchRefParams, headers: CreationHeaders, body: jsonBody(Reset) },
    responses: { 200: response('The branch.', BranchReset, 'Idempotency-Replayed'), 202: PENDING },
    failures: [
      ...KEY_FAILURES,
      'BRANCH_PROTECTED',
      'BRANCH_NOT_ACTIVE',
      'PROJECT_NOT_ACTIVE',
      'PROJECT_MOVING',
      'STORAGE_QUOTA_EXCEEDED',
      'FILE_LIMIT_REACHED',
      'SOURCE_BUSY',
      'SOURCE_NOT_ACTIVE',
      'MASKING_INCOMPLETE',
      'TIME_NOT_RECOVERABLE',
      'SOURCE_UNSUITABLE',
      ...HOST_WORK_FAILURES,
    ],
  }),
  async (c) => {
    const params = c.req.valid('param');
    const { to, at, ttl_seconds, confirm } = c.req.valid('json');
    const { prefer, 'idempotency-key': key } = c.req.valid('header');
    const keyUse = await keyUseOf(c.var.principal, c.req.path, key, { to, at, ttl_seconds });
    const { principal } = c.var;
    const [project, branch, uses, snapshots, [policy]] = await inBranch(c, params, (db) => [
      recordedUses(db, keyUse, new Date()),
      cloneableSnapshot(db, params.project_id, to === PARENT || to === TIME ? '' : to, principal),
      currentVersion(db, params.project_id),
    ]);
    const replayed = replay(c, uses, keyUse);
    if (replayed) return c.json(toResetResponse(replayed.body), 200);
    unwrap(checkConfirmation(branch, confirm));
    unwrap(checkPastTime(at, project, branch, new Date()));
    const parents =
      to === PARENT && branch.parentBranchId !== null
        ? await databaseOf(c)
            .select()
            .from(projectBranches)
            .where(and(knownBranchesOf(project.id, principal), eq(projectBranches.id, branch.parentBranchId)))
        : [];
    const [origin] = parents;
    if (to === PARENT && !origin) throw new ApiError('SOURCE_NOT_ACTIVE');
    const jobId = crypto.randomUUID();
    const source =
      at !== undefined
        ? unwrap(ofEarlier(branch, at, policy?.version, jobId))
        : origin
          ? unwrap(withData(origin, ofBranch(origin), branch, policy?.version, jobId))
          : ofSnapshot(found(snapshots), true);
    requireData(c, project, source.content);
    unwrap(checkResetTo(project, branch, source.content));
    const outcome = await coordinatorOf(c.env, project.id).resetBranch(
      {
        jobId,
        snapshotId: crypto.randomUUID(),
        branch,
        source,
        life: ttl_seconds === undefined ? null : lifeOf({ ttl_seconds }),
        hostId: project.hostId,
        actor: actorOf(c),
        keyUse,
        asCreation: false,
      },
      prefer,
    );
    const end = await endOfCreation(c, outcome);
    return 'job' in end ? c.json(end.job, 202) : c.json(toResetResponse(end.body), 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    machines: 'of_branches',
    operationId: 'restoreBranch',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{deleted_branch_id}/restore',
    summary: 'Restore a deleted branch',
    description:
      'Brings a branch back with its content, passwords and rules, while its database is kept (`deletes_at`); its life begins again. `GET …/branches?status=deleted` lists these branches.',
    tags,
    request: { params: DeletedBranchParams, headers: CreationHeaders, body: optionalJsonBody(Restore) },
    responses: { 200: response('The branch.', Branch, 'Idempotency-Replayed'), 202: PENDING },
    failures: [
      ...KEY_FAILURES,
      'DATABASE_NAME_TOO_LONG',
      'BRANCH_EXISTS',
      'PROJECT_NOT_ACTIVE',
      'PROJECT_MOVING',
      'STORAGE_QUOTA_EXCEEDED',
      'FILE_LIMIT_REACHED',
      'SOURCE_BUSY',
      'SOURCE_NOT_ACTIVE',
      'BRANCH_LIMIT_REACHED',
      'RULE_LIMIT_REACHED',
      ...HOST_CREATION_FAILURES,
    ],
  }),
  async (c) => {
    const { project_id: projectId, deleted_branch_id: id } = c.req.valid('param');
    const body = c.req.valid('json');
    const { prefer, 'idempotency-key': key } = c.req.valid('header');
    const keyUse = await keyUseOf(c.var.principal, c.req.path, key, body);
    const [project, branches, snapshots, uses] = await inProject(c, projectId, (db) => [
      ...keptBranch(db, projectId, id),
      recordedUses(db, keyUse, new Date()),
    ]);
    const replayed = replay(c, uses, keyUse);
    if (replayed) return c.json(replayed.body as z.input<typeof Branch>, 200);
    const branch = found(branches);
    const snapshot = found(snapshots);
    requireData(c, project, branch);
    const branchName = body.branch_name ?? branch.branchName;
    const pattern = c.var.principal.machine?.branchPattern ?? null;
    const names = [branch.branchName, branchName];
    if (pattern !== null && !names.every((name) => matchesPattern(pattern, name)))
      throw new ApiError('NOT_FOUND');
    unwrap(checkDatabaseNames(project, [branchName]));
    const outcome = await coordinatorOf(c.env, projectId).restoreBranch(
      { jobId: crypto.randomUUID(), project, branch, snapshot, branchName, actor: actorOf(c), keyUse },
      prefer,
    );
    const end = await endOfCreation(c, outcome);
    return 'job' in end ? c.json(end.job, 202) : c.json(end.body as z.input<typeof Branch>, 200);
  },
);

export const branchHistoryRoutes = router;
