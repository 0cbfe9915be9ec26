import { and, eq, ne, type SQL, sql } from 'drizzle-orm';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import type { Failure } from '../../shared/failures.ts';
import { MASKED_FRESH_SECONDS } from '../../shared/masking.ts';
import type { Moment } from '../../shared/moment.ts';
import { ceilingBytes, quotaBytes } from '../../shared/project/storage-quota.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import type { PreparedSource } from '../database/column-types.ts';
import { isOpenJob } from '../database/conditions.ts';
import { type Database, inOneBatch, insertIf, isThere, type Statement } from '../database/database.ts';
import {
  auditEvents,
  type BranchRow,
  type JobRow,
  jobs,
  projectBranches,
  projects,
  snapshots,
} from '../database/schema.ts';
import { HostCallError } from '../hosts/host-client.ts';
import {
  ABANDON_AFTER_MS,
  MASKING_WITHIN_MS,
  MaskingIncompleteError,
  OvertakenError,
  type SagaContext,
  SourceUnsuitableError,
  TimeNotRecoverableError,
} from '../jobs/saga.ts';
import { noPolicy, policyOfVersion, readMasking } from '../masking/policy.ts';
import { FULL_CONTENT } from './branch.ts';
import { BUSY_WAIT_MS, type CloneSource, ofBranch } from './clone-source.ts';
import { newSnapshot } from './snapshot.ts';

/**
 * Sources with other data than the branch that they are of: a snapshot that the host recovers as of an earlier time, masks or
 * empties before it is cloned. A masked one of the present serves every branch until the policy changes, or it is too old.
 */

/** The kinds of jobs that can begin with one. */
type PreparingKind = 'branch.create' | 'branch.reset' | 'branch.diff' | 'change.undo' | 'change.rehearse';
type Context = SagaContext<PreparingKind>;

const preparedOf = (job: Pick<JobRow, 'input'>): PreparedSource | undefined =>
  'prepared' in job.input ? job.input.prepared : undefined;

/** Only this job clones it. */
export const isOwn = ({ data, recovery }: PreparedSource): boolean =>
  data !== 'masked' || recovery !== undefined;

/** When a job has the steps of this file. */
const isMade = (job: JobRow): boolean => preparedOf(job)?.madeBy != null;
const isRecovered = (job: JobRow): boolean => preparedOf(job)?.recovery !== undefined;
export const isMasked = (job: JobRow): boolean => isMade(job) && preparedOf(job)?.data !== 'full';
const isCompared = (job: JobRow): boolean => preparedOf(job)?.madeBy === null;
const isDiscarded = (job: JobRow): boolean => {
  const prepared = preparedOf(job);
  return prepared !== undefined && isOwn(prepared);
};

/** A job that writes a whole database again may take longer than others. */
export const patienceOf = (job: JobRow): number => (isMade(job) ? MASKING_WITHIN_MS : ABANDON_AFTER_MS);

/** What a request wants of a branch. */
export interface WantedData {
  data: BranchRow['data'];
  keepTables: readonly string[];
  /** Left out: now. */
  at?: Moment | undefined;
  /** The bisection whose probe is at that time. */
  bisectionId?: string;
}

/**
 * The source with the data that a request wants. A branch that is masked already is cloned as it is; what it had at an earlier
 * time is not known, so that counts as unmasked.
 * @param version of the masking policy; undefined if there is none
 * @returns or MASKING_INCOMPLETE without a policy
 */
export function withData(
  branch: BranchRow,
  source: CloneSource,
  { data, keepTables, at, bisectionId }: WantedData,
  version: number | undefined,
  jobId: string,
): Result<CloneSource, Failure> {
  if (at === undefined && (data === 'full' || (data === 'masked' && branch.data === 'masked')))
    return ok(source);
  if (data === 'masked' && version === undefined) return fail(noPolicy());
  const about = {
    snapshotId: crypto.randomUUID(),
    data,
    version: data === 'masked' ? (version ?? null) : null,
    keepTables: [...keepTables],
  };
  const recovery = at && {
    at,
    snapshotId: data === 'full' ? about.snapshotId : crypto.randomUUID(),
    ...(bisectionId !== undefined && { bisectionId }),
  };
  return ok({
    branchId: branch.id,
    database: snapshotDatabaseName(about.snapshotId),
    snapshot: null,
    content: { data, keepTables: about.keepTables, maskingVersion: about.version, checkedAt: null },
    prepared: { ...about, ...(recovery && { recovery }), madeBy: jobId, branchId: branch.id, of: branch },
  });
}

/**
 * The branch itself at an earlier time, with the data that it may have. An emptied branch would lose the rows that its users have
 * written since, so it is recovered in full.
 */
export const ofEarlier = (branch: BranchRow, at: Moment, version: number | undefined, jobId: string) => {
  const { data, keepTables } = branch.data === 'none' ? FULL_CONTENT : branch;
  return withData(branch, ofBranch(branch), { data, keepTables, at }, version, jobId);
};

export const isOf = (snapshotId: SQL | string) =>
  sql`json_extract(${jobs.input}, '$.prepared.snapshotId') = ${snapshotId}`;

