import { and, eq, inArray, notInArray, type SQL, sql } from 'drizzle-orm';
import { BRANCH_TRANSITIONS } from '../../shared/branch/branch-status.ts';
import { branchDatabaseName } from '../../shared/branch/database-name.ts';
import { expiryOf } from '../../shared/branch/lifespan.ts';
import type { BranchRole } from '../../shared/branch/login.ts';
import type { Failure } from '../../shared/failures.ts';
import { BRANCHES_MAX, NETWORK_RULES_MAX } from '../../shared/limits.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { hasRoom, ruleStatements } from '../access/change-rules.ts';
import { newCredentials, passwordOf } from '../access/credentials.ts';
import { newBranchRules } from '../access/network-rule.ts';
import {
  type Access,
  accessOf,
  accessReads,
  closeWithProject,
  confirmAccess,
  withdrawAccess,
} from '../access/send-access.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { scramVerifier } from '../crypto/scram.ts';
import type { Actor } from '../database/column-types.ts';
import { type Database, insertAllIf, insertIf, isOneOf, type Statement } from '../database/database.ts';
import {
  auditEvents,
  type BranchRow,
  branchCredentials,
  type JobRow,
  jobs,
  networkRules,
  type ProjectRow,
  projectBranches,
  projects,
} from '../database/schema.ts';
import { type CreationProgress, insertKey, type KeyUse } from '../idempotency/idempotency-key.ts';
import { branchIdsOf, newJob, OPEN_STATUSES, reserve } from '../jobs/job-store.ts';
import { type Saga, type SagaContext, saga } from '../jobs/saga.ts';
import type { Settings } from '../settings.ts';
import { toCreatedBranchResponse, transition, whereAllowed } from './branch.ts';
import {
  type BranchLimit,
  branchesOnHost,
  branchLimitOf,
  branchLimitReached,
  hasSlots,
} from './branch-limit.ts';
import { type CloneSource, isCloneable } from './clone-source.ts';
import { leaseEnd } from './expiry.ts';
import type { BranchChoices } from './new-branch.ts';

/** How long a clone waits for transactions of the source branch to end before it fails with `SOURCE_BUSY`. */
export const BUSY_WAIT_MS = 3000;

type SealedRow = typeof branchCredentials.$inferSelect;

/** A branch that is being created, read again at each attempt. */
export interface Creation {
  project: ProjectRow;
  branch: BranchRow;
  credentials: SealedRow[];
  access: Access;
}

/** The parameters that identify the branch on the host. */
const identity = ({ job }: SagaContext, { project, branch }: Creation) => ({
  job_id: job.id,
  project_id: project.id,
  branch_id: branch.id,
  database: branch.databaseName,
});

/** The branches of the job in their order; null if one of them is not being created any more. */
async function loadCreations({ db, job, settings }: SagaContext): Promise<Creation[] | null> {
  const ids = branchIdsOf(job);
  const [branches, credentials, [project], ...restrictions] = await db.batch([
    db.select().from(projectBranches).where(isOneOf(projectBranches.id, ids)),
    db.select().from(branchCredentials).where(isOneOf(branchCredentials.branchId, ids)),
    ...accessReads(db, job.projectId),
  ]);
  const creating = ids.flatMap(
    (id) => branches.find((branch) => branch.id === id && branch.status === 'creating') ?? [],
  );
  if (!project || creating.length < ids.length) return null;
  const access = await accessOf(settings.CREDENTIAL_KEYS, project, ...restrictions);
  return creating.map((branch) => ({
    project,
    branch,
    credentials: credentials.filter(({ branchId }) => branchId === branch.id),
    access,
  }));
}

export const loadCreation = async (context: SagaContext): Promise<Creation | null> =>
  (await loadCreations(context))?.[0] ?? null;

