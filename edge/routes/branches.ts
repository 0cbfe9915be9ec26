import { and, asc, desc, eq } from 'drizzle-orm';
import { z } from 'zod';
import { BRANCH_STATUSES } from '../../shared/branch/branch-status.ts';
import { LabelFilter } from '../../shared/branch/labels.ts';
import { LeaseSeconds } from '../../shared/branch/lease.ts';
import { lifeOf } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import type { Moment } from '../../shared/moment.ts';
import type { Result } from '../../shared/result.ts';
import { Credentials, type CredentialsView } from '../access/credentials.ts';
import { creatorNetwork } from '../access/network-rule.ts';
import type { Principal } from '../authentication/principal.ts';
import {
  Branch,
  BranchDeletion,
  CreatedBranch,
  toBranchResponse,
  toDeletionResponse,
} from '../branches/branch.ts';
import {
  hasLabel,
  knownBranchesOf,
  referencedBranch,
  restorableBranchesOf,
} from '../branches/branch-reference.ts';
import {
  attemptsWithin,
  BranchChange,
  checkDatabaseNames,
  checkPastTime,
  choicesOf,
  NewBatch,
  NewBranch,
  namesOf,
} from '../branches/branch-request.ts';
import { sourceQueries } from '../branches/clone-source.ts';
import type { BranchRequest } from '../branches/create-branches.ts';
import { checkPurgeable, keptBranch } from '../branches/kept-branch.ts';
import { withData } from '../branches/prepared-source.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { type BranchRow, projectBranches } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import {
  type CreationProgress,
  KEY_FAILURES,
  keyUseOf,
  recordedUses,
} from '../idempotency/idempotency-key.ts';
import { repeatIfLost } from '../lost-object.ts';
import { currentVersion } from '../masking/policy.ts';
import { allow } from '../permissions.ts';
import { type AppContext, actorOf, connectingIp } from '../pipeline/context.ts';
import { jsonBody, operation, operations, optionalJsonBody, response } from '../pipeline/operation.ts';
import { readSettings } from '../settings.ts';
import { matchesPattern } from '../tenancy/branch-pattern.ts';
import type { ProjectView } from '../tenancy/project-access.ts';
import {
  CreationHeaders,
  endOfCreation,
  HOST_CREATION_FAILURES,
  HOST_WORK_FAILURES,
  PENDING,
  replay,
  WAIT_MAX_SECONDS,
} from './creations.ts';
import { withCredentials } from './credentials.ts';
import { BranchRefParams, Flag, inBranch, inProject, ProjectParams, requireData } from './in-project.ts';

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

const DeletionQuery = z.strictObject({
  purge: Flag(false).meta({
    description:
      'Drops the database immediately, so that the branch cannot be restored; also that of a branch which was deleted before, by its id.',
  }),
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
    access: 'branch.read',
    machines: 'of_branches',
    gives: 'record',
    operationId: 'getBranch',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}',
    summary: 'Get a branch',
    description: 'It also says which networks are refused because of too many connection attempts.',
    tags,
    request: { params: BranchRefParams },
    responses: { 200: response('The branch.', Branch) },
  }),
  async (c) => {
    const [, branch] = await inBranch(c, c.req.valid('param'), () => []);
    return c.json(toBranchResponse(branch), 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    gives: 'record',
    operationId: 'updateBranch',
    method: 'patch',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}',
    summary:
      'Change the name, the lifespan, the protection, the limit of connection attempts or the settings of a branch',
    description:
      'A branch is renamed while no job of it is open and no branch is cloned from it (`HOST_BUSY`). The new lifespan starts at the time of the request. An expired branch becomes active again. A protected branch is not deleted: neither by a request nor at the end of its lease or of its retention, which begin again when its protection ends.',
    tags,
    request: { params: BranchRefParams, body: jsonBody(BranchChange) },
    responses: { 200: response('The updated branch.', Branch) },
    failures: [
      'BRANCH_PROTECTED',
      'BRANCH_NOT_ACTIVE',
      'PROJECT_NOT_ACTIVE',
      'CONNECTION_ATTEMPTS_ABOVE_MAX',
      'PROJECT_MOVING',
      'BRANCH_EXISTS',
      'DATABASE_NAME_TOO_LONG',
      'DATABASE_NAME_HELD',
      ...HOST_WORK_FAILURES,
    ],
  }),
  async (c) => {
    const {
      branch_name: branchName,
      protected: isProtected,
      connection_attempts_per_minute: wanted,
      settings,
      ...life
    } = c.req.valid('json');
    if (settings !== undefined) unwrap(allow(c.var.principal, 'credentials.rotate'));
    if (isProtected !== undefined) unwrap(allow(c.var.principal, 'branch.protect'));
    const attempts = wanted == null ? wanted : unwrap(attemptsWithin(wanted, readSettings(c.env)));
    if (branchName !== undefined) checkBranchNames(c.var.principal, [branchName]);
    const [project, branch] = await inBranch(c, c.req.valid('param'), () => []);
    if (branchName !== undefined) return c.json(await renamed(c, project, branch, branchName), 200);
    const change = { branch, isProtected, attempts, settings, hostId: project.hostId, actor: actorOf(c) };
    const coordinator = coordinatorOf(c.env, project.id);
    const hasLife = life.lifespan !== undefined || life.ttl_seconds !== undefined;
    const changed = hasLife
      ? await coordinator.changeLifespan({ ...change, life: lifeOf(life) })
      : await repeatIfLost(() => coordinator.changeSettings(change));
    return c.json(toBranchResponse(unwrap(changed)), 200);
  },
);

