import { and, eq, sql } from 'drizzle-orm';
import { branchDatabaseName, snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import { expiryOf } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { hasRoomFor, ruleStatements } from '../access/change-rules.ts';
import { withdrawAccess } from '../access/send-access.ts';
import type { Actor } from '../database/column-types.ts';
import { inActiveProject, isUnmoving, isUnrenamed } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import {
  type BranchRow,
  type JobOf,
  jobs,
  networkRules,
  type ProjectRow,
  projectBranches,
  type SnapshotRow,
  snapshots,
} from '../database/schema.ts';
import { type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { isUnchanging, newJob } from '../jobs/job-store.ts';
import { saga } from '../jobs/saga.ts';
import type { Settings } from '../settings.ts';
import { toBranchResponse, transition } from './branch.ts';
import { hasBranchSlots } from './branch-limit.ts';
import { type CloneSource, ofSnapshot } from './clone-source.ts';
import {
  activate,
  areActive,
  CREATION_STEPS,
  type Creation,
  loadCreation,
  undoCreation,
} from './create-branches.ts';
import { dropJob } from './drop-snapshots.ts';

/** Takes the name and a place, brings the branch's rules back and opens the job, in one batch. */
export async function reserveRestore(
  db: Database,
  settings: Settings,
  { jobId, project, branch, snapshot, branchName, actor, keyUse }: RestoreRequest,
  now: Date,
): Promise<Result<JobOf<'branch.restore'>, Failure>> {
  const { id: branchId, projectId, tenantId, createdBy } = branch;
  const about = { id: jobId, projectId, hostId: project.hostId, actor };
  const job = newJob('branch.restore', { branchId, snapshotId: snapshot.id }, about, now);
  const thisBranch = and(eq(projectBranches.id, branchId), eq(projectBranches.status, 'deleted'));
  const isKept = and(eq(snapshots.id, snapshot.id), eq(snapshots.status, 'ready'));
  const rules = snapshot.rules.map((rule) => ({
    via: 'all' as const,
    ...rule,
    id: crypto.randomUUID(),
    projectId,
    branchId,
    revision: 0,
    createdBy,
    tenantId,
    createdAt: now,
    expiresAt: null,
    listVersion: 0,
  }));
  const life = { lifespan: branch.lifespan, ttlSeconds: branch.ttlSeconds };
  const change = {
    branchName,
    databaseName: branchDatabaseName(project.appKey, project.env, branchName),
    sourceDatabase: snapshotDatabaseName(snapshot.id),
    status: 'creating',
    expiresAt: expiryOf(life, now),
    deletesAt: null,
    deletedAt: null,
    updatedAt: now,
  } as const;
  const written = await writeUnderKey(
    db,
    { use: keyUse, subjectId: job.id, now },
    {
      decides: [jobs, job],
      require: [
        ...inActiveProject(projectId, actor.tenantId),
        isUnmoving(projectId),
        [isThere(projectBranches, thisBranch), 'NOT_FOUND'],
        [isThere(snapshots, isKept), 'NOT_FOUND'],
        [isUnchanging(branchId), 'HOST_BUSY'],
        isUnrenamed(projectId, [branchName]),
        hasBranchSlots(branch, settings, 1),
        hasRoomFor(projectId, rules),
      ],
      rest: (isWritten) => [
        db.update(projectBranches).set(change).where(and(thisBranch, isWritten)),
        ...ruleStatements(db, rules, isWritten),
      ],
      conflicts: { project_branches: 'BRANCH_EXISTS' },
    },
  );
  return written.ok ? ok(job) : written;
}

/**
 * Creates the branch again, with its id and its passwords, from its kept database, which is dropped by a job
 * of its own: until the branch is active, nothing is lost by going back.
 */
export const restoreBranchJob = saga<'branch.restore', Creation>({
  steps: CREATION_STEPS,
  load: loadCreation,
  complete: ({ db, job, ...context }, creation, now) => {
    const { projectId, hostId, createdBy, input } = job;
    const snapshot = { id: input.snapshotId, projectId };
    const drop = dropJob(snapshot, { hostId, actor: input.actor, createdBy }, now);
    const isActive = areActive(creation);
    return [
      ...activate({ db, job, ...context }, creation, now, 'branch.restored'),
      insertIf(db, jobs, drop, isActive),
      db.delete(snapshots).where(and(eq(snapshots.id, snapshot.id), isActive)),
    ];
  },
  completed: areActive,
  response: ({ branches: [{ branch }] }, now) => ({
    status: 200,
    body: toBranchResponse({ ...branch, status: 'active', updatedAt: now }),
  }),
  undo: {
    run: undoCreation({ isAgain: true }).run,
    record: ({ db, job }, _refused, now) => {
      const thisBranch = eq(projectBranches.id, job.branchId);
      const kept = sql<Date>`(select expires_at from ${snapshots} where id = ${job.input.snapshotId})`;
      const stillCreating = sql`exists (select 1 from ${projectBranches} where ${and(thisBranch, eq(projectBranches.status, 'creating'))})`;
      return [
        withdrawAccess(db, job.projectId, sql`true`),
        db.delete(networkRules).where(and(eq(networkRules.branchId, job.branchId), stillCreating)),
        transition(db, 'not_restored', thisBranch, now, kept),
      ];
    },
  },
});

/**
 * The kept database of a deleted branch as a source.
 * @returns or HOST_BUSY until its size is known; NOT_FOUND if it was dropped meanwhile
 */
export async function keptSource(db: Database, snapshot: SnapshotRow): Promise<Result<CloneSource, Failure>> {
  const [kept] = await db.select().from(snapshots).where(eq(snapshots.id, snapshot.id));
  if (!kept) return fail({ code: 'NOT_FOUND' });
  // The job of the deletion records the size.
  return kept.status === 'making' ? fail({ code: 'HOST_BUSY' }) : ok(ofSnapshot(kept, false));
}

/** A validated request to bring a deleted branch back. */
export interface RestoreRequest {
  jobId: string;
  project: ProjectRow;
  branch: BranchRow;
  /** Its kept database. */
  snapshot: SnapshotRow;
  branchName: string;
  actor: Actor;
  keyUse: KeyUse | null;
}
