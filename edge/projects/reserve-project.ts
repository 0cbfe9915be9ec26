import { and, eq, ne, notInArray, or, type SQL, sql } from 'drizzle-orm';
import { MAIN_BRANCH } from '../../shared/branch/branch-name.ts';
import { mainDatabaseName } from '../../shared/branch/database-name.ts';
import type { Failure } from '../../shared/failures.ts';
import { deriveAppKey, suffixedAppKey } from '../../shared/project/project-name.ts';
import { DEFAULT_BRANCH_LIMIT } from '../../shared/project/project-status.ts';
import { SELF_SERVICE_QUOTA_CAP_GIB } from '../../shared/project/storage-quota.ts';
import type { Result } from '../../shared/result.ts';
import { insertKey, unlessInFlight } from '../api/idempotency-key.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import { newCredentials } from '../credentials/branch-credentials.ts';
import { type Database, insertIf } from '../database/database.ts';
import { branchCredentials, jobs, projectBranches, projects, users } from '../database/schema.ts';
import { hasRoomOn } from '../hosts/host-room.ts';
import { type JobRow, newJob } from '../jobs/job-store.ts';
import { reserve } from '../jobs/reservation.ts';
import type { Settings } from '../settings.ts';
import { isOfTenant } from '../tenancy/is-of-tenant.ts';
import {
  hasProjectSlot,
  hasQuotaFor,
  projectLimitReached,
  type TenantUsage,
  tenantQuotaReached,
  tenantUsage,
} from '../tenancy/tenant-caps.ts';
import type { ProjectRequest } from './coordinator-rpc.ts';
import type { ProjectRow } from './project-resource.ts';

/** The template that `main` is created from. It is recorded as the source, although it is no tenant's database. */
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
 * Reserves the project's names and opens the job that creates its `main` database, in one batch. An app key that is in
 * use outside the tenant gets a random suffix, because a refusal would reveal another tenant's project.
 */
export async function reserveProject(
  db: Database,
  settings: Settings,
  request: ProjectRequest,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  for (let attempt = 0; attempt < MAX_TRIES; attempt++) {
    const reserved = await reserveAs(db, settings, request, appKeyFor(request, attempt), now);
    if (reserved) return unlessInFlight(db, request.keyUse, reserved);
  }
  throw new Error(`no free app key was found for project ${request.projectId}`);
}

/** What the reservation depends on, as conditions of its batch. They do not see the project itself. */
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
    notInArray(projectBranches.status, ['deleted', 'failed']),
  );
  return {
    // A user who has moved to another tenant since authentication must not create a project in the former one.
    isUser: isOfTenant(users, userId, tenantId),
    isOwn: otherProject(ofTenant),
    // As in the unique indexes, which cover all tenants.
    isInUse: sql`(${otherProject(eq(projects.appKey, appKey))}
      or exists (select 1 from ${projectBranches} where ${database}))`,
  };
}

/** Result of the reservation's last statement. */
interface Found extends TenantUsage {
  reserved: number;
  isUser: number;
  isOwn: number;
  hasSlot: number;
  hasQuota: number;
  hasRoom: number;
}

/** @returns null if the app key is in use outside the tenant */
async function reserveAs(
  db: Database,
  settings: Settings,
  request: ProjectRequest,
  appKey: string,
  now: Date,
): Promise<Result<JobRow, Failure> | null> {
  const main = mainBranchRow(request, appKey, now);
  const job = newJob({ ...request, id: request.jobId, kind: 'project.create', branchId: main.id }, now);
  const credentials = await newCredentials(settings.CREDENTIAL_KEYS, main.id, now);
  const { isUser, isOwn, isInUse } = conditionsOf(request, main, appKey);
  const usage = tenantUsage(settings, request.actor.tenantId, request.projectId);
  const hasSlot = hasProjectSlot(usage);
  const hasQuota = hasQuotaFor(usage, request.storageQuotaGib);
  const hasRoom = hasRoomOn(settings, request.hostId, request.projectId, request.storageQuotaGib);
  const allowed = sql`${isUser} and not ${isOwn} and not ${isInUse} and ${hasSlot} and ${hasQuota} and ${hasRoom}`;
  const reserved = sql`exists (select 1 from ${projects} where id = ${request.projectId})`;
  const statements = [
    ...insertKey(db, request.keyUse, job.id, allowed, now),
    insertIf(db, projects, projectRow(request, appKey, now), allowed),
    insertIf(db, projectBranches, main, reserved),
    ...credentials.map((row) => insertIf(db, branchCredentials, row, reserved)),
    insertIf(db, jobs, job, reserved),
    db
      .select({
        reserved: sql<number>`${reserved}`,
        isUser: sql<number>`${isUser}`,
        isOwn: sql<number>`${isOwn}`,
        hasSlot: sql<number>`${hasSlot}`,
        hasQuota: sql<number>`${hasQuota}`,
        hasRoom: sql<number>`${hasRoom}`,
        ...usage,
      })
      .from(users)
      .where(eq(users.id, request.actor.userId)),
  ];
  let isInUseElsewhere = false;
  const result = await reserve(db, job, statements, { idempotency_keys: 'IDEMPOTENCY_IN_FLIGHT' }, (last) => {
    const [found] = last as Found[];
    if (!found?.isUser) return { code: 'UNAUTHENTICATED' };
    if (found.reserved) return null;
    if (found.isOwn) return { code: 'PROJECT_EXISTS' };
    if (!found.hasSlot) return projectLimitReached(found);
    if (!found.hasQuota) return tenantQuotaReached(found);
    if (!found.hasRoom) return { code: 'HOST_FULL' };
    isInUseElsewhere = true;
    return { code: 'PROJECT_EXISTS' };
  });
  return isInUseElsewhere ? null : result;
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
  snapshotSchedule: null,
  snapshotDueAt: null,
  blocksObservedAt: null,
  hostId: request.hostId,
  accessRevision: 0,
  accessApplied: 0,
  createdBy: request.actor.userId,
  tenantId: request.actor.tenantId,
  createdAt: now,
  updatedAt: now,
});

const mainBranchRow = (request: ProjectRequest, appKey: string, now: Date): BranchRow => ({
  id: request.mainBranchId,
  projectId: request.projectId,
  parentBranchId: null,
  branchName: MAIN_BRANCH,
  databaseName: mainDatabaseName(appKey, request.env),
  sourceDatabase: EMPTY_TEMPLATE,
  status: 'creating',
  lifespan: 'forever',
  expiresAt: null,
  deletesAt: null,
  ttlSeconds: null,
  leaseSeconds: null,
  leaseEndsAt: null,
  labels: {},
  isDefault: true,
  protected: true,
  createdBy: request.actor.userId,
  tenantId: request.actor.tenantId,
  blocks: [],
  ownBytes: null,
  sharedBytes: null,
  deletedAt: null,
  createdAt: now,
  updatedAt: now,
});
