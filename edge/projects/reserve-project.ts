import { sql } from 'drizzle-orm';
import { MAIN_BRANCH } from '../../shared/branch/branch-name.ts';
import { mainDatabaseName } from '../../shared/branch/database-name.ts';
import type { Failure } from '../../shared/failures.ts';
import { DEFAULT_BRANCH_LIMIT } from '../../shared/project/project-status.ts';
import { SELF_SERVICE_QUOTA_CAP_GIB } from '../../shared/project/storage-quota.ts';
import type { Result } from '../../shared/result.ts';
import { insertKey } from '../api/idempotency-key.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import { newCredentials } from '../credentials/branch-credentials.ts';
import { changesOf, type Database, insertIf } from '../database/database.ts';
import { branchCredentials, jobs, projectBranches, projects, users } from '../database/schema.ts';
import { type JobRow, newJob } from '../jobs/job-store.ts';
import { reserve } from '../jobs/reservation.ts';
import type { Settings } from '../settings.ts';
import type { ProjectRequest } from './coordinator-rpc.ts';
import type { ProjectRow } from './project-resource.ts';

/** The template that `main` is created from. It is recorded as the source, although it is no tenant's database. */
const EMPTY_TEMPLATE = 'template0';

/** Reserves the project's names and opens the job that creates its `main` database, in one batch. */
export async function reserveProject(
  db: Database,
  settings: Settings,
  request: ProjectRequest,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const main = mainBranchRow(request, now);
  const job = newJob({ ...request, id: request.jobId, kind: 'project.create', branchId: main.id }, now);
  const credentials = await newCredentials(settings.CREDENTIAL_KEYS, main.id, now);
  // A user who has moved to another tenant since authentication must not create a project in the former one.
  const { userId, tenantId } = request.actor;
  const allowed = sql`exists (select 1 from ${users} where id = ${userId} and tenant_id = ${tenantId})`;
  const statements = [
    ...insertKey(db, request.keyUse, job.id, allowed, now),
    insertIf(db, projects, projectRow(request, now), allowed),
    insertIf(db, projectBranches, main, allowed),
    ...credentials.map((row) => insertIf(db, branchCredentials, row, allowed)),
    insertIf(db, jobs, job, allowed),
  ];
  const conflicts = {
    idempotency_keys: 'IDEMPOTENCY_IN_FLIGHT',
    projects: 'PROJECT_EXISTS',
    project_branches: 'PROJECT_EXISTS',
  } as const;
  return reserve(db, job, statements, conflicts, (result) =>
    changesOf(result) === 1 ? null : { code: 'UNAUTHENTICATED' },
  );
}

const projectRow = (request: ProjectRequest, now: Date): ProjectRow => ({
  id: request.projectId,
  name: request.name,
  appKey: request.appKey,
  env: request.env,
  status: 'creating',
  branchLimit: DEFAULT_BRANCH_LIMIT,
  storageQuotaCapGib: SELF_SERVICE_QUOTA_CAP_GIB,
  storageQuotaGib: request.storageQuotaGib,
  storageUsedBytes: 0,
  storageState: 'normal',
  storageMeasuredAt: null,
  hostId: request.hostId,
  accessRevision: 0,
  accessApplied: 0,
  createdBy: request.actor.userId,
  tenantId: request.actor.tenantId,
  createdAt: now,
  updatedAt: now,
});

const mainBranchRow = (request: ProjectRequest, now: Date): BranchRow => ({
  id: request.mainBranchId,
  projectId: request.projectId,
  parentBranchId: null,
  branchName: MAIN_BRANCH,
  databaseName: mainDatabaseName(request.appKey, request.env),
  sourceDatabase: EMPTY_TEMPLATE,
  status: 'creating',
  lifespan: 'forever',
  expiresAt: null,
  ttlSeconds: null,
  isDefault: true,
  protected: true,
  createdBy: request.actor.userId,
  tenantId: request.actor.tenantId,
  deletedAt: null,
  createdAt: now,
  updatedAt: now,
});