/** The verifiers of a new branch's three logins. */
async function verifiersOf({ settings }: SagaContext, { credentials }: Creation) {
  const verifier = async (role: BranchRole) =>
    scramVerifier(await passwordOf(settings.CREDENTIAL_KEYS, credentials, role));
  const [owner, read_write, read_only] = await Promise.all([
    verifier('owner'),
    verifier('read_write'),
    verifier('read_only'),
  ]);
  return { owner, read_write, read_only };
}

/** The password with which a new branch proves itself. */
const proofPassword = ({ settings }: SagaContext, { credentials }: Creation) =>
  passwordOf(settings.CREDENTIAL_KEYS, credentials, 'read_write');

const prepare = async (context: SagaContext, creation: Creation) =>
  context.callHost('branch.prepare', {
    ...identity(context, creation),
    verifiers: await verifiersOf(context, creation),
    access: creation.access,
  });

const clone = (context: SagaContext, creation: Creation) =>
  context.callHost('branch.clone', {
    ...identity(context, creation),
    source: creation.branch.isDefault ? null : creation.branch.sourceDatabase,
    busy_wait: BUSY_WAIT_MS,
  });

const publish = (context: SagaContext, creation: Creation) =>
  context.callHost('branch.finalize', identity(context, creation));

const prove = async (context: SagaContext, creation: Creation) =>
  context.callHost('branch.prove', {
    ...identity(context, creation),
    password: await proofPassword(context, creation),
  });

/**
 * The steps that create the database of any branch, `main` included. The host prepares logins, rules and the pooler
 * entry in parallel with the clone, because the pooler's reload takes half as long as the clone.
 */
export const CREATION_STEPS = [
  [
    { name: 'prepare', run: prepare },
    { name: 'clone', run: clone },
  ],
  [{ name: 'publish', run: publish }],
  [{ name: 'prove', run: prove }],
] as const;

const idsOf = (creations: readonly Creation[]) => creations.map(({ branch }) => branch.id);

const countOf = (ids: readonly string[], condition: SQL | undefined) =>
  sql`(select count(*) from ${projectBranches} where ${and(isOneOf(projectBranches.id, ids), condition)})`;

/** Makes proved branches active and audits them, unless one was deleted meanwhile: then nothing changes. */
export const activation = (
  context: SagaContext,
  creations: readonly [Creation, ...Creation[]],
  now: Date,
): Statement[] => activate(context, creations, now, 'branch.created');

/** As `activation`, with another audit event for branches other than `main`. */
export function activate(
  { db, job }: SagaContext,
  creations: readonly [Creation, ...Creation[]],
  now: Date,
  event: 'branch.created' | 'branch.restored',
): Statement[] {
  const [{ project, access }] = creations;
  const ids = idsOf(creations);
  const allAllowed = sql`${countOf(ids, whereAllowed('proved', undefined))} = ${ids.length}`;
  const actor = { ...job.input.actor, tenantId: project.tenantId };
  const events = creations.map(({ branch }) => {
    const name = branch.isDefault ? 'project.created' : event;
    const networks = access.rules.flatMap(({ branch_id, cidr }) => (branch_id === branch.id ? [cidr] : []));
    const metadata = { branch_name: branch.branchName, database: branch.databaseName, networks };
    return auditEvent(
      name,
      actor,
      // A branch can be restored more than once.
      {
        id: event === 'branch.created' ? branch.id : job.id,
        projectId: project.id,
        branchId: branch.id,
        metadata,
      },
      now,
    );
  });
  return [
    insertAllIf(db, auditEvents, events, allAllowed),
    inTenantOfProject(
      db,
      project.id,
      events.map(({ id }) => id),
    ),
    confirmAccess(db, project.id, access.revision),
    closeWithProject(db, project.id, allAllowed),
    db
      .update(projectBranches)
      .set({ status: BRANCH_TRANSITIONS.proved.to, leaseEndsAt: leaseEnd(now), updatedAt: now })
      .where(and(isOneOf(projectBranches.id, ids), allAllowed)),
  ];
}

