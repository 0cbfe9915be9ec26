import { type SQL, sql } from 'drizzle-orm';
import { isOpenJob } from '../database/conditions.ts';
import type { Database } from '../database/database.ts';
import { moves } from '../database/move-schema.ts';
import { auditEvents, hosts, idempotencyKeys, jobs, projectBranches, snapshots } from '../database/schema.ts';
import { follows, importSources } from '../database/source-schema.ts';
import { logEvent } from '../log.ts';
import type { Settings } from '../settings.ts';
import { EXPORTED_ROW } from './export.ts';

const DAY_MS = 86_400_000;
/** Rows of one statement. */
const PIECE = 500;
/** Statements of one run; the next run continues. */
const PIECES_MAX = 400;
/**
 * The newest jobs of a host, which stay: the object of its link remembers some of them, and a job that is not on record
 * would mean that the records are older than the host (`RecordLineage`).
 */
const JOBS_OF_HOST = 100;

type RetentionSettings = Pick<Settings, 'AUDIT_RETENTION_DAYS' | 'HISTORY_RETENTION_DAYS'>;

/** What a run has deleted. */
export interface Removed {
  jobs: number;
  branches: number;
  audit_events: number;
}

/** What names a job keeps it. */
const isNamed: SQL = sql`(
  exists (select 1 from ${idempotencyKeys} k where k.job_id = ${jobs}.id)
  or exists (select 1 from ${moves} m where m.job_id = ${jobs}.id)
  or exists (select 1 from ${follows} f where f.job_id = ${jobs}.id)
  or exists (select 1 from ${importSources} i where i.job_id = ${jobs}.id)
  or exists (select 1 from ${jobs} o where o.status in ('queued', 'running') and instr(o.input, ${jobs}.id) > 0))`;

const oldJobs = (before: number): SQL => sql`
  with kept as materialized (
    select h.id as host_id,
           (select rowid from ${jobs} n where n.host_id = h.id order by rowid desc limit 1 offset ${JOBS_OF_HOST - 1}) as first
    from ${hosts} h
  )
  select id from ${jobs}
  where ${jobs.createdAt} < ${before} and ${jobs.updatedAt} < ${before} and not ${isOpenJob} and not ${isNamed}
    and not exists (select 1 from kept k where k.host_id = ${jobs}.host_id and (k.first is null or k.first <= ${jobs}.rowid))
  order by rowid limit ${PIECE}`;

/** The record of a branch goes only when a copy of the audit log has it, and nothing of the branch can be restored. */
const oldBranches = (before: number): SQL => sql`
  select id from ${projectBranches}
  where ${projectBranches.status} = 'deleted' and ${projectBranches.deletedAt} < ${before}
    and not exists (select 1 from ${snapshots} s where s.branch_id = ${projectBranches}.id)
    and exists (select 1 from ${auditEvents} e where e.tenant_id = ${projectBranches}.tenant_id
      and e.created_at = ${projectBranches}.deleted_at and e.branch_id = ${projectBranches}.id and e.name = 'branch.deleted'
      and json_type(e.metadata, '$.record') = 'object' and e.rowid <= ${EXPORTED_ROW})
  order by rowid limit ${PIECE}`;

/** The last exported event stays, and the deletion of a branch whose record is still needed. */
const oldEvents = (before: number): SQL => sql`
  select id from ${auditEvents}
  where ${auditEvents.createdAt} < ${before} and rowid < ${EXPORTED_ROW}
    and not (${auditEvents.name} = 'branch.deleted' and exists (select 1 from ${projectBranches} b where b.id = ${auditEvents}.branch_id))
  order by rowid limit ${PIECE}`;

/**
 * Deletes what is older than the settings keep: ended jobs and deleted branches (`HISTORY_RETENTION_DAYS`), and audit
 * events that were exported (`AUDIT_RETENTION_DAYS`). Without a setting it keeps everything of its kind. No event is
 * written for it.
 */
export async function removeHistory(db: Database, settings: RetentionSettings, now: Date): Promise<Removed> {
  const { AUDIT_RETENTION_DAYS: auditDays, HISTORY_RETENTION_DAYS: historyDays } = settings;
  const removed: Removed = { jobs: 0, branches: 0, audit_events: 0 };
  let pieces = 0;
  const removeAll = async (
    kind: keyof Removed,
    table: SQL,
    days: number | undefined,
    old: (before: number) => SQL,
  ) => {
    if (days === undefined) return;
    for (let piece = PIECE; piece === PIECE && pieces < PIECES_MAX; pieces++) {
      const rows = await db.all(
        sql`delete from ${table} where id in (${old(now.getTime() - days * DAY_MS)}) returning id`,
      );
      piece = rows.length;
      removed[kind] += piece;
    }
  };
  // The events of branches go after their records.
  await removeAll('jobs', sql`${jobs}`, historyDays, oldJobs);
  await removeAll('branches', sql`${projectBranches}`, historyDays, oldBranches);
  await removeAll('audit_events', sql`${auditEvents}`, auditDays, oldEvents);
  if (pieces > 0) logEvent('history.removed', { ...removed });
  return removed;
}
