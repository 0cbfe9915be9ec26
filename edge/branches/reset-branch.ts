import { and, eq, type SQL, sql } from 'drizzle-orm';
import { expiryOf, type Life } from '../../shared/branch/lifespan.ts';
import { SAFETY_SECONDS } from '../../shared/branch/snapshot.ts';
import type { Failure } from '../../shared/failures.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { ok, type Result } from '../../shared/result.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import type { Actor, BranchContent, Checkpoint } from '../database/column-types.ts';
import { isUnfollowed, isUnmoving, onActiveBranch } from '../database/conditions.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import type { Requirement } from '../database/guarded-write.ts';
import {
  auditEvents,
  type BranchRow,
  type JobOf,
  jobs,
  projectBranches,
  type SnapshotRow,
  snapshots,
} from '../database/schema.ts';
import { type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { isUnchanging, newJob } from '../jobs/job-store.ts';
import { type Saga, type SagaContext, saga } from '../jobs/saga.ts';
import { contentOf, FULL_CONTENT, toBranchResponse, toCreatedBranchResponse } from './branch.ts';
import { isStepsBack } from './checkpoint.ts';
import { BUSY_WAIT_MS, type CloneSource, onCloneable } from './clone-source.ts';
import {
  COMPARING,
  DISCARDING,
  dropSource,
  forgetSource,
  isMasked,
  makeSource,
  patienceOf,
  preparedInput,
  preparedStatements,
  RECOVERING,
  recoveryEvents,
} from './prepared-source.ts';
import { newSnapshot } from './snapshot.ts';

/**
 * Opens the job of the reset, and the record of the snapshot that it leaves behind, in one batch.
 * @returns or HOST_BUSY while another job of the branch is open
 */
export async function reserveReset(
  db: Database,
  { jobId, snapshotId, branch, source, life, hostId, actor, keyUse, asCreation, undo }: ResetRequest,
  now: Date,
  change?: UndoneChange,
): Promise<Result<JobOf<ResetKind>, Failure>> {
  const { id: branchId, projectId } = branch;
  const subject = {
    branchId,
    snapshotId,
    source: source.database,
    content: { ...source.content, checkedAt: source.content.checkedAt?.getTime() ?? null },
    ...preparedInput(source),
    ...(life && { life }),
    ...(asCreation && { asCreation }),
    ...(undo && { undo: { ...undo.to, position: undo.position } }),
  };
  const about = { id: jobId, projectId, hostId, actor };
  const job = change
    ? newJob('change.undo', { ...subject, changeId: change.id }, about, now)
    : newJob('branch.reset', subject, about, now);
  const expiresAt = new Date(now.getTime() + SAFETY_SECONDS * 1000);
  const number = branch.undoneTo;
  const safety = newSnapshot({ id: snapshotId, kind: 'safety', branch, number, expiresAt }, now);
  const written = await writeUnderKey(
    db,
    { use: keyUse, subjectId: job.id, now },
    {
      decides: [jobs, job],
      require: [
        ...onActiveBranch(branch, actor.tenantId),
        isUnmoving(branch.projectId),
        isUnfollowed(branchId),
        ...onCloneable(source),
        ...(change?.require ?? []),
        [isUnchanging(branchId), 'HOST_BUSY'],
        // A checkpoint or an undo that came first moves what the steps count from.
        ...(undo?.steps == null
          ? []
          : [[isStepsBack(undo.to.checkpoint_id, branchId, undo.steps), 'HOST_BUSY'] as const]),
      ],
      rest: (isWritten) => [
        insertIf(db, snapshots, safety, isWritten),
        ...preparedStatements(db, source, job.id, isWritten, now),
        ...(change?.begin(isWritten, job.id) ?? []),
      ],
    },
  );
  return written.ok ? ok(job) : written;
}

interface Reset {
  branch: BranchRow;
  safety: SnapshotRow;
  life: Life | undefined;
  /** What the branch has afterwards. */
  content: BranchContent;
  asCreation: boolean;
  left: MethodResult<'reset.swap'> | null;
}

/** The undo of a change is a reset to the snapshot that was taken before it. */
export type ResetKind = 'branch.reset' | 'change.undo';

const identity = ({ job }: SagaContext<ResetKind>, { branch }: Reset) => ({
  job_id: job.id,
  project_id: job.projectId,
  branch_id: branch.id,
  database: branch.databaseName,
});

const afterReset = ({ branch, life, content }: Reset, now: Date): BranchRow => ({
  ...branch,
  ...content,
  ...(life && { ...life, expiresAt: expiryOf(life, now) }),
  updatedAt: now,
});

/** Marks the snapshot with what the branch held before as complete. */
const keepSafety = (db: Database, id: string, { size_bytes }: MethodResult<'reset.swap'>, now: Date) =>
  db
    .update(snapshots)
    .set({ status: 'ready', sizeBytes: size_bytes, takenAt: now })
    .where(eq(snapshots.id, id));

/** The checkpoint that the branch is at afterwards. */
const movedTo = ({ input }: JobOf<ResetKind>) => ({ undoneTo: input.undo?.position ?? null });

const recordContent = (
  { db, job }: SagaContext<ResetKind>,
  content: BranchContent & { undoneTo?: number | null },
) => db.update(projectBranches).set(content).where(eq(projectBranches.id, job.branchId));

const contentAfter = (content: JobOf<ResetKind>['input']['content']): BranchContent =>
  content
    ? { ...content, checkedAt: content.checkedAt === null ? null : new Date(content.checkedAt) }
    : FULL_CONTENT;

/**
 * A new clone is built first, and replaces the database in one transaction of PostgreSQL. The id, the name,
 * the passwords and the rules of the branch stay.
 */
export const resetSaga = ({ completed, failed }: ResetEnds): Saga<ResetKind> =>
  saga<ResetKind, Reset>({
    steps: [
      [RECOVERING],
      [
        {
          name: 'mask',
          when: isMasked,
          run: async (context, subject) => {
            subject.content.checkedAt = await makeSource(context);
          },
        },
      ],
      [
        COMPARING,
        {
          name: 'clone',
          run: (context, subject) =>
            context.callHost('reset.clone', {
              ...identity(context, subject),
              source: context.job.input.source,
              busy_wait: BUSY_WAIT_MS,
            }),
        },
      ],
      [
        {
          name: 'swap',
          run: async (context, subject) => {
            const { id: snapshot_id } = subject.safety;
            // Before anybody can read it, and again at the end.
            if (subject.content.data !== 'masked') await recordContent(context, subject.content);
            subject.left = await context.callHost('reset.swap', {
              ...identity(context, subject),
              snapshot_id,
            });
          },
        },
      ],
      [DISCARDING],
    ],
    patience: patienceOf,
    load: async ({ db, job }) => {
      const { snapshotId, life, content, asCreation = false } = job.input;
      const [[branch], [safety]] = await db.batch([
        db
          .select()
          .from(projectBranches)
          .where(and(eq(projectBranches.id, job.branchId), eq(projectBranches.status, 'active'))),
        db.select().from(snapshots).where(eq(snapshots.id, snapshotId)),
      ]);
      if (!branch || !safety) return null;
      return { branch, safety, life, asCreation, content: contentAfter(content), left: null };
    },
    complete: (context, subject, now) => {
      const { db, job } = context;
      const { branch, safety, left } = subject;
      const { undo } = job.input;
      const { lifespan, ttlSeconds, expiresAt } = afterReset(subject, now);
      const metadata = {
        branch_name: branch.branchName,
        source: job.input.source,
        snapshot_id: safety.id,
        ...(undo && { checkpoint_id: undo.checkpoint_id, number: undo.number }),
      };
      const about = { id: job.id, projectId: branch.projectId, branchId: branch.id, metadata };
      return [
        insertIf(
          db,
          auditEvents,
          auditEvent(undo ? 'branch.undone' : 'branch.reset', job.input.actor, about, now),
          sql`true`,
        ),
        inTenantOfProject(db, branch.projectId, [job.id]),
        ...recoveryEvents({ db, job }, branch, sql`true`, now),
        ...(left?.kept ? [keepSafety(db, safety.id, left, now)] : []),
        db
          .update(projectBranches)
          // Without a new life, one that was changed meanwhile stays.
          .set({
            ...(subject.life && { lifespan, ttlSeconds, expiresAt }),
            ...subject.content,
            ...movedTo(job),
            updatedAt: now,
          })
          .where(and(eq(projectBranches.id, branch.id), eq(projectBranches.status, 'active'))),
        ...forgetSource({ db, job }),
        ...completed(context, now),
      ];
    },
    response: (subject, now, { input: { undo } }) => {
      const left = subject.left?.kept ? subject.safety.id : null;
      if (undo) {
        const { position, ...restored } = undo;
        return { status: 200, body: { restored, safety_checkpoint_id: left } };
      }
      const branch = afterReset(subject, now);
      return {
        status: 200,
        body: subject.asCreation
          ? { ...toCreatedBranchResponse(branch), created: false }
          : { ...toBranchResponse(branch), safety_snapshot_id: left },
      };
    },
    undo: {
      // A reset that is abandoned after the swap stays: only its end was not recorded.
      run: async (context) => {
        const { db, job, callHost } = context;
        const { snapshotId } = job.input;
        const about = { job_id: job.id, project_id: job.projectId, branch_id: job.branchId };
        const { left } = await callHost('reset.cancel', { ...about, snapshot_id: snapshotId });
        const [safety] = await db.select().from(snapshots).where(eq(snapshots.id, snapshotId));
        if (left) await keepSafety(db, snapshotId, left, new Date());
        if (left) await recordContent(context, { ...contentAfter(job.input.content), ...movedTo(job) });
        else if (safety) await recordContent(context, contentOf(safety));
        await dropSource(context);
      },
      record: (context, _refused, now) => {
        const { db, job } = context;
        return [
          ...forgetSource({ db, job }),
          db
            .delete(snapshots)
            .where(and(eq(snapshots.id, job.input.snapshotId), eq(snapshots.status, 'making'))),
          ...failed(context, now),
        ];
      },
    },
  });

/** Statements that join the end of the job. */
interface ResetEnds {
  completed: (context: SagaContext<ResetKind>, now: Date) => Statement[];
  failed: (context: SagaContext<ResetKind>, now: Date) => Statement[];
}

export const resetBranchJob = resetSaga({ completed: () => [], failed: () => [] });

/** The change that a reset undoes: what it requires, and the statements that begin it. */
export interface UndoneChange {
  id: string;
  require: readonly Requirement[];
  begin: (isWritten: SQL, jobId: string) => Statement[];
}

/** A validated request to give a branch the content of its source. */
export interface ResetRequest {
  jobId: string;
  /** The snapshot that the present state becomes. */
  snapshotId: string;
  branch: BranchRow;
  source: CloneSource;
  /** Null: as before. */
  life: Life | null;
  hostId: string;
  actor: Actor;
  keyUse: KeyUse | null;
  /** The response has the form of a creation that found the branch (`on_exists`). */
  asCreation: boolean;
  /** The target of an undo, the checkpoint that the branch is at then, and its steps; null: it has an ID. */
  undo?: { to: Checkpoint; position: number | null; steps: number | null };
}
