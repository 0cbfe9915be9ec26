import { and, eq, ne, or, type SQL, sql } from 'drizzle-orm';
import { MAIN_BRANCH } from '../../shared/branch/branch-name.ts';
import { DEFAULT_CONNECTION_ATTEMPTS } from '../../shared/branch/connection-attempts.ts';
import { mainDatabaseName } from '../../shared/branch/database-name.ts';
import type { Failure } from '../../shared/failures.ts';
import { deriveAppKey, suffixedAppKey } from '../../shared/project/project-name.ts';
import { DEFAULT_BRANCH_LIMIT } from '../../shared/project/project-status.ts';
import { SELF_SERVICE_QUOTA_CAP_GIB } from '../../shared/project/storage-quota.ts';
import { ok, type Result } from '../../shared/result.ts';
import { newCredentials } from '../access/credentials.ts';
import { FULL_CONTENT, newBranchRow, toCreatedBranchResponse, transition } from '../branches/branch.ts';
import {
  activation,
  areActive,
  CREATION_STEPS,
  type Creation,
  loadCreation,
} from '../branches/create-branches.ts';
import type { Actor } from '../database/column-types.ts';
import { isOfTenant } from '../database/conditions.ts';
import { type Database, insertAllIf, insertIf } from '../database/database.ts';
import {
  type BranchRow,
  branchCredentials,
  hosts,
  type JobRow,
  jobs,
  networkRules,
  type ProjectRow,
  projectBranches,
  projects,
  users,
} from '../database/schema.ts';
import { acceptsProjects, hasPlaceOn, hasRoomOn } from '../hosts/host.ts';
import { type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { newJob } from '../jobs/job-store.ts';
import { saga } from '../jobs/saga.ts';
import type { Settings } from '../settings.ts';
import {
  hasProjectSlot,
  hasQuotaFor,
  projectLimitReached,
  tenantQuotaReached,
  tenantUsage,
} from '../tenancy/tenant-caps.ts';
import { givesNames, nameProject, removeName } from './dns-names.ts';
import { toProjectResponse } from './project.ts';

/**
 * The template that `main` is created from. It is recorded as the source, although it is no tenant's
 * database.
 */
const EMPTY_TEMPLATE = 'template0';

const SUFFIX_LENGTH = 4;
const SUFFIX_ALPHABET = 'abcdefghijklmnopqrstuvwxyz0123456789';
/** Bounds the suffixes that are tried; of 1.7 million, one is rarely in use. */
const MAX_TRIES = 5;

const randomSuffix = () =>
  [...crypto.getRandomValues(new Uint8Array(SUFFIX_LENGTH))]
    .map((byte) => SUFFIX_ALPHABET[byte % SUFFIX_ALPHABET.length])
    .join('');

/** The app key of each try: the requested one, then with random suffixes. */
function appKeyFor({ requestedAppKey, name, env }: ProjectRequest, attempt: number): string {
  if (requestedAppKey === null) return deriveAppKey(name, randomSuffix());
  return attempt === 0 ? requestedAppKey : suffixedAppKey(requestedAppKey, env, randomSuffix());
}

/**
 * Reserves the project's names and opens the job that creates its `main` database, in one batch. An app key
 * that is in use outside the tenant gets a random suffix, because a refusal would reveal another tenant's
 * project.
 */
export async function reserveProject(
  db: Database,
  settings: Settings,
  request: ProjectRequest,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  for (let attempt = 0; attempt < MAX_TRIES; attempt++) {
    const reserved = await reserveAs(db, settings, request, appKeyFor(request, attempt), now);
    if (reserved) return reserved;
  }
  throw new Error(`no free app key was found for project ${request.projectId}`);
}

/** The conditions of the reservation's batch. They do not see the project itself. */
function conditionsOf(
  { actor: { userId, tenantId }, requestedAppKey, env, projectId }: ProjectRequest,
  main: BranchRow,
  appKey: string,
) {
  const otherProject = (condition: SQL | undefined) =>
    sql`exists (select 1 from ${projects} where ${and(
      ne(projects.id, projectId),
      ne(projects.status, 'failed'),
      eq(projects.env, env),
      condition,
    )})`;
  const ofTenant = and(
    eq(projects.tenantId, tenantId),
    or(eq(projects.appKey, requestedAppKey ?? ''), eq(projects.requestedAppKey, requestedAppKey ?? '')),
  );
  const database = and(
    ne(projectBranches.projectId, projectId),
    eq(projectBranches.databaseName, main.databaseName),
    // The condition is literal, as in its index: with bound values SQLite would read the whole table.
    sql`${projectBranches.status} not in ('deleted', 'failed')`,
  );
  return {
    // A user who has moved to another tenant since authentication must not create a project in the former
    // one.
    isUser: isOfTenant(users, userId, tenantId),
    isOwn: otherProject(ofTenant),
    // The unique indexes cover all tenants, too.
    isInUse: sql`(${otherProject(eq(projects.appKey, appKey))}
      or exists (select 1 from ${projectBranches} where ${database}))`,
  };
}

/** The internal reason of the failure for an app key that is in use outside the tenant. */
const IN_USE_ELSEWHERE = 'the app key is in use outside the tenant';

/** @returns null if the app key is in use outside the tenant */
async function reserveAs(
  db: Database,
  settings: Settings,
  request: ProjectRequest,
  appKey: string,
  now: Date,
): Promise<Result<JobRow, Failure> | null> {
  const main = mainBranchRow(request, appKey, now);
  const job = newJob('project.create', { branchId: main.id }, { ...request, id: request.jobId }, now);
  const credentials = await newCredentials(settings.CREDENTIAL_KEYS, main.id, now);
  const { isUser, isOwn, isInUse } = conditionsOf(request, main, appKey);
  const usage = tenantUsage(settings, request.actor.tenantId, request.projectId);
  const hasRoom = hasRoomOn(settings, request.hostId, request.projectId, request.storageQuotaGib);
  const written = await writeUnderKey(
    db,
    { use: request.keyUse, subjectId: job.id, now },
    {
      decides: [projects, projectRow(request, appKey, now)],
      require: [
        [isUser, 'UNAUTHENTICATED'],
        [sql`not ${isOwn}`, 'PROJECT_EXISTS'],
        [hasProjectSlot(usage), projectLimitReached(usage)],
        [hasQuotaFor(usage, request.storageQuotaGib), tenantQuotaReached(usage)],
        [acceptsProjects(request.hostId), 'HOST_UNAVAILABLE'],
        [hasPlaceOn(request.hostId, request.projectId), 'HOST_FULL'],
        [hasRoom, 'HOST_FULL'],
        [sql`not ${isInUse}`, { code: 'PROJECT_EXISTS', reason: IN_USE_ELSEWHERE }],
      ],
      rest: (isWritten) => [
        insertIf(db, projectBranches, main, isWritten),
        insertAllIf(db, branchCredentials, credentials, isWritten),
        insertIf(db, jobs, job, isWritten),
      ],
    },
  );
  if (written.ok) return ok(job);
  return written.failure.reason === IN_USE_ELSEWHERE ? null : written;
}

const projectRow = (request: ProjectRequest, appKey: string, now: Date): ProjectRow => ({
  id: request.projectId,
  name: request.name,
  appKey,
  requestedAppKey: request.requestedAppKey === appKey ? null : request.requestedAppKey,
  env: request.env,
  status: 'creating',
  branchLimit: DEFAULT_BRANCH_LIMIT,
  leasedBranchLimit: null,
  storageQuotaCapGib: SELF_SERVICE_QUOTA_CAP_GIB,
  storageQuotaGib: request.storageQuotaGib,
  storageUsedBytes: 0,
  storageState: 'normal',
  storageMeasuredAt: null,
  connectionAttempts: DEFAULT_CONNECTION_ATTEMPTS,
  snapshotSchedule: null,
  snapshotDueAt: null,
  maskedOnly: false,
  changeApprovals: 0,
  extensions: request.extensions,
  spares: null,
  durability: 'async',
  blocksObservedAt: null,
  failedOverAt: null,
  survivedUntil: null,
  owesNotice: false,
  hostId: request.hostId,
  dnsName: null,
  dnsTarget: null,
  accessRevision: 0,
  accessApplied: 0,
  createdBy: request.actor.userId,
  tenantId: request.actor.tenantId,
  createdAt: now,
  updatedAt: now,
});

const mainBranchRow = (request: ProjectRequest, appKey: string, now: Date): BranchRow =>
  newBranchRow(
    {
      id: request.mainBranchId,
      projectId: request.projectId,
      parentBranchId: null,
      branchName: MAIN_BRANCH,
      databaseName: mainDatabaseName(appKey, request.env),
      sourceDatabase: EMPTY_TEMPLATE,
      lifespan: 'forever',
      expiresAt: null,
      ttlSeconds: null,
      leaseSeconds: null,
      labels: {},
      ...FULL_CONTENT,
      connectionAttempts: DEFAULT_CONNECTION_ATTEMPTS,
      hasOwnAttempts: false,
      isDefault: true,
      protected: true,
      createdBy: request.actor.userId,
      tenantId: request.actor.tenantId,
    },
    now,
  );

const [BUILDING, ...OPENING] = CREATION_STEPS;

interface ProjectCreation extends Creation {
  hostName: string;
  region: string | null;
}

/**
 * Creates a project by creating its `main` branch, with the same steps but from an empty database. Its name is written
 * meanwhile.
 */
export const createProjectJob = saga<'project.create', ProjectCreation>({
  steps: [
    [
      ...BUILDING,
      {
        name: 'name',
        when: (_job, settings) => givesNames(settings),
        run: ({ db, job, settings }) => nameProject(db, settings, job.projectId),
      },
    ],
    ...OPENING,
  ],
  load: async (context) => {
    const [creation, [host]] = await Promise.all([
      loadCreation(context),
      context.db
        .select({ name: hosts.name, region: hosts.region })
        .from(hosts)
        .where(eq(hosts.id, context.job.hostId)),
    ]);
    return creation && { ...creation, hostName: host?.name ?? '', region: host?.region ?? null };
  },
  complete: (context, creation, now) => [
    ...activation(context, creation, now),
    context.db
      .update(projects)
      .set({ status: 'active', updatedAt: now })
      .where(and(eq(projects.id, creation.project.id), eq(projects.status, 'creating'))),
  ],
  completed: areActive,
  response: ({ project, branches: [{ branch }], hostName, region }) => ({
    status: 201,
    body: {
      ...toProjectResponse({
        ...project,
        status: 'active',
        hostName,
        region,
        sync: 'off',
        recoverableFrom: null,
        drillsSince: null,
        pastHours: null,
        branchCount: 1,
        leasedBranchCount: 0,
        nextSlotAt: null,
        blocks: [],
        hold: null,
      }),
      main_branch: toCreatedBranchResponse({ ...branch, status: 'active' }),
    },
  }),
  undo: {
    run: async ({ db, job, settings, callHost }) => {
      await callHost('project.drop', { job_id: job.id, project_id: job.projectId });
      await removeName(db, settings, job.projectId);
    },
    record: ({ db, job }, refused, now) => {
      const stillCreating = and(eq(projects.id, job.projectId), eq(projects.status, 'creating'));
      if (refused) return [db.delete(projects).where(stillCreating)];
      return [
        db.delete(branchCredentials).where(eq(branchCredentials.branchId, job.branchId)),
        db.delete(networkRules).where(eq(networkRules.projectId, job.projectId)),
        transition(db, 'gave_up', eq(projectBranches.projectId, job.projectId), now),
        db.update(projects).set({ status: 'failed', updatedAt: now }).where(stillCreating),
      ];
    },
  },
});

/**
 * A validated request for a project. The caller makes the IDs, so a repeated request names the same project.
 */
export interface ProjectRequest {
  jobId: string;
  projectId: string;
  mainBranchId: string;
  name: string;
  /** Null if the request named none; the app key is then derived from the name. */
  requestedAppKey: string | null;
  env: string;
  storageQuotaGib: number;
  extensions: readonly string[];
  hostId: string;
  actor: Actor;
  keyUse: KeyUse | null;
}
