import { and, eq, gt, inArray, ne, notInArray, type SQL, sql } from 'drizzle-orm';
import { SAFETY_SECONDS } from '../../shared/branch/snapshot.ts';
import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { CloneSource } from '../branches/clone-source.ts';
import { preparedInput, preparedStatements } from '../branches/prepared-source.ts';
import { newSnapshot } from '../branches/snapshot.ts';
import { type ChangeRow, changes } from '../database/change-schema.ts';
import type { Actor, ApplyOptions, AuditActor, ChangePlan } from '../database/column-types.ts';
import { inActiveProject, isUnfollowed, isUnmoving, onActiveBranch } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite, type Requirement } from '../database/guarded-write.ts';
import { auditEvents, type BranchRow, type JobOf, jobs, snapshots } from '../database/schema.ts';
import { type KeyUse, type StoredResponse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { isUnchanging, newJob } from '../jobs/job-store.ts';
import { hasApprovals } from './approvals.ts';
import { AT_WORK, allows, changeState, OPEN } from './states.ts';

/** Open changes of a project. */
const CHANGES_OPEN_MAX = 50;
/** Records of a project that are kept; the oldest finished one goes for a new one. */
const CHANGES_KEPT = 200;

const ofProject = (projectId: string, condition: SQL | undefined) =>
  and(eq(changes.projectId, projectId), condition);

/** Stores a new change. @returns or CHANGE_LIMIT_REACHED */
export async function createChange(
  db: Database,
  row: ChangeRow,
  { actor, keyUse, response }: { actor: Actor; keyUse: KeyUse | null; response: StoredResponse },
  now: Date,
): Promise<Result<unknown, Failure>> {
  const { id, projectId, sourceName, digest } = row;
  const open = sql<number>`(select count(*) from ${changes} where ${ofProject(projectId, inArray(changes.state, OPEN))})`;
  const limit = { code: 'CHANGE_LIMIT_REACHED' as const, fields: { limit: CHANGES_OPEN_MAX, current: open } };
  const metadata = { change_id: id, digest, ...(sourceName !== null && { from: sourceName }) };
  const event = auditEvent('change.created', actor, { projectId, metadata }, now);
  const finished = ofProject(projectId, notInArray(changes.state, OPEN));
  const key = { use: keyUse, subjectId: id, now, response };
  return writeUnderKey(db, key, {
    decides: [changes, row],
    require: [...inActiveProject(projectId, actor.tenantId), [sql`${open} < ${CHANGES_OPEN_MAX}`, limit]],
    rest: (isWritten) => [
      insertIf(db, auditEvents, event, isWritten),
      db.delete(changes).where(
        sql`${changes.id} in (select id from ${changes} where ${finished}
          order by updated_at desc limit -1 offset ${CHANGES_KEPT - CHANGES_OPEN_MAX})`,
      ),
    ],
  });
}

/** A validated request to rehearse a change. */
export interface RehearseRequest {
  jobId: string;
  change: ChangeRow;
  /** The plan as it is now. */
  plan: ChangePlan;
  digest: string;
  branch: BranchRow;
  source: CloneSource;
  hostId: string;
  actor: Actor;
}

/**
 * Stores the plan as it is now and opens the job that rehearses it, in one batch. A plan that differs needs new approvals.
 * @returns or CHANGE_STATE once a statement is applied, PROJECT_BUSY while another rehearsal of it runs
 */
export async function reserveRehearsal(
  db: Database,
  { jobId, change, plan, digest, branch, source, hostId, actor }: RehearseRequest,
  now: Date,
): Promise<Result<JobOf<'change.rehearse'>, Failure>> {
  const { id, projectId } = change;
  const subject = { branchId: branch.id, changeId: id, ...preparedInput(source) };
  const job = newJob('change.rehearse', subject, { id: jobId, projectId, hostId, actor }, now);
  const theChange = eq(changes.id, id);
  const isSame = digest === change.digest && (change.state === 'rehearsed' || change.state === 'approved');
  const written = await guardedWrite(db, {
    decides: [jobs, job],
    require: [
      ...onActiveBranch(branch, actor.tenantId),
      isUnmoving(projectId),
      allows(id, 'replan'),
      [isThere(changes, and(theChange, eq(changes.done, 0))), 'CHANGE_STATE'],
      [isThere(changes, and(theChange, eq(changes.digest, change.digest))), 'CHANGE_STATE'],
      [
        sql`not ${isThere(jobs, and(sql`${jobs.id} = ${change.jobId}`, sql`${jobs.status} in ('queued', 'running')`))}`,
        'PROJECT_BUSY',
      ],
    ],
    rest: (isWritten) => [
      ...preparedStatements(db, source, jobId, isWritten, now),
      isSame
        ? db.update(changes).set({ jobId, stale: false, updatedAt: now }).where(and(theChange, isWritten))
        : changeState(db, 'replan', and(theChange, isWritten), {
            plan,
            digest,
            rehearsal: null,
            schemaDone: null,
            stale: false,
            jobId,
            updatedAt: now,
          }),
    ],
  });
  return written.ok ? ok(job) : written;
}

/** A validated request to apply a change. */
export interface ApplyRequest {
  jobId: string;
  snapshotId: string;
  change: ChangeRow;
  branch: BranchRow;
  options: ApplyOptions;
  /** When; null: now. */
  dueAt: Date | null;
  hostId: string;
  actor: AuditActor;
  createdBy: string;
  /** Further conditions of the write. */
  require?: readonly Requirement[];
}

/** Requirements of an application, also of a scheduled change that is due. */
const applicable = (
  { change, branch }: Pick<ApplyRequest, 'change' | 'branch'>,
  tenantId: string,
): [Requirement, ...Requirement[]] => [
  ...onActiveBranch(branch, tenantId),
  isUnmoving(change.projectId),
  isUnfollowed(branch.id),
  [isThere(changes, and(eq(changes.id, change.id), eq(changes.digest, change.digest))), 'CHANGE_STATE'],
  [hasApprovals(change.id), 'CHANGE_NOT_APPROVED'],
];

/** Stores when the change is applied. @returns the change; or CHANGE_STATE, CHANGE_NOT_APPROVED */
export async function schedule(
  db: Database,
  request: ApplyRequest,
  now: Date,
): Promise<Result<ChangeRow, Failure>> {
  const { change, options, dueAt, actor } = request;
  const theChange = eq(changes.id, change.id);
  const written = await guardedWrite(db, {
    decides: (isAllowed) =>
      changeState(db, 'schedule', and(theChange, isAllowed), {
        options,
        dueAt,
        applier: actor,
        updatedAt: now,
      }),
    require: [...applicable(request, actor.tenantId), allows(change.id, 'schedule')] as [
      Requirement,
      ...Requirement[],
    ],
    returns: db.select().from(changes).where(theChange),
  });
  return written.ok ? ok(written.value.at(0) ?? change) : written;
}

/**
 * Opens the job that applies the change, with the record of its safety snapshot, in one batch. A change that continues keeps
 * the snapshot of its first application, if that is still there.
 * @returns or PROJECT_BUSY while another change of the project is applied or undone, HOST_BUSY while `main` is changed
 *   otherwise, CHANGE_STATE, CHANGE_NOT_APPROVED
 */
export async function reserveApplication(
  db: Database,
  request: ApplyRequest,
  now: Date,
): Promise<Result<JobOf<'change.apply'>, Failure>> {
  const { jobId, change, branch, options, hostId, actor, createdBy } = request;
  const { id, projectId } = change;
  const [kept] =
    change.done > 0 && change.snapshotId
      ? await db
          .select()
          .from(snapshots)
          .where(
            and(
              eq(snapshots.id, change.snapshotId),
              eq(snapshots.status, 'ready'),
              gt(snapshots.expiresAt, now),
            ),
          )
      : [];
  const snapshotId = kept?.id ?? request.snapshotId;
  const subject = { branchId: branch.id, snapshotId, changeId: id };
  const job = newJob('change.apply', subject, { id: jobId, projectId, hostId, actor, createdBy }, now);
  const expiresAt = new Date(now.getTime() + SAFETY_SECONDS * 1000);
  const safety = newSnapshot(
    { id: snapshotId, kind: 'safety', branch, number: branch.undoneTo, expiresAt },
    now,
  );
  const otherAtWork = ofProject(projectId, and(inArray(changes.state, AT_WORK), ne(changes.id, id)));
  const written = await guardedWrite(db, {
    decides: [jobs, job],
    require: [
      ...applicable(request, actor.tenantId),
      [sql`not ${isThere(changes, otherAtWork)}`, 'PROJECT_BUSY'],
      allows(id, 'begin'),
      [isUnchanging(branch.id), 'HOST_BUSY'],
      ...(request.require ?? []),
    ],
    rest: (isWritten) => [
      ...(kept ? [] : [insertIf(db, snapshots, safety, isWritten)]),
      changeState(db, 'begin', and(eq(changes.id, id), isWritten), {
        options,
        applier: actor,
        application: null,
        snapshotId,
        jobId,
        updatedAt: now,
      }),
    ],
  });
  return written.ok ? ok(job) : written;
}

/** Closes a change: it can never be applied. @returns or CHANGE_STATE */
export async function closeChange(
  db: Database,
  { change, actor }: { change: ChangeRow; actor: Actor },
  now: Date,
): Promise<Result<ChangeRow, Failure>> {
  const { id, projectId, digest } = change;
  const theChange = eq(changes.id, id);
  const event = auditEvent('change.closed', actor, { projectId, metadata: { change_id: id, digest } }, now);
  const written = await guardedWrite(db, {
    decides: (isAllowed) => changeState(db, 'close', and(theChange, isAllowed), { updatedAt: now }),
    require: [...inActiveProject(projectId, actor.tenantId), allows(id, 'close')],
    rest: (isAllowed) => [
      insertIf(
        db,
        auditEvents,
        event,
        sql`${isAllowed} and ${isThere(changes, and(theChange, ne(changes.state, 'closed')))}`,
      ),
    ],
    returns: db.select().from(changes).where(theChange),
  });
  return written.ok ? ok(written.value.at(0) ?? change) : written;
}
