import { and, eq, isNull, sql } from 'drizzle-orm';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import type { Failure } from '../../shared/failures.ts';
import { followName } from '../../shared/protocol/transfer-operations.ts';
import { ok, type Result } from '../../shared/result.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { BUSY_WAIT_MS } from '../branches/clone-source.ts';
import type { SecretKey } from '../crypto/seal.ts';
import {
  type Actor,
  FOLLOW_RECORD_STATES,
  type FollowedSource,
  type JobSubjects,
  type RecordedProblem,
} from '../database/column-types.ts';
import { onActiveBranch } from '../database/conditions.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents, type BranchRow, type JobOf, jobs, projectBranches } from '../database/schema.ts';
import { type FollowRow, follows, importSources } from '../database/source-schema.ts';
import { isCancelled, isUncancelled } from '../jobs/cancel-job.ts';
import { toErrorResponse } from '../jobs/job-resource.ts';
import { newJob } from '../jobs/job-store.ts';
import { CANCELLED, JobCancelledError, type SagaContext, saga } from '../jobs/saga.ts';
import {
  beforeCopy,
  beginCopy,
  type Copying,
  copiedMetadata,
  copy,
  discard,
  doneTables,
  forgetSource,
  holdAs,
  loadCopy,
  readableSourceUrl,
  requireSourceUrl,
  sealedSource,
  swapIn,
  WITHIN_MS,
} from './import.ts';
import { isFollowing } from './record.ts';
import { changeState, removeRecord, statesBefore } from './states.ts';

/**
 * The copy of a source into `main`, by an import or as the beginning of following: then the snapshot is that of a slot at
 * the source, and `main` receives the changes from there and can only be read.
 */

type Kind = 'branch.import' | 'follow.start';
type Context = SagaContext<Kind>;

const isFollowStart = (job: JobOf<Kind>): job is JobOf<'follow.start'> => job.kind === 'follow.start';

/**
 * Opens the job, with the sealed URL of its source and the record of what is followed, and closes `main`, in one batch.
 * @returns or FOLLOW_STATE while the project follows something, PROJECT_BUSY while another copy is open,
 *   HOST_BUSY while another job of the branch is
 */
export async function reserveStart(
  db: Database,
  keys: readonly SecretKey[],
  request: StartRequest,
  now: Date,
): Promise<Result<JobOf<Kind>, Failure>> {
  const { jobId, branch, sourceUrl, hostId, actor, what, follow } = request;
  const { id: branchId, projectId } = branch;
  const about = { id: jobId, projectId, hostId, actor };
  const job = follow
    ? newJob(
        'follow.start',
        { branchId, ...what, publication: follow.publication, emptying: follow.emptying },
        about,
        now,
      )
    : newJob('branch.import', { branchId, ...what }, about, now);
  const sealed = await sealedSource(keys, job, sourceUrl);
  const metadata = { job_id: jobId, ...what.source, tables: what.tables, ...what.leftAlone };
  const name = follow ? 'branch.follow.started' : 'branch.import.started';
  const event = auditEvent(name, actor, { projectId, branchId, metadata }, now);
  const ofProject = eq(follows.projectId, projectId);
  const written = await guardedWrite(db, {
    decides: [jobs, job],
    require: [
      ...onActiveBranch(branch, actor.tenantId),
      ...(follow ? ([[mayStart(projectId), 'FOLLOW_STATE']] as const) : []),
      ...beforeCopy(branch),
    ],
    rest: (isWritten) => [
      insertIf(db, auditEvents, event, isWritten),
      ...(follow
        ? [
            db.delete(follows).where(and(ofProject, isWritten)),
            insertIf(db, follows, recordOf(request, follow, now), isWritten),
          ]
        : []),
      ...beginCopy(db, branch, sealed, isWritten),
    ],
  });
  return written.ok ? ok(job) : written;
}

/** Returns whether the project has no record, or one of what is over. */
const mayStart = (projectId: string) => {
  const over = statesBefore('start');
  return sql`not ${isFollowing(
    projectId,
    FOLLOW_RECORD_STATES.filter((state) => !over.includes(state)),
  )}`;
};

const recordOf = (
  { jobId, branch, what }: StartRequest,
  { publication, version }: NonNullable<StartRequest['follow']>,
  now: Date,
): FollowRow => ({
  projectId: branch.projectId,
  branchId: branch.id,
  tenantId: branch.tenantId,
  jobId,
  publication,
  tables: [],
  problem: null,
  observedAt: null,
  state: 'copying',
  source: { ...what.source, version },
  createdAt: now,
  updatedAt: now,
});

/** Names of the slot and publication at the source; null for an import. */
const atSource = ({ job }: Context) => {
  return isFollowStart(job) ? { slot: followName(job.projectId), publication: job.input.publication } : null;
};

const ofMain = ({ job }: Context, { databaseName }: Pick<BranchRow, 'databaseName'>) => ({
  project_id: job.projectId,
  branch_id: job.branchId,
  database: databaseName,
});

/** From here a start can be cancelled after each step, because `main` can be emptied again; an import cannot. */
const unlessCancelled =
  (run: (context: Context, subject: Copying) => Promise<unknown>) =>
  async (context: Context, subject: Copying) => {
    if (await isCancelled(context.db, context.job.id)) throw new JobCancelledError();
    await run(context, subject);
  };