/** What the job stores of its source. */
export function preparedInput({ prepared }: CloneSource): { prepared?: PreparedSource } {
  if (!prepared) return {};
  const { of: _branch, ...stored } = prepared;
  return { prepared: stored };
}

/** Records the snapshot that the job is to make, unless another job makes it. */
export function preparedStatements(
  db: Database,
  { prepared }: CloneSource,
  jobId: string,
  condition: SQL,
  now: Date,
): Statement[] {
  if (!prepared || prepared.madeBy !== jobId) return [];
  const { snapshotId, of: branch, data, keepTables, version, recovery } = prepared;
  const expiresAt = new Date(now.getTime() + MASKED_FRESH_SECONDS * 1000);
  const masked = {
    id: snapshotId,
    kind: 'masked' as const,
    content: { data, keepTables, maskingVersion: version, checkedAt: null },
  };
  const recovered = recovery && {
    id: recovery.snapshotId,
    kind: 'recovered' as const,
    content: FULL_CONTENT,
  };
  return [...(recovered ? [recovered] : []), ...(data === 'full' ? [] : [masked])].map((one) =>
    insertIf(db, snapshots, newSnapshot({ ...one, branch, expiresAt }, now), condition),
  );
}

/** What the host is to make of a branch. */
interface Wanted {
  snapshotId: string;
  branch: BranchRow;
  /** Left out: the database of the branch. */
  source?: string | undefined;
  /** The job that makes it: another one with the same call joins it. */
  madeBy: string;
  version: number | null;
  keepTables: string[];
  /** The snapshot before, which makes this one unnecessary if nothing has changed. */
  unlessSameAs?: string | undefined;
}

/**
 * Has the host make a snapshot with other data. It makes nothing if the policy does not cover the branch.
 * @throws MaskingIncompleteError also if PostgreSQL refuses the new values, for instance by a constraint
 */
export async function maskOnHost(
  { db, job, settings, callHost }: SagaContext,
  { snapshotId, branch, source = branch.databaseName, madeBy, version, keepTables, unlessSameAs }: Wanted,
): Promise<{ size_bytes: number; taken: boolean }> {
  const { projectId } = job;
  const masking =
    version === null ? null : await readMasking(db, settings.CREDENTIAL_KEYS, { projectId, version, branch });
  if (version !== null && !masking) throw new OvertakenError();
  const { masked, unchanged, problems, size_bytes } = await callHost('snapshot.mask', {
    job_id: madeBy,
    project_id: projectId,
    branch_id: branch.id,
    snapshot_id: snapshotId,
    source,
    busy_wait: BUSY_WAIT_MS,
    masking,
    keep_tables: keepTables,
    unless_same_as: unlessSameAs ?? null,
  }).catch((error: unknown) => {
    if (error instanceof HostCallError && error.code === 'STATEMENT_REFUSED')
      throw new MaskingIncompleteError([], `PostgreSQL: ${error.message}`);
    throw error;
  });
  if (!masked) throw new MaskingIncompleteError(problems);
  return { size_bytes, taken: !unchanged };
}

/** No row if it was deleted. */
const sourceBranch = (db: Database, { branchId }: PreparedSource) =>
  db
    .select()
    .from(projectBranches)
    .where(and(eq(projectBranches.id, branchId), ne(projectBranches.status, 'deleted')));

/** Sessions that copy the rows of what is recovered. */
const RECOVERY_JOBS = 2;

/**
 * Has the host recover the branch as of an earlier time, unless it has done so.
 * @throws TimeNotRecoverableError, SourceUnsuitableError
 */
async function recoverSource({ db, job, callHost }: Context): Promise<void> {
  const prepared = preparedOf(job);
  if (!prepared?.recovery) throw new Error(`job ${job.id} recovers nothing`);
  const { at, snapshotId, bisectionId } = prepared.recovery;
  const [[branch], [project]] = await db.batch([
    sourceBranch(db, prepared),
    db.select().from(projects).where(eq(projects.id, job.projectId)),
  ]);
  if (!branch || !project) throw new OvertakenError();
  const { recovered, window, findings } = await callHost('past.recover', {
    job_id: job.id,
    project_id: job.projectId,
    branch_id: branch.id,
    snapshot_id: snapshotId,
    at,
    // As much as the branch itself may have.
    room_bytes: ceilingBytes(quotaBytes(project.storageQuotaGib)),
    jobs: RECOVERY_JOBS,
    ...(bisectionId !== undefined && { bisection_id: bisectionId }),
  });
  if (recovered) return;
  const [finding] = findings.filter(({ severity }) => severity === 'error');
  if (finding) throw new SourceUnsuitableError(finding.message);
  throw new TimeNotRecoverableError(window);
}

/**
 * Makes the snapshot, unless it is there.
 * @returns when its values had been compared
 */
