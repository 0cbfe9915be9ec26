import { eq, sql } from 'drizzle-orm';
import { branchDatabaseName } from '../../shared/branch/database-name.ts';
import { expiryOf } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import { BRANCHES_MAX, NETWORK_RULES_MAX } from '../../shared/limits.ts';
import type { Result } from '../../shared/result.ts';
import { newBranchRules } from '../access/creator-rule.ts';
import { hasRoom, ruleStatements } from '../access/rule-statements.ts';
import { insertKey } from '../api/idempotency-key.ts';
import { newCredentials } from '../credentials/branch-credentials.ts';
import { type Database, insertAllIf, insertIf, type Statement } from '../database/database.ts';
import { branchCredentials, jobs, projectBranches, projects } from '../database/schema.ts';
import { type JobRow, newJob } from '../jobs/job-store.ts';
import { reserve } from '../jobs/reservation.ts';
import type { BranchRequest } from '../projects/coordinator-rpc.ts';
import type { Settings } from '../settings.ts';
import { isCloneable } from '../snapshots/clone-source.ts';
import {
  type BranchLimit,
  branchesOnHost,
  branchLimitOf,
  branchLimitReached,
  hasSlots,
} from './branch-limit.ts';
import type { BranchRow } from './branch-resource.ts';

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
