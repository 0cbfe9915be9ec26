import { and, desc, eq, gte, inArray, or, sql } from 'drizzle-orm';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import { MASKED_FRESH_SECONDS } from '../../shared/masking.ts';
import { isOpenJob } from '../database/conditions.ts';
import type { Database } from '../database/database.ts';
import { jobs, projects, snapshots } from '../database/schema.ts';
import type { CloneSource } from './clone-source.ts';
import { isOf, isOwn } from './prepared-source.ts';

/** Requests for masked data share one snapshot, which the first of them makes. */

/** A schedule takes another one as soon as the branch has changed, so the newest is fresh. */
const isScheduled = sql`(${snapshots.kind} = 'schedule' and exists (select 1 from ${projects}
  where ${projects.id} = ${snapshots.projectId} and json_extract(snapshot_schedule, '$.masked')))`;

/**
 * The same source as a snapshot that is there, or that an open job makes; otherwise the job of the request
 * makes it. Only one caller of a project at a time may ask and reserve.
 */
export async function shareSource(db: Database, source: CloneSource, now: Date): Promise<CloneSource> {
  const { prepared } = source;
  if (!prepared || isOwn(prepared) || prepared.madeBy === null) return source;
  const since = new Date(now.getTime() - MASKED_FRESH_SECONDS * 1000);
  const maker = sql<string | null>`(select id from ${jobs} where ${and(isOf(sql`${snapshots.id}`), isOpenJob)}
    and json_extract(${jobs.input}, '$.prepared.madeBy') = ${jobs.id} limit 1)`;
  const [found] = await db
    .select({ snapshot: snapshots, maker })
    .from(snapshots)
    .where(
      and(
        eq(snapshots.branchId, prepared.branchId),
        eq(snapshots.data, 'masked'),
        eq(snapshots.maskingVersion, prepared.version ?? 0),
        inArray(snapshots.kind, ['manual', 'schedule', 'masked']),
        or(
          and(eq(snapshots.status, 'ready'), or(gte(snapshots.takenAt, since), isScheduled)),
          and(eq(snapshots.status, 'making'), sql`${maker} is not null`),
        ),
      ),
    )
    .orderBy(desc(eq(snapshots.status, 'ready')), desc(snapshots.takenAt))
    .limit(1);
  if (!found) return source;
  const { id, sizeBytes, status, checkedAt } = found.snapshot;
  const isReady = status === 'ready';
  return {
    ...source,
    database: snapshotDatabaseName(id),
    snapshot: isReady ? { id, sizeBytes } : null,
    content: { ...source.content, checkedAt },
    prepared: { ...prepared, snapshotId: id, madeBy: isReady ? null : found.maker },
  };
}
