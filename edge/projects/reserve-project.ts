import { sql } from 'drizzle-orm';
import { MAIN_BRANCH } from '../../shared/branch/branch-name.ts';
import { mainDatabaseName } from '../../shared/branch/database-name.ts';
import { DEFAULT_BRANCH_LIMIT } from '../../shared/project/project-status.ts';
import { SELF_SERVICE_QUOTA_CAP_GIB } from '../../shared/project/storage-quota.ts';
import { insertKey, type KeyUse } from '../api/idempotency-key.ts';
import type { Actor } from '../audit/actor.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import { newCredentials } from '../credentials/branch-credentials.ts';
import { changesOf, type Database, insertIf } from '../database/database.ts';
import { branchCredentials, jobs, projectBranches, projects, users } from '../database/schema.ts';
import { newJob } from '../jobs/job-store.ts';
import { type Reservation, reserve } from '../jobs/reservation.ts';
import type { Settings } from '../settings.ts';
import type { ProjectRow } from './project-resource.ts';

/** What `main` is cloned from. It goes on record as the source, though it is no tenant's database. */
const EMPTY_TEMPLATE = 'template0';

/** A checked wish for a project. Its ids are made by the caller, so that a repetition names the same project. */
export interface ProjectRequest {
  jobId: string;
  projectId: string;
  mainBranchId: string;
  name: string;
  appKey: string;
  env: string;
  storageQuotaGib: number;
  hostId: string;
  actor: Actor;
  keyUse: KeyUse | null;
}

/** Takes the project's names and opens the job that makes its `main` database, in one batch. */
export async function reserveProject(
  db: Database,
  settings: Settings,
  order: ProjectRequest,
  now: Date,
): Promise<Reservation> {
  const main = mainBranchRow(order, now);
  const job = newJob({ ...order, id: order.jobId, kind: 'project.create', branchId: main.id }, now);
  const credentials = await newCredentials(settings.CREDENTIAL_KEYS, main.id, now);
  // A user who was moved to another tenant since the request was let in would make it a project of the former.
  const { userId, tenantId } = order.actor;
  const allowed = sql`exists (select 1 from ${users} where id = ${userId} and tenant_id = ${tenantId})`;
  const statements = [
    ...insertKey(db, order.keyUse, job.id, allowed, now),
    insertIf(db, projects, projectRow(order, now), allowed),
    insertIf(db, projectBranches, main, allowed),
    ...credentials.map((row) => insertIf(db, branchCredentials, row, allowed)),
    insertIf(db, jobs, job, allowed),
  ];
  const conflicts = {
    idempotency_keys: 'IDEMPOTENCY_IN_FLIGHT',
    projects: 'PROJECT_EXISTS',
    project_branches: 'PROJECT_EXISTS',
  } as const;
  return reserve(db, job, statements, conflicts, (answer) =>
    changesOf(answer) === 1 ? null : { code: 'UNAUTHENTICATED' },
  );
}

const projectRow = (order: ProjectRequest, now: Date): ProjectRow => ({
  id: order.projectId,
  name: order.name,
  appKey: order.appKey,
  env: order.env,
  status: 'creating',
  branchLimit: DEFAULT_BRANCH_LIMIT,
  storageQuotaCapGib: SELF_SERVICE_QUOTA_CAP_GIB,
  storageQuotaGib: order.storageQuotaGib,
  storageUsedBytes: 0,
  storageState: 'normal',
  storageMeasuredAt: null,
  hostId: order.hostId,
  accessRevision: 0,
  accessApplied: 0,
  createdBy: order.actor.userId,
  tenantId: order.actor.tenantId,
  createdAt: now,
  updatedAt: now,
});

const mainBranchRow = (order: ProjectRequest, now: Date): BranchRow => ({
  id: order.mainBranchId,
  projectId: order.projectId,
  parentBranchId: null,
  branchName: MAIN_BRANCH,
  databaseName: mainDatabaseName(order.appKey, order.env),
  sourceDatabase: EMPTY_TEMPLATE,
  status: 'creating',
  lifespan: 'forever',
  expiresAt: null,
  ttlSeconds: null,
  isDefault: true,
  protected: true,
  createdBy: order.actor.userId,
  tenantId: order.actor.tenantId,
  deletedAt: null,
  createdAt: now,
  updatedAt: now,
});