/** True after `activation`, unless a branch was deleted before. */
export const areActive = (creations: readonly Creation[]) =>
  sql`${countOf(idsOf(creations), eq(projectBranches.status, 'active'))} = ${creations.length}`;

/** The branch as the response to its creation shows it. */
const toActiveBranchResponse = ({ branch }: Creation, now: Date) =>
  toCreatedBranchResponse({
    ...branch,
    status: 'active',
    leaseEndsAt: branch.leaseSeconds === null ? null : new Date(now.getTime() + branch.leaseSeconds * 1000),
  });

/**
 * Removes what a creation made of its branches.
 * @param buildIdOf the id under which the host builds a branch of the job
 * @param isAgain the branches existed before, so the host can have them as another job made them
 */
export const undoCreation = (
  buildIdOf: (jobId: string, branchId: string) => string,
  { isAgain } = { isAgain: false },
): NonNullable<Saga<unknown>['undo']> => ({
  run: async ({ db, job, callHost }) => {
    const branches = await db
      .select({ id: projectBranches.id, database: projectBranches.databaseName })
      .from(projectBranches)
      .where(isOneOf(projectBranches.id, branchIdsOf(job)));
    const drop = ({ id, database }: (typeof branches)[number]) =>
      callHost('branch.drop', {
        job_id: buildIdOf(job.id, id),
        project_id: job.projectId,
        branch_id: id,
        database,
        made_by: isAgain ? job.id : null,
      });
    await Promise.all(branches.map(drop));
  },
  record: ({ db, job }, refused, now) => {
    const ids = branchIdsOf(job);
    const theBranches = isOneOf(projectBranches.id, ids);
    const withdrawal = withdrawAccess(db, job.projectId, sql`true`);
    if (refused) return [withdrawal, db.delete(projectBranches).where(whereAllowed('gave_up', theBranches))];
    return [
      withdrawal,
      db.delete(branchCredentials).where(isOneOf(branchCredentials.branchId, ids)),
      db.delete(networkRules).where(isOneOf(networkRules.branchId, ids)),
      transition(db, 'gave_up', theBranches, now),
    ];
  },
});

/** Specification 4.3, "Branch creation, in order"; `docs/architecture.md` explains why the order here differs. */
export const createBranchJob = saga<Creation>({
  steps: CREATION_STEPS,
  load: loadCreation,
  complete: (context, creation, now) => activation(context, [creation], now),
  completed: (creation) => areActive([creation]),
  response: (creation, now) => ({
    status: 201,
    body: { ...toActiveBranchResponse(creation, now), created: true },
  }),
  undo: undoCreation((jobId) => jobId),
});

type Batch = [Creation, ...Creation[]];

const batchIdentity = ({ job }: SagaContext) => ({ job_id: job.id, project_id: job.projectId });

const databaseOf = ({ branch }: Creation) => ({ branch_id: branch.id, database: branch.databaseName });

async function prepareBatch(context: SagaContext, batch: Batch) {
  const withVerifiers = async (creation: Creation) => ({
    ...databaseOf(creation),
    verifiers: await verifiersOf(context, creation),
  });
  const branches = await Promise.all(batch.map(withVerifiers));
  await context.callHost('batch.prepare', { ...batchIdentity(context), branches, access: batch[0].access });
}

const cloneBatch = (context: SagaContext, batch: Batch) =>
  context.callHost('batch.clone', {
    ...batchIdentity(context),
    branches: batch.map(databaseOf),
    source: batch[0].branch.sourceDatabase,
    busy_wait: BUSY_WAIT_MS,
  });

const publishBatch = (context: SagaContext, batch: Batch) =>
  context.callHost('batch.finalize', { ...batchIdentity(context), branches: batch.map(databaseOf) });

