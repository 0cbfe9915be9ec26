import { and, desc, eq, ne, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Database } from '../database/database.ts';
import { projectBranches } from '../database/schema.ts';

/** The project's branches as clients see them: a deleted one is kept for audit alone. */
export const branchesOf = (projectId: string): SQL | undefined =>
  and(eq(projectBranches.projectId, projectId), ne(projectBranches.status, 'deleted'));

/**
 * The branch that `:branch_ref` names, by id or by name (spec 4.3); no row when it is deleted.
 * A name can be held by failed records beside the living one: the living one is meant.
 */
export function referencedBranch(db: Database, projectId: string, reference: string) {
  const byId = z.uuid().safeParse(reference).success;
  return db
    .select()
    .from(projectBranches)
    .where(
      and(
        branchesOf(projectId),
        byId ? eq(projectBranches.id, reference.toLowerCase()) : eq(projectBranches.branchName, reference),
      ),
    )
    .orderBy(sql`status = 'failed'`, desc(projectBranches.createdAt))
    .limit(1);
}
