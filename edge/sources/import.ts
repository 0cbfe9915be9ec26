import { and, eq, type SQL, sql } from 'drizzle-orm';
import { PROGRESS_TABLES_MAX, type TableProgress } from '../../shared/project/job.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { nextAccessRevision, sendAccess } from '../access/send-access.ts';
import { BUSY_WAIT_MS } from '../branches/clone-source.ts';
import { type SecretKey, seal, unseal } from '../crypto/seal.ts';
import { isUnfollowed, isUnmoving } from '../database/conditions.ts';
import { type Database, inOneBatch, insertIf, isThere, type Statement } from '../database/database.ts';
import type { Requirement } from '../database/guarded-write.ts';
import { type BranchRow, type JobRow, jobs, projectBranches } from '../database/schema.ts';
import { importSources } from '../database/source-schema.ts';
import { isCancelled, isOpenOf, isUncancelled } from '../jobs/cancel-job.ts';
import { isUnchanging } from '../jobs/job-store.ts';
import { JobCancelledError, type SagaContext, SourceUnsuitableError } from '../jobs/saga.ts';
import { logEvent } from '../log.ts';
import { HOLDS, type SourceState } from './states.ts';

/**
 * The copy of a database elsewhere into a clone of an empty `main`, which then takes its place. Until then nobody can
 * connect to `main`, so that nothing is written that the copy would replace.
 */

type Context = SagaContext<'branch.import' | 'follow.start'>;
/** Jobs that set or remove the hold of `main`. */
type OfBranch = SagaContext<'branch.import' | 'follow.start' | 'follow.cutover' | 'follow.stop'>;

const sealOwner = (jobId: string) => ['import_source', jobId];

/** Sets the hold of a branch. The host applies it with the next revision of the access. */
const setHold = (db: Database, branch: { id: string; projectId: string }, hold: BranchRow['hold']) => {
  const isOther = isThere(
    projectBranches,
    and(eq(projectBranches.id, branch.id), sql`${projectBranches.hold} is not ${hold}`),
  );
  return [
    nextAccessRevision(db, branch.projectId, isOther),
    db.update(projectBranches).set({ hold }).where(eq(projectBranches.id, branch.id)),
  ];
};

/** Conditions of a copy from elsewhere into the branch. */
export const beforeCopy = ({ id, projectId }: Pick<BranchRow, 'id' | 'projectId'>) =>
  [
    ...(['branch.import', 'follow.start'] as const).map(
      (kind) => [sql`not ${isThere(jobs, isOpenOf(projectId, kind))}`, 'PROJECT_BUSY'] as const,
    ),
    isUnfollowed(id),
    isUnmoving(projectId),
    [isUnchanging(id), 'HOST_BUSY'],
  ] as const satisfies readonly Requirement[];

/** The row with the URL of the source of a job. */
export async function sealedSource(
  keys: readonly SecretKey[],
  { id: jobId, projectId, createdAt }: Pick<JobRow, 'id' | 'projectId' | 'createdAt'>,
  url: string,
): Promise<typeof importSources.$inferInsert> {
  const { keyId, sealed } = await seal(keys, sealOwner(jobId), url);
  return { jobId, projectId, keyId, sealedUrl: sealed, copied: null, createdAt };
}

/** Stores the source, and closes the branch. */
export const beginCopy = (
  db: Database,
  { id, projectId }: Pick<BranchRow, 'id' | 'projectId'>,
  source: typeof importSources.$inferInsert,
  isWritten: SQL,
): Statement[] => [
  insertIf(db, importSources, source, isWritten),
  nextAccessRevision(db, projectId, isWritten),
  db
    .update(projectBranches)
    .set({ hold: HOLDS.copying })
    .where(and(eq(projectBranches.id, id), isWritten)),
];

export interface Copying {
  jobId: string;
  branch: BranchRow;
  /** Null if it can no longer be decrypted. */
  sourceUrl: string | null;
  /** Null until the copy is made. */
  copied: NonNullable<MethodResult<'transfer.copy'>['copied']> | null;
}

const identity = ({ job }: Context, { databaseName }: Pick<BranchRow, 'databaseName'>) => ({
  job_id: job.id,
  project_id: job.projectId,
  branch_id: job.branchId,
  database: databaseName,
});

const applyAccess = ({ db, settings, callHostOf, job }: SagaContext) =>
  sendAccess(db, settings.CREDENTIAL_KEYS, callHostOf, job.projectId);

