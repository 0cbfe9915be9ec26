import { eq, lte, type SQL, sql } from 'drizzle-orm';
import type { Database } from '../database/database.ts';
import { projectBranches } from '../database/schema.ts';

/** When a branch expires, or when it is deleted because it has been expired for long enough. */
const END = sql<number>`case ${projectBranches.status}
  when 'active' then ${projectBranches.expiresAt} when 'expired' then ${projectBranches.deletesAt} end`;

/** The branches whose end has come. */
export const atTheirEnd = (now: Date): SQL => lte(END, now.getTime());

/** The next end of a branch of the project; null if none has one. */
export async function nextEnd(db: Database, projectId: string): Promise<Date | null> {
  const [found] = await db
    .select({ at: sql<number | null>`min(${END})` })
    .from(projectBranches)
    .where(eq(projectBranches.projectId, projectId));
  return found?.at == null ? null : new Date(found.at);
}
