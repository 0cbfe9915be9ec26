import { and, eq, inArray, ne, type SQL, sql } from 'drizzle-orm';
import { backoff } from '../../shared/backoff.ts';
import type { AppliedChange, StopReason } from '../../shared/protocol/change-operations.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { BUSY_WAIT_MS } from '../branches/clone-source.ts';
import { type ChangeRow, changes } from '../database/change-schema.ts';
import type { ApplyOptions } from '../database/column-types.ts';
import { type Database, insertIf, isThere, type Statement } from '../database/database.ts';
import {
  auditEvents,
  type BranchRow,
  projectBranches,
  type SnapshotRow,
  snapshots,
} from '../database/schema.ts';
import { HostCallError } from '../hosts/host-client.ts';
import { ChangeStoppedError, type SagaContext, saga } from '../jobs/saga.ts';
import { AT_REST, changeState } from './states.ts';

/**
 * Takes the safety snapshot and has the host run the steps in `main`. The host knows which ones are applied, so a repeated
 * attempt continues. What it reports is stored before the job ends.
 */

type Context = SagaContext<'change.apply'>;

interface Applying {
  change: ChangeRow & { options: ApplyOptions };
  branch: BranchRow;
  safety: SnapshotRow;
  applied: AppliedChange | null;
}

/** A change can wait for locks at each of its statements, and build large indexes. */
const WITHIN_MS = 6 * 3_600_000;
const PAUSE = { first: 250, longest: 5_000 };

const ofJob = ({ job }: Pick<Context, 'job'>): SQL | undefined =>
  and(eq(changes.id, job.input.changeId), eq(changes.jobId, job.id), eq(changes.state, 'applying'));

/** @throws ChangeStoppedError if a transaction of a client stays open at every attempt */
async function takeSafety(context: Context, { change, branch, safety }: Applying): Promise<void> {
  const { db, job, callHost } = context;
  if (safety.status === 'ready') return;
  const { attempts, lock_timeout_ms } = change.options;
  for (let attempt = 0; ; attempt += 1) {
    const began = Date.now();
    try {
      const taken = await callHost('snapshot.take', {
        project_id: job.projectId,
        branch_id: branch.id,
        snapshot_id: safety.id,
        source: branch.databaseName,
        // The pooled clients of `main` are held meanwhile.
        busy_wait: Math.min(BUSY_WAIT_MS, lock_timeout_ms),
        unless_same_as: null,
      });
      const { size_bytes: sizeBytes, independent } = taken;
      await db.batch([
        db
          .update(snapshots)
          .set({ status: 'ready', sizeBytes, independent, takenAt: new Date() })
          .where(eq(snapshots.id, safety.id)),
        db
          .update(changes)
          .set({ pausedMs: Date.now() - began })
          .where(ofJob(context)),
      ]);
      return;
    } catch (error) {
      if (!(error instanceof HostCallError) || error.code !== 'SOURCE_BUSY') throw error;
      if (attempt + 1 >= attempts) {
        await store(context, { ...change, reason: 'source_busy' });
        throw new ChangeStoppedError('the safety snapshot could not be taken');
      }
      await scheduler.wait(backoff(attempt, PAUSE));
    }
  }
}

type Ended = { reason: StopReason | null } & Pick<ChangeRow, 'done'> &
  Partial<Pick<ChangeRow, 'schemaDone'> & Pick<AppliedChange, 'error' | 'steps'>>;

const store = (context: Context, { reason, done, schemaDone = null, error = null, steps = [] }: Ended) =>
  context.db
    .update(changes)
    .set({
      done,
      schemaDone,
      application: { reason, error, steps, at: new Date().toISOString() },
      ...(reason === 'stale' && { stale: true }),
    })
    .where(ofJob(context));

/** A step is bounded if it held a strong lock on the clone. */
const paramsOf = ({ job }: Context, { change, branch }: Applying): Params<'change.apply'> => {
  const { plan, rehearsal, options, done, schemaDone } = change;
  return {
    project_id: job.projectId,
    job_id: job.id,
    change_id: change.id,
    branch_id: branch.id,
    database: branch.databaseName,
    steps: plan.steps.map((step, at) => {
      const { locks = [], schema = null } = rehearsal?.steps[at] ?? {};
      return { ...step, is_bounded: locks.length > 0, schema };
    }),
    done,
    schema: schemaDone ?? plan.schema,
    lock_timeout_ms: options.lock_timeout_ms,
    attempts: options.attempts,
    budget_ms: options.accept_outage ? null : options.budget_ms,
  };
};