/** Holds the branch of the job as the state says, on its host and in the records. */
export const holdAs = (state: SourceState) => async (context: OfBranch) => {
  const { db, job } = context;
  await inOneBatch(db, setHold(db, { id: job.branchId, projectId: job.projectId }, HOLDS[state]));
  await applyAccess(context);
};

/** The metadata of the audit event of a finished copy. */
export const copiedMetadata = ({ source, tables }: Context['job']['input'], copied: Copying['copied']) => ({
  ...source,
  tables,
  rows: copied?.rows ?? null,
  size_bytes: copied?.size_bytes ?? null,
});

export const doneTables = (done: Pick<NonNullable<Copying['copied']>, 'tables'> | null): TableProgress[] =>
  (done?.tables ?? [])
    .slice(0, PROGRESS_TABLES_MAX)
    .map(({ schema, table, rows }) => ({ schema, table, state: 'copied', rows, percent: 100 }));

/** @throws SourceUnsuitableError with everything that is wrong, JobCancelledError */
export async function copy(
  context: Context,
  subject: Copying,
  follow: Params<'transfer.copy'>['follow'],
): Promise<void> {
  const { db, job, callHost, report } = context;
  const { tables, leftAlone, roomBytes, jobs: concurrent } = job.input;
  if (subject.copied === null) {
    const result = await callHost('transfer.copy', {
      ...identity(context, subject.branch),
      source_url: requireSourceUrl(subject),
      tables,
      ...leftAlone,
      room_bytes: roomBytes,
      jobs: concurrent,
      busy_wait: BUSY_WAIT_MS,
      follow,
    });
    if (!result.copied) {
      if (await isCancelled(db, job.id)) throw new JobCancelledError();
      const errors = result.findings.filter(({ severity }) => severity === 'error');
      throw new SourceUnsuitableError(errors.map(({ message }) => message).join(' '));
    }
    subject.copied = result.copied;
    report({ warnings: result.findings.map(({ message }) => message) });
    await db
      .update(importSources)
      .set({ copied: result })
      .where(and(eq(importSources.jobId, job.id), isUncancelled(job.id)));
    if (await isCancelled(db, job.id)) throw new JobCancelledError();
  }
  report({ tables: doneTables(subject.copied) });
}

/** While a copy runs, calls of the host time out and are repeated, which is no failure. */
export const WITHIN_MS = 30 * 86_400_000;

/** Exchanges the copy for the branch, which was empty and becomes a snapshot. */
export const swapIn = (context: Context, { branch }: Copying) =>
  context.callHost('reset.swap', {
    ...identity(context, branch),
    snapshot_id: context.job.input.snapshotId,
  });

/** Drops that snapshot. */
export const discard = ({ callHost, job }: Context) =>
  callHost('snapshot.drop', { project_id: job.projectId, snapshot_id: job.input.snapshotId });

/** The URL of the source of a job, while the job is open. @returns null if it can no longer be decrypted */
export async function readableSourceUrl(
  { settings, job }: Pick<Context, 'settings'> & { job: { id: string } },
  { keyId, sealedUrl: sealed }: Pick<typeof importSources.$inferSelect, 'keyId' | 'sealedUrl'>,
): Promise<string | null> {
  try {
    return await unseal(settings.CREDENTIAL_KEYS, sealOwner(job.id), { keyId, sealed });
  } catch (error) {
    logEvent('source.not_decrypted', { job_id: job.id, reason: String(error) });
    return null;
  }
}

/** No repetition brings back a key that is gone. @throws SourceUnsuitableError */
export function requireSourceUrl({ sourceUrl }: Pick<Copying, 'sourceUrl'>): string {
  if (sourceUrl !== null) return sourceUrl;
  throw new SourceUnsuitableError('The URL of the source can no longer be decrypted. Begin again with it.');
}

export async function loadCopy(context: Context): Promise<Copying | null> {
  const { db, job } = context;
  const [[branch], [source]] = await db.batch([
    db
      .select()
      .from(projectBranches)
      .where(and(eq(projectBranches.id, job.branchId), eq(projectBranches.status, 'active'))),
    db.select().from(importSources).where(eq(importSources.jobId, job.id)),
  ]);
  if (!branch || !source) return null;
  return {
    jobId: job.id,
    branch,
    sourceUrl: await readableSourceUrl(context, source),
    copied: source.copied?.copied ?? null,
  };
}

export const forgetSource = ({ db, job }: Pick<Context, 'db' | 'job'>): Statement =>
  db.delete(importSources).where(eq(importSources.jobId, job.id));
