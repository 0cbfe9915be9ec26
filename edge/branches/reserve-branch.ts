import { eq, sql } from 'drizzle-orm';
import { branchDatabaseName } from '../../shared/branch/database-name.ts';
import { expiryOf, LIFESPAN_SECONDS } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import type { Result } from '../../shared/result.ts';
import { creatorRule } from '../access/creator-rule.ts';
import { ruleStatements } from '../access/rule-statements.ts';
import { insertKey } from '../api/idempotency-key.ts';
import { newCredentials } from '../credentials/branch-credentials.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { branchCredentials, jobs, projectBranches, projects } from '../database/schema.ts';
import { type JobRow, newJob } from '../jobs/job-store.ts';
import { reserve } from '../jobs/reservation.ts';
import type { BranchRequest } from '../projects/coordinator-rpc.ts';
import type { Settings } from '../settings.ts';
import { branchLimitReached, countedBranches, hasBranchSlot } from './branch-limit.ts';
import type { BranchRow } from './branch-resource.ts';

/** Reserves the branch's name and a slot under the branch limit and opens its job, in one batch. */
export async function reserveBranch(
  db: Database,
  settings: Settings,
  request: BranchRequest,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const { project, source } = request;
  const branch = branchRow(request, now);
  const owner = { projectId: project.id, hostId: project.hostId };
  const job = newJob({ ...request, ...owner, id: request.jobId, kind: 'branch.create' }, now);
  const credentials = await newCredentials(settings.CREDENTIAL_KEYS, branch.id, now);
  const allowed = sql`exists (select 1 from ${projects} where id = ${project.id} and status = 'active' and tenant_id = ${project.tenantId}) and ${hasBranchSlot(project.id)}
    and exists (select 1 from ${projectBranches} where id = ${source.id} and status = 'active')`;
  const reserved = sql`exists (select 1 from ${projectBranches} where id = ${branch.id})`;
  const rule = request.creatorCidr && creatorRule(project, branch, request.creatorCidr, now);
  const statements: Statement[] = [
    ...insertKey(db, request.keyUse, job.id, allowed, now),
    insertIf(db, projectBranches, branch, allowed),
    insertIf(db, jobs, job, reserved),
    ...credentials.map((row) => insertIf(db, branchCredentials, row, reserved)),
    ...(rule ? ruleStatements(db, rule, reserved) : []),
    db
      .select({
        status: projects.status,
        limit: projects.branchLimit,
        current: countedBranches(project.id),
        reserved: sql<number>`${reserved}`,
      })
      .from(projects)
      .where(eq(projects.id, project.id)),
  ];
  const conflicts = { idempotency_keys: 'IDEMPOTENCY_IN_FLIGHT', project_branches: 'BRANCH_EXISTS' } as const;
  return reserve(db, job, statements, conflicts, reasonOf);
}

/** Result of the reservation's last statement. */
interface Found {
  status: string;
  limit: number;
  current: number;
  reserved: number;
}

function reasonOf(lastResult: unknown): Failure | null {
  const [found] = lastResult as Found[];
  if (!found) return { code: 'NOT_FOUND' };
  if (found.reserved) return null;
  if (found.status !== 'active') return { code: 'PROJECT_NOT_ACTIVE' };
  if (found.current < found.limit) return { code: 'SOURCE_NOT_ACTIVE' };
  return branchLimitReached(found);
}

const branchRow = (
  { branchId, project, source, branchName, lifespan, actor }: BranchRequest,
  now: Date,
): BranchRow => ({
  id: branchId,
  projectId: project.id,
  parentBranchId: source.id,
  branchName,
  databaseName: branchDatabaseName(project.appKey, project.env, branchName),
  sourceDatabase: source.databaseName,
  status: 'creating',
  lifespan,
  expiresAt: expiryOf(lifespan, now),
  deletesAt: null,
  ttlSeconds: LIFESPAN_SECONDS[lifespan],
  isDefault: false,
  protected: false,
  createdBy: actor.userId,
  tenantId: project.tenantId,
  blocks: [],
  deletedAt: null,
  createdAt: now,
  updatedAt: now,
});
