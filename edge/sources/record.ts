import { and, eq, inArray, isNull, lt, or, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { JobStep } from '../../shared/project/job.ts';
import type { FollowReport, FollowStatus } from '../../shared/protocol/follow.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import { type Actor, FOLLOW_RECORD_STATES, type RecordedProblem } from '../database/column-types.ts';
import { type Database, inOneBatch, insertIf, isThere } from '../database/database.ts';
import { auditEvents, jobs, projectBranches, projects } from '../database/schema.ts';
import { type FollowRow, follows } from '../database/source-schema.ts';
import type { CallHost } from '../hosts/host-client.ts';
import { isUnchanging } from '../jobs/job-store.ts';
import { changeState, type FollowEvent, type FollowState, isLive, LIVE_STATES } from './states.ts';

/** The source that a project follows: its record in D1, and the reports of the host. */

/** Returns whether the project follows something in one of these states. */
export const isFollowing = (projectId: string, states: readonly FollowRow['state'][]) =>
  isThere(follows, and(eq(follows.projectId, projectId), inArray(follows.state, [...states])));

/** The record of a project, with the database of the branch, and the steps of the job that began it. */
export const followOf = (db: Database, projectId: string) =>
  db
    .select({ row: follows, database: projectBranches.databaseName, steps: jobs.steps })
    .from(follows)
    .innerJoin(projectBranches, eq(projectBranches.id, follows.branchId))
    .leftJoin(jobs, eq(jobs.id, follows.jobId))
    .where(eq(follows.projectId, projectId));

const Problem = z.strictObject({
  code: z.string().meta({
    description:
      '`schema`, `apply`, `slot`, `quota`, `source`: why replication is stopped. `slot_size`: the slot keeps half of the WAL that the source lets it keep, or more. `absent`: the host has lost what it followed. Of a `failed` start, the code of its job.',
    example: 'schema',
  }),
  message: z.string(),
  table: z.string().nullable(),
  statement: z.string().nullable().meta({ description: 'What to run before `resume`.' }),
});

const FollowSource = z.strictObject({
  host: z.string().meta({ example: 'db.example.com' }),
  port: z.int(),
  database: z.string(),
  version: z.string().meta({ description: 'Of PostgreSQL.', example: '17.2' }),
});

export const FOLLOW_FIELDS = {
  state: z.enum(FOLLOW_RECORD_STATES).meta({
    description:
      '`copying`: nobody can connect to `main`. `following`: `main` can be read. `stopped`: replication is stopped until `resume`. `cut_over` and `failed`: it no longer follows.',
  }),
  source: FollowSource,
  problem: Problem.nullable(),
};

export const Follow = z
  .strictObject({
    ...FOLLOW_FIELDS,
    tables: z.array(
      z.strictObject({
        schema: z.string(),
        table: z.string(),
        state: z.enum(['waiting', 'copying', 'copied', 'following']),
        rows: z.int(),
        percent: z.int(),
      }),
    ),
    lag_bytes: z.int().nullable().meta({
      description: 'WAL of the source that is not applied yet. Null if it is not known now.',
    }),
    lag_seconds: z.number().nullable().meta({
      description:
        'Seconds since the source was where `main` is now; 0 when it is level. Without a connection it grows. Null if it is not known.',
    }),
    slot_bytes: z.int().nullable().meta({ description: 'WAL that the slot keeps at the source.' }),
  })
  .meta({ id: 'Follow' });

type Bytes = number | null;

/** A slot that grows on prevents nothing yet, so it is shown only where nothing is wrong. */
function problemOf(
  problem: RecordedProblem | null,
  { slot_bytes, keep_bytes }: { slot_bytes: Bytes; keep_bytes: Bytes },
): RecordedProblem | null {
  if (problem || slot_bytes === null || keep_bytes === null || 2 * slot_bytes < keep_bytes) return problem;
  return {
    code: 'slot_size',
    message:
      'The slot keeps half of the WAL that the source lets it keep, or more. When it is all used, following ends, and has to begin again.',
    table: null,
    statement: `ALTER SYSTEM SET max_slot_wal_keep_size = '${Math.ceil(keep_bytes / 2 ** 19)}MB'; SELECT pg_reload_conf();`,
  };
}

const ABSENT: RecordedProblem = {
  code: 'absent',
  message:
    'The database host has lost what it followed. Stop following, and begin again in an empty project.',
  table: null,
  statement: null,
};

/** A report of the host, as an event of the record and the problem that is recorded with it. */
const REPORTED = {
  following: { event: 'run', state: 'following', lost: null },
  stopped: { event: 'halt', state: 'stopped', lost: null },
  // Nothing is left to continue, so only the end of following is possible.
  absent: { event: 'halt', state: 'stopped', lost: ABSENT },
} as const satisfies Record<
  FollowStatus['state'],
  { event: FollowEvent; state: FollowState; lost: RecordedProblem | null }
>;

/** @returns with the problem, which follows from the state */
function readStatus(status: Pick<FollowStatus, 'state' | 'problem' | 'slot_bytes' | 'keep_bytes'>) {
  const { lost, ...reported } = REPORTED[status.state];
  return { ...reported, problem: lost ?? problemOf(status.problem, status) };
}

/**
 * @param steps of the job that began it
 * @param live what the host says now; null if it does not, or is not asked
 */
export function toFollowResponse(
  { state, source, problem, tables }: FollowRow,
  steps: readonly JobStep[] | null,
  live: FollowStatus | null,
): z.output<typeof Follow> {
  const about = { source: { ...source }, lag_bytes: null, lag_seconds: null, slot_bytes: null };
  if (state === 'copying') {
    const copied = steps?.find((step) => step.tables)?.tables ?? [];
    return { ...about, state, problem, tables: copied };
  }
  if (!live || !isLive({ state })) return { ...about, state, problem, tables };
  const { lag_bytes, lag_seconds, slot_bytes } = live;
  const known = readStatus(live);
  return {
    ...about,
    state: known.state,
    problem: known.problem,
    tables: live.tables,
    lag_bytes,
    lag_seconds,
    slot_bytes,
  };
}

/** One report of the host. */
type Observation = Pick<FollowReport, 'state' | 'problem' | 'slot_bytes' | 'keep_bytes' | 'observed_at'> &
  Partial<Pick<FollowReport, 'additions'>>;

/**
 * Records what the host reports of a project that follows, unless something newer is recorded. An addition that
 * it made by itself is one audit event, however often it is reported.
 */
export async function recordObservation(
  db: Database,
  { id: projectId, tenantId }: { id: string; tenantId: string },
  observed: Observation,
  now: Date,
): Promise<void> {
  const observedAt = new Date(observed.observed_at);
  const { event, state, problem } = readStatus(observed);
  const isNewer = and(
    eq(follows.projectId, projectId),
    inArray(follows.state, [...LIVE_STATES]),
    or(isNull(follows.observedAt), lt(follows.observedAt, observedAt)),
    // A job that ends following records that itself.
    observed.state === 'absent' ? isUnchanging(sql`${follows.branchId}`) : undefined,
  );
  const [row] = await db.select().from(follows).where(isNewer);
  if (!row) return;
  const about = { projectId, branchId: row.branchId };
  const interrupted =
    state === 'stopped' && row.state === 'following'
      ? [
          auditEvent(
            'branch.follow.interrupted',
            noActor(tenantId),
            { ...about, metadata: { ...problem } },
            now,
          ),
        ]
      : [];
  const added = (observed.additions ?? []).map(({ id, statement }) =>
    auditEvent(
      'branch.follow.addition_applied',
      noActor(tenantId),
      { ...about, id, metadata: { statement } },
      now,
    ),
  );
  // An ID belongs to the host, so one that is in use by another event is not replaced.
  const isNew = (id: string) => sql`not ${isThere(auditEvents, eq(auditEvents.id, id))}`;
  await inOneBatch(db, [
    ...[...interrupted, ...added].map((row) =>
      insertIf(db, auditEvents, row, sql`${isThere(follows, isNewer)} and ${isNew(row.id)}`),
    ),
    changeState(db, event, isNewer, { problem, observedAt, updatedAt: now }),
  ]);
}

/** Records that a client has resumed it, and what the host says since. A report of the host may come before. */
export async function recordResumed(
  db: Database,
  { projectId, branchId }: FollowRow,
  status: FollowStatus,
  actor: Actor,
  now: Date,
): Promise<void> {
  const isStillLive = and(eq(follows.projectId, projectId), inArray(follows.state, [...LIVE_STATES]));
  const { event, state, problem } = readStatus(status);
  const resumed = auditEvent(
    'branch.follow.resumed',
    actor,
    { projectId, branchId, metadata: { state } },
    now,
  );
  await inOneBatch(db, [
    insertIf(db, auditEvents, resumed, isThere(follows, isStillLive)),
    changeState(db, event, isStillLive, { problem, updatedAt: now }),
  ]);
}

/** The projects on the host that follow something. */
export const followsOn = (db: Database, hostId: string) =>
  db
    .select({ follow: follows, tenantId: projects.tenantId, database: projectBranches.databaseName })
    .from(follows)
    .innerJoin(projects, eq(projects.id, follows.projectId))
    .innerJoin(projectBranches, eq(projectBranches.id, follows.branchId))
    .where(and(eq(projects.hostId, hostId), inArray(follows.state, [...LIVE_STATES])));

/** Notices a host that has lost what a project follows, for instance by a restored backup: it reports nothing. */
export async function checkFollow(
  db: Database,
  callHost: CallHost,
  { follow, tenantId, database }: Awaited<ReturnType<typeof followsOn>>[number],
): Promise<void> {
  const { projectId, branchId, observedAt } = follow;
  const status = await callHost('follow.status', { project_id: projectId, branch_id: branchId, database });
  if (status.state !== 'absent' || follow.problem?.code === ABSENT.code) return;
  // Later than the last report by the clock of the host.
  const observed_at = new Date((observedAt?.getTime() ?? 0) + 1).toISOString();
  await recordObservation(db, { id: projectId, tenantId }, { ...status, observed_at }, new Date());
}