export async function makeSource(context: Context): Promise<Date> {
  const { db, job } = context;
  const prepared = preparedOf(job);
  if (!prepared?.madeBy) throw new Error(`job ${job.id} makes no source`);
  const { snapshotId, madeBy, version, keepTables, recovery } = prepared;
  const source = recovery && snapshotDatabaseName(recovery.snapshotId);
  const [known] = await db.select().from(snapshots).where(eq(snapshots.id, snapshotId));
  if (known?.status === 'ready' && known.checkedAt) return known.checkedAt;
  const [branch] = await sourceBranch(db, prepared);
  if (!branch) throw new OvertakenError();
  const wanted = { snapshotId, branch, source, madeBy, version, keepTables };
  const { size_bytes } = await maskOnHost(context, wanted);
  const now = new Date();
  const status = isOwn(prepared) ? 'making' : 'ready';
  await inOneBatch(db, [
    db
      .update(snapshots)
      .set({ status, sizeBytes: size_bytes, independent: true, takenAt: now, checkedAt: now })
      .where(and(eq(snapshots.id, snapshotId), eq(snapshots.status, 'making'))),
  ]);
  return now;
}

/**
 * Compares the policy with the branch as it is now: the masked snapshot can be older than its last migration. It runs
 * beside the clone, which no login can enter before this step has succeeded.
 * @throws MaskingIncompleteError
 */
async function compareSource(context: Context): Promise<void> {
  const { db, job, callHost } = context;
  const prepared = preparedOf(job);
  if (prepared?.version == null) throw new Error(`job ${job.id} has no policy`);
  const { projectId } = job;
  const [[policy], [branch]] = await db.batch([
    policyOfVersion(db, { projectId, version: prepared.version }),
    sourceBranch(db, prepared),
  ]);
  if (!policy || !branch) throw new OvertakenError();
  const { rules, unlisted } = policy;
  const { id: branch_id, databaseName: database } = branch;
  const { problems } = await callHost('masking.inspect', {
    branch_id,
    database,
    rules,
    unlisted,
    sample: false,
  }).catch((error: unknown) => {
    if (!(error instanceof HostCallError) || !NOT_COMPARED.has(error.code)) throw error;
    throw new MaskingIncompleteError([], `It could not be compared with the branch: ${error.message}`);
  });
  if (problems.length > 0) throw new MaskingIncompleteError(problems);
}

/** Failures of a session in the branch. */
const NOT_COMPARED: ReadonlySet<string> = new Set([
  'STATEMENT_REFUSED',
  'LOGIN_REFUSED',
  'TIME_LIMIT_REACHED',
]);

/** Another open job clones the snapshot too. */
const isShared = (snapshotId: string, jobId: string): SQL =>
  isThere(jobs, and(isOf(snapshotId), isOpenJob, ne(jobs.id, jobId)));

const dropOnHost = ({ job, callHost }: Context, snapshot_id: string) =>
  callHost('snapshot.drop', { project_id: job.projectId, snapshot_id });

/** Drops the snapshots on the host, if nobody else needs them. */
export async function dropSource(context: Context): Promise<void> {
  const { db, job } = context;
  const prepared = preparedOf(job);
  if (!prepared?.madeBy) return;
  const { snapshotId, recovery } = prepared;
  if (recovery && recovery.snapshotId !== snapshotId) await dropOnHost(context, recovery.snapshotId);
  const isKept = isThere(snapshots, and(eq(snapshots.id, snapshotId), eq(snapshots.status, 'ready')));
  const [found] = await db
    .select({ needed: sql<number>`${isKept} or ${isShared(snapshotId, job.id)}` })
    .from(sql`(select 1)`);
  if (found?.needed) return;
  await dropOnHost(context, snapshotId);
}

/** Steps of a job that begins with such a source, beside the one that masks it. */
export const RECOVERING = { name: 'recover', when: isRecovered, run: recoverSource };
export const COMPARING = { name: 'compare', when: isCompared, run: compareSource };
export const DISCARDING = { name: 'discard', when: isDiscarded, run: dropSource };

/** Forgets the snapshot, if it was dropped. */
export function forgetSource({ db, job }: Pick<Context, 'db' | 'job'>): Statement[] {
  const prepared = preparedOf(job);
  if (!prepared?.madeBy) return [];
  const { snapshotId, recovery } = prepared;
  const thisOne = and(eq(snapshots.id, snapshotId), eq(snapshots.status, 'making'));
  return [
    db.delete(snapshots).where(and(thisOne, sql`not ${isShared(snapshotId, job.id)}`)),
    ...(recovery ? [db.delete(snapshots).where(eq(snapshots.id, recovery.snapshotId))] : []),
  ];
}

/** What a job has recovered, for the audit log. @param isDone that the job took effect */
export function recoveryEvents(
  { db, job }: Pick<Context, 'db' | 'job'>,
  { id, branchName, projectId }: Pick<BranchRow, 'id' | 'branchName' | 'projectId'>,
  isDone: SQL,
  now: Date,
): Statement[] {
  const { branchId, recovery } = preparedOf(job) ?? {};
  if (!recovery) return [];
  const metadata = { branch_name: branchName, source_branch_id: branchId, at: recovery.at };
  const about = { id: recovery.snapshotId, projectId, branchId: id, metadata };
  return [
    insertIf(db, auditEvents, auditEvent('branch.recovered', job.input.actor, about, now), isDone),
    inTenantOfProject(db, projectId, [about.id]),
  ];
}
