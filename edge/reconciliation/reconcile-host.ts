import { and, eq, inArray, sql } from 'drizzle-orm';
import type { Result } from '../../shared/protocol/operations.ts';
import { type Database, inOneBatch, insertIf, openDatabase } from '../database/database.ts';
import { auditEvents, jobs, projectBranches, projects } from '../database/schema.ts';
import { type CallHost, hostCaller } from '../host-link/host-caller.ts';
import { OPEN_STATUSES } from '../jobs/job-store.ts';
import { logEvent } from '../log.ts';
import { coordinatorOf } from '../projects/coordinator-stub.ts';
import type { Env } from '../settings.ts';

type Inventory = Result<'host.inventory'>;
type HeldBranch = Inventory['branches'][number];

/** Statuses in which a record may have something on the host. A project under deletion has a job that drops it. */
const CLAIMING = ['creating', 'active', 'expired', 'deleting', 'failed'] as const;

/**
 * Compares what a host holds with what is on record and resolves every difference; runs when the host has
 * linked up and every few minutes. What a job is still working on is the job's to resolve: it is woken.
 */
export async function reconcileHost(env: Env, hostId: string): Promise<void> {
  const db = openDatabase(env.DB);
  const callHost = hostCaller(env, hostId);
  // The host first: a record is written before the host is asked for anything, so what the host holds and
  // the later look at the records does not know is nobody's.
  const inventory = await callHost('host.inventory', {});
  const [records, projectRows, openJobs] = await db.batch([
    db
      .select({
        id: projectBranches.id,
        status: projectBranches.status,
        projectId: projectBranches.projectId,
        tenantId: projectBranches.tenantId,
      })
      .from(projectBranches)
      .innerJoin(projects, eq(projects.id, projectBranches.projectId))
      .where(and(eq(projects.hostId, hostId), inArray(projectBranches.status, CLAIMING))),
    db
      .select({
        id: projects.id,
        stale: sql<number>`access_applied < access_revision`,
        wanted: projects.accessRevision,
      })
      .from(projects)
      .where(eq(projects.hostId, hostId)),
    db
      .selectDistinct({ projectId: jobs.projectId, branchId: jobs.branchId })
      .from(jobs)
      .where(and(eq(jobs.hostId, hostId), inArray(jobs.status, OPEN_STATUSES))),
  ]);

  const knownProjects = new Map(projectRows.map((project) => [project.id, project]));
  const inWork = new Set(openJobs.flatMap(({ branchId }) => branchId ?? []));
  const projectsInWork = new Set(openJobs.map(({ projectId }) => projectId));
  const ready = new Set(
    inventory.branches.filter(({ state }) => state === 'ready').map(({ branch_id }) => branch_id),
  );
  // A failed creation has dropped what it made, so a whole database of a failed record was missing for a while:
  // its disk was not mounted, or the agent looked at another server. It is somebody's data.
  const foundAgain = records.filter(
    ({ id, status }) => status === 'failed' && ready.has(id) && !inWork.has(id),
  );
  const known = new Set(
    records.filter(({ id, status }) => status !== 'failed' || ready.has(id)).map(({ id }) => id),
  );
  const orphans = inventory.branches.filter(
    ({ branch_id }) => !known.has(branch_id) && !inWork.has(branch_id),
  );
  const missing = records.filter(
    ({ id, status }) => (status === 'active' || status === 'expired') && !ready.has(id),
  );

  // The host may have lost its rules (restored from an older backup): it gets them again.
  const outdated = inventory.projects.filter(
    ({ project_id, access_revision }) => access_revision < (knownProjects.get(project_id)?.wanted ?? 0),
  );
  await forgetAppliedAccess(
    db,
    outdated.map(({ project_id }) => project_id),
  );
  const toWake = new Set([
    ...projectsInWork,
    ...projectRows.filter(({ stale }) => stale).map(({ id }) => id),
    ...outdated.map(({ project_id }) => project_id),
  ]);

  const heldProjects = [...inventory.projects, ...inventory.branches].map(({ project_id }) => project_id);
  const unknownProjects = [...new Set(heldProjects)].filter(
    (id) => !knownProjects.has(id) && !projectsInWork.has(id),
  );
  const outcomes = await Promise.allSettled([
    ...orphans
      .filter(({ project_id }) => knownProjects.has(project_id))
      .map((held) => dropOrphan(callHost, held)),
    ...unknownProjects.map((id) => dropProject(callHost, id)),
    ...foundAgain.map(({ id }) => markFound(db, id)),
    ...[...toWake].map((projectId) => coordinatorOf(env, projectId).wake(projectId)),
    markLost(db, callHost, missing),
  ]);
  for (const outcome of outcomes) {
    if (outcome.status === 'rejected')
      logEvent('reconcile.failed', { host_id: hostId, reason: String(outcome.reason) });
  }
}

async function dropOrphan(callHost: CallHost, held: HeldBranch): Promise<void> {
  logEvent('reconcile.drop_orphan', { branch_id: held.branch_id, database: held.database });
  const { project_id, branch_id, database } = held;
  await callHost('branch.drop', { job_id: crypto.randomUUID(), project_id, branch_id, database });
}

async function dropProject(callHost: CallHost, projectId: string): Promise<void> {
  logEvent('reconcile.drop_project', { project_id: projectId });
  await callHost('project.drop', { job_id: crypto.randomUUID(), project_id: projectId });
}

const forgetAppliedAccess = async (db: Database, projectIds: string[]): Promise<void> => {
  for (const id of projectIds)
    await db.update(projects).set({ accessApplied: -1 }).where(eq(projects.id, id));
};

async function markFound(db: Database, id: string): Promise<void> {
  logEvent('reconcile.branch_found', { branch_id: id });
  await db
    .update(projectBranches)
    .set({ status: 'active', updatedAt: new Date() })
    .where(and(eq(projectBranches.id, id), eq(projectBranches.status, 'failed')));
}

/** A record without a database: its data is gone, and it says so. A second look rules out a fresh branch. */
async function markLost(
  db: Database,
  callHost: CallHost,
  missing: { id: string; projectId: string; tenantId: string }[],
): Promise<void> {
  if (missing.length === 0) return;
  const { branches } = await callHost('host.inventory', {});
  const ready = new Set(branches.filter(({ state }) => state === 'ready').map(({ branch_id }) => branch_id));
  for (const { id, projectId, tenantId } of missing.filter((record) => !ready.has(record.id))) {
    const claimed = and(eq(projectBranches.id, id), inArray(projectBranches.status, ['active', 'expired']));
    const now = new Date();
    const event = {
      id: crypto.randomUUID(),
      name: 'branch.lost',
      tenantId,
      projectId,
      branchId: id,
      metadata: {},
      createdAt: now,
    };
    await inOneBatch(db, [
      insertIf(db, auditEvents, event, sql`exists (select 1 from ${projectBranches} where ${claimed})`),
      db.update(projectBranches).set({ status: 'failed', updatedAt: now }).where(claimed),
    ]);
    logEvent('reconcile.branch_lost', { branch_id: id });
  }
}
