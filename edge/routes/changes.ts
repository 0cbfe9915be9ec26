import { and, eq, sql } from 'drizzle-orm';
import { z } from 'zod';
import { CHANGE_SQL_MAX } from '../../shared/protocol/change-operations.ts';
import { referencedBranch } from '../branches/branch-reference.ts';
import { ofBranch, ofSnapshot } from '../branches/clone-source.ts';
import { withData } from '../branches/prepared-source.ts';
import { approve } from '../changes/approvals.ts';
import { Change, ChangeSummary, digestOf, overBudget, toChange, toSummary } from '../changes/change.ts';
import { type PlanSource, planChange } from '../changes/plan.ts';
import { closeChange, createChange } from '../changes/reserve.ts';
import { AT_REST, type ChangeEvent, statesBefore } from '../changes/states.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { type ChangeRow, changes } from '../database/change-schema.ts';
import type { ChangePlan } from '../database/column-types.ts';
import type { Database } from '../database/database.ts';
import { type BranchRow, projectBranches, snapshots } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { callHostForClient } from '../hosts/host-client.ts';
import { IdempotencyHeader, KEY_FAILURES, keyUseOf, recordedUses } from '../idempotency/idempotency-key.ts';
import { repeatIfLost } from '../lost-object.ts';
import { currentVersion } from '../masking/policy.ts';
import { missing } from '../missing.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { seesFullData } from '../permissions.ts';
import { type AppContext, actorOf } from '../pipeline/context.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { primaryOf } from '../pipeline/replica-choice.ts';
import type { ProjectView } from '../tenancy/project-access.ts';
import { HOST_WORK_FAILURES, replay } from './creations.ts';
import {
  ChangeParams,
  HOST_FAILURES,
  inProject,
  ProjectParams,
  requireData,
  requireFullData,
  usableBranch,
} from './in-project.ts';

const tags = ['Changes'];
const PATH = '/api/v1/projects/{project_id}/changes';
const ONE = `${PATH}/{change_id}` as const;

const NewChange = z
  .strictObject({
    source_branch_id: z.uuid().toLowerCase().optional().meta({
      description: 'The branch whose schema `main` is to have.',
    }),
    from: z.string().min(1).max(100).optional().meta({ description: 'The same, by its name or its ID.' }),
    sql: z.string().min(1).max(CHANGE_SQL_MAX).optional().meta({
      description:
        'The statements of the migration, in place of those of the schema difference. Each is a transaction of its own, unless several stand between `begin` and `commit`. With a branch too, the rows that a migration tool has written into its table there follow.',
    }),
  })
  .refine(({ source_branch_id, from }) => source_branch_id === undefined || from === undefined, {
    path: ['from'],
    message: 'cannot be combined with source_branch_id',
  })
  .refine((body) => Object.values(body).some((value) => value !== undefined), {
    path: ['from'],
    message: 'Name a branch with from, or send sql.',
  })
  .meta({ example: { from: 'pr-7' } });

const MAIN = z.literal('main').meta({ description: 'The name of the branch that is changed: `main`.' });

const LONGEST_SCHEDULE_MS = 30 * 86_400_000;

const Application = z
  .strictObject({
    confirm: MAIN,
    lock_timeout_ms: z.int().min(10).max(60_000).default(500).meta({
      description:
        'How long a statement waits for a lock. Everything that needs a weaker lock on the same table waits behind it, for no longer than this.',
    }),
    attempts: z.int().min(1).max(100).default(20).meta({
      description: 'How often a statement is tried, with growing pauses, when a lock was not free in time.',
    }),
    budget_ms: z.int().min(50).max(3_600_000).default(2_000).meta({
      description:
        'How long a statement may take that held a lock that blocks writers when it was rehearsed. It is ended then, and the change stops.',
    }),
    accept_outage: z.boolean().default(false).meta({
      description: 'Without the limit of `budget_ms`.',
    }),
    at: z.iso.datetime().optional().meta({
      description: 'When to apply it, within 30 days. Default: now.',
      example: '2026-12-01T04:00:00Z',
    }),
  })
  .refine(({ lock_timeout_ms, budget_ms }) => lock_timeout_ms <= budget_ms, {
    path: ['lock_timeout_ms'],
    message: 'Must be at most budget_ms.',
  })
  .meta({ example: { confirm: 'main', lock_timeout_ms: 500, attempts: 20, budget_ms: 2000 } });

