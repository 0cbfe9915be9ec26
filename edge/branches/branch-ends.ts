import { eq, type SQL, sql } from 'drizzle-orm';
import type { Database } from '../database/database.ts';
import { projectBranches } from '../database/schema.ts';
import { whereAllowed } from './branch.ts';

/** When a branch expires, or when it is deleted because it has been expired for long enough. */
const END = sql<number>`case ${projectBranches.status}
  when 'active' then ${projectBranches.expiresAt} when 'expired' then ${projectBranches.deletesAt} end`;

/** The branches whose end has come. A protected one expires, and is not deleted (specification 3.1). */
export const atTheirEnd = (now: Date): SQL =>
  sql`${END} <= ${now.getTime()} and (${projectBranches.status} = 'active' or not ${projectBranches.protected})`;

const LEASE_END = sql<number>`case when ${whereAllowed('delete', undefined)} then ${projectBranches.leaseEndsAt} end`;

/** The branches whose lease has ended, without protected ones. */
export const atTheirLeasesEnd = (now: Date): SQL =>
  sql`${LEASE_END} <= ${now.getTime()} and not ${projectBranches.protected}`;

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

/**
 * When a branch that expires now, or whose protection ends now, is deleted: after its lifespan again at most,
 * otherwise lives of a minute would fill the host. Counted from now: nobody had notice of the deletion before,
 * however late the expiry is.
 */
export const deletesAt = (maxSeconds: number, now: Date): SQL<Date> =>
  sql`${now.getTime()} + min(${maxSeconds}, coalesce(${projectBranches.ttlSeconds}, ${maxSeconds})) * 1000`;

/**
 * The end of a branch's lease that begins now, in an update of branches; null for a branch without a lease, or one that
 * is protected.
 * @param seconds of the lease; by default those of the branch
 */
export const leaseEnd = (now: Date, seconds: SQL | number = sql`lease_seconds`): SQL<Date | null> =>
  sql`case when not protected then ${now.getTime()} + ${seconds} * 1000 end`;

/**
 * What an update of a branch sets with its protection. A protected branch has neither end, so the service does not delete
 * it. Both begin again when the protection ends.
 */
export const endsOfProtection = (isProtected: boolean, retentionSeconds: number, now: Date) =>
  isProtected
    ? { leaseEndsAt: null, deletesAt: null }
    : {
        leaseEndsAt: sql<Date | null>`case when protected
          then case when status in ('active', 'expired') then ${now.getTime()} + lease_seconds * 1000 end
          else lease_ends_at end`,
        deletesAt: sql<Date | null>`case when protected
          then case when status = 'expired' then ${deletesAt(retentionSeconds, now)} end
          else deletes_at end`,
      };
