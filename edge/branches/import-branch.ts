import { and, eq, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { PROGRESS_TABLES_MAX, type TableProgress } from '../../shared/project/job.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { ok, type Result } from '../../shared/result.ts';
import { nextAccessRevision, sendAccess } from '../access/send-access.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { type SecretKey, seal, unseal } from '../crypto/seal.ts';
import type { Actor, JobSubjects } from '../database/column-types.ts';
import { isUnfollowed, isUnmoving, onActiveBranch } from '../database/conditions.ts';
import { type Database, inOneBatch, insertIf, isThere, type Statement } from '../database/database.ts';
import { guardedWrite, type Requirement } from '../database/guarded-write.ts';
import {
  auditEvents,
  type BranchRow,
  importSources,
  type JobOf,
  type JobRow,
  jobs,
  projectBranches,
} from '../database/schema.ts';
import { isCancelled, isOpenOf, isUncancelled } from '../jobs/cancel-job.ts';
import { isUnchanging, newJob } from '../jobs/job-store.ts';
import { JobCancelledError, type SagaContext, SourceUnsuitableError, saga } from '../jobs/saga.ts';
import { logEvent } from '../log.ts';
import { BUSY_WAIT_MS } from './clone-source.ts';

/**
 * Imports: a database elsewhere is copied into a clone of an empty `main`, which then takes its place. Until then
 * nobody can connect to `main`, so that nothing is written that the import would replace.
 */

type Context = SagaContext<'branch.import' | 'follow.start'>;
/** Of every kind that restricts `main`, or no more. */
type OfBranch = SagaContext<'branch.import' | 'follow.start' | 'follow.cutover' | 'follow.stop'>;

const sealOwner = (jobId: string) => ['import_source', jobId];

/** Restricts the branch, or no more. The host applies it with the next revision of the access. */
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

/**
 * Opens the job of the import, with the sealed URL of its source, and closes the branch, in one batch.
 * @returns or PROJECT_BUSY while another import is open, HOST_BUSY while another job of the branch is
 */
export async function reserveImport(
  db: Database,
  keys: readonly SecretKey[],
  { jobId, snapshotId, branch, sourceUrl, hostId, actor, ...what }: ImportRequest,
  now: Date,
): Promise<Result<JobOf<'branch.import'>, Failure>> {
  const { id: branchId, projectId } = branch;
  const job = newJob(
    'branch.import',
    { branchId, snapshotId, ...what },
    { id: jobId, projectId, hostId, actor },
    now,
  );
  const source = await sealedSource(keys, job, sourceUrl);
  const { source: from, tables } = what;
  const about = { projectId, branchId, metadata: { job_id: jobId, ...from, tables } };
  const event = auditEvent('branch.import.started', actor, about, now);
  const written = await guardedWrite(db, {
    first: [jobs, job],
    require: [...onActiveBranch(branch, actor.tenantId), ...beforeCopy(branch)],
    rest: (isWritten) => [
      insertIf(db, auditEvents, event, isWritten),
      ...beginCopy(db, branch, source, isWritten),
    ],
  });
  return written.ok ? ok(job) : written;
}

/** What allows a copy from elsewhere into the branch. */
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
    .set({ hold: 'import' })
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

/** Restricts the branch of the job, or no more, there and here. */
export const restrict = (hold: BranchRow['hold']) => async (context: OfBranch) => {
  const { db, job } = context;
  await inOneBatch(db, setHold(db, { id: job.branchId, projectId: job.projectId }, hold));
  await applyAccess(context);
};

/** Of the audit event of a copy that is done. */
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
  const { tables, roomBytes, jobs: concurrent } = job.input;
  if (subject.copied === null) {
    const result = await callHost('transfer.copy', {
      ...identity(context, subject.branch),
      source_url: requireSourceUrl(subject),
      tables,
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

/** The copy, the exchange and the opening are each confirmed by the host if they are repeated. */
export const importBranchJob = saga<'branch.import', Copying>({
  steps: [
    // Nobody may write into `main` any more when it is cloned.
    [{ name: 'close', run: restrict('import') }],
    [{ name: 'copy', run: (context, subject) => copy(context, subject, null) }],
    [{ name: 'swap', run: swapIn }],
    [{ name: 'open', run: restrict(null) }],
    [{ name: 'discard', run: discard }],
  ],
  patience: () => WITHIN_MS,
  load: loadCopy,
  complete: ({ db, job }, { copied }, now) => {
    const metadata = copiedMetadata(job.input, copied);
    const about = { id: job.id, projectId: job.projectId, branchId: job.branchId, metadata };
    return [
      insertIf(db, auditEvents, auditEvent('branch.imported', job.input.actor, about, now), sql`true`),
      inTenantOfProject(db, job.projectId, [job.id]),
      db.update(projectBranches).set({ updatedAt: now }).where(eq(projectBranches.id, job.branchId)),
      forgetSource({ db, job }),
    ];
  },
  undo: {
    run: async (context) => {
      const { job, callHost } = context;
      const { id: job_id, projectId: project_id, branchId: branch_id } = job;
      // The copy would hold the lock of the branch for as long as it lasts.
      await callHost('transfer.cancel', { job_id, project_id });
      await callHost('reset.cancel', { job_id, project_id, branch_id, snapshot_id: job.input.snapshotId });
      await restrict(null)(context);
    },
    record: ({ db, job }) => [forgetSource({ db, job })],
  },
});

export const forgetSource = ({ db, job }: Pick<Context, 'db' | 'job'>): Statement =>
  db.delete(importSources).where(eq(importSources.jobId, job.id));

/** A validated request to fill an empty branch from a source that was probed. */
export interface ImportRequest extends Omit<JobSubjects['branch.import'], 'branchId'> {
  jobId: string;
  branch: BranchRow;
  /** With the password. */
  sourceUrl: string;
  hostId: string;
  actor: Actor;
}
