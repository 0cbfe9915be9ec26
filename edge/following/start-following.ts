import { and, eq, isNull, sql } from 'drizzle-orm';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import type { Failure } from '../../shared/failures.ts';
import { followName } from '../../shared/protocol/transfer-operations.ts';
import { ok, type Result } from '../../shared/result.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { BUSY_WAIT_MS } from '../branches/clone-source.ts';
import {
  beforeCopy,
  beginCopy,
  type Copying,
  copiedMetadata,
  copy,
  discard,
  doneTables,
  forgetSource,
  loadCopy,
  readableSourceUrl,
  requireSourceUrl,
  restrict,
  sealedSource,
  swapIn,
  WITHIN_MS,
} from '../branches/import-branch.ts';
import type { SecretKey } from '../crypto/seal.ts';
import type { Actor, FollowedSource, JobSubjects, RecordedProblem } from '../database/column-types.ts';
import { onActiveBranch } from '../database/conditions.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import {
  auditEvents,
  type BranchRow,
  follows,
  importSources,
  type JobOf,
  jobs,
  projectBranches,
} from '../database/schema.ts';
import { isCancelled, isUncancelled } from '../jobs/cancel-job.ts';
import { toErrorResponse } from '../jobs/job-resource.ts';
import { newJob } from '../jobs/job-store.ts';
import { CANCELLED, JobCancelledError, type SagaContext, saga } from '../jobs/saga.ts';
import { isFollowing, LIVE_STATES } from './follow-record.ts';

/**
 * The beginning of following: an import whose snapshot is that of a slot at the source, after which `main`
 * receives the changes from there and can only be read.
 */

type Context = SagaContext<'follow.start'>;

/**
 * Opens the job, with the sealed URL of its source and the record, and closes `main`, in one batch.
 * @returns or FOLLOW_STATE while the project follows something, PROJECT_BUSY while another copy is open,
 *   HOST_BUSY while another job of the branch is
 */
export async function reserveFollow(
  db: Database,
  keys: readonly SecretKey[],
  { jobId, branch, sourceUrl, version, hostId, actor, ...what }: FollowRequest,
  now: Date,
): Promise<Result<JobOf<'follow.start'>, Failure>> {
  const { id: branchId, projectId, tenantId } = branch;
  const job = newJob('follow.start', { branchId, ...what }, { id: jobId, projectId, hostId, actor }, now);
  const sealed = await sealedSource(keys, job, sourceUrl);
  const { source: from, tables, publication } = what;
  const row = {
    projectId,
    branchId,
    tenantId,
    jobId,
    publication,
    tables: [],
    problem: null,
    observedAt: null,
    state: 'copying' as const,
    source: { ...from, version },
    createdAt: now,
    updatedAt: now,
  };
  const about = { projectId, branchId, metadata: { job_id: jobId, ...from, tables } };
  const event = auditEvent('branch.follow.started', actor, about, now);
  const written = await guardedWrite(db, {
    first: [jobs, job],
    require: [
      ...onActiveBranch(branch, actor.tenantId),
      [sql`not ${isFollowing(projectId, [...LIVE_STATES, 'copying'])}`, 'FOLLOW_STATE'],
      ...beforeCopy(branch),
    ],
    rest: (isWritten) => [
      insertIf(db, auditEvents, event, isWritten),
      // What the project followed before is over.
      db.delete(follows).where(and(eq(follows.projectId, projectId), isWritten)),
      insertIf(db, follows, row, isWritten),
      ...beginCopy(db, branch, sealed, isWritten),
    ],
  });
  return written.ok ? ok(job) : written;
}

const atSource = ({ job }: Context) => ({
  slot: followName(job.projectId),
  publication: job.input.publication,
});

const ofMain = ({ job }: Context, { databaseName }: Pick<BranchRow, 'databaseName'>) => ({
  project_id: job.projectId,
  branch_id: job.branchId,
  database: databaseName,
});

/** From here a cancellation may come after each step, because `main` can be emptied again. */
const unlessCancelled =
  (run: (context: Context, subject: Copying) => Promise<unknown>) =>
  async (context: Context, subject: Copying) => {
    if (await isCancelled(context.db, context.job.id)) throw new JobCancelledError();
    await run(context, subject);
  };