/** @throws ChangeStoppedError */
async function runSteps(context: Context, subject: Applying): Promise<void> {
  const applied = await context.callHost('change.apply', paramsOf(context, subject));
  const { reason, done, schema: schemaDone, error, steps } = applied;
  await store(context, { reason, done, schemaDone, error, steps });
  if (reason !== null) throw new ChangeStoppedError(`the change stopped: ${reason}`);
  subject.applied = applied;
}

const audited = (
  { db, job }: Context,
  name: 'change.applied' | 'change.stopped',
  metadata: Record<string, unknown>,
  now: Date,
): Statement[] => {
  const about = {
    id: job.id,
    projectId: job.projectId,
    branchId: job.branchId,
    metadata: { change_id: job.input.changeId, snapshot_id: job.input.snapshotId, ...metadata },
  };
  return [
    insertIf(db, auditEvents, auditEvent(name, job.input.actor, about, now), sql`true`),
    inTenantOfProject(db, job.projectId, [job.id]),
  ];
};

/** The other changes of the project were planned with the schema before. */
const outdateOthers = (db: Database, { id, projectId }: ChangeRow): Statement =>
  db
    .update(changes)
    .set({ stale: true })
    .where(and(eq(changes.projectId, projectId), ne(changes.id, id), inArray(changes.state, AT_REST)));

export const applyChangeJob = saga<'change.apply', Applying>({
  steps: [[{ name: 'snapshot', run: takeSafety }], [{ name: 'apply', run: runSteps }]],
  patience: () => WITHIN_MS,
  load: async (context) => {
    const { db, job } = context;
    const [[change], [branch], [safety]] = await db.batch([
      db.select().from(changes).where(ofJob(context)),
      db
        .select()
        .from(projectBranches)
        .where(and(eq(projectBranches.id, job.branchId), eq(projectBranches.status, 'active'))),
      db.select().from(snapshots).where(eq(snapshots.id, job.input.snapshotId)),
    ]);
    const options = change?.options;
    if (!change || !options || !branch || !safety) return null;
    return { change: { ...change, options }, branch, safety, applied: null };
  },
  complete: (context, { change, applied }, now) => {
    const { db } = context;
    const isSame = applied?.schema === change.rehearsal?.schema_after;
    return [
      ...audited(context, 'change.applied', { digest: change.digest, differences: !isSame }, now),
      changeState(db, isSame ? 'finish' : 'differ', ofJob(context), { updatedAt: now }),
      outdateOthers(db, change),
    ];
  },
  undo: {
    run: async (context) => {
      const { db, job, callHost } = context;
      const [change] = await db.select().from(changes).where(ofJob(context));
      const [branch] = await db.select().from(projectBranches).where(eq(projectBranches.id, job.branchId));
      if (!change || !branch || change.application) return;
      const settled: MethodResult<'change.settle'> = await callHost('change.settle', {
        project_id: job.projectId,
        job_id: job.id,
        change_id: change.id,
        branch_id: branch.id,
        database: branch.databaseName,
        done: change.done,
      });
      await store(context, { reason: 'interrupted', done: settled.done, schemaDone: settled.schema });
    },
    record: (context, _refused, now) => {
      const { db, job } = context;
      const reason = sql`json_extract(${changes.application}, '$.reason')`;
      return [
        ...audited(context, 'change.stopped', { error: job.error?.message ?? null }, now),
        changeState(db, 'fail', and(ofJob(context), sql`${reason} = 'refused'`), { updatedAt: now }),
        changeState(db, 'stop', and(ofJob(context), sql`${reason} is not 'refused'`), { updatedAt: now }),
        db
          .delete(snapshots)
          .where(and(eq(snapshots.id, job.input.snapshotId), eq(snapshots.status, 'making'))),
        db
          .update(changes)
          .set({ snapshotId: null })
          .where(
            and(
              eq(changes.jobId, job.id),
              sql`not ${isThere(snapshots, eq(snapshots.id, job.input.snapshotId))}`,
            ),
          ),
      ];
    },
  },
});
