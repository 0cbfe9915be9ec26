import { and, eq, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { followName } from '../../shared/protocol/transfer-operations.ts';
import { ok, type Result } from '../../shared/result.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import type { Actor } from '../database/column-types.ts';
import { onActiveBranch } from '../database/conditions.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents, type BranchRow, type JobRow, jobs, projectBranches } from '../database/schema.ts';
import { type FollowRow, follows, importSources } from '../database/source-schema.ts';
import type { CallHost } from '../hosts/host-client.ts';
import { isCancelled } from '../jobs/cancel-job.ts';
import { isUnchanging, newJob } from '../jobs/job-store.ts';
import { JobCancelledError, type SagaContext, SourceUnsuitableError, saga } from '../jobs/saga.ts';
import { doneTables, holdAs, readableSourceUrl, WITHIN_MS } from './import.ts';
import { isFollowing } from './record.ts';
import { changeState, isLive, removeRecord, statesBefore } from './states.ts';

/** The ends of following: `main` takes over from the source, or is left as it is. */

type Ending = 'follow.cutover' | 'follow.stop';

/** A validated request to end following. */
export interface EndRequest {
  jobId: string;
  follow: FollowRow;
  hostId: string;
  actor: Actor;
}

/**
 * Opens the job that ends following.
 * @param writesStopped of a cut-over: nobody writes to the source any more; null: the end without a cut-over
 * @returns or FOLLOW_STATE, HOST_BUSY while another job of `main` is open
 */
export async function reserveEnd(
  db: Database,
  { jobId, follow, hostId, actor }: EndRequest,
  writesStopped: boolean | null,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const { projectId, branchId } = follow;
  const about = { id: jobId, projectId, hostId, actor };
  const job =
    writesStopped === null
      ? newJob('follow.stop', { branchId }, about, now)
      : newJob('follow.cutover', { branchId, writesStopped }, about, now);
  // Replication that is stopped has to be resumed before `main` can take over.
  const states = writesStopped === null ? statesBefore('stop') : (['following'] as const);
  const written = await guardedWrite(db, {
    decides: [jobs, job],
    require: [
      ...onActiveBranch({ id: branchId, projectId }, actor.tenantId),
      [isFollowing(projectId, states), 'FOLLOW_STATE'],
      [isUnchanging(branchId), 'HOST_BUSY'],
    ],
  });
  return written.ok ? ok(job) : written;
}

interface Ended {
  branch: BranchRow;
  follow: FollowRow;
  cutOver: NonNullable<MethodResult<'follow.cutover'>['cut_over']> | null;
  stopped: MethodResult<'follow.stop'> | null;
}

async function load({ db, job }: SagaContext<Ending>): Promise<Ended | null> {
  const [[branch], [follow]] = await db.batch([
    db
      .select()
      .from(projectBranches)
      .where(and(eq(projectBranches.id, job.branchId), eq(projectBranches.status, 'active'))),
    db.select().from(follows).where(eq(follows.projectId, job.projectId)),
  ]);
  return branch && follow ? { branch, follow, cutOver: null, stopped: null } : null;
}

const ofMain = ({ projectId, branchId }: FollowRow, { databaseName }: Pick<BranchRow, 'databaseName'>) => ({
  project_id: projectId,
  branch_id: branchId,
  database: databaseName,
});

/** The audit event of the end. */
function audited(
  { db, job }: SagaContext<Ending>,
  name: 'branch.follow.cut_over' | 'branch.follow.stopped',
  metadata: Record<string, unknown>,
  now: Date,
): Statement[] {
  const about = { id: job.id, projectId: job.projectId, branchId: job.branchId, metadata };
  return [
    insertIf(db, auditEvents, auditEvent(name, job.input.actor, about, now), sql`true`),
    inTenantOfProject(db, job.projectId, [job.id]),
  ];
}

/** Leftovers that the host could not remove at the source are a warning of the step. */
const leftAtSource = ({ message }: { message: string | null }) => (message === null ? [] : [message]);

/** @throws SourceUnsuitableError if both sides differ, JobCancelledError */
async function cutOver(context: SagaContext<'follow.cutover'>, subject: Ended): Promise<void> {
  const { db, job, callHost, report } = context;
  const { cut_over, findings } = await callHost('follow.cutover', {
    ...ofMain(subject.follow, subject.branch),
    job_id: job.id,
    writes_refused: job.input.writesStopped,
  });
  if (!cut_over) {
    if (await isCancelled(db, job.id)) throw new JobCancelledError();
    throw new SourceUnsuitableError(findings.map(({ message }) => message).join(' '));
  }
  subject.cutOver = cut_over;
  report({
    tables: doneTables(cut_over),
    warnings: [...findings.map(({ message }) => message), ...leftAtSource(cut_over)],
  });
}

/** A cut-over that cannot end is called off: nobody can write to the source meanwhile. */
const CUT_OVER_WITHIN_MS = 3_600_000;

/** Both steps are confirmed by the host if they are repeated. */
export const cutOverJob = saga<'follow.cutover', Ended>({
  steps: [[{ name: 'cut_over', run: cutOver }], [{ name: 'open', run: holdAs('cut_over') }]],
  patience: () => CUT_OVER_WITHIN_MS,
  load,
  complete: (context, { follow, cutOver: done }, now) => {
    const { db, job } = context;
    const { host, port, database } = follow.source;
    const { rows, sequences, refused_ms, dropped_at_source } = done ?? {};
    return [
      ...audited(
        context,
        'branch.follow.cut_over',
        { host, port, database, rows, sequences, refused_ms, dropped_at_source },
        now,
      ),
      changeState(db, 'cut over', eq(follows.projectId, job.projectId), {
        problem: null,
        updatedAt: now,
        ...(done && { tables: doneTables(done) }),
      }),
      // A cancellation that came after the last step had begun.
      db.update(jobs).set({ error: null }).where(eq(jobs.id, job.id)),
    ];
  },
  undo: {
    run: async (context) => {
      const { db, job, callHost } = context;
      const [branch] = await db.select().from(projectBranches).where(eq(projectBranches.id, job.branchId));
      if (!branch) return;
      const about = { project_id: job.projectId, branch_id: branch.id, database: branch.databaseName };
      await callHost('follow.cancel_cutover', about);
      // The cut-over may have ended before the undo.
      const { state } = await callHost('follow.status', about);
      if (state !== 'absent') return;
      await changeState(db, 'cut over', eq(follows.projectId, job.projectId), {
        problem: null,
        updatedAt: new Date(),
      });
      await holdAs('cut_over')(context);
    },
    record: () => [],
  },
});

/** @param source_url of a start that is open; null: the host knows it */
const stop = (
  callHost: CallHost,
  { follow, branch }: Pick<Ended, 'follow' | 'branch'>,
  source_url: string | null = null,
) =>
  callHost('follow.stop', {
    ...ofMain(follow, branch),
    slot: followName(follow.projectId),
    publication: follow.publication,
    source_url,
  });

/**
 * Drops what a project that is deleted has at its source, where it can be reached. A start that is open may not be
 * undone any more: its job goes with the project.
 */
export async function stopFollowing(context: SagaContext<'project.delete'>): Promise<void> {
  const { db, job, callHost, settings } = context;
  const [found] = await db
    .select({ follow: follows, branch: projectBranches, source: importSources })
    .from(follows)
    .innerJoin(projectBranches, eq(projectBranches.id, follows.branchId))
    .leftJoin(importSources, eq(importSources.jobId, follows.jobId))
    .where(eq(follows.projectId, job.projectId));
  if (!found) return;
  const { follow, branch, source } = found;
  if (isLive(follow)) {
    await stop(callHost, found);
  } else if (source) {
    const started = { id: source.jobId };
    const source_url = await readableSourceUrl({ settings, job: started }, source);
    await callHost('transfer.cancel', { job_id: started.id, project_id: job.projectId });
    await stop(callHost, { follow, branch }, source_url);
  }
}

export const stopFollowingJob = saga<'follow.stop', Ended>({
  steps: [
    [
      {
        name: 'stop',
        run: async ({ callHost, report }, subject) => {
          subject.stopped = await stop(callHost, subject);
          report({ warnings: leftAtSource(subject.stopped) });
        },
      },
    ],
    [{ name: 'open', run: holdAs('none') }],
  ],
  patience: () => WITHIN_MS,
  load,
  complete: (context, { follow, stopped }, now) => {
    const { host, port, database } = follow.source;
    const { dropped_at_source } = stopped ?? {};
    const { db, job } = context;
    return [
      ...audited(context, 'branch.follow.stopped', { host, port, database, dropped_at_source }, now),
      removeRecord(db, 'stop', eq(follows.projectId, job.projectId)),
    ];
  },
  // Only for a project that was deleted meanwhile, and a host that does not know the operation.
  undo: { run: async () => {}, record: () => [] },
});
