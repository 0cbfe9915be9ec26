import { and, eq, inArray, notInArray, type SQL, sql } from 'drizzle-orm';
import { BRANCH_TRANSITIONS } from '../../shared/branch/branch-status.ts';
import { branchDatabaseName } from '../../shared/branch/database-name.ts';
import { expiryOf } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { hasRoomFor, ruleStatements } from '../access/change-rules.ts';
import { newCredentials, passwordOf, verifiersOf } from '../access/credentials.ts';
import { newBranchRules } from '../access/network-rule.ts';
import {
  type Access,
  accessFacts,
  accessOf,
  accessReads,
  closeWithProject,
  confirmAccess,
  withdrawAccess,
} from '../access/send-access.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import type { Actor, BranchContent } from '../database/column-types.ts';
import { inActiveProject, isUnmoving, isUnrenamed, OPEN_STATUSES } from '../database/conditions.ts';
import { type Database, insertAllIf, insertIf, isOneOf, type Statement } from '../database/database.ts';
import {
  auditEvents,
  type BranchRow,
  branchCredentials,
  type JobRow,
  jobs,
  type NetworkRuleRow,
  networkRules,
  type ProjectRow,
  projectBranches,
  projects,
} from '../database/schema.ts';
import { type CreationProgress, type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { branchIdsOf, newJob } from '../jobs/job-store.ts';
import { type SagaContext, saga, type Undo } from '../jobs/saga.ts';
import type { Settings } from '../settings.ts';
import { newBranchRow, toCreatedBranchResponse, transition, whereAllowed } from './branch.ts';
import { leaseEnd } from './branch-ends.ts';
import { hasBranchSlots } from './branch-limit.ts';
import type { BranchChoices } from './branch-request.ts';
import { BUSY_WAIT_MS, type CloneSource, onCloneable } from './clone-source.ts';
import {
  COMPARING,
  DISCARDING,
  dropSource,
  forgetSource,
  isMasked,
  makeSource,
  patienceOf,
  preparedInput,
  preparedStatements,
  RECOVERING,
  recoveryEvents,
} from './prepared-source.ts';

type SealedRow = typeof branchCredentials.$inferSelect;

/** A branch that is being created. */
interface NewBranch {
  branch: BranchRow;
  credentials: SealedRow[];
}

/** What a job creates, read again at each attempt. */
export interface Creation {
  project: ProjectRow;
  access: Access;
  /** As they are recorded: those by name have no ranges. */
  rules: readonly NetworkRuleRow[];
  /** In the order of the job. */
  branches: [NewBranch, ...NewBranch[]];
}

/** Kinds of jobs that create the databases of branches. */
type CreationKind = 'project.create' | 'branch.create' | 'branch.restore';
type CreationContext = SagaContext<CreationKind>;

/** Null if one of the branches is not being created any more. */
export async function loadCreation({ db, job, settings }: CreationContext): Promise<Creation | null> {
  const ids = branchIdsOf(job);
  const [rows, credentials, ...read] = await db.batch([
    db.select().from(projectBranches).where(isOneOf(projectBranches.id, ids)),
    db.select().from(branchCredentials).where(isOneOf(branchCredentials.branchId, ids)),
    ...accessReads(db, job.projectId),
  ]);
  const [first, ...others] = ids.flatMap((id): NewBranch[] => {
    const branch = rows.find((row) => row.id === id && row.status === 'creating');
    return branch ? [{ branch, credentials: credentials.filter(({ branchId }) => branchId === id) }] : [];
  });
  const facts = accessFacts(read);
  if (!facts || !first || others.length + 1 < ids.length) return null;
  const { project, rules } = facts;
  const access = await accessOf(settings.CREDENTIAL_KEYS, facts);
  return { project, access, rules, branches: [first, ...others] };
}

/**
 * The host has at most one clone of an id. The branches of a batch have one job, so theirs are built under
 * their own.
 */
const buildIdOf = (job: JobRow, branchId: string) => (isBatch(job) ? branchId : job.id);

/** Whether the job creates several branches, all or none. */
const isBatch = ({ branchId }: Pick<JobRow, 'branchId'>) => branchId === null;

/** The parameters that identify the branches on the host. @param member what the call has for each branch */
async function callOf<Member extends object>(
  { job }: CreationContext,
  { project, branches }: Creation,
  member: (branch: NewBranch) => Member | Promise<Member>,
) {
  const parametersOf = async (one: NewBranch) => ({
    branch_id: one.branch.id,
    database: one.branch.databaseName,
    build_id: buildIdOf(job, one.branch.id),
    ...(await member(one)),
  });
  return {
    job_id: job.id,
    project_id: project.id,
    branches: await Promise.all(branches.map(parametersOf)),
  };
}

/**
 * The branches of a batch in several calls: the host sets the passwords of one part while the verifiers of the next are
 * derived here, and of two parts at a time.
 */
const PREPARED_TOGETHER = 8;

async function prepare(context: CreationContext, creation: Creation): Promise<void> {
  const { branches, access } = creation;
  const calls: Promise<unknown>[] = [];
  for (let first = 0; first < branches.length; first += PREPARED_TOGETHER) {
    const part = branches.slice(first, first + PREPARED_TOGETHER) as Creation['branches'];
    const call = await callOf(context, { ...creation, branches: part }, async (branch) => ({
      verifiers: await verifiersOf(context.settings.CREDENTIAL_KEYS, branch.credentials),
    }));
    const preparing = context.callHost('branch.prepare', { ...call, access });
    // Noticed below: a repetition of the step would begin next to calls that have not ended.
    preparing.catch(() => {});
    calls.push(preparing);
  }
  for (const outcome of await Promise.allSettled(calls))
    if (outcome.status === 'rejected') throw outcome.reason;
}

/** An empty database, with the extensions of its project. */
export const emptyWith = ({ extensions }: Pick<ProjectRow, 'extensions'>) => ({
  source: null,
  ...(extensions.length > 0 && { extensions: [...extensions] }),
});

const clone = async (context: CreationContext, creation: Creation) => {
  const [{ branch }] = creation.branches;
  const { created_by } = await context.callHost('branch.clone', {
    ...(await callOf(context, creation, () => ({}))),
    ...(branch.isDefault ? emptyWith(creation.project) : { source: branch.sourceDatabase }),
    busy_wait: BUSY_WAIT_MS,
  });
  if (created_by) context.report({ created_by });
};

const publish = async (context: CreationContext, creation: Creation) =>
  context.callHost('branch.finalize', await callOf(context, creation, () => ({})));

const prove = async (context: CreationContext, creation: Creation) => {
  const { CREDENTIAL_KEYS } = context.settings;
  const withPassword = async ({ credentials }: NewBranch) => ({
    password: await passwordOf(CREDENTIAL_KEYS, credentials, 'read_write'),
  });
  await context.callHost('branch.prove', await callOf(context, creation, withPassword));
};

/**
 * The steps that create the database of any branch, `main` included. The host prepares logins, rules and the
 * pooler entry in parallel with the clone, because the pooler's reload takes half as long as the clone.
 */
export const CREATION_STEPS = [
  [
    { name: 'prepare', run: prepare },
    { name: 'clone', run: clone },
  ],
  [{ name: 'publish', run: publish }],
  [{ name: 'prove', run: prove }],
] as const;

const idsOf = ({ branches }: Creation) => branches.map(({ branch }) => branch.id);

const countOf = (ids: readonly string[], condition: SQL | undefined) =>
  sql`(select count(*) from ${projectBranches} where ${and(isOneOf(projectBranches.id, ids), condition)})`;

/** Makes proved branches active and audits them, unless one was deleted meanwhile: then nothing changes. */
export const activation = (context: CreationContext, creation: Creation, now: Date): Statement[] =>
  activate(context, creation, now, 'branch.created');

/** As `activation`, with another audit event for branches other than `main`. */
export function activate(
  { db, job }: CreationContext,
  creation: Creation,
  now: Date,
  event: 'branch.created' | 'branch.restored',
): Statement[] {
  const { project, access, rules, branches } = creation;
  const ids = idsOf(creation);
  const allAllowed = sql`${countOf(ids, whereAllowed('proved', undefined))} = ${ids.length}`;
  const actor = { ...job.input.actor, tenantId: project.tenantId };
  const events = branches.map(({ branch }) => {
    const name = branch.isDefault ? 'project.created' : event;
    const networks = rules.flatMap(({ branchId, cidr }) => (branchId === branch.id ? [cidr] : []));
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
    confirmAccess(db, project.id, access.revision, project.hostId),
    closeWithProject(db, project.id, allAllowed),
    db
      .update(projectBranches)
      .set({ status: BRANCH_TRANSITIONS.proved.to, leaseEndsAt: leaseEnd(now), updatedAt: now })
      .where(and(isOneOf(projectBranches.id, ids), allAllowed)),
  ];
}

/** True after `activation`, unless a branch was deleted before. */
export const areActive = (creation: Creation) =>
  sql`${countOf(idsOf(creation), eq(projectBranches.status, 'active'))} = ${creation.branches.length}`;

/** The branch as the response to its creation shows it. */
const toActiveBranchResponse = ({ branch }: NewBranch, now: Date) =>
  toCreatedBranchResponse({
    ...branch,
    status: 'active',
    leaseEndsAt: branch.leaseSeconds === null ? null : new Date(now.getTime() + branch.leaseSeconds * 1000),
  });

/**
 * Removes what a creation made of its branches.
 * @param isAgain the branches existed before, so the host can have them as another job made them
 */
export const undoCreation = ({ isAgain } = { isAgain: false }): Undo<CreationKind> => ({
  run: async ({ db, job, callHost }) => {
    const branches = await db
      .select({ id: projectBranches.id, database: projectBranches.databaseName })
      .from(projectBranches)
      .where(isOneOf(projectBranches.id, branchIdsOf(job)));
    const drop = ({ id, database }: (typeof branches)[number]) =>
      callHost('branch.drop', {
        job_id: buildIdOf(job, id),
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

/** Masks or empties a copy of the source, which the branches are clones of. */
const mask = async (context: SagaContext<'branch.create'>, { branches }: Creation): Promise<void> => {
  const checkedAt = await makeSource(context);
  const ids = branches.map(({ branch }) => branch.id);
  for (const { branch } of branches) branch.checkedAt = checkedAt;
  await context.db.update(projectBranches).set({ checkedAt }).where(isOneOf(projectBranches.id, ids));
};

const [BUILDING, ...OPENING] = CREATION_STEPS;
const undoNew = undoCreation();

/**
 * Creates one branch, or several with the same content, all or none. Specification 4.3, "Branch creation, in
 * order"; `docs/architecture.md` explains why the order here differs.
 */
export const createBranchesJob = saga<'branch.create', Creation>({
  steps: [
    [RECOVERING],
    [{ name: 'mask', when: isMasked, run: mask }],
    [...BUILDING, COMPARING],
    ...OPENING,
    [DISCARDING],
  ],
  patience: patienceOf,
  load: loadCreation,
  complete: (context, creation, now) => [
    ...activation(context, creation, now),
    ...recoveryEvents(context, creation.branches[0].branch, areActive(creation), now),
    ...forgetSource(context),
  ],
  completed: areActive,
  response: ({ branches }, now, job) => ({
    status: 201,
    body: isBatch(job)
      ? { branches: branches.map((branch) => toActiveBranchResponse(branch, now)) }
      : { ...toActiveBranchResponse(branches[0], now), created: true },
  }),
  undo: {
    run: async (context) => {
      await undoNew.run(context);
      await dropSource(context);
    },
    record: (context, ...how) => [...undoNew.record(context, ...how), ...forgetSource(context)],
  },
});

/** Reserves the names of all branches and their places under the limit, and opens their job, in one batch. */
export async function reserveBranches(
  db: Database,
  settings: Settings,
  request: BranchRequest,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const { project, source, keyUse } = request;
  const rows = request.branches.map((branch) => branchRow(request, branch, now));
  const [first, ...more] = rows;
  if (!first) throw new Error('a creation without a branch');
  const ids = rows.map(({ id }) => id);
  const about = { id: request.jobId, projectId: project.id, hostId: project.hostId, actor: request.actor };
  const subject = request.isBatch ? { branchId: null, branchIds: ids } : { branchId: first.id };
  const job = newJob('branch.create', { ...subject, ...preparedInput(source) }, about, now);
  const credentials = await Promise.all(
    rows.map(({ id }) => newCredentials(settings.CREDENTIAL_KEYS, id, now)),
  );
  const rules = rows.flatMap((row) => newBranchRules(project, row, request, now));
  const counted = { projectId: project.id, ...request };
  const written = await writeUnderKey(
    db,
    { use: keyUse, subjectId: job.id, now },
    {
      // Before the job, whose event names the branches.
      decides: [projectBranches, first, ...more],
      require: [
        ...inActiveProject(project.id, request.actor.tenantId),
        isUnmoving(project.id),
        isUnrenamed(
          project.id,
          rows.map(({ branchName }) => branchName),
        ),
        hasBranchSlots(counted, settings, rows.length),
        // The creator's rules alone may be left out, but not networks that the client named.
        ...(request.allow.length > 0 ? [hasRoomFor(project.id, rules)] : []),
        ...onCloneable(source),
      ],
      rest: (isWritten) => [
        insertIf(db, jobs, job, isWritten),
        ...preparedStatements(db, source, job.id, isWritten, now),
        insertAllIf(db, branchCredentials, credentials.flat(), isWritten),
        ...ruleStatements(db, rules, isWritten),
        ...attemptsStatements(db, request, isWritten),
        ...inheritedSettings(db, request, isWritten),
      ],
      conflicts: { project_branches: 'BRANCH_EXISTS' },
    },
  );
  return written.ok ? ok(job) : written;
}

/** The limit of the project may have changed since it was read. */
const attemptsStatements = (
  db: Database,
  { project, branches, attempts }: BranchRequest,
  condition: SQL,
): Statement[] => {
  if (attempts !== null) return [];
  const ids = branches.map(({ id }) => id);
  const ofProject = sql`(select connection_attempts from ${projects} where id = ${project.id})`;
  return [
    db
      .update(projectBranches)
      .set({ connectionAttempts: ofProject })
      .where(and(isOneOf(projectBranches.id, ids), condition)),
  ];
};

/** A clone has none of the settings of its source, which are not in the database. */
const inheritedSettings = (
  db: Database,
  { source, branches }: BranchRequest,
  condition: SQL,
): Statement[] => {
  const ids = branches.map(({ id }) => id);
  const ofSource = sql`coalesce((select settings from ${projectBranches} as source where source.id = ${source.branchId}), '{}')`;
  return [
    db
      .update(projectBranches)
      .set({ settings: ofSource })
      .where(and(isOneOf(projectBranches.id, ids), condition)),
  ];
};

const branchRow = (
  { project, source, life, leaseSeconds, labels, attempts, actor }: BranchRequest,
  { id, name }: BranchRequest['branches'][number],
  now: Date,
): BranchRow =>
  newBranchRow(
    {
      id,
      projectId: project.id,
      parentBranchId: source.branchId,
      branchName: name,
      databaseName: branchDatabaseName(project.appKey, project.env, name),
      sourceDatabase: source.database,
      ...source.content,
      lifespan: life.lifespan,
      expiresAt: expiryOf(life, now),
      ttlSeconds: life.ttlSeconds,
      leaseSeconds,
      labels,
      connectionAttempts: attempts ?? project.connectionAttempts,
      hasOwnAttempts: attempts !== null,
      isDefault: false,
      protected: false,
      createdBy: actor.userId,
      tenantId: project.tenantId,
    },
    now,
  );

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
          // The unique index has the same condition.
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

const isSameData = (one: BranchContent, other: BranchContent) =>
  one.data === other.data && JSON.stringify(one.keepTables) === JSON.stringify(other.keepTables);

/** The response with an existing branch. A branch of another source is none for this request. */
export function returnExisting(branch: BranchRow, request: BranchRequest): Result<CreationProgress, Failure> {
  if (branch.status === 'deleting') return fail({ code: 'PROJECT_NOT_ACTIVE' });
  const { branchId, database, content, prepared } = request.source;
  // Snapshots of one branch have the same parent, and a name can be another branch's by now. A prepared one
  // is another snapshot each time.
  const isSameSource = prepared ? isSameData(branch, content) : branch.sourceDatabase === database;
  const isSame = branch.parentBranchId === branchId && isSameSource;
  if (!isSame) return fail({ code: 'BRANCH_EXISTS' });
  return ok({ response: { status: 200, body: { ...toCreatedBranchResponse(branch), created: false } } });
}

/**
 * A validated request for one branch or a batch of them. The caller makes the IDs, so a repeated request
 * names the same branches.
 */
export interface BranchRequest extends BranchChoices {
  jobId: string;
  /** The response lists the branches, also if it is one. */
  isBatch: boolean;
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
