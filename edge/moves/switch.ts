import { and, eq, ne, sql } from 'drizzle-orm';
import {
  accessFacts,
  accessOf,
  accessReads,
  confirmAccess,
  nextAccessRevision,
} from '../access/send-access.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { branchRecord, transition } from '../branches/branch.ts';
import { forgetSnapshots } from '../branches/drop-snapshots.ts';
import { isOpenJob } from '../database/conditions.ts';
import { hasChanged, insertAllIf, isOneOf, isThere, writeThenReadAll } from '../database/database.ts';
import { moves } from '../database/move-schema.ts';
import {
  auditEvents,
  branchCredentials,
  jobs,
  networkRules,
  projectBranches,
  projects,
} from '../database/schema.ts';
import { isUncancelled } from '../jobs/cancel-job.ts';
import { JobCancelledError, SourceUnsuitableError } from '../jobs/saga.ts';
import { logEvent } from '../log.ts';
import { failureOf, whileClosed } from './away-host.ts';
import { admit, type Context, type Moving, mainOf, NOT_EXTENDED, of, toHost } from './moving.ts';
import { changePhase, raiseAccess } from './states.ts';

/** The last step of a move that can be undone: clients wait from its closing of the former host on. */

const UNDONE = 'the move is being undone';

/** Closes the former host, and has the last changes arrive. */
export async function fence(context: Context, moving: Moving): Promise<void> {
  const { db, job } = context;
  if (moving.move.phase === 'moved') return;
  if (moving.move.phase === 'undone') throw new Error(UNDONE);
  if (moving.move.phase === 'building') {
    // Before clients notice anything.
    await Promise.all([admit(context, moving, { closes_next: true }), makeReady(context)]);
    const now = new Date();
    const change = { jobId: job.id, projectId: job.projectId, now, onlyIf: isUncancelled(job.id) };
    const [, fenced] = await db.batch([raiseAccess(db, 'fence', change), changePhase(db, 'fence', change)]);
    if (!hasChanged(fenced)) throw new JobCancelledError();
    Object.assign(moving.move, { phase: 'fenced', fencedAt: now, updatedAt: now });
  }
  await whileClosed(moving.move.fencedAt, async () => {
    const phases = new Phases();
    await takeOver(context, moving, phases);
    await switchHost(context, moving);
    phases.end('switch');
    logEvent('move.switched', { job_id: job.id, project_id: job.projectId, ...phases.milliseconds });
  });
}

/**
 * Opens the logins on the other host, which is many statements, while no network is admitted there. It only saves time:
 * the opening of the host does it too.
 */
async function makeReady(context: Context): Promise<void> {
  const { db, job, settings } = context;
  try {
    // A host leaves its rules as they are if it gets the same revision again.
    await nextAccessRevision(db, job.projectId, sql`true`);
    const facts = accessFacts(await db.batch(accessReads(db, job.projectId)));
    if (!facts) return;
    const access = await accessOf(settings.CREDENTIAL_KEYS, facts);
    const closed = { ...access, rules: [], verifiers: {} };
    await toHost(context, 'access.apply', { project_id: job.projectId, access: closed });
  } catch (error) {
    logEvent('move.not_ready', { job_id: job.id, project_id: job.projectId, reason: String(error) });
  }
}

/** How long the parts of the fence take, because clients wait. */
class Phases {
  readonly milliseconds: Record<string, number> = {};
  #since = Date.now();

  end(name: string): void {
    this.milliseconds[`${name}_ms`] = Date.now() - this.#since;
    this.#since = Date.now();
  }
}

/** A branch of those that are left out: it was protected while the project moved. */
const isProtectedOf = ({ leftOut }: Pick<Context['job']['input'], 'leftOut'>) =>
  and(isOneOf(projectBranches.id, leftOut), eq(projectBranches.protected, true));

/** @throws SourceUnsuitableError for a branch that would be deleted */
async function requireUnprotected({ db, job }: Context): Promise<void> {
  if (job.input.leftOut.length === 0) return;
  const [branch] = await db.select().from(projectBranches).where(isProtectedOf(job.input));
  if (branch)
    throw new SourceUnsuitableError(
      `${branch.branchName} was protected while the project moved. Move the project again.`,
    );
}

