import { sql } from 'drizzle-orm';
import { MAIN_BRANCH } from '../../shared/branch/branch-name.ts';
import { mainDatabaseName } from '../../shared/branch/database-name.ts';
import type { Failure } from '../../shared/failure/failures.ts';
import { DEFAULT_BRANCH_LIMIT } from '../../shared/project/project-status.ts';
import type { Actor } from '../audit/actor.ts';
import type { BranchRow } from '../branches/branch-record.ts';
import { newCredentials } from '../credentials/branch-credentials.ts';
import { type Database, inOneBatch, uniqueConflict } from '../database/database.ts';
import { branchCredentials, jobs, projectBranches, projects } from '../database/schema.ts';
import { type KeyUse, keepKey } from '../idempotency/idempotency-key.ts';
import { newJob } from '../jobs/job-store.ts';
import type { JobRow } from '../jobs/saga.ts';
import type { Settings } from '../settings.ts';
import type { ProjectRow } from './project-record.ts';

/** What `main` is cloned from. It goes on record as the source, though it is no tenant's database. */
const EMPTY_TEMPLATE = 'template0';

/** A checked wish for a project. Its ids are made by the caller, so that a repetition names the same project. */
export interface ProjectOrder {
  jobId: string;
  projectId: string;
  mainBranchId: string;
  name: string;
  appKey: string;
  env: string;
  hostId: string;
  actor: Actor;
  keyUse: KeyUse | null;
}

/** What a unique index that refuses the reservation means. */
const CONFLICTS: readonly [table: string, failure: Failure][] = [
  ['idempotency_keys', { code: 'IDEMPOTENCY_IN_FLIGHT' }],
  ['project', { code: 'PROJECT_EXISTS' }],
];

/** Takes the project's names and opens the job that makes its `main` database, in one batch. */
export async function reserveProject(
  db: Database,
  settings: Settings,
  order: ProjectOrder,
  now: Date,
): Promise<{ job: JobRow } | { refused: Failure }> {
  const main = mainBranchRow(order, now);
  const job = newJob(
    {
      id: order.jobId,
      kind: 'project.create',
      projectId: order.projectId,
      branchId: main.id,
      hostId: order.hostId,
      actor: order.actor,
    },
    now,
  );
  const credentials = await newCredentials(settings.CREDENTIAL_KEYS, main.id, now);
  try {
    await inOneBatch(db, [
      ...keepKey(db, order.keyUse, job.id, sql`true`, now),
      db.insert(projects).values(projectRow(order, now)),
      db.insert(projectBranches).values(main),
      db.insert(branchCredentials).values(credentials),
      db.insert(jobs).values(job),
    ]);
    return { job };
  } catch (error) {
    const conflict = uniqueConflict(error);
    const refused = conflict && CONFLICTS.find(([table]) => conflict.startsWith(table))?.[1];
    if (!refused) throw error;
    return { refused };
  }
}

const projectRow = (order: ProjectOrder, now: Date): ProjectRow => ({
  id: order.projectId,
  name: order.name,
  appKey: order.appKey,
  env: order.env,
  status: 'creating',
  branchLimit: DEFAULT_BRANCH_LIMIT,
  hostId: order.hostId,
  accessRevision: 0,
  accessApplied: 0,
  createdBy: order.actor.userId,
  tenantId: order.actor.tenantId,
  createdAt: now,
  updatedAt: now,
});

const mainBranchRow = (order: ProjectOrder, now: Date): BranchRow => ({
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