/** A request that is repeated after HOST_TIMEOUT waits for the same job. */
async function renamed(c: AppContext, project: ProjectView, branch: BranchRow, branchName: string) {
  if (branch.isDefault) throw new ApiError('BRANCH_PROTECTED');
  unwrap(checkDatabaseNames(project, [branchName]));
  const request = { jobId: crypto.randomUUID(), project, branch, branchName, actor: actorOf(c) };
  const outcome = await repeatIfLost<Result<CreationProgress, Failure>>(async () =>
    coordinatorOf(c.env, project.id).renameBranch(request, WAIT_MAX_SECONDS * 1000),
  );
  const progress = unwrap(outcome);
  if (progress.response === null) throw new ApiError('HOST_TIMEOUT', { job_id: progress.jobId });
  return progress.response.body as z.input<typeof Branch>;
}

router.openapi(
  operation({
    access: 'branch.change',
    gives: 'record',
    operationId: 'renewLease',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/lease',
    summary: 'Renew the lease of a branch',
    description:
      'The lease then ends `lease_seconds` after the request; left out, it lasts as long as before. A branch whose lease has ended is deleted, and cannot be renewed.',
    tags,
    request: { params: BranchRefParams, body: optionalJsonBody(Lease) },
    responses: { 200: response('The branch with its new lease.', Branch) },
    failures: ['BRANCH_NOT_ACTIVE', 'PROJECT_NOT_ACTIVE', 'BRANCH_NOT_LEASED'],
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
      'A protected branch has to be unprotected first. Its name can be reused immediately. Its database is kept for some time, so that the branch can be restored (`deletes_at` in the list of deleted branches); that of a branch with a lease is dropped.',
    tags,
    request: { params: BranchRefParams, query: DeletionQuery },
    responses: { 202: response('The branch is deleted.', BranchDeletion) },
    failures: ['BRANCH_PROTECTED', 'PROJECT_NOT_ACTIVE', 'PROJECT_MOVING', 'HOST_BUSY'],
  }),
  async (c) => {
    const { project_id: projectId, branch_ref: reference } = c.req.valid('param');
    const { purge } = c.req.valid('query');
    const [project, branches, deletedBranches, keptDatabases] = await inProject(c, projectId, (db) => [
      referencedBranch(db, projectId, reference, c.var.principal),
      ...keptBranch(db, projectId, reference),
    ]);
    const [deletedBranch] = deletedBranches;
    const [snapshot] = keptDatabases;
    if (branches.length === 0 && purge && deletedBranch && snapshot) {
      unwrap(checkPurgeable(c.var.principal, deletedBranch, snapshot));
      const deletion = { snapshot, hostId: project.hostId, actor: actorOf(c) };
      const job = unwrap(await coordinatorOf(c.env, projectId).deleteSnapshot(deletion));
      return c.json(toDeletionResponse(deletedBranch, job, null, project), 202);
    }
    const branch = found(branches);
    const deleted = await coordinatorOf(c.env, project.id).deleteBranch({
      id: crypto.randomUUID(),
      projectId: project.id,
      branch,
      hostId: project.hostId,
      actor: actorOf(c),
      purge,
    });
    const { job, restorableUntil } = unwrap(deleted);
    return c.json(toDeletionResponse(branch, job, restorableUntil, project), 202);
  },
);

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
  'PROJECT_MOVING',
  'STORAGE_QUOTA_EXCEEDED',
  'FILE_LIMIT_REACHED',
  'SOURCE_BUSY',
  'SOURCE_NOT_ACTIVE',
  'MASKING_INCOMPLETE',
  'NO_SNAPSHOT',
  'TIME_NOT_RECOVERABLE',
  'SOURCE_UNSUITABLE',
  'BRANCH_PROTECTED',
  'BRANCH_LIMIT_REACHED',
  'CONNECTION_ATTEMPTS_ABOVE_MAX',
  'RULE_LIMIT_REACHED',
  ...HOST_CREATION_FAILURES,
] as const;

