import { and, eq, inArray, lt, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Principal } from '../authentication/principal.ts';
import type { Actor, Comparison } from '../database/column-types.ts';
import { isNamed, isUnmoving, OPEN_STATUSES, onActiveBranch } from '../database/conditions.ts';
import { type Database, firstRow, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { differences } from '../database/history-schema.ts';
import {
  type BranchRow,
  type JobRow,
  jobs,
  projectBranches,
  type SnapshotRow,
  snapshots,
} from '../database/schema.ts';
import { HostCallError } from '../hosts/host-client.ts';
import { isCancelled } from '../jobs/cancel-job.ts';
import { newJob } from '../jobs/job-store.ts';
import { ABANDON_AFTER_MS, JobCancelledError, type SagaContext, saga } from '../jobs/saga.ts';
import { missing } from '../missing.ts';
import { branchesOf, referencedBranch, referencedBranchId } from './branch-reference.ts';
import type { CloneSource } from './clone-source.ts';
import {
  DISCARDING,
  dropSource,
  forgetSource,
  isMasked,
  makeSource,
  patienceOf,
  preparedInput,
  preparedStatements,
  RECOVERING,
} from './prepared-source.ts';
import { snapshotsOf } from './snapshot.ts';

/** A comparison that took longer than a job may is not tried again. */
const WITHIN_MS = ABANDON_AFTER_MS + 5_000;
const KEPT_MS = 7 * 86_400_000;

const isOpenIn = (projectId: string) =>
  and(eq(jobs.projectId, projectId), eq(jobs.kind, 'branch.diff'), inArray(jobs.status, OPEN_STATUSES));

/** The jobs of this comparison, finished ones included. */
export const isComparison = (branchId: string, comparison: Comparison) =>
  and(
    eq(jobs.kind, 'branch.diff'),
    eq(jobs.branchId, branchId),
    eq(sql`json_extract(${jobs.input}, '$.comparison')`, JSON.stringify(comparison)),
  );

/** The open job of the same comparison. */
export async function openComparison(
  db: Database,
  { id, projectId }: BranchRow,
  comparison: Comparison,
): Promise<JobRow | null> {
  const [open] = await db
    .select()
    .from(jobs)
    .where(and(isOpenIn(projectId), isComparison(id, comparison)));
  return open ?? null;
}

/**
 * Opens the job of a comparison. A project has one at a time: a request for the same comparison gets the open
 * one.
 * @returns PROJECT_BUSY while there is another one, BRANCH_NOT_ACTIVE
 */
export async function reserveComparison(
  db: Database,
  { jobId, branch, comparison, source, hostId, actor }: ComparisonRequest,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const { projectId } = branch;
  const about = { id: jobId, projectId, hostId, actor };
  const job = newJob(
    'branch.diff',
    { branchId: branch.id, comparison, ...(source && preparedInput(source)) },
    about,
    now,
  );
  const isOpen = isOpenIn(projectId);
  const written = await guardedWrite(db, {
    decides: [jobs, job],
    require: [
      ...onActiveBranch(branch, actor.tenantId),
      isNamed(branch.id),
      ...('branchId' in comparison.against ? [isNamed(comparison.against.branchId)] : []),
      ...(source ? [isUnmoving(projectId)] : []),
      [sql`not ${isThere(jobs, isOpen)}`, 'PROJECT_BUSY'],
    ],
    rest: (isWritten) => (source ? preparedStatements(db, source, jobId, isWritten, now) : []),
  });
  if (written.ok) return ok(job);
  const open = written.failure.code === 'PROJECT_BUSY' && (await openComparison(db, branch, comparison));
  return open ? ok(open) : written;
}

interface Comparing {
  branch: BranchRow;
  against: Params<'branch.diff'>['against'];
  result: MethodResult<'branch.diff'> | null;
}

const stopUnlessWanted = async ({ db, job }: Pick<SagaContext, 'db' | 'job'>) => {
  if (await isCancelled(db, job.id)) throw new JobCancelledError();
};

/** Compares two databases and keeps the result. An earlier time is recovered first, and dropped afterwards. */
export const compareBranchJob = saga<'branch.diff', Comparing>({
  steps: [
    [RECOVERING],
    [
      {
        name: 'mask',
        when: isMasked,
        run: async (context) => {
          await stopUnlessWanted(context);
          await makeSource(context);
        },
      },
    ],
    [
      {
        name: 'compare',
        run: async (context, subject) => {
          const { job, callHost } = context;
          const { branch, against } = subject;
          const { rows, schema } = job.input.comparison;
          const sides = { branch_id: branch.id, database: branch.databaseName, against };
          const call = {
            project_id: job.projectId,
            job_id: job.id,
            ...sides,
            rows,
            schema,
            within: WITHIN_MS,
          };
          await stopUnlessWanted(context);
          const result = await callHost('branch.diff', call);
          await stopUnlessWanted(context);
          if (!result.complete) throw new HostCallError('TIME_LIMIT_REACHED', 'the comparison took too long');
          subject.result = result;
        },
      },
    ],
    [DISCARDING],
  ],
  patience: patienceOf,
  load: async ({ db, job }) => {
    const { comparison, prepared } = job.input;
    const { against } = comparison;
    const active = (id: string) =>
      db
        .select()
        .from(projectBranches)
        .where(and(eq(projectBranches.id, id), eq(projectBranches.status, 'active')));
    const [[branch], [other], [snapshot]] = await db.batch([
      active(job.branchId),
      active('branchId' in against ? against.branchId : ''),
      db
        .select({ id: snapshots.id })
        .from(snapshots)
        .where(
          and(
            eq(snapshots.id, 'snapshotId' in against ? against.snapshotId : ''),
            eq(snapshots.status, 'ready'),
          ),
        ),
    ]);
    if (branch && prepared) return { branch, against: { snapshot_id: prepared.snapshotId }, result: null };
    if (branch && other)
      return { branch, against: { branch_id: other.id, database: other.databaseName }, result: null };
    return branch && snapshot ? { branch, against: { snapshot_id: snapshot.id }, result: null } : null;
  },
  complete: ({ db, job }, { result }, now) => [
    db
      .delete(differences)
      .where(
        and(
          eq(differences.projectId, job.projectId),
          lt(differences.createdAt, new Date(now.getTime() - KEPT_MS)),
        ),
      ),
    ...(result
      ? [
          db
            .insert(differences)
            .values({ jobId: job.id, projectId: job.projectId, result, createdAt: now })
            .onConflictDoNothing(),
        ]
      : []),
    ...forgetSource({ db, job }),
  ],
  undo: { run: dropSource, record: forgetSource },
});

/** What a branch is compared with. */
export type OtherSide = { branch: BranchRow; snapshot: null } | { branch: null; snapshot: SnapshotRow };

const PARENT = 'parent';
const NO_PARENT = 'main has no parent. Name a branch or a snapshot with `against`.';

type Caller = Pick<Principal, 'machine'>;

/**
 * The queries that find the other side of a comparison, which shows its rows: a caller that is limited to
 * branches needs both sides in its reach, although it may clone `main`.
 */
export function otherSideQueries(
  db: Database,
  { project_id: projectId, branch_ref: reference }: { project_id: string; branch_ref: string },
  against: string,
  caller: Caller,
) {
  const parentId = sql`(select parent_branch_id from ${projectBranches}
    where id = ${referencedBranchId(projectId, reference, caller)})`;
  const id = z.uuid().safeParse(against).success ? against.toLowerCase() : '';
  return [
    against === PARENT
      ? db
          .select()
          .from(projectBranches)
          .where(and(branchesOf(projectId, caller), eq(projectBranches.id, parentId)))
          .limit(1)
      : referencedBranch(db, projectId, against, caller),
    db
      .select()
      .from(snapshots)
      .where(and(snapshotsOf(projectId, caller), eq(snapshots.id, id))),
  ] as const;
}

/**
 * The other side in the results of the queries.
 * @returns or NOT_FOUND, BRANCH_NOT_ACTIVE; SOURCE_NOT_ACTIVE if the branch has no parent any more
 */
export function otherSide(
  { parentBranchId, isDefault }: BranchRow,
  against: string,
  branches: readonly BranchRow[],
  [snapshot]: readonly SnapshotRow[],
): Result<OtherSide, Failure> {
  if (against === PARENT && isDefault)
    return fail({ code: 'SOURCE_NOT_ACTIVE', fields: { message: NO_PARENT } });
  if (against === PARENT && parentBranchId === null) return fail({ code: 'SOURCE_NOT_ACTIVE' });
  if (branches.length === 0 && snapshot) return ok({ branch: null, snapshot });
  const named = firstRow(branches, missing('branch', against));
  if (!named.ok) return named;
  if (named.value.status !== 'active') return fail({ code: 'BRANCH_NOT_ACTIVE' });
  return ok({ branch: named.value, snapshot: null });
}

/** The form that the record of a job has. */
export const referenceOf = ({ branch, snapshot }: OtherSide): Comparison['against'] =>
  branch ? { branchId: branch.id } : { snapshotId: snapshot.id };

/** The form that the host takes. */
export const onHost = ({ branch, snapshot }: OtherSide): Params<'branch.diff'>['against'] =>
  branch ? { branch_id: branch.id, database: branch.databaseName } : { snapshot_id: snapshot.id };

/** A validated request for a comparison that takes long. */
export interface ComparisonRequest {
  jobId: string;
  branch: BranchRow;
  comparison: Comparison;
  /** With what is to be recovered, for a comparison with an earlier time. */
  source?: CloneSource;
  hostId: string;
  actor: Actor;
}
