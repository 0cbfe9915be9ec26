import { and, eq, isNull, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { type AuditName, auditEvent } from '../audit/audit-event.ts';
import type { AuditActor } from '../database/column-types.ts';
import { isOpenJob } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite, type Requirement } from '../database/guarded-write.ts';
import { moves } from '../database/move-schema.ts';
import { auditEvents, type JobRow, jobs } from '../database/schema.ts';
import { importSources } from '../database/source-schema.ts';
import { missing } from '../missing.ts';
import { CANCELLED } from './saga.ts';

/** The kinds of jobs that a client can have undone, with the audit event, and what prevents it. */
const CANCELLABLE = {
  'branch.import': {
    event: 'branch.import.cancelled',
    // Once the host has reported the end of the copy, `main` is exchanged.
    require: (jobId) => [
      [
        isThere(importSources, and(eq(importSources.jobId, jobId), isNull(importSources.copied))),
        'IMPORT_FINISHING',
      ],
    ],
  },
  'follow.start': { event: 'branch.follow.cancelled', require: () => [] },
  'project.move': {
    event: 'project.move.cancelled',
    require: (jobId) => [
      [isThere(moves, and(eq(moves.jobId, jobId), eq(moves.phase, 'building'))), 'MOVE_FINISHING'],
    ],
  },
  'branch.diff': { event: 'branch.diff.cancelled', require: () => [] },
  'follow.cutover': { event: 'branch.follow.cutover_cancelled', require: () => [] },
} as const satisfies Record<string, { event: AuditName; require: (jobId: string) => Requirement[] }>;

type CancellableKind = keyof typeof CANCELLABLE;
export const CANCELLABLE_KINDS = Object.keys(CANCELLABLE) as CancellableKind[];

/** The open job of this kind in the project; at most one is open. */
export const isOpenOf = (projectId: string, kind: CancellableKind): SQL | undefined =>
  and(eq(jobs.projectId, projectId), eq(jobs.kind, kind), isOpenJob);

/** Whether nobody has cancelled the job. */
export const isUncancelled = (jobId: string): SQL =>
  isThere(jobs, and(eq(jobs.id, jobId), isNull(jobs.error)));

export async function isCancelled(db: Database, jobId: string): Promise<boolean> {
  const [row] = await db.select({ error: jobs.error }).from(jobs).where(eq(jobs.id, jobId));
  return row?.error != null;
}

/**
 * Decides that the open job of the kind is undone, whatever its present attempt does.
 * @returns the job; or NOT_FOUND, and what prevents it
 */
export async function storeCancellation(
  db: Database,
  { projectId, kind, branchId, actor }: Cancellation,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const ofBranch = branchId === undefined ? undefined : eq(jobs.branchId, branchId);
  const [job] = await db
    .select()
    .from(jobs)
    .where(and(isOpenOf(projectId, kind), ofBranch));
  if (!job) return fail(missing('job'));
  const thisJob = eq(jobs.id, job.id);
  const about = { projectId, ...(job.branchId && { branchId: job.branchId }), metadata: { job_id: job.id } };
  const error = { code: CANCELLED, message: 'a client has cancelled it' };
  const { event, require } = CANCELLABLE[kind];
  const written = await guardedWrite(db, {
    decides: (isAllowed) =>
      db
        .update(jobs)
        .set({ error, updatedAt: now })
        .where(and(thisJob, isNull(jobs.error), isAllowed)),
    require: [[isThere(jobs, and(isOpenOf(projectId, kind), thisJob)), 'NOT_FOUND'], ...require(job.id)],
    rest: (isAllowed) =>
      actor
        ? [
            insertIf(
              db,
              auditEvents,
              auditEvent(event, actor, about, now),
              sql`${isAllowed} and ${isUncancelled(job.id)}`,
            ),
          ]
        : [],
    returns: db.select().from(jobs).where(thisJob),
  });
  return written.ok ? ok(written.value.at(0) ?? job) : written;
}

export interface Cancellation {
  projectId: string;
  kind: CancellableKind;
  /** Left out: of whichever branch. */
  branchId?: string;
  /** Null: the project is being deleted. */
  actor: AuditActor | null;
}