/** Repeated by each attempt, so what it has found out holds when the host changes. */
async function takeOver(context: Context, moving: Moving, phases: Phases): Promise<void> {
  const { db, job, settings, callHost } = context;
  const { move } = moving;
  const facts = accessFacts(await db.batch(accessReads(db, job.projectId)));
  if (!facts) throw new Error('the project of a move is gone');
  const { project } = facts;
  const access = await accessOf(settings.CREDENTIAL_KEYS, facts);
  const close = async (closing: typeof access | null, frozen: string[]) => {
    const { admitted_at, written_lsn, changed } = await callHost('move.close', {
      job_id: job.id,
      project_id: job.projectId,
      access: closing,
      frozen,
    });
    if (admitted_at !== move.admittedAt || written_lsn === null)
      throw new SourceUnsuitableError(NOT_EXTENDED);
    return { changed, written_lsn };
  };
  phases.end('read');
  const { written_lsn: until_lsn } = await close(access, []);
  phases.end('close');
  // Clients wait for the slowest of these.
  const [{ changed }, { sizes }, { cut_over, findings }] = await Promise.all([
    close(
      null,
      move.branches.slice(move.follows ? 1 : 0).map(({ id }) => id),
    ),
    // The other host may have lost what was copied.
    toHost(context, 'project.size', { project_id: job.projectId }),
    move.follows
      ? toHost(context, 'follow.cutover', {
          ...of(context, mainOf(moving)),
          job_id: job.id,
          writes_refused: true,
          is_compared: true,
          until_lsn,
        })
      : { cut_over: true, findings: [] },
    confirmAccess(db, job.projectId, access.revision, project.hostId),
    requireUnprotected(context),
  ]);
  phases.end('changes');
  const absent = move.branches.filter(({ id }) => !Object.hasOwn(sizes, id)).map(({ name }) => name);
  if (absent.length > 0)
    throw new SourceUnsuitableError(`${absent.join(', ')}: lost on the other host. Move the project again.`);
  const written = move.branches.filter(({ id }) => changed.includes(id)).map(({ name }) => name);
  if (changed.length > 0)
    throw new SourceUnsuitableError(
      `${written.join(', ')}: changed while it could only be read, for instance by a function SECURITY DEFINER, or PostgreSQL was restarted. Move the project again.`,
    );
  if (!cut_over) throw failureOf(findings, move.fencedAt ?? move.updatedAt, 'whileClosed');
}

/** Makes the other host that of the project: the one statement that decides. */
export async function switchHost({ db, job }: Context, moving: Moving): Promise<void> {
  if (moving.move.phase === 'moved') return;
  const { toHostId, leftOut, dropsSnapshots, actor } = job.input;
  const now = new Date();
  const areLeft = and(isOneOf(projectBranches.id, leftOut), ne(projectBranches.status, 'deleted'));
  const deleted = leftOut.length === 0 ? [] : await db.select().from(projectBranches).where(areLeft);
  const events = deleted.map((branch) => {
    const { id: branchId, branchName: branch_name, databaseName: database } = branch;
    const record = branchRecord(branch);
    const metadata = { branch_name, database, reason: 'left_out_of_move', record };
    return auditEvent('branch.deleted', actor, { projectId: job.projectId, branchId, metadata }, now);
  });
  const noneProtected =
    leftOut.length === 0 ? sql`true` : sql`not ${isThere(projectBranches, isProtectedOf(job.input))}`;
  const hasMoved = isThere(moves, and(eq(moves.jobId, job.id), eq(moves.phase, 'moved')));
  const ofProject = <T extends { projectId: typeof jobs.projectId }>(table: T) =>
    eq(table.projectId, job.projectId);
  const changes = [
    // The undoing begins with the error of the job, which excludes the switch even before the phase has changed.
    changePhase(db, 'switch', {
      jobId: job.id,
      projectId: job.projectId,
      now,
      onlyIf: sql`${isUncancelled(job.id)} and ${noneProtected}`,
    }),
    db
      .update(projects)
      // Passwords that are newer are sent when the other host opens; the others take too long then.
      .set({
        hostId: toHostId,
        accessApplied: builtRevision(moving),
        accessRevision: sql`access_revision + 1`,
        updatedAt: now,
      })
      .where(and(eq(projects.id, job.projectId), eq(projects.hostId, job.hostId), hasMoved)),
    db
      .update(jobs)
      .set({ hostId: toHostId })
      .where(and(ofProject(jobs), isOpenJob, sql`${jobs.id} <> ${job.id}`, hasMoved)),
    ...(leftOut.length === 0
      ? []
      : [
          db.delete(branchCredentials).where(and(isOneOf(branchCredentials.branchId, leftOut), hasMoved)),
          db.delete(networkRules).where(and(isOneOf(networkRules.branchId, leftOut), hasMoved)),
          db
            .update(projectBranches)
            .set({ parentBranchId: null })
            .where(and(isOneOf(projectBranches.parentBranchId, leftOut), hasMoved)),
          insertAllIf(db, auditEvents, events, sql`${hasMoved} and ${isThere(projectBranches, areLeft)}`),
          inTenantOfProject(
            db,
            job.projectId,
            events.map(({ id }) => id),
          ),
          transition(db, 'delete', and(areLeft, hasMoved), now),
        ]),
    ...(dropsSnapshots ? forgetSnapshots(db, job.projectId, hasMoved) : []),
  ];
  const thisMove = db.select().from(moves).where(eq(moves.jobId, job.id));
  // Clients wait, so what opens the other host is read in the same batch.
  const [[move], ...opening] = await writeThenReadAll(db, changes, [
    thisMove,
    ...accessReads(db, job.projectId),
  ]);
  if (move?.phase !== 'moved') throw new Error(UNDONE);
  Object.assign(moving.move, move);
  moving.opening = opening;
}

/** The access whose passwords every branch on the other host has. */
const builtRevision = ({ move: { branches } }: Moving): number =>
  Math.min(...branches.map(({ revision }) => revision ?? -1));
