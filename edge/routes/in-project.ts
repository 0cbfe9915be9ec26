import type { BatchResponse } from 'drizzle-orm/batch';
import { referencedBranch } from '../branches/branch-reference.ts';
import type { Database, Statement } from '../database/database.ts';
import type { BranchRow } from '../database/schema.ts';
import { ApiError, found } from '../errors.ts';
import { type AppContext, actorOf } from '../pipeline/context.ts';
import { countUnknownProject, requireAdmission } from '../pipeline/limits.ts';
import { databaseOf, primaryOf } from '../pipeline/replica-choice.ts';
import { type ProjectView, readProject, recordDeniedAccess } from '../tenancy/project-access.ts';

/**
 * The project of a request and the results of `queries`, read in one batch concurrently with the rate limiter's
 * decision. A handler calls this before anything that has an effect.
 * @throws ApiError NOT_FOUND also for a project that the caller may not see, RATE_LIMITED
 */
export async function inProject<const Q extends readonly Statement[]>(
  c: AppContext,
  projectId: string,
  queries: (db: Database) => Q,
): Promise<[ProjectView, ...BatchResponse<Q>]> {
  const db = databaseOf(c);
  const [read] = await Promise.all([readProject(db, c.var, projectId, queries(db)), requireAdmission(c)]);
  if (read) return read;
  await countUnknownProject(c);
  auditDenial(c, 'project', projectId);
  throw new ApiError('NOT_FOUND');
}

/**
 * As `inProject`, with the branch that the path names by ID or name.
 * @throws ApiError as `inProject`, NOT_FOUND also for a branch that the caller may not use
 */
export async function inBranch<const Q extends readonly Statement[]>(
  c: AppContext,
  { project_id: projectId, branch_ref: reference }: { project_id: string; branch_ref: string },
  queries: (db: Database) => Q,
): Promise<[ProjectView, BranchRow, ...BatchResponse<Q>]> {
  const [project, branchRows, ...results] = await inProject(c, projectId, (db) => [
    referencedBranch(db, projectId, reference, c.var.principal),
    ...queries(db),
  ]);
  return [project, found(branchRows as BranchRow[]), ...(results as BatchResponse<Q>)];
}

/** Audits the request if the ID is another tenant's, after the response. */
export const auditDenial = (c: AppContext, kind: 'project' | 'job', id: string): void =>
  c.executionCtx.waitUntil(recordDeniedAccess(primaryOf(c), actorOf(c), c.req.method, { kind, id }));
