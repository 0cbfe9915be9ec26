import { and, eq, inArray, notInArray, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { ACCESS_OF_STATE, quotaBytes, STORAGE_STATES } from '../../shared/project/storage-quota.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { makePassword } from '../crypto/scram.ts';
import { seal } from '../crypto/seal.ts';
import type { AuditActor, MovingBranch } from '../database/column-types.ts';
import { inActiveProject, isMove, isOpenJob, isUnmoving } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { drains, type MoveRow, moves } from '../database/move-schema.ts';
import {
  auditEvents,
  type JobRow,
  jobs,
  type ProjectRow,
  projectBranches,
  projects,
  snapshots,
} from '../database/schema.ts';
import { acceptsProjects, hasPlaceOn, hasRoomOn } from '../hosts/host.ts';
import { newJob, READINGS } from '../jobs/job-store.ts';
import type { Settings } from '../settings.ts';
import { isFollowing } from '../sources/record.ts';
import { LIVE_STATES } from '../sources/states.ts';

/** The request to move a project, and what it depends on. */

/** A validated request to move a project. */
export interface MoveRequest {
  jobId: string;
  project: Pick<ProjectRow, 'id' | 'tenantId' | 'hostId' | 'createdBy' | 'storageQuotaGib'>;
  toHostId: string;
  branches: 'all' | 'protected';
  dropsSnapshots: boolean;
  /** For the drain of its host: not while another project moves from there, and not once the drain has ended. */
  ofDrain: boolean;
  actor: AuditActor;
}

const BLOCKED = STORAGE_STATES.filter((state) => ACCESS_OF_STATE[state] !== 'open');
/** Statuses of a branch that has a database. */
const WITH_DATABASE = ['active', 'expired'] as const;

/** The branches of the project that have a database, `main` first, with their sizes on its host. */
export async function movingBranches(
  db: Database,
  projectId: string,
  sizes: Record<string, number>,
): Promise<(MovingBranch & { isProtected: boolean })[]> {
  const rows = await db
    .select()
    .from(projectBranches)
    .where(and(eq(projectBranches.projectId, projectId), inArray(projectBranches.status, WITH_DATABASE)))
    .orderBy(sql`is_default desc`, projectBranches.createdAt, projectBranches.id);
  return rows.map(({ id, branchName: name, databaseName: database, protected: isProtected }) => ({
    id,
    name,
    database,
    isProtected,
    bytes: sizes[id] ?? 0,
    state: 'waiting' as const,
    frozen: false,
    revision: null,
    buildId: crypto.randomUUID(),
    snapshotId: crypto.randomUUID(),
  }));
}

/** Returns whether the branches with databases are still those that were read: another one would not arrive. */
const hasTheseBranches = (projectId: string, known: readonly { id: string }[]) => sql`(
  select count(*) = ${known.length} and coalesce(sum(id in (select value from json_each(${JSON.stringify(known.map(({ id }) => id))}))), 0) = ${known.length}
  from ${projectBranches} where project_id = ${projectId} and status in ('active', 'expired'))`;

/** Returns whether a project moves from the host. */
const isMovingFrom = (hostId: string) => isThere(jobs, and(eq(jobs.hostId, hostId), isMove, isOpenJob));

/** Associated data of the sealed password of the login. */
export const sealOwner = (jobId: string) => ['move', jobId];

/**
 * Opens the job, with the password of its login.
 * @param sizes of the branches, in bytes
 * @returns or PROJECT_MOVING, FOLLOW_STATE, PROJECT_BUSY while another job is open, WRITE_BLOCKED, SNAPSHOTS_STAY,
 *   HOST_UNAVAILABLE for a host that is drained, HOST_FULL, STORAGE_QUOTA_EXCEEDED
 */
export async function reserveMove(
  db: Database,
  settings: Settings,
  { jobId, project, toHostId, branches: wanted, dropsSnapshots, ofDrain, actor }: MoveRequest,
  sizes: Record<string, number>,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const { id: projectId, tenantId, hostId, createdBy } = project;
  const all = await movingBranches(db, projectId, sizes);
  const arriving = all.filter(({ isProtected }) => wanted === 'all' || isProtected);
  const leftOut = all.filter((branch) => !arriving.includes(branch)).map(({ id }) => id);
  const needed = arriving.reduce((sum, { bytes }) => sum + bytes, 0);
  const limit = quotaBytes(project.storageQuotaGib);
  // Blocks that branches share count once here, and no longer there.
  if (settings.STORAGE_ACCOUNTING === 'physical' && needed > limit) {
    const fields = { used_bytes: 0, needed_bytes: needed, limit_bytes: limit };
    return fail({ code: 'STORAGE_QUOTA_EXCEEDED', fields });
  }
  const branches = arriving.map(({ isProtected: _, ...branch }) => branch);
  const job = newJob(
    'project.move',
    { branchId: null, branchIds: branches.map(({ id }) => id), toHostId, leftOut, dropsSnapshots },
    { id: jobId, projectId, hostId, actor, createdBy },
    now,
  );
  const { keyId, sealed } = await seal(settings.CREDENTIAL_KEYS, sealOwner(jobId), makePassword());
  const row: MoveRow = {
    projectId,
    jobId,
    fromHostId: hostId,
    toHostId,
    phase: 'building',
    keyId,
    sealedPassword: sealed,
    admittedAt: null,
    follows: null,
    branches,
    awaySince: null,
    fencedAt: null,
    keptUntil: null,
    createdAt: now,
    updatedAt: now,
  };
  const metadata = { job_id: jobId, from_host_id: hostId, to_host_id: toHostId };
  const event = auditEvent('project.move.started', actor, { projectId, metadata }, now);
  const ofProject = eq(jobs.projectId, projectId);
  const changing = and(ofProject, isOpenJob, notInArray(jobs.kind, [...READINGS]));
  const kept = and(eq(snapshots.projectId, projectId), inArray(snapshots.status, ['making', 'ready']));
  const written = await guardedWrite(db, {
    decides: [jobs, job],
    require: [
      ...inActiveProject(projectId, tenantId),
      [isThere(projects, and(eq(projects.id, projectId), eq(projects.hostId, hostId))), 'PROJECT_MOVING'],
      isUnmoving(projectId),
      [sql`not ${isThere(jobs, changing)}`, 'PROJECT_BUSY'],
      ...(ofDrain
        ? ([
            [sql`not ${isMovingFrom(hostId)}`, 'HOST_BUSY'],
            [isThere(drains, eq(drains.hostId, hostId)), 'HOST_BUSY'],
          ] as const)
        : []),
      [hasTheseBranches(projectId, all), 'PROJECT_BUSY'],
      [sql`not ${isFollowing(projectId, [...LIVE_STATES, 'copying'])}`, 'FOLLOW_STATE'],
      [
        sql`not ${isThere(projects, and(eq(projects.id, projectId), inArray(projects.storageState, BLOCKED)))}`,
        'WRITE_BLOCKED',
      ],
      ...(dropsSnapshots ? [] : [[sql`not ${isThere(snapshots, kept)}`, 'SNAPSHOTS_STAY'] as const]),
      [acceptsProjects(toHostId), 'HOST_UNAVAILABLE'],
      [hasPlaceOn(toHostId, projectId), 'HOST_FULL'],
      [hasRoomOn(settings, toHostId, projectId, project.storageQuotaGib), 'HOST_FULL'],
    ],
    rest: (isWritten) => [
      insertIf(db, auditEvents, event, isWritten),
      // The former host may still have what an earlier move has left there: `clear` drops it.
      db.delete(moves).where(and(eq(moves.projectId, projectId), isWritten)),
      insertIf(db, moves, row, isWritten),
    ],
  });
  return written.ok ? ok(job) : written;
}
