import { and, desc, eq, ne, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Database } from '../database/database.ts';
import { projectBranches } from '../database/schema.ts';

/** The project's branches that clients can see: deleted ones stay for the audit log only. */
export const branchesOf = (projectId: string): SQL | undefined =>
  and(eq(projectBranches.projectId, projectId), ne(projectBranches.status, 'deleted'));

export const hasLabel = ({ name, value }: { name: string; value: string }): SQL =>
  sql`exists (select 1 from json_each(${projectBranches.labels}) as label where label.key = ${name} and label.value = ${value})`;

/**
 * The branch that `:branch_ref` names by ID or name (specification 4.3); no row if it is deleted.
 * Failed branches can have the same name as a working one, which then comes first.
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