export const startFollowingJob = saga<'follow.start', Copying>({
  steps: [
    [{ name: 'close', run: restrict('import') }],
    [{ name: 'copy', run: (context, subject) => copy(context, subject, atSource(context)) }],
    [{ name: 'swap', run: unlessCancelled(swapIn) }],
    [
      {
        name: 'follow',
        run: unlessCancelled((context, subject) =>
          context.callHost('follow.start', {
            ...ofMain(context, subject.branch),
            ...atSource(context),
            source_url: requireSourceUrl(subject),
            tables: context.job.input.tables,
          }),
        ),
      },
    ],
    [{ name: 'open', run: unlessCancelled(restrict('following')) }],
    [{ name: 'discard', run: unlessCancelled(discard) }],
  ],
  patience: () => WITHIN_MS,
  load: loadCopy,
  completed: ({ jobId }) => isUncancelled(jobId),
  complete: ({ db, job }, { copied }, now) => {
    const metadata = copiedMetadata(job.input, copied);
    const about = { id: job.id, projectId: job.projectId, branchId: job.branchId, metadata };
    const isUndisturbed = isUncancelled(job.id);
    return [
      insertIf(db, auditEvents, auditEvent('branch.followed', job.input.actor, about, now), isUndisturbed),
      inTenantOfProject(db, job.projectId, [job.id]),
      db
        .update(projectBranches)
        .set({ updatedAt: now })
        .where(and(eq(projectBranches.id, job.branchId), isUndisturbed)),
      db
        .update(follows)
        .set({ state: 'following', tables: doneTables(copied), problem: null, updatedAt: now })
        .where(and(eq(follows.jobId, job.id), isUndisturbed)),
      db.delete(importSources).where(and(eq(importSources.jobId, job.id), isUndisturbed)),
    ];
  },
  undo: { run: undo, record },
});

async function undo(context: Context): Promise<void> {
  const { db, job, callHost } = context;
  const { id: job_id, projectId: project_id, branchId: branch_id } = job;
  const { snapshotId: snapshot_id } = job.input;
  const [[branch], [source]] = await db.batch([
    db.select().from(projectBranches).where(eq(projectBranches.id, branch_id)),
    db.select().from(importSources).where(eq(importSources.jobId, job_id)),
  ]);
  // The copy would hold the lock of the branch for as long as it lasts.
  await callHost('transfer.cancel', { job_id, project_id });
  if (branch && source) {
    const source_url = await readableSourceUrl(context, source);
    const names = atSource(context);
    const { message } = await callHost('follow.stop', { ...ofMain(context, branch), ...names, source_url });
    const left = source_url === null ? notReadable(names.slot) : message;
    if (left !== null)
      await db
        .update(follows)
        .set({ problem: causeOf(job, left) })
        .where(eq(follows.jobId, job_id));
  }
  const { left } = await callHost('reset.cancel', { job_id, project_id, branch_id, snapshot_id });
  if (left && branch) await empty(context, branch);
  for (const snapshot of [snapshot_id, job.input.emptying.snapshotId])
    await callHost('snapshot.drop', { project_id, snapshot_id: snapshot });
  await restrict(null)(context);
}

/** The host knows only of a copy that has ended. */
const notReadable = (slot: string) =>
  `The URL of the source can no longer be decrypted. Drop the slot ${slot} and its publications there, if they exist.`;

/** @param left what is left at the source */
function causeOf({ error }: Context['job'], left = ''): RecordedProblem {
  const { code, message } = toErrorResponse(error ?? { code: 'INTERNAL', message: '' });
  return { code, message: `${message} ${left}`.trim(), table: null, statement: null };
}

/** A start that was cancelled leaves a record only if something is left at the source. */
function record({ db, job }: Context, _refused: boolean, now: Date): Statement[] {
  const isOwn = eq(follows.jobId, job.id);
  const failed = db
    .update(follows)
    .set({
      state: 'failed',
      problem: sql`coalesce(problem, ${JSON.stringify(causeOf(job))})`,
      updatedAt: now,
    })
    .where(isOwn);
  const wasCancelled = job.error?.code === CANCELLED;
  return [
    forgetSource({ db, job }),
    ...(wasCancelled ? [db.delete(follows).where(and(isOwn, isNull(follows.problem)))] : []),
    failed,
  ];
}

/** Replaces the copy in `main` by the empty state before, which is a snapshot of the host until then. */
async function empty({ job, callHost }: Context, branch: BranchRow): Promise<void> {
  const { snapshotId, emptying } = job.input;
  const about = {
    job_id: emptying.jobId,
    project_id: job.projectId,
    branch_id: branch.id,
    database: branch.databaseName,
  };
  const source = snapshotDatabaseName(snapshotId);
  await callHost('reset.clone', { ...about, source, busy_wait: BUSY_WAIT_MS });
  await callHost('reset.swap', { ...about, snapshot_id: emptying.snapshotId });
}

/** A validated request to follow a source that was probed. */
export interface FollowRequest extends Omit<JobSubjects['follow.start'], 'branchId' | 'source'> {
  jobId: string;
  branch: BranchRow;
  source: Omit<FollowedSource, 'version'>;
  /** Of PostgreSQL. */
  version: string;
  /** With the password. */
  sourceUrl: string;
  hostId: string;
  actor: Actor;
}
