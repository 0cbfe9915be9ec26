import { and, eq, inArray, ne, type SQL, sql } from 'drizzle-orm';
import { branchDatabaseName } from '../../shared/branch/database-name.ts';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { nextAccessRevision } from '../access/send-access.ts';
import { auditEvent, inTenantOfProject, noActor } from '../audit/audit-event.ts';
import type { Actor } from '../database/column-types.ts';
import { isOpenJob, isUnmoving, isUnrenamed, onActiveBranch } from '../database/conditions.ts';
import { type Database, insertIf, isThere, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import {
  auditEvents,
  type BranchRow,
  type JobOf,
  jobs,
  type ProjectRow,
  projectBranches,
} from '../database/schema.ts';
import { isUnchanging, newJob } from '../jobs/job-store.ts';
import { failureClass, type SagaContext, saga } from '../jobs/saga.ts';
import { toBranchResponse } from './branch.ts';

/** Whether no job names the branch or its database, and none clones it. */
const isUnused = ({ id, projectId, databaseName }: BranchRow): SQL => sql`not exists (
    select 1 from ${jobs} where ${and(
      eq(jobs.projectId, projectId),
      isOpenJob,
      sql`(${jobs.branchId} = ${id} or instr(${jobs.input}, ${id}) > 0
        or json_extract(${jobs.input}, '$.source') = ${databaseName})`,
    )})
  and not ${isThere(
    projectBranches,
    and(eq(projectBranches.parentBranchId, id), eq(projectBranches.status, 'creating')),
  )}`;

const hasDatabase = (branchId: string) =>
  and(eq(projectBranches.id, branchId), inArray(projectBranches.status, ['active', 'expired']));

/** Gives the record another name. The children show the database of their parent as their source. */
const nameStatements = (
  db: Database,
  branchId: string,
  { name, database }: JobOf<'branch.rename'>['input']['former'],
  condition: SQL,
  now: Date,
): Statement[] => [
  db
    .update(projectBranches)
    .set({ sourceDatabase: database })
    .where(
      and(
        eq(projectBranches.parentBranchId, branchId),
        sql`${projectBranches.sourceDatabase} = (select database_name from ${projectBranches} where id = ${branchId})`,
        condition,
      ),
    ),
  db
    .update(projectBranches)
    .set({ branchName: name, databaseName: database, updatedAt: now })
    .where(and(eq(projectBranches.id, branchId), condition)),
];

/**
 * Renames the record and opens the job that renames the database, in one batch. Until that job has ended, nobody else
 * can take the former name, so the job can be undone.
 * @param branch as it was read before
 * @returns or BRANCH_PROTECTED for `main`, BRANCH_EXISTS; HOST_BUSY while it is cloned or a job of it is open
 */
export async function reserveRename(
  db: Database,
  { jobId, project, branch, branchName, actor }: RenameRequest,
  now: Date,
): Promise<Result<JobOf<'branch.rename'>, Failure>> {
  if (branch.isDefault) return fail({ code: 'BRANCH_PROTECTED' });
  const { id: branchId, projectId } = branch;
  const former = { name: branch.branchName, database: branch.databaseName };
  const about = { id: jobId, projectId, hostId: project.hostId, actor };
  const job = newJob('branch.rename', { branchId, former }, about, now);
  const database = branchDatabaseName(project.appKey, project.env, branchName);
  const metadata = { from: former.name, to: branchName, database };
  const event = auditEvent('branch.renamed', actor, { id: jobId, projectId, branchId, metadata }, now);
  const asRead = and(eq(projectBranches.id, branchId), eq(projectBranches.databaseName, former.database));
  const written = await guardedWrite(db, {
    decides: [jobs, job],
    require: [
      ...onActiveBranch(branch, actor.tenantId),
      isUnmoving(projectId),
      [isThere(projectBranches, asRead), 'HOST_BUSY'],
      [isUnused(branch), 'HOST_BUSY'],
      isUnrenamed(projectId, [branchName]),
    ],
    rest: (isWritten) => [
      insertIf(db, auditEvents, event, isWritten),
      // A host that is restored to a time before has an older revision, by which its name is found to differ.
      nextAccessRevision(db, projectId, isWritten),
      ...nameStatements(db, branchId, { name: branchName, database }, isWritten, now),
    ],
    conflicts: { project_branches: 'BRANCH_EXISTS' },
  });
  return written.ok ? ok(job) : written;
}

/** @returns null unless the branch has the name already, with the job that may still rename its database */
export async function alreadyRenamed(
  db: Database,
  { branch: { id }, branchName }: RenameRequest,
): Promise<{ branch: BranchRow; jobId: string | undefined } | null> {
  const [[branch], [open]] = await db.batch([
    db
      .select()
      .from(projectBranches)
      .where(and(hasDatabase(id), eq(projectBranches.branchName, branchName))),
    db
      .select({ id: jobs.id })
      .from(jobs)
      .where(and(eq(jobs.branchId, id), eq(jobs.kind, 'branch.rename'), isOpenJob)),
  ]);
  return branch ? { branch, jobId: open?.id } : null;
}

/** Opens the job for a branch whose database has another name on its host than in the records. */
export async function reserveRenameOnHost(
  db: Database,
  branchId: string,
  hostId: string,
  now: Date,
): Promise<void> {
  const [branch] = await db.select().from(projectBranches).where(hasDatabase(branchId));
  if (!branch) return;
  const { projectId, tenantId, createdBy, branchName: name, databaseName: database } = branch;
  const about = { id: crypto.randomUUID(), projectId, hostId, actor: noActor(tenantId), createdBy };
  const job = newJob('branch.rename', { branchId, former: { name, database } }, about, now);
  await guardedWrite(db, {
    decides: [jobs, job],
    require: [isUnmoving(projectId), [isUnchanging(branchId), 'HOST_BUSY']],
  });
}

const subjectOf = async ({ db, job }: SagaContext<'branch.rename'>): Promise<BranchRow | null> => {
  const [branch] = await db.select().from(projectBranches).where(hasDatabase(job.branchId));
  return branch ?? null;
};

const renameOnHost = ({ job, callHost }: SagaContext<'branch.rename'>, database: string) =>
  callHost('branch.rename', {
    job_id: job.id,
    project_id: job.projectId,
    branch_id: job.branchId,
    database,
  });

export const renameResponse = (branch: BranchRow) => ({ status: 200, body: toBranchResponse(branch) });

/** Makes the host's name of the database that of the record. */
export const renameBranchJob = saga<'branch.rename', BranchRow>({
  steps: [[{ name: 'rename', run: (context, { databaseName }) => renameOnHost(context, databaseName) }]],
  load: subjectOf,
  complete: () => [],
  response: renameResponse,
  undo: {
    // A branch that was deleted meanwhile is dropped under whichever name it has.
    run: async (context) => {
      const { database } = context.job.input.former;
      const branch = await subjectOf(context);
      // Without a new name in the records, the next reconciliation begins again.
      if (!branch || branch.databaseName === database) return;
      await renameOnHost(context, database).catch((error) => {
        // The host has no database of the branch, under either name.
        if (failureClass(error) !== 'permanent') throw error;
      });
    },
    record: ({ db, job }, _refused, now) => {
      const { projectId, branchId, input } = job;
      const { former, actor } = input;
      const isRenamed = isThere(
        projectBranches,
        and(hasDatabase(branchId), ne(projectBranches.databaseName, former.database)),
      );
      const metadata = { to: former.name, database: former.database, undone: true };
      const event = auditEvent('branch.renamed', actor, { projectId, branchId, metadata }, now);
      return [
        insertIf(db, auditEvents, event, isRenamed),
        inTenantOfProject(db, projectId, [event.id]),
        ...nameStatements(db, branchId, former, isRenamed, now),
      ];
    },
  },
});

/** A validated request to give a branch another name. */
export interface RenameRequest {
  jobId: string;
  project: ProjectRow;
  branch: BranchRow;
  branchName: string;
  actor: Actor;
}
