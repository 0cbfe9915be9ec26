import { and, eq, sql } from 'drizzle-orm';
import { branchDatabaseName, snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import { expiryOf } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import { BRANCHES_MAX, NETWORK_RULES_MAX } from '../../shared/limits.ts';
import type { Result } from '../../shared/result.ts';
import { withdrawAccess } from '../access/access-revision.ts';
import { hasRoom, ruleStatements } from '../access/rule-statements.ts';
import { insertKey, unlessInFlight } from '../api/idempotency-key.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { jobs, networkRules, projectBranches, projects } from '../database/schema.ts';
import { snapshots } from '../database/snapshot-schema.ts';
import { isChanging, type JobRow, newJob } from '../jobs/job-store.ts';
import { reserve } from '../jobs/reservation.ts';
import { saga } from '../jobs/saga.ts';
import type { RestoreRequest } from '../projects/project-history-rpc.ts';
import type { Settings } from '../settings.ts';
import { dropJob } from '../snapshots/drop-snapshots.ts';
import { branchesOnHost, branchLimitOf, branchLimitReached, hasSlots } from './branch-limit.ts';
import { toBranchResponse } from './branch-resource.ts';
import { transition } from './branch-transition.ts';
import {
  activate,
  areActive,
  CREATION_STEPS,
  type Creation,
  loadCreation,
  undoCreation,
} from './create-branch.ts';

/** Takes the name and a slot, brings the branch's rules back and opens the job, in one batch. */
export async function reserveRestore(
  db: Database,
  settings: Settings,
  { jobId, project, branch, snapshot, branchName, actor, keyUse }: RestoreRequest,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const { id: branchId, projectId, tenantId, createdBy } = branch;
  const subject = { snapshotId: snapshot.id };
  const about = {
    id: jobId,
    kind: 'branch.restore',
    projectId,
    branchId,
    hostId: project.hostId,
    actor,
  } as const;
  const job = newJob({ ...about, subject }, now);
  const limit = branchLimitOf(branch, settings);
  const onHost = branchesOnHost(projectId);
  const isKept = sql`exists (select 1 from ${snapshots} where id = ${snapshot.id} and status = 'ready')`;
  const thisBranch = and(
    eq(projectBranches.id, branchId),
    eq(projectBranches.tenantId, actor.tenantId),
    eq(projectBranches.status, 'deleted'),
  );
  const isDeleted = sql`exists (select 1 from ${projectBranches} where ${thisBranch})`;
  const room = hasRoom(projectId, snapshot.rules.length);
  const allowed = sql`exists (select 1 from ${projects} where id = ${projectId} and status = 'active'
      and ${hasSlots(limit, 1)} and ${onHost} < ${BRANCHES_MAX})
    and ${isDeleted} and ${isKept} and not ${isChanging(branchId)} and ${room}`;
  const reserved = sql`exists (select 1 from ${jobs} where id = ${job.id})`;
  const rules = snapshot.rules.map((rule) => ({
    ...rule,
    ...{ id: crypto.randomUUID(), projectId, branchId, revision: 0, createdBy, tenantId },
    ...{ createdAt: now, expiresAt: null },
  }));
  const life = { lifespan: branch.lifespan, ttlSeconds: branch.ttlSeconds };
  const statements: Statement[] = [
    ...insertKey(db, keyUse, job.id, allowed, now),
    insertIf(db, jobs, job, allowed),
    db
      .update(projectBranches)
      .set({
        branchName,
        databaseName: branchDatabaseName(project.appKey, project.env, branchName),
        sourceDatabase: snapshotDatabaseName(snapshot.id),
        status: 'creating',
        expiresAt: expiryOf(life, now),
        deletesAt: null,
        deletedAt: null,
        updatedAt: now,
      })
      .where(and(thisBranch, reserved)),
    ...ruleStatements(db, rules, reserved),
    db
      .select({
        isChanging: sql<number>`${isDeleted} and ${isChanging(branchId)}`,
        reserved: sql<number>`${reserved}`,
        isKept: sql<number>`${isKept}`,
        room: sql<number>`${room}`,
        limit: limit.limit,
        current: limit.current,
        onHost,
      })
      .from(projects)
      .where(eq(projects.id, projectId)),
  ];
  const conflicts = { idempotency_keys: 'IDEMPOTENCY_IN_FLIGHT', project_branches: 'BRANCH_EXISTS' } as const;
  const outcome = await reserve(db, job, statements, conflicts, (last) => {
    const [found] = last as {
      isChanging: number;
      reserved: number;
      isKept: number;
      room: number;
      limit: number;
      current: number;
      onHost: number;
    }[];
    if (!found?.isKept) return { code: 'NOT_FOUND' };
    if (found.reserved) return null;
    if (found.isChanging) return { code: 'HOST_BUSY' };
    if (found.current + 1 > found.limit) return branchLimitReached(limit, found);
    if (found.onHost >= BRANCHES_MAX)
      return branchLimitReached(limit, { limit: BRANCHES_MAX, current: found.onHost });
    if (!found.room) return { code: 'RULE_LIMIT_REACHED', fields: { limit: NETWORK_RULES_MAX } };
    return { code: 'NOT_FOUND' };
  });
  return unlessInFlight(db, keyUse, outcome);
}

/**
 * Creates the branch again, with its id and its passwords, from its kept database, which is dropped by a job of its own:
 * until the branch is active, nothing is lost by going back.
 */
export const restoreBranchJob = saga<Creation>({
  steps: CREATION_STEPS,
  load: loadCreation,
  complete: ({ db, job, ...context }, creation, now) => {
    const snapshot = { id: job.input.snapshotId ?? '', projectId: job.projectId };
    const { hostId, createdBy, input } = job;
    const drop = dropJob(
      snapshot,
      { jobId: crypto.randomUUID(), hostId, actor: input.actor, createdBy },
      now,
    );
    const isActive = areActive([creation]);
    return [
      ...activate({ db, job, ...context }, [creation], now, 'branch.restored'),
      insertIf(db, jobs, drop, isActive),
      db.delete(snapshots).where(and(eq(snapshots.id, snapshot.id), isActive)),
    ];
  },
  completed: (creation) => areActive([creation]),
  response: ({ branch }, now) => ({
    status: 200,
    body: toBranchResponse({ ...branch, status: 'active', updatedAt: now }),
  }),
  undo: {
    run: undoCreation((jobId) => jobId, { isAgain: true }).run,
    record: ({ db, job }, _refused, now) => {
      const thisBranch = eq(projectBranches.id, job.branchId ?? '');
      const kept = sql<Date>`(select expires_at from ${snapshots} where id = ${job.input.snapshotId ?? ''})`;
      const stillCreating = sql`exists (select 1 from ${projectBranches} where ${and(thisBranch, eq(projectBranches.status, 'creating'))})`;
      return [
        withdrawAccess(db, job.projectId, sql`true`),
        db.delete(networkRules).where(and(eq(networkRules.branchId, job.branchId ?? ''), stillCreating)),
        transition(db, 'not_restored', thisBranch, now, kept),
      ];
    },
  },
});
