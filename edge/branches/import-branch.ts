import { and, eq, inArray, isNull, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { PROGRESS_TABLES_MAX, type TableProgress } from '../../shared/project/job.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { nextAccessRevision, sendAccess } from '../access/send-access.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { type SecretKey, seal, unseal } from '../crypto/seal.ts';
import type { Actor, JobSubjects } from '../database/column-types.ts';
import { onActiveBranch } from '../database/conditions.ts';
import { type Database, inOneBatch, insertIf, isThere, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import {
  auditEvents,
  type BranchRow,
  importSources,
  type JobOf,
  type JobRow,
  jobs,
  projectBranches,
} from '../database/schema.ts';
import { isUnchanging, newJob, OPEN_STATUSES } from '../jobs/job-store.ts';
import { CANCELLED, JobCancelledError, type SagaContext, SourceUnsuitableError, saga } from '../jobs/saga.ts';
import { BUSY_WAIT_MS } from './clone-source.ts';

/**
 * Imports: a database elsewhere is copied into a clone of an empty `main`, which then takes its place. Until then
 * nobody can connect to `main`, so that nothing is written that the import would replace.
 */

type Context = SagaContext<'branch.import'>;

const sealOwner = (jobId: string) => ['import_source', jobId];

/** Admits nobody to the branch, or everybody again. The host applies it with the next revision of the access. */
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
  const { keyId, sealed } = await seal(keys, sealOwner(jobId), sourceUrl);
  const source = { jobId, projectId, keyId, sealedUrl: sealed, copied: null, createdAt: now };
  const { source: from, tables } = what;
  const about = { projectId, branchId, metadata: { job_id: jobId, ...from, tables } };
  const event = auditEvent('branch.import.started', actor, about, now);
  const written = await guardedWrite(db, {
    first: [jobs, job],
    require: [
      ...onActiveBranch(branch, actor.tenantId),
      [sql`not ${isThere(jobs, isOpenImport(projectId))}`, 'PROJECT_BUSY'],
      [isUnchanging(branchId), 'HOST_BUSY'],
    ],
    rest: (isWritten) => [
      insertIf(db, importSources, source, isWritten),
      insertIf(db, auditEvents, event, isWritten),
      nextAccessRevision(db, projectId, isWritten),
      db
        .update(projectBranches)
        .set({ hold: 'import' })
        .where(and(eq(projectBranches.id, branchId), isWritten)),
    ],
  });
  return written.ok ? ok(job) : written;
}

const isOpenImport = (projectId: string) =>
  and(eq(jobs.projectId, projectId), eq(jobs.kind, 'branch.import'), inArray(jobs.status, OPEN_STATUSES));

/** The open import of a project. */
const openImport = (db: Database, projectId: string) => db.select().from(jobs).where(isOpenImport(projectId));

/** Whether the host has not reported the end of the copy. Afterwards `main` is exchanged. */
const isCopying = (jobId: string) =>
  isThere(importSources, and(eq(importSources.jobId, jobId), isNull(importSources.copied)));
const isUncancelled = (jobId: string) =>
  isThere(jobs, and(eq(jobs.id, jobId), isNull(jobs.error), inArray(jobs.status, OPEN_STATUSES)));

/**
 * Decides that the open import of the project is undone, whatever its present attempt does.
 * @returns the job; or NOT_FOUND, IMPORT_FINISHING
 */
export async function storeCancellation(
  db: Database,
  { projectId, actor }: ImportCancellation,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const [job] = await openImport(db, projectId);
  if (!job) return fail({ code: 'NOT_FOUND' });
  const thisJob = eq(jobs.id, job.id);
  const about = { projectId, ...(job.branchId && { branchId: job.branchId }), metadata: { job_id: job.id } };
  const error = { code: CANCELLED, message: 'a client has cancelled it' };
  const written = await guardedWrite(db, {
    first: (isAllowed) =>
      db
        .update(jobs)
        .set({ error, updatedAt: now })
        .where(and(thisJob, isNull(jobs.error), isAllowed)),
    require: [
      [isThere(jobs, and(isOpenImport(projectId), thisJob)), 'NOT_FOUND'],
      [isCopying(job.id), 'IMPORT_FINISHING'],
    ],
    rest: (isAllowed) =>
      actor
        ? [
            insertIf(
              db,
              auditEvents,
              auditEvent('branch.import.cancelled', actor, about, now),
              sql`${isAllowed} and ${isUncancelled(job.id)}`,
            ),
          ]
        : [],
    returns: db.select().from(jobs).where(thisJob),
  });
  return written.ok ? ok(written.value[0] ?? job) : written;
}

interface Importing {
  branch: BranchRow;
  /** Null once the copy is made. */
  sourceUrl: string | null;
  copied: NonNullable<MethodResult<'transfer.copy'>['copied']> | null;
}

const identity = ({ job }: Context, { databaseName }: Pick<BranchRow, 'databaseName'>) => ({
  job_id: job.id,
  project_id: job.projectId,
  branch_id: job.branchId,
  database: databaseName,
});

const applyAccess = ({ db, settings, callHost, job }: Context) =>
  sendAccess(db, settings.CREDENTIAL_KEYS, callHost, job.projectId);

/** Nobody may write into `main` any more when it is cloned. */
async function close(context: Context): Promise<void> {
  const { db, job } = context;
  await inOneBatch(db, setHold(db, { id: job.branchId, projectId: job.projectId }, 'import'));
  await applyAccess(context);
}

async function open(context: Context): Promise<void> {
  const { db, job } = context;
  await inOneBatch(db, setHold(db, { id: job.branchId, projectId: job.projectId }, null));
  await applyAccess(context);
}

const doneTables = (tables: Importing['copied']): TableProgress[] =>
  (tables?.tables ?? [])
    .slice(0, PROGRESS_TABLES_MAX)
    .map(({ schema, table, rows }) => ({ schema, table, state: 'copied', rows, percent: 100 }));

async function isCancelled(db: Database, jobId: string): Promise<boolean> {
  const [row] = await db.select({ error: jobs.error }).from(jobs).where(eq(jobs.id, jobId));
  return row?.error != null;
}

/** @throws SourceUnsuitableError with everything that is wrong, JobCancelledError */
async function copy(context: Context, subject: Importing): Promise<void> {
  const { db, job, callHost, report } = context;
  const { tables, roomBytes, jobs: concurrent } = job.input;
  if (subject.sourceUrl !== null) {
    const result = await callHost('transfer.copy', {
      ...identity(context, subject.branch),
      ...{ source_url: subject.sourceUrl, tables, room_bytes: roomBytes, jobs: concurrent },
      busy_wait: BUSY_WAIT_MS,
      follow: null,
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

/** While an import runs, calls of the host time out and are repeated, which is no failure. */
const WITHIN_MS = 30 * 86_400_000;

/** The copy, the exchange and the opening are each confirmed by the host if they are repeated. */
export const importBranchJob = saga<'branch.import', Importing>({
  steps: [
    [{ name: 'close', run: close }],
    [{ name: 'copy', run: copy }],
    [
      {
        name: 'swap',
        run: (context, { branch }) =>
          context.callHost('reset.swap', {
            ...identity(context, branch),
            snapshot_id: context.job.input.snapshotId,
          }),
      },
    ],
    [{ name: 'open', run: open }],
    [
      {
        name: 'discard',
        // `main` was empty.
        run: ({ callHost, job }) =>
          callHost('snapshot.drop', { project_id: job.projectId, snapshot_id: job.input.snapshotId }),
      },
    ],
  ],
  patience: () => WITHIN_MS,
  load: async ({ db, job, settings }) => {
    const [[branch], [source]] = await db.batch([
      db
        .select()
        .from(projectBranches)
        .where(and(eq(projectBranches.id, job.branchId), eq(projectBranches.status, 'active'))),
      db.select().from(importSources).where(eq(importSources.jobId, job.id)),
    ]);
    if (!branch || !source) return null;
    const { copied, keyId, sealedUrl } = source;
    if (copied?.copied) return { branch, sourceUrl: null, copied: copied.copied };
    const sealed = { keyId, sealed: sealedUrl };
    const sourceUrl = await unseal(settings.CREDENTIAL_KEYS, sealOwner(job.id), sealed);
    return { branch, sourceUrl, copied: null };
  },
  complete: ({ db, job }, { copied }, now) => {
    const { source, tables } = job.input;
    const metadata = {
      ...source,
      tables,
      rows: copied?.rows ?? null,
      size_bytes: copied?.size_bytes ?? null,
    };
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
      await open(context);
    },
    record: ({ db, job }) => [forgetSource({ db, job })],
  },
});

const forgetSource = ({ db, job }: Pick<Context, 'db' | 'job'>): Statement =>
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

/** @param actor null: the project is being deleted */
export interface ImportCancellation {
  projectId: string;
  actor: Actor | null;
}