async function proveBatch(context: SagaContext, batch: Batch) {
  const withPassword = async (creation: Creation) => ({
    ...databaseOf(creation),
    password: await proofPassword(context, creation),
  });
  const branches = await Promise.all(batch.map(withPassword));
  await context.callHost('batch.prove', { ...batchIdentity(context), branches });
}

/** Creates several branches with the same content, all or none, with the steps of a single creation. */
export const createBatchJob = saga<Batch>({
  steps: [
    [
      { name: 'prepare', run: prepareBatch },
      { name: 'clone', run: cloneBatch },
    ],
    [{ name: 'publish', run: publishBatch }],
    [{ name: 'prove', run: proveBatch }],
  ],
  load: async (context) => (await loadCreations(context)) as Batch | null,
  complete: activation,
  completed: areActive,
  response: (batch, now) => ({
    status: 201,
    body: { branches: batch.map((creation) => toActiveBranchResponse(creation, now)) },
  }),
  // The host builds the databases of a batch under the ids of their branches, because they have one job.
  undo: undoCreation((_jobId, branchId) => branchId),
});

/** Reserves the names of all branches and their slots under the limit, and opens their job, in one batch. */
export async function reserveBranches(
  db: Database,
  settings: Settings,
  request: BranchRequest,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const { project, source, keyUse } = request;
  const rows = request.branches.map((branch) => branchRow(request, branch, now));
  const [first] = rows;
  if (!first) throw new Error('a creation without a branch');
  const job = jobOf(request, now);
  const credentials = await Promise.all(
    rows.map(({ id }) => newCredentials(settings.CREDENTIAL_KEYS, id, now)),
  );
  const rules = rows.flatMap((row) => newBranchRules(project, row, request, now));
  // The creator's rules alone may be left out, but not networks that the client named.
  const room = request.allow.length > 0 ? hasRoom(project.id, rules.length) : sql`true`;
  const limit = branchLimitOf({ projectId: project.id, ...request }, settings);
  const onHost = branchesOnHost(project.id);
  const allowed = sql`exists (select 1 from ${projects} where id = ${project.id} and status = 'active' and tenant_id = ${project.tenantId}
    and ${hasSlots(limit, rows.length)} and ${onHost} + ${rows.length} <= ${BRANCHES_MAX})
    and ${isCloneable(source)} and ${room}`;
  const reserved = sql`exists (select 1 from ${projectBranches} where id = ${first.id})`;
  const statements: Statement[] = [
    ...insertKey(db, keyUse, job.id, allowed, now),
    insertAllIf(db, projectBranches, rows, allowed),
    insertIf(db, jobs, job, reserved),
    insertAllIf(db, branchCredentials, credentials.flat(), reserved),
    ...ruleStatements(db, rules, reserved),
    db
      .select({
        status: projects.status,
        limit: limit.limit,
        current: limit.current,
        onHost,
        reserved: sql<number>`${reserved}`,
        room: sql<number>`${room}`,
      })
      .from(projects)
      .where(eq(projects.id, project.id)),
  ];
  const conflicts = { idempotency_keys: 'IDEMPOTENCY_IN_FLIGHT', project_branches: 'BRANCH_EXISTS' } as const;
  return reserve(db, job, statements, conflicts, (last) => reasonOf(last, rows.length, limit));
}

/** Result of the reservation's last statement. */
interface Found {
  status: string;
  limit: number;
  current: number;
  onHost: number;
  reserved: number;
  room: number;
}

function reasonOf(lastResult: unknown, count: number, limit: BranchLimit): Failure | null {
  const [found] = lastResult as Found[];
  if (!found) return { code: 'NOT_FOUND' };
  if (found.reserved) return null;
  if (found.status !== 'active') return { code: 'PROJECT_NOT_ACTIVE' };
  if (found.current + count > found.limit) return branchLimitReached(limit, found);
  if (found.onHost + count > BRANCHES_MAX)
    return branchLimitReached(limit, { limit: BRANCHES_MAX, current: found.onHost });
  if (!found.room) return { code: 'RULE_LIMIT_REACHED', fields: { limit: NETWORK_RULES_MAX } };
  return { code: 'SOURCE_NOT_ACTIVE' };
}