/** What a client asks for, whether of one branch or of a batch. */
interface Wanted {
  isBatch: boolean;
  names: string[];
  onExists: BranchRequest['onExists'];
  body: Omit<z.output<typeof NewBranch>, 'branch_name' | 'on_exists' | 'at'> & { at?: Moment | undefined };
}

/** The login of the URLs that the request includes. */
const viewOf = ({ include: [wanted] }: Pick<Wanted['body'], 'include'>): CredentialsView =>
  wanted === 'credentials.owner' ? 'owner' : wanted === 'credentials.read_only' ? 'read_only' : 'default';

/** Before anything is read, because whether another name is taken is unknown to the caller too. */
function checkBranchNames({ machine }: Principal, names: readonly string[]): void {
  const pattern = machine?.branchPattern ?? null;
  if (pattern === null || names.every((name) => matchesPattern(pattern, name))) return;
  throw new ApiError('NOT_FOUND', { message: `Not found. Choose branch names that match ${pattern}.` });
}

/** Creates the branches, or finds the response to an earlier request with the same key. */
async function created(c: AppContext, wanted: Wanted, prefer: number, key: string | undefined) {
  const { isBatch, names, onExists, body } = wanted;
  checkBranchNames(c.var.principal, names);
  if (body.include.length > 0) unwrap(allow(c.var.principal, 'credentials.read'));
  const projectId = c.req.param('project_id') ?? '';
  const creatorCidr = creatorNetwork(connectingIp(c));
  const choices = unwrap(choicesOf(body, creatorCidr, readSettings(c.env)));
  const keyUse = await keyUseOf(c.var.principal, c.req.path, key, { names, onExists, ...body });
  const { source, ...wantedSource } = sourceQueries(projectId, body, c.var.principal);
  const [project, branches, snapshots, uses, [policy]] = await inProject(c, projectId, (db) => [
    wantedSource.branches(db),
    wantedSource.snapshots(db),
    recordedUses(db, keyUse, new Date()),
    currentVersion(db, projectId),
  ]);
  const replayed = replay(c, uses, keyUse);
  if (replayed) return { project, end: replayed };
  unwrap(checkDatabaseNames(project, names));
  const jobId = crypto.randomUUID();
  const found = unwrap(source(branches, snapshots));
  const wantedData = { data: body.data, keepTables: body.keep_tables, at: body.at };
  const [branch] = branches;
  if (branch) unwrap(checkPastTime(body.at, project, branch, new Date()));
  const prepared = branch ? unwrap(withData(branch, found, wantedData, policy?.version, jobId)) : found;
  requireData(c, project, prepared.content);
  const outcome = await coordinatorOf(c.env, projectId).createBranches(
    {
      jobId,
      isBatch,
      branches: names.map((name) => ({ id: crypto.randomUUID(), name })),
      project,
      source: prepared,
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
    const wanted: Wanted = { isBatch: false, names: [branch_name], onExists, body };
    const { project, end } = await created(c, wanted, prefer, key);
    if ('job' in end) return c.json(end.job, 202);
    const made = end.body as z.input<typeof BranchCreation>;
    const records =
      body.include.length > 0 ? await withCredentials(c, project, [made], viewOf(body)) : [made];
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
    const wanted: Wanted = { isBatch: true, names, onExists: 'fail', body };
    const { project, end } = await created(c, wanted, prefer, key);
    if ('job' in end) return c.json(end.job, 202);
    const { branches } = end.body as z.input<typeof BatchCreation>;
    const isIncluded = body.include.length > 0;
    return c.json(
      { branches: isIncluded ? await withCredentials(c, project, branches, viewOf(body)) : branches },
      201,
    );
  },
);

export const branchRoutes = router;
