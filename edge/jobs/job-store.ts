import { and, eq, inArray, notInArray, type SQL, sql } from 'drizzle-orm';
import type { JobKind } from '../../shared/project/job.ts';
import type { Actor, AuditActor, JobSubjects } from '../database/column-types.ts';
import { isOpenJob, OPEN_STATUSES } from '../database/conditions.ts';
import { type Database, isThere } from '../database/database.ts';
import { type JobOf, type JobRow, jobs } from '../database/schema.ts';

/** Jobs that change nothing, so no work on their branch or project waits for them. */
export const READINGS: readonly JobKind[] = ['branch.diff', 'branch.try', 'change.rehearse'];

const changes = (branchId: string | SQL) =>
  and(eq(jobs.branchId, branchId), notInArray(jobs.kind, [...READINGS]), isOpenJob);

/**
 * Whether no job that changes the branch is open. An attempt that failed is repeated, which would overwrite
 * newer work.
 */
export const isUnchanging = (branchId: string | SQL): SQL => sql`not ${isThere(jobs, changes(branchId))}`;

const POLL_MS = 100;

/** Waits for the ends of the branch's jobs. @returns false if one is still open at the deadline */
export async function becomesIdle(db: Database, branchId: string, deadline: number): Promise<boolean> {
  while (Date.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    const open = await db.select({ id: jobs.id }).from(jobs).where(changes(branchId)).limit(1);
    if (open.length === 0) return true;
  }
  return false;
}

/** The branches that a job is about; none if it is about the whole project. */
export const branchIdsOf = ({ branchId, input }: Pick<JobRow, 'branchId' | 'input'>): string[] =>
  ('branchIds' in input ? input.branchIds : undefined) ?? (branchId === null ? [] : [branchId]);

/** The project's unfinished jobs, oldest first. */
export const openJobs = (db: Database, projectId: string): Promise<JobRow[]> =>
  db
    .select()
    .from(jobs)
    .where(and(eq(jobs.projectId, projectId), inArray(jobs.status, OPEN_STATUSES)))
    .orderBy(jobs.createdAt, jobs.id);

/** The job as it is now, if it is still open. */
export async function readOpenJob(db: Database, id: string): Promise<JobRow | undefined> {
  const [job] = await db
    .select()
    .from(jobs)
    .where(and(eq(jobs.id, id), inArray(jobs.status, OPEN_STATUSES)));
  return job;
}

interface NewJob {
  id: string;
  projectId: string;
  hostId: string;
}

/** The first record of a job. @param about `createdBy` if the service itself acts for that user */
export const newJob = <K extends JobKind>(
  kind: K,
  { branchId, ...subject }: JobSubjects[K],
  about: NewJob & ({ actor: Actor } | { actor: AuditActor; createdBy: string }),
  now: Date,
): JobOf<K> => ({
  id: about.id,
  kind,
  projectId: about.projectId,
  branchId,
  hostId: about.hostId,
  input: { actor: about.actor, ...subject },
  status: 'queued',
  steps: [],
  error: null,
  attempts: 0,
  createdBy: 'createdBy' in about ? about.createdBy : about.actor.userId,
  tenantId: about.actor.tenantId,
  createdAt: now,
  updatedAt: now,
});