async function follow(context: Context, subject: Copying): Promise<void> {
  const names = atSource(context);
  if (!names) return;
  await context.callHost('follow.start', {
    ...ofMain(context, subject.branch),
    ...names,
    source_url: requireSourceUrl(subject),
    tables: context.job.input.tables,
  });
}

/** The copy, the exchange and the opening are each confirmed by the host if they are repeated. */
export const startJob = saga<Kind, Copying>({
  steps: [
    // Nobody may write into `main` any more when it is cloned.
    [{ name: 'close', run: holdAs('copying') }],
    [{ name: 'copy', run: (context, subject) => copy(context, subject, atSource(context)) }],
    [{ name: 'swap', run: unlessCancelled(swapIn) }],
    [{ name: 'follow', when: isFollowStart, run: unlessCancelled(follow) }],
    [
      {
        name: 'open',
        run: unlessCancelled((context) => holdAs(isFollowStart(context.job) ? 'following' : 'none')(context)),
      },
    ],
    [{ name: 'discard', run: unlessCancelled(discard) }],
  ],
  patience: () => WITHIN_MS,
  load: loadCopy,
  completed: ({ jobId }) => isUncancelled(jobId),
  complete: (context, { copied }, now) => {
    const { db, job } = context;
    const metadata = copiedMetadata(job.input, copied);
    const about = { id: job.id, projectId: job.projectId, branchId: job.branchId, metadata };
    const isUndisturbed = isUncancelled(job.id);
    const isStart = isFollowStart(job);
    const event = auditEvent(isStart ? 'branch.followed' : 'branch.imported', job.input.actor, about, now);
    const tables = doneTables(copied);
    return [
      insertIf(db, auditEvents, event, isUndisturbed),
      inTenantOfProject(db, job.projectId, [job.id]),
      db
        .update(projectBranches)
        .set({ updatedAt: now })
        .where(and(eq(projectBranches.id, job.branchId), isUndisturbed)),
      ...(isStart
        ? [
            changeState(db, 'follow', and(eq(follows.jobId, job.id), isUndisturbed), {
              tables,
              problem: null,
              updatedAt: now,
            }),
          ]
        : []),
      db.delete(importSources).where(and(eq(importSources.jobId, job.id), isUndisturbed)),
    ];
  },
  undo: { run: undo, record },
});

async function undo(context: Context): Promise<void> {
  const { db, job, callHost } = context;
  const { id: job_id, projectId: project_id, branchId: branch_id } = job;
  const { snapshotId: snapshot_id } = job.input;
  const started = isFollowStart(job) ? job : null;
  // The copy would hold the lock of the branch for as long as it lasts.
  await callHost('transfer.cancel', { job_id, project_id });
  const [branch] = await db.select().from(projectBranches).where(eq(projectBranches.id, branch_id));
  if (started && branch) await leaveSource(context, branch);
  const { left } = await callHost('reset.cancel', { job_id, project_id, branch_id, snapshot_id });
  if (started) {
    if (left && branch) await empty(context, started, branch);
    for (const snapshot of [snapshot_id, started.input.emptying.snapshotId])
      await callHost('snapshot.drop', { project_id, snapshot_id: snapshot });
  }
  await holdAs('none')(context);
}

/** Drops the slot and the publication at the source, and records what is left there. */
async function leaveSource(context: Context, branch: BranchRow): Promise<void> {
  const { db, job, callHost } = context;
  const [source] = await db.select().from(importSources).where(eq(importSources.jobId, job.id));
  const names = atSource(context);
  if (!source || !names) return;
  const source_url = await readableSourceUrl(context, source);
  const { message } = await callHost('follow.stop', { ...ofMain(context, branch), ...names, source_url });
  const left = source_url === null ? notReadable(names.slot) : message;
  if (left !== null)
    await db
      .update(follows)
      .set({ problem: causeOf(job, left) })
      .where(eq(follows.jobId, job.id));
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
  const wasCancelled = job.error?.code === CANCELLED;
  return [
    forgetSource({ db, job }),
    ...(wasCancelled ? [removeRecord(db, 'forget', and(isOwn, isNull(follows.problem)))] : []),
    changeState(db, 'fail', isOwn, {
      problem: sql`coalesce(problem, ${JSON.stringify(causeOf(job))})`,
      updatedAt: now,
    }),
  ];
}

/** Replaces the copy in `main` by the empty state before, which is a snapshot of the host until then. */
async function empty({ callHost }: Context, job: JobOf<'follow.start'>, branch: BranchRow): Promise<void> {
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

/** A validated request to copy a source that was probed. */
export interface StartRequest {
  jobId: string;
  branch: BranchRow;
  /** With the password. */
  sourceUrl: string;
  what: Omit<JobSubjects['branch.import'], 'branchId'>;
  /** Null: an import. */
  follow:
    | (Pick<JobSubjects['follow.start'], 'publication' | 'emptying'> & Pick<FollowedSource, 'version'>)
    | null;
  hostId: string;
  actor: Actor;
}
