import { and, desc, eq, gt, gte, inArray, isNull, lte, ne, type SQL, sql } from 'drizzle-orm';
import { type KeptKind, nextSnapshotAt } from '../../shared/branch/snapshot.ts';
import type { Failure } from '../../shared/failures.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { ok, type Result } from '../../shared/result.ts';
import { auditEvent, inTenantOfProject, noActor } from '../audit/audit-event.ts';
import type { AuditActor, BranchContent } from '../database/column-types.ts';
import { isNamed, isUnmoving, onActiveBranch } from '../database/conditions.ts';
import { type Database, insertIf, isThere, type Statement } from '../database/database.ts';
import { maskingPolicies } from '../database/masking-schema.ts';
import {
  auditEvents,
  type BranchRow,
  type JobRow,
  jobs,
  projectBranches,
  projects,
  type SnapshotRow,
  snapshots,
} from '../database/schema.ts';
import { type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { isUnchanging, newJob } from '../jobs/job-store.ts';
import { ABANDON_AFTER_MS, MASKING_WITHIN_MS, saga } from '../jobs/saga.ts';
import { logEvent } from '../log.ts';
import { currentVersion } from '../masking/policy.ts';
import type { Settings } from '../settings.ts';
import { contentOf } from './branch.ts';
import { checkpointsOf, toCheckpoint } from './checkpoint.ts';
import { BUSY_WAIT_MS } from './clone-source.ts';
import { maskOnHost } from './prepared-source.ts';
import { newSnapshot, toSnapshotResponse } from './snapshot.ts';

/** Snapshots that count against the project's limit. */
const COUNTED = ['manual', 'schedule'] as const satisfies readonly KeptKind[];

/** What a scheduled snapshot depends on and changes next to its reservation. */
export interface Turn {
  isDue: SQL;
  /** Runs in the same batch, also if the snapshot is not reserved. */
  advance: Statement;
}

/** The number of the branch's next checkpoint. */
async function nextNumber(db: Database, branchId: string): Promise<number> {
  const [last] = await db
    .select({ number: sql<number | null>`max(${snapshots.number})` })
    .from(snapshots)
    .where(checkpointsOf(branchId));
  return (last?.number ?? 0) + 1;
}

/**
 * Reserves the snapshot under the project's limit and opens its job, in one batch. At the limit a scheduled
 * one is reserved all the same if there is an older one: `retireSnapshots` deletes that as soon as this one
 * is taken. A checkpoint has no limit, because older ones go, and is HOST_BUSY while another job of its branch
 * is open.
 */
export async function reserveSnapshot(
  db: Database,
  { SNAPSHOT_LIMIT: limit }: Pick<Settings, 'SNAPSHOT_LIMIT'>,
  request: SnapshotRequest,
  now: Date,
  turn?: Turn,
): Promise<Result<JobRow, Failure>> {
  const { branch, snapshotId, unlessSameAs, keyUse, ttlSeconds, name, kind, hostId } = request;
  const { projectId } = branch;
  const { maskingVersion } = request;
  const subject = {
    branchId: branch.id,
    snapshotId,
    ...(unlessSameAs && { unlessSameAs }),
    ...(maskingVersion !== undefined && { maskingVersion }),
  };
  const { actor, createdBy } = request;
  const about = { id: request.jobId, projectId, hostId, actor, createdBy };
  const job = newJob('snapshot.create', subject, about, now);
  const expiresAt = ttlSeconds === null ? null : new Date(now.getTime() + ttlSeconds * 1000);
  const content: BranchContent =
    maskingVersion === undefined
      ? contentOf(branch)
      : { data: 'masked', keepTables: [], maskingVersion, checkedAt: null };
  const number = kind === 'checkpoint' ? await nextNumber(db, branch.id) : null;
  const row = newSnapshot({ id: snapshotId, branch, name, kind, number, expiresAt, content }, now);
  const current = sql<number>`(select count(*) from ${snapshots} where ${and(
    eq(snapshots.projectId, projectId),
    inArray(snapshots.kind, COUNTED),
  )})`;
  const ofSchedule = and(
    eq(snapshots.projectId, projectId),
    eq(snapshots.kind, 'schedule'),
    eq(snapshots.status, 'ready'),
  );
  const hasRoom =
    number !== null
      ? sql`true`
      : kind === 'schedule'
        ? sql`${current} < ${limit} or (${current} = ${limit} and ${isThere(snapshots, ofSchedule)})`
        : sql`${current} < ${limit}`;
  const written = await writeUnderKey(
    db,
    { use: keyUse, subjectId: job.id, now },
    {
      decides: [jobs, job],
      require: [
        ...onActiveBranch(branch, actor.tenantId),
        isUnmoving(branch.projectId),
        isNamed(branch.id),
        [hasRoom, { code: 'SNAPSHOT_LIMIT_REACHED', fields: { limit, current, retry_after: null } }],
        // Another call has reserved the scheduled one.
        [turn?.isDue ?? sql`true`, 'PROJECT_BUSY'],
        ...(number === null
          ? []
          : [
              [isUnchanging(branch.id), 'HOST_BUSY'] as const,
              [
                sql`not ${isThere(snapshots, and(checkpointsOf(branch.id), gte(snapshots.number, number)))}`,
                'HOST_BUSY',
              ] as const,
            ]),
      ],
      rest: (isWritten) => [insertIf(db, snapshots, row, isWritten), ...(turn ? [turn.advance] : [])],
    },
  );
  return written.ok ? ok(job) : written;
}

/** The snapshot of a job with its branch, and what the host has made of it. */
interface Taking {
  snapshot: SnapshotRow;
  branch: BranchRow;
  taken: MethodResult<'snapshot.take'> | null;
}

/** The snapshot once it is taken. */
const asTaken = ({ snapshot, taken }: Taking, now: Date): SnapshotRow => ({
  ...snapshot,
  status: 'ready',
  sizeBytes: taken?.size_bytes ?? 0,
  independent: taken?.independent ?? false,
  takenAt: now,
  // That of a masked branch has the time of the branch.
  checkedAt: snapshot.checkedAt ?? (snapshot.data === 'masked' ? now : null),
});

/** Ends the checkpoints that an undo has left ahead of the branch, and counts from this one. */
const advance = (db: Database, { id, branchId }: SnapshotRow, now: Date): Statement[] => [
  db
    .update(snapshots)
    .set({ expiresAt: now })
    .where(
      and(
        checkpointsOf(branchId),
        ne(snapshots.id, id),
        gt(snapshots.number, sql`(select undone_to from ${projectBranches} where id = ${branchId})`),
      ),
    ),
  db.update(projectBranches).set({ undoneTo: null }).where(eq(projectBranches.id, branchId)),
];

/** One by schedule may be unnecessary, which leaves nothing. */
export const takeSnapshotJob = saga<'snapshot.create', Taking>({
  patience: ({ input }) => (input.maskingVersion === undefined ? ABANDON_AFTER_MS : MASKING_WITHIN_MS),
  steps: [
    [
      {
        name: 'take',
        run: async (context, subject) => {
          const { job, callHost } = context;
          const { maskingVersion: version, snapshotId, unlessSameAs } = job.input;
          if (version !== undefined) {
            const about = {
              snapshotId,
              branch: subject.branch,
              madeBy: job.id,
              version,
              keepTables: [],
              unlessSameAs,
            };
            subject.taken = { ...(await maskOnHost(context, about)), independent: true };
            return;
          }
          subject.taken = await callHost('snapshot.take', {
            project_id: job.projectId,
            branch_id: subject.branch.id,
            snapshot_id: subject.snapshot.id,
            source: subject.branch.databaseName,
            busy_wait: BUSY_WAIT_MS,
            unless_same_as: unlessSameAs ?? null,
            ...(subject.snapshot.kind === 'checkpoint' && { checkpoint: true as const }),
          });
        },
      },
    ],
  ],
  load: async ({ db, job }) => {
    const [[snapshot], [branch]] = await db.batch([
      db.select().from(snapshots).where(eq(snapshots.id, job.input.snapshotId)),
      db
        .select()
        .from(projectBranches)
        .where(and(eq(projectBranches.id, job.branchId), eq(projectBranches.status, 'active'))),
    ]);
    return snapshot && branch ? { snapshot, branch, taken: null } : null;
  },
  complete: ({ db, job }, subject, now) => {
    const { snapshot, branch, taken } = subject;
    if (!taken?.taken) return [db.delete(snapshots).where(eq(snapshots.id, snapshot.id))];
    const { status, sizeBytes, independent, takenAt, checkedAt } = asTaken(subject, now);
    const isCheckpoint = snapshot.kind === 'checkpoint';
    const metadata = {
      snapshot_id: snapshot.id,
      branch_name: branch.branchName,
      kind: snapshot.kind,
      ...(isCheckpoint && { number: snapshot.number, label: snapshot.name }),
      ...(snapshot.maskingVersion !== null && { masking_version: snapshot.maskingVersion }),
    };
    const about = { id: job.id, projectId: branch.projectId, branchId: branch.id, metadata };
    return [
      insertIf(
        db,
        auditEvents,
        auditEvent(isCheckpoint ? 'checkpoint.created' : 'snapshot.created', job.input.actor, about, now),
        sql`exists (select 1 from ${snapshots} where id = ${snapshot.id})`,
      ),
      inTenantOfProject(db, branch.projectId, [job.id]),
      db
        .update(snapshots)
        .set({ status, sizeBytes, independent, takenAt, checkedAt })
        .where(eq(snapshots.id, snapshot.id)),
      ...(isCheckpoint ? advance(db, snapshot, now) : []),
    ];
  },
  response: (subject, now) => {
    const taken = asTaken(subject, now);
    const body = taken.kind === 'checkpoint' ? { ...toCheckpoint(taken) } : toSnapshotResponse(taken);
    return { status: 201, body };
  },
  undo: {
    run: ({ job, callHost }) =>
      callHost('snapshot.drop', { project_id: job.projectId, snapshot_id: job.input.snapshotId }),
    record: ({ db, job }) => [db.delete(snapshots).where(eq(snapshots.id, job.input.snapshotId))],
  },
});

/**
 * Opens the job of the project's scheduled snapshot, if it is due. The next one is due one interval from now.
 */
export async function takeScheduledSnapshot(
  db: Database,
  settings: Pick<Settings, 'SNAPSHOT_LIMIT'>,
  projectId: string,
  now: Date,
  beforeWriting: () => void,
): Promise<void> {
  const isDue = and(
    eq(projects.id, projectId),
    eq(projects.status, 'active'),
    lte(projects.snapshotDueAt, now),
  );
  const [project] = await db.select().from(projects).where(isDue);
  if (!project?.snapshotSchedule) return;
  beforeWriting();
  const { masked = false } = project.snapshotSchedule;
  const ofPolicy = sql`(select max(version) from ${maskingPolicies} where project_id = ${projectId})`;
  const [[main], [before], [policy]] = await db.batch([
    db
      .select()
      .from(projectBranches)
      .where(and(eq(projectBranches.projectId, projectId), eq(projectBranches.isDefault, true))),
    db
      .select({ id: snapshots.id })
      .from(snapshots)
      .where(
        and(
          eq(snapshots.projectId, projectId),
          eq(snapshots.kind, 'schedule'),
          masked ? eq(snapshots.maskingVersion, ofPolicy) : isNull(snapshots.maskingVersion),
        ),
      )
      .orderBy(desc(snapshots.takenAt))
      .limit(1),
    currentVersion(db, projectId),
  ]);
  const snapshotDueAt = nextSnapshotAt(project.snapshotSchedule, now);
  const advance = db.update(projects).set({ snapshotDueAt }).where(isDue);
  const isCovered = !masked || policy !== undefined;
  if (!isCovered) logEvent('snapshot.not_scheduled', { project_id: projectId, code: 'MASKING_INCOMPLETE' });
  if (!main || !isCovered) {
    await advance;
    return;
  }
  const reserved = await reserveSnapshot(
    db,
    settings,
    {
      jobId: crypto.randomUUID(),
      snapshotId: crypto.randomUUID(),
      branch: main,
      name: null,
      kind: 'schedule',
      ttlSeconds: null,
      ...(before && { unlessSameAs: before.id }),
      ...(masked && { maskingVersion: policy?.version }),
      hostId: project.hostId,
      actor: noActor(project.tenantId),
      createdBy: project.createdBy,
      keyUse: null,
    },
    now,
    {
      // Another call may have taken it since.
      isDue: sql`exists (select 1 from ${projects} where ${isDue})`,
      advance,
    },
  );
  if (!reserved.ok)
    logEvent('snapshot.not_scheduled', { project_id: projectId, code: reserved.failure.code });
}

/** When the project's next scheduled snapshot is due, in Unix milliseconds; infinite without a schedule. */
export async function nextScheduled(db: Database, projectId: string): Promise<number> {
  const [project] = await db
    .select({ at: projects.snapshotDueAt })
    .from(projects)
    .where(and(eq(projects.id, projectId), eq(projects.status, 'active')));
  return project?.at?.getTime() ?? Number.POSITIVE_INFINITY;
}

/** A validated request for a snapshot, or one by the project's schedule. */
export interface SnapshotRequest {
  jobId: string;
  snapshotId: string;
  branch: BranchRow;
  name: string | null;
  kind: 'manual' | 'schedule' | 'checkpoint';
  ttlSeconds: number | null;
  /** The snapshot before, if a schedule takes this one. */
  unlessSameAs?: string;
  /** The version of the masking policy by which its values are replaced; left out: they stay. */
  maskingVersion?: number | undefined;
  hostId: string;
  actor: AuditActor;
  createdBy: string;
  keyUse: KeyUse | null;
}