function jobOf({ jobId, kind, branches, project, actor }: BranchRequest, now: Date): JobRow {
  const about = { id: jobId, kind, projectId: project.id, hostId: project.hostId, actor };
  const ids = branches.map(({ id }) => id);
  const target =
    kind === 'branch.create' ? { branchId: ids[0] ?? null } : { branchId: null, subject: { branchIds: ids } };
  return newJob({ ...about, ...target }, now);
}

const branchRow = (
  { project, source, life, leaseSeconds, labels, actor }: BranchRequest,
  { id, name }: BranchRequest['branches'][number],
  now: Date,
): BranchRow => ({
  id,
  projectId: project.id,
  parentBranchId: source.branchId,
  branchName: name,
  databaseName: branchDatabaseName(project.appKey, project.env, name),
  sourceDatabase: source.database,
  status: 'creating',
  lifespan: life.lifespan,
  expiresAt: expiryOf(life, now),
  deletesAt: null,
  ttlSeconds: life.ttlSeconds,
  leaseSeconds,
  leaseEndsAt: null,
  labels,
  isDefault: false,
  protected: false,
  createdBy: actor.userId,
  tenantId: project.tenantId,
  blocks: [],
  ownBytes: null,
  sharedBytes: null,
  deletedAt: null,
  createdAt: now,
  updatedAt: now,
});

interface Existing {
  branch: BranchRow;
  /** The open job that creates it; undefined for a branch that is complete. */
  creation: string | undefined;
}

/** The branch that has the name which a request wants. */
export async function existingBranch(
  db: Database,
  { project, branches }: BranchRequest,
): Promise<Existing | null> {
  const [[branch], open] = await db.batch([
    db
      .select()
      .from(projectBranches)
      .where(
        and(
          eq(projectBranches.projectId, project.id),
          eq(projectBranches.branchName, branches[0]?.name ?? ''),
          // As in the unique index.
          notInArray(projectBranches.status, ['deleted', 'failed']),
        ),
      ),
    db
      .select()
      .from(jobs)
      .where(and(eq(jobs.projectId, project.id), inArray(jobs.status, OPEN_STATUSES))),
  ]);
  if (!branch) return null;
  const creation = open.find((job) => branchIdsOf(job).includes(branch.id))?.id;
  return { branch, creation: branch.status === 'creating' ? creation : undefined };
}

/** The response with an existing branch. A branch of another source is none for this request. */
export function returnExisting(branch: BranchRow, request: BranchRequest): Result<CreationProgress, Failure> {
  if (branch.status === 'deleting') return fail({ code: 'PROJECT_NOT_ACTIVE' });
  const { branchId, database } = request.source;
  // Snapshots of one branch have the same parent, and a name can be another branch's by now.
  const isSame = branch.parentBranchId === branchId && branch.sourceDatabase === database;
  if (!isSame) return fail({ code: 'BRANCH_EXISTS' });
  return ok({ response: { status: 200, body: { ...toCreatedBranchResponse(branch), created: false } } });
}

/**
 * A validated request for one branch or a batch of them. The caller makes the IDs, so a repeated request names the same
 * branches.
 */
export interface BranchRequest extends BranchChoices {
  jobId: string;
  kind: 'branch.create' | 'branch.create_batch';
  branches: readonly { id: string; name: string }[];
  project: ProjectRow;
  source: CloneSource;
  /** Network of the creator's address, if it is known. */
  creatorCidr: string | null;
  /** What happens if the project has a branch of the name; only for a single branch. */
  onExists: OnExists;
  actor: Actor;
  keyUse: KeyUse | null;
}

export type OnExists = 'fail' | 'return' | 'reset';