const Undo = z.strictObject({ confirm: MAIN }).meta({ example: { confirm: 'main' } });

const CHANGED = response('The change.', Change);

const router = operations();

/** With a name of its own: a batch on D1 returns only one of two columns with the same name. */
const SAFETY_ID = sql<string | null>`${snapshots.id}`.as('safety_id');

const changeRow = (db: Database, projectId: string, id: string) =>
  db
    .select({ change: changes, safetyId: SAFETY_ID })
    .from(changes)
    .leftJoin(snapshots, and(eq(snapshots.id, changes.snapshotId), eq(snapshots.status, 'ready')))
    .where(and(eq(changes.projectId, projectId), eq(changes.id, id)));

const shown = ({ change, safetyId }: { change: ChangeRow; safetyId: string | null }): ChangeRow => ({
  ...change,
  snapshotId: safetyId,
});

const mainOf = (db: Database, projectId: string) =>
  db
    .select()
    .from(projectBranches)
    .where(and(eq(projectBranches.projectId, projectId), eq(projectBranches.isDefault, true)));

const seesDataOf = (c: AppContext, project: Pick<ProjectView, 'maskedOnly'>) =>
  !project.maskedOnly || seesFullData(c.var.principal);

/** The change of the path with its project and `main`. @throws ApiError */
async function changeOf(c: AppContext, { project_id, change_id }: z.output<typeof ChangeParams>) {
  const [project, rows, branches] = await inProject(c, project_id, (db) => [
    changeRow(db, project_id, change_id),
    mainOf(db, project_id),
  ]);
  const change = shown(found(rows));
  return { project, change, main: found(branches, missing('branch', 'main')) };
}

/** @throws ApiError CHANGE_STATE */
function requireState({ state }: ChangeRow, event: ChangeEvent): void {
  if (!statesBefore(event).includes(state)) throw new ApiError('CHANGE_STATE', { state });
}

const HAS_BEGUN =
  'Statements of the change are applied, so its plan stays. Apply it further, undo it, or close it.';

/** Compares `main` with the plan now; without a reply of the host, the last comparison counts. */
async function isStale(
  c: AppContext,
  { hostId }: ProjectView,
  change: ChangeRow,
  main: BranchRow,
): Promise<boolean> {
  if (!AT_REST.includes(change.state)) return change.stale;
  const about = { project_id: change.projectId, branch_id: main.id, database: main.databaseName };
  const read = await callHostForClient(c.env, hostId, 'change.schema', about);
  return read.ok ? read.value.schema !== (change.schemaDone ?? change.plan.schema) : change.stale;
}

/** The response, with the change as it is now. */
async function respond(c: AppContext, project: ProjectView, id: string) {
  const row = found(await changeRow(primaryOf(c), project.id, id));
  return toChange(shown(row), project, seesDataOf(c, project));
}

/** @throws ApiError VALIDATION_FAILED, TIME_LIMIT_REACHED, and the failures of the host */
async function planned(
  c: AppContext,
  project: ProjectView,
  main: BranchRow,
  from: PlanSource,
): Promise<{ plan: ChangePlan; digest: string }> {
  const { call } = usableBranch(c, project, main, 'read');
  const plan = unwrap(await planChange(call, project.id, main, from));
  return { plan, digest: await digestOf(plan) };
}

