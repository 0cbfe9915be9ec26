import { and, eq, inArray, sql } from 'drizzle-orm';
import { COUNTED_STATUSES } from '../../shared/branch/branch-status.ts';
import { branchDatabaseName } from '../../shared/branch/database-name.ts';
import { expiryOf, LIFESPAN_SECONDS, type Lifespan } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import { creatorRule } from '../access/creator-rule.ts';
import { ruleStatements } from '../access/insert-rule.ts';
import { insertKey, type KeyUse } from '../api/idempotency-key.ts';
import type { Actor } from '../audit/actor.ts';
import { newCredentials } from '../credentials/branch-credentials.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { branchCredentials, jobs, projectBranches, projects } from '../database/schema.ts';
import { newJob } from '../jobs/job-store.ts';
import { type Reservation, reserve } from '../jobs/reservation.ts';
import type { ProjectRow } from '../projects/project-resource.ts';
import type { Settings } from '../settings.ts';
import type { BranchRow } from './branch-resource.ts';

/** A checked wish for a branch. Its ids are made by the caller, so that a repetition names the same branch. */
export interface BranchRequest {
  jobId: string;
  branchId: string;
  project: ProjectRow;
  source: BranchRow;
  branchName: string;
  lifespan: Lifespan;
  /** Network of the creator's address, when it is known. */
  creatorCidr: string | null;
  actor: Actor;
  keyUse: KeyUse | null;
}

const countedBranches = (projectId: string) =>
  sql`(select count(*) from ${projectBranches} where ${and(eq(projectBranches.projectId, projectId), inArray(projectBranches.status, COUNTED_STATUSES))})`;

/** Takes the branch's name and a place under the cap and opens its job, in one batch. */
export async function reserveBranch(
  db: Database,
  settings: Settings,
  order: BranchRequest,
  now: Date,
): Promise<Reservation> {
  const { project, source } = order;
  const branch = branchRow(order, now);
  const place = { projectId: project.id, hostId: project.hostId };
  const job = newJob({ ...order, ...place, id: order.jobId, kind: 'branch.create' }, now);
  const credentials = await newCredentials(settings.CREDENTIAL_KEYS, branch.id, now);
  const allowed = sql`exists (select 1 from ${projects} where id = ${project.id} and status = 'active' and tenant_id = ${project.tenantId}
    and ${countedBranches(project.id)} < branch_limit)
    and exists (select 1 from ${projectBranches} where id = ${source.id} and status = 'active')`;
  const reserved = sql`exists (select 1 from ${projectBranches} where id = ${branch.id})`;
  const rule = order.creatorCidr && creatorRule(project, branch, order.creatorCidr, now);
  const statements: Statement[] = [
    ...insertKey(db, order.keyUse, job.id, allowed, now),
    insertIf(db, projectBranches, branch, allowed),
    insertIf(db, jobs, job, reserved),
    ...credentials.map((row) => insertIf(db, branchCredentials, row, reserved)),
    ...(rule ? ruleStatements(db, rule, reserved) : []),
    db
      .select({
        status: projects.status,
        limit: projects.branchLimit,
        current: sql<number>`${countedBranches(project.id)}`,
        reserved: sql<number>`${reserved}`,
      })
      .from(projects)
      .where(eq(projects.id, project.id)),
  ];
  const conflicts = { idempotency_keys: 'IDEMPOTENCY_IN_FLIGHT', project_branches: 'BRANCH_EXISTS' } as const;
  return reserve(db, job, statements, conflicts, whyNot);
}

/** What the last statement of the reservation found. */
interface Found {
  status: string;
  limit: number;
  current: number;
  reserved: number;
}

function whyNot(lastAnswer: unknown): Failure | null {
  const [found] = lastAnswer as Found[];
  if (!found) return { code: 'NOT_FOUND' };
  if (found.reserved) return null;
  if (found.status !== 'active') return { code: 'PROJECT_NOT_ACTIVE' };
  if (found.current < found.limit) return { code: 'SOURCE_NOT_ACTIVE' };
  const fields = { limit: found.limit, current: found.current, retry_after: null };
  return { code: 'BRANCH_LIMIT_REACHED', fields };
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
  ttlSeconds: LIFESPAN_SECONDS[lifespan],
  isDefault: false,
  protected: false,
  createdBy: actor.userId,
  tenantId: project.tenantId,
  deletedAt: null,
  createdAt: now,
  updatedAt: now,
});
