import { and, eq, gte, ne, notInArray, sql } from 'drizzle-orm';
import { FAILURES, type Failure, type FailureCode } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { noActor } from '../audit/audit-event.ts';
import { type Coordinators, coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { isOpenJob } from '../database/conditions.ts';
import { type Database, type DatabaseBinding, openDatabase } from '../database/database.ts';
import { drains, moves } from '../database/move-schema.ts';
import { hosts, jobs, projects } from '../database/schema.ts';
import { hasPlaceOn, hasRoomOn, isOpenHost, offersExtensions } from '../hosts/host.ts';
import { type HostLinks, isLinked } from '../hosts/host-client.ts';
import { READINGS } from '../jobs/job-store.ts';
import { publicFailure } from '../jobs/saga.ts';
import { logEvent } from '../log.ts';
import { readSettings } from '../settings.ts';

/**
 * A host whose projects all move to other hosts of its region, one at a time and the largest last. What is left to do is
 * read from the records each time, so an interruption loses nothing.
 */

type DrainEnv = DatabaseBinding & HostLinks & Coordinators;

/** Failures that pass: the project is tried again. */
const PASSING: readonly FailureCode[] = [
  'PROJECT_BUSY',
  'PROJECT_MOVING',
  'HOST_BUSY',
  'HOST_UNAVAILABLE',
  'HOST_TIMEOUT',
  'DATABASE_SERVER_UNAVAILABLE',
];

/** Projects with databases on the host, the largest last. */
const projectsOn = (db: Database, hostId: string) =>
  db
    .select()
    .from(projects)
    .where(and(eq(projects.hostId, hostId), ne(projects.status, 'failed')))
    .orderBy(projects.storageUsedBytes, projects.id);

/** How far a drain is; null: the host is not drained, or only gets no new projects. */
export async function drainOf(db: Database, hostId: string) {
  const [[drain], remaining, open] = await db.batch([
    db.select().from(drains).where(eq(drains.hostId, hostId)),
    projectsOn(db, hostId),
    db
      .select({ projectId: jobs.projectId, jobId: jobs.id, kind: jobs.kind })
      .from(jobs)
      .where(and(eq(jobs.hostId, hostId), isOpenJob, notInArray(jobs.kind, [...READINGS]))),
  ]);
  if (!drain) return null;
  return {
    drain,
    remaining,
    moving: open.find(({ kind }) => kind === 'project.move') ?? null,
    busy: new Set(open.map(({ projectId }) => projectId)),
    ...(await failedMoves(db, drain)),
  };
}

type DrainState = NonNullable<Awaited<ReturnType<typeof drainOf>>>;

/** Projects of which a list of those that wait names at most so many. */
const WAITING_MAX = 20;

/** Why the projects that are neither moving nor failed have not begun to move. Empty: one of them is next. */
export async function waitingOf(
  env: DrainEnv,
  db: Database,
  { drain: { hostId }, remaining, moving, busy, failed, paused }: DrainState,
): Promise<(Failed & { projectId: string })[]> {
  const waiting = [];
  if (moving) return [];
  for (const project of remaining.filter(({ id }) => !Object.hasOwn(failed, id))) {
    const code = paused.get(project.id) ?? (busy.has(project.id) ? 'PROJECT_BUSY' : null);
    const known = project.status === 'active' ? code : 'PROJECT_NOT_ACTIVE';
    const other = known ? null : await otherHost(env, db, hostId, project);
    if (other?.ok) return [];
    waiting.push({
      projectId: project.id,
      ...withMessage(known ?? other?.failure.code ?? 'HOST_UNAVAILABLE'),
    });
    if (waiting.length === WAITING_MAX) break;
  }
  return waiting;
}

/** A failure as a drain shows it. */
interface Failed {
  code: FailureCode;
  message: string;
}

const withMessage = (code: FailureCode, message: string = FAILURES[code].message): Failed => ({
  code,
  message,
});

/** A project whose move has ended with what passes is tried again after this time, and after the others. */
const PAUSE_MS = 15 * 60_000;

/**
 * The projects of moves that have failed since the drain began, with what has failed, and those that are to be left for a
 * while.
 */
async function failedMoves(db: Database, drain: typeof drains.$inferSelect) {
  const { hostId, createdAt } = drain;
  const rows = await db
    .select({ projectId: jobs.projectId, error: jobs.error, endedAt: jobs.updatedAt })
    .from(moves)
    .innerJoin(jobs, eq(jobs.id, moves.jobId))
    .where(and(eq(moves.fromHostId, hostId), eq(jobs.status, 'failed'), gte(jobs.createdAt, createdAt)));
  const found = rows.map(({ projectId, error, endedAt }) => {
    const { code, fields } = publicFailure(error ?? { code: 'INTERNAL', message: '' });
    const message = fields?.message;
    return {
      projectId,
      endedAt,
      failure: withMessage(code, typeof message === 'string' ? message : undefined),
    };
  });
  const passing = found.filter(({ failure }) => PASSING.includes(failure.code));
  const failed = found.filter(({ failure }) => !PASSING.includes(failure.code));
  return {
    failed: {
      ...Object.fromEntries(failed.map(({ projectId, failure }) => [projectId, failure])),
      ...Object.fromEntries(
        Object.entries(drain.failed).map(([id, code]) => [id, withMessage(code as FailureCode)]),
      ),
    } as Record<string, Failed>,
    paused: new Map(
      passing.flatMap(({ projectId, endedAt, failure }) =>
        Date.now() - endedAt.getTime() < PAUSE_MS ? [[projectId, failure.code] as const] : [],
      ),
    ),
  };
}

/** Begins the next move of a host that is drained, if none is under way. */
export async function continueDrain(env: DrainEnv, hostId: string): Promise<void> {
  const db = openDatabase(env.DB);
  const state = await drainOf(db, hostId);
  if (!state || state.moving) return;
  const { drain, remaining, failed, paused } = state;
  for (const project of remaining) {
    if (project.status !== 'active' || Object.hasOwn(failed, project.id) || paused.has(project.id)) continue;
    const other = await otherHost(env, db, hostId, project);
    const begun: Result<unknown, Failure> = other.ok
      ? await coordinatorOf(env, project.id).moveProject({
          jobId: crypto.randomUUID(),
          project,
          toHostId: other.value,
          ofDrain: true,
          branches: drain.branches,
          dropsSnapshots: drain.dropsSnapshots,
          actor: noActor(project.tenantId),
        })
      : other;
    if (begun.ok) return;
    const { code } = begun.failure;
    logEvent('drain.project_stays', { host_id: hostId, project_id: project.id, code });
    if (code === 'HOST_BUSY') return;
    if (!PASSING.includes(code))
      await db
        .update(drains)
        .set({ failed: sql`json_set(${drains.failed}, ${`$."${project.id}"`}, ${code})` })
        .where(eq(drains.hostId, hostId));
  }
}

/**
 * The linked host of the same region with the fewest projects that has a place, room and the extensions of the project.
 * @returns or HOST_FULL, and HOST_UNAVAILABLE while those that have are away or lack an extension
 */
async function otherHost(
  env: DrainEnv,
  db: Database,
  hostId: string,
  { id, storageQuotaGib, extensions }: typeof projects.$inferSelect,
): Promise<Result<string, Failure>> {
  const fits = and(
    isOpenHost,
    ne(hosts.id, hostId),
    sql`${hosts.region} is (select region from ${hosts} as drained where drained.id = ${hostId})`,
    hasPlaceOn(sql`hosts.id`, id),
    hasRoomOn(readSettings(env), sql`hosts.id`, id, storageQuotaGib),
  );
  const found = await db
    .select({ id: hosts.id, offers: sql`${offersExtensions(sql`hosts.id`, extensions)}`.mapWith(Boolean) })
    .from(hosts)
    .where(fits)
    .orderBy(sql`(select count(*) from ${projects} where host_id = ${hosts.id})`);
  for (const { id: other, offers } of found) if (offers && (await isLinked(env, other))) return ok(other);
  return fail({ code: found.length === 0 ? 'HOST_FULL' : 'HOST_UNAVAILABLE' });
}