router.openapi(
  operation({
    access: 'branch.change',
    operationId: 'createChange',
    method: 'post',
    path: PATH,
    summary: 'Plan a change of main',
    description:
      'Stores the statements that bring `main` to the schema of a branch, or those of a migration, with the schema of `main` that they begin with. Nothing is run. The statements of a schema difference also undo what `main` has got since the branch was made (`main_changes`): read them, or send `sql`. The rows that a migration tool has written into its table in the branch follow them.',
    tags,
    request: { params: ProjectParams, headers: IdempotencyHeader, body: jsonBody(NewChange) },
    responses: { 201: response('The change.', Change, 'Idempotency-Replayed') },
    failures: [...KEY_FAILURES, ...HOST_FAILURES, 'PROJECT_NOT_ACTIVE', 'CHANGE_LIMIT_REACHED'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const body = c.req.valid('json');
    const { source_branch_id, from, sql } = body;
    const reference = source_branch_id ?? from;
    const { principal } = c.var;
    const keyUse = await keyUseOf(principal, c.req.path, c.req.valid('header')['idempotency-key'], body);
    const [project, branches, sources, uses] = await inProject(c, projectId, (db) => [
      mainOf(db, projectId),
      referencedBranch(db, projectId, reference ?? '', principal),
      recordedUses(db, keyUse, new Date()),
    ]);
    const replayed = replay(c, uses, keyUse);
    if (replayed) return c.json(replayed.body as z.input<typeof Change>, 201);
    const main = found(branches, missing('branch', 'main'));
    // An id is not repeated: the answer is the same for every id that the caller cannot see.
    const source = reference === undefined ? null : found(sources, missing('branch', from));
    if (source && source.status !== 'active') throw new ApiError('BRANCH_NOT_ACTIVE');
    if (source) requireData(c, project, source);
    if (source?.isDefault)
      throw new ApiError('VALIDATION_FAILED', {
        details: [{ path: 'from', message: 'must be another branch than main' }],
      });
    const { plan, digest } = await planned(c, project, main, { branch: source, sql: sql ?? null });
    const now = new Date();
    const actor = actorOf(c);
    const row: ChangeRow = {
      id: crypto.randomUUID(),
      projectId,
      tenantId: project.tenantId,
      state: 'planned',
      formerState: null,
      stale: false,
      sourceBranchId: source?.id ?? null,
      sourceName: source?.branchName ?? null,
      sql: sql ?? null,
      plan,
      digest,
      rehearsal: null,
      approvals: [],
      options: null,
      dueAt: null,
      applier: null,
      done: 0,
      schemaDone: null,
      application: null,
      snapshotId: null,
      pausedMs: null,
      jobId: null,
      createdBy: actor.userId,
      authorSeesData: seesFullData(c.var.principal),
      createdAt: now,
      updatedAt: now,
    };
    const made = toChange(row, project, seesDataOf(c, project));
    const response = { status: 201, body: made };
    unwrap(await createChange(primaryOf(c), row, { actor, keyUse, response }, now));
    return c.json(made, 201);
  },
);

router.openapi(
  operation({
    access: 'branch.read',
    operationId: 'listChanges',
    method: 'get',
    path: PATH,
    summary: 'List the changes of main, newest first',
    tags,
    request: { params: ProjectParams, query: PageQuery },
    responses: { 200: response('A page of changes.', pageOf('changes', ChangeSummary)) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(changes, 'newest_first', query);
    const [project, rows] = await inProject(c, projectId, (db) => [
      db
        .select({ change: changes, safetyId: SAFETY_ID })
        .from(changes)
        .leftJoin(snapshots, and(eq(snapshots.id, changes.snapshotId), eq(snapshots.status, 'ready')))
        .where(and(eq(changes.projectId, projectId), beyond))
        .orderBy(...orderBy)
        .limit(query.limit + 1),
    ]);
    const { page, next_cursor } = cutPage(rows.map(shown), query);
    const seesData = seesDataOf(c, project);
    return c.json({ changes: page.map((row) => toSummary(row, project, seesData)), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'branch.read',
    operationId: 'getChange',
    method: 'get',
    path: ONE,
    summary: 'Get a change of main',
    description:
      '`stale` compares `main` with the plan now; without a reply of the database host, it is as it was last compared.',
    tags,
    request: { params: ChangeParams },
    responses: { 200: CHANGED },
  }),
  async (c) => {
    const { project, change, main } = await changeOf(c, c.req.valid('param'));
    const stale = await isStale(c, project, change, main);
    return c.json(toChange({ ...change, stale }, project, seesDataOf(c, project)), 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    operationId: 'rehearseChange',
    method: 'post',
    path: `${ONE}/rehearse`,
    summary: 'Rehearse a change on a clone of main',
    description:
      'Plans the change again, as `main` and the branch are now, and runs the statements on a clone of `main`, which is dropped afterwards: of masked data for those who get masked data only. If the plan differs, the approvals count no more. The response is the change with its job (`job_id`).',
    tags,
    request: { params: ChangeParams },
    responses: { 202: CHANGED },
    failures: [
      ...HOST_FAILURES,
      'CHANGE_STATE',
      'PROJECT_NOT_ACTIVE',
      'PROJECT_MOVING',
      'MASKING_INCOMPLETE',
    ],
  }),
  async (c) => {
    const params = c.req.valid('param');
    const { project, change, main } = await changeOf(c, params);
    requireState(change, 'replan');
    if (change.done > 0) throw new ApiError('CHANGE_STATE', { state: change.state, message: HAS_BEGUN });
    const { from, version } = await planSource(c, project, change);
    const { plan, digest } = await planned(c, project, main, from);
    const jobId = crypto.randomUUID();
    const data = seesDataOf(c, project) ? 'full' : 'masked';
    const source = unwrap(withData(main, ofBranch(main), { data, keepTables: [] }, version, jobId));
    const request = {
      jobId,
      change,
      plan,
      digest,
      branch: main,
      source,
      hostId: project.hostId,
      actor: actorOf(c),
    };
    unwrap(await repeatIfLost(() => coordinatorOf(c.env, project.id).rehearseChange(request)));
    return c.json(await respond(c, project, change.id), 202);
  },
);

/** Origin of the plan. If the branch is gone, the statements of the last plan stay. */
async function planSource(c: AppContext, project: ProjectView, { sql, sourceBranchId, plan }: ChangeRow) {
  const db = primaryOf(c);
  const [[branch], [policy]] = await db.batch([
    referencedBranch(db, project.id, sourceBranchId ?? '', c.var.principal),
    currentVersion(db, project.id),
  ]);
  const ofPlan = () =>
    plan.steps
      .map(({ statements }) => statements.map((statement) => `${statement.sql};\n`).join(''))
      .map((text, at) => ((plan.steps[at]?.statements.length ?? 0) > 1 ? `begin;\n${text}commit;\n` : text))
      .join('');
  const source = branch?.status === 'active' ? branch : null;
  const from = sourceBranchId !== null && !source ? { branch: null, sql: ofPlan() } : { branch: source, sql };
  return { from, version: policy?.version };
}

router.openapi(
  operation({
    access: 'credentials.read',
    machines: 'none',
    operationId: 'approveChange',
    method: 'post',
    path: `${ONE}/approve`,
    summary: 'Approve the present plan of a change',
    description:
      'For members who could apply it, and get full data, but not for the author. An approval counts for one plan: any other plan needs another one.',
    tags,
    request: { params: ChangeParams },
    responses: { 200: CHANGED },
    failures: ['CHANGE_STATE', 'PROJECT_NOT_ACTIVE'],
  }),
  async (c) => {
    const { project, change } = await changeOf(c, c.req.valid('param'));
    requireFullData(c, project);
    requireState(change, 'approve');
    unwrap(await approve(primaryOf(c), { change, project, actor: actorOf(c) }, new Date()));
    return c.json(await respond(c, project, change.id), 200);
  },
);

router.openapi(
  operation({
    access: 'credentials.read',
    operationId: 'applyChange',
    method: 'post',
    path: `${ONE}/apply`,
    summary: 'Apply a change to main',
    description:
      'Takes a safety snapshot, and then runs each statement in `main` with a short `lock_timeout`, again and again: nobody queues behind it for longer. A change that has stopped continues with the statement at which it stopped. The response is the change with its job (`job_id`).',
    tags,
    request: { params: ChangeParams, body: jsonBody(Application) },
    responses: { 202: CHANGED },
    failures: [
      ...HOST_FAILURES,
      'WRITE_BLOCKED',
      'CHANGE_STATE',
      'CHANGE_STALE',
      'CHANGE_OVER_BUDGET',
      'CHANGE_NOT_APPROVED',
      'PROJECT_NOT_ACTIVE',
      'PROJECT_MOVING',
    ],
  }),
  async (c) => {
    const { confirm: _, at, ...options } = c.req.valid('json');
    const { project, change, main } = await changeOf(c, c.req.valid('param'));
    requireFullData(c, project);
    const dueAt = at === undefined ? null : dueTime(at);
    requireState(change, dueAt ? 'schedule' : 'begin');
    const over = options.accept_outage ? null : overBudget(change, options.budget_ms);
    if (over) throw new ApiError('CHANGE_OVER_BUDGET', { ...over, budget_ms: options.budget_ms });
    const { database, call } = usableBranch(c, project, main, 'change');
    const { schema } = await call('change.schema', { project_id: project.id, ...database });
    if (schema !== (change.schemaDone ?? change.plan.schema)) {
      await primaryOf(c).update(changes).set({ stale: true }).where(eq(changes.id, change.id));
      throw new ApiError('CHANGE_STALE');
    }
    const actor = actorOf(c);
    const request = {
      jobId: crypto.randomUUID(),
      snapshotId: crypto.randomUUID(),
      change,
      branch: main,
      options,
      dueAt,
      hostId: project.hostId,
      actor,
      createdBy: actor.userId,
    };
    unwrap(await repeatIfLost(() => coordinatorOf(c.env, project.id).applyChange(request)));
    return c.json(await respond(c, project, change.id), 202);
  },
);

/** @throws ApiError VALIDATION_FAILED */
function dueTime(at: string): Date {
  const dueAt = new Date(at);
  const wait = dueAt.getTime() - Date.now();
  if (wait > 0 && wait <= LONGEST_SCHEDULE_MS) return dueAt;
  throw new ApiError('VALIDATION_FAILED', {
    details: [{ path: 'at', message: 'must be in the future, and within 30 days' }],
  });
}

router.openapi(
  operation({
    access: 'credentials.read',
    operationId: 'undoChange',
    method: 'post',
    path: `${ONE}/undo`,
    summary: 'Take main back to what it held before a change',
    description:
      'A reset of `main` to the safety snapshot, which is kept for 24 hours: everything that was written since is lost. `GET …/branches/main/diff?against={safety_snapshot_id}` shows it first. What `main` holds now is kept as a safety snapshot too.',
    tags,
    request: { params: ChangeParams, body: jsonBody(Undo) },
    responses: { 202: CHANGED },
    failures: [
      'CHANGE_STATE',
      'NO_SNAPSHOT',
      'PROJECT_BUSY',
      'PROJECT_NOT_ACTIVE',
      'PROJECT_MOVING',
      'BRANCH_NOT_ACTIVE',
      'BRANCH_FOLLOWING',
      'SOURCE_NOT_ACTIVE',
      'STORAGE_QUOTA_EXCEEDED',
      'FILE_LIMIT_REACHED',
      ...HOST_WORK_FAILURES,
    ],
  }),
  async (c) => {
    const { project, change, main } = await changeOf(c, c.req.valid('param'));
    requireFullData(c, project);
    requireState(change, 'undo');
    const [snapshot] = await primaryOf(c)
      .select()
      .from(snapshots)
      .where(and(eq(snapshots.id, change.snapshotId ?? ''), eq(snapshots.status, 'ready')));
    if (!snapshot) throw new ApiError('NO_SNAPSHOT');
    const source = ofSnapshot(snapshot, true);
    requireData(c, project, source.content);
    const request = {
      jobId: crypto.randomUUID(),
      snapshotId: crypto.randomUUID(),
      branch: main,
      source,
      life: null,
      hostId: project.hostId,
      actor: actorOf(c),
      keyUse: null,
      asCreation: false,
    };
    unwrap(await repeatIfLost(() => coordinatorOf(c.env, project.id).undoChange(change, request)));
    return c.json(await respond(c, project, change.id), 202);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    operationId: 'closeChange',
    method: 'delete',
    path: ONE,
    summary: 'Close a change that is not to be applied',
    description: 'What it has applied stays. A change that is applied, or undone, cannot be closed.',
    tags,
    request: { params: ChangeParams },
    responses: { 200: CHANGED },
    failures: ['CHANGE_STATE', 'PROJECT_NOT_ACTIVE'],
  }),
  async (c) => {
    const { project, change } = await changeOf(c, c.req.valid('param'));
    unwrap(await closeChange(primaryOf(c), { change, actor: actorOf(c) }, new Date()));
    return c.json(await respond(c, project, change.id), 200);
  },
);

export const changeRoutes = router;
