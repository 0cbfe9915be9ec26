import { eq, lte, type SQL, sql } from 'drizzle-orm';
import type { Database } from '../database/database.ts';
import { projectBranches } from '../database/schema.ts';
import { whereAllowed } from './branch-transition.ts';

/** When a branch expires, or when it is deleted because it has been expired for long enough. */
const END = sql<number>`case ${projectBranches.status}
  when 'active' then ${projectBranches.expiresAt} when 'expired' then ${projectBranches.deletesAt} end`;

/** The branches whose end has come. */
export const atTheirEnd = (now: Date): SQL => lte(END, now.getTime());

const LEASE_END = sql<number>`case when ${whereAllowed('delete', undefined)} then ${projectBranches.leaseEndsAt} end`;

/** The branches whose lease has ended. */
export const atTheirLeasesEnd = (now: Date): SQL => lte(LEASE_END, now.getTime());

/** The next end of a branch of the project, or of a lease; null if none has one. */
export async function nextEnd(db: Database, projectId: string): Promise<Date | null> {
  const [found] = await db
    .select({
      end: sql<number | null>`min(${END})`,
      lease: sql<number | null>`min(${LEASE_END})`,
    })
    .from(projectBranches)
    .where(eq(projectBranches.projectId, projectId));
  const next = Math.min(found?.end ?? Infinity, found?.lease ?? Infinity);
  return next === Infinity ? null : new Date(next);
}
