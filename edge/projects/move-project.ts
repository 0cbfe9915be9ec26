import { and, eq, inArray, notInArray, sql } from 'drizzle-orm';
import type { BranchRole } from '../../shared/branch/login.ts';
import type { Failure } from '../../shared/failures.ts';
import { ACCESS_OF_STATE, STORAGE_STATES } from '../../shared/project/storage-quota.ts';
import type { Method, MethodResult, Params } from '../../shared/protocol/operations.ts';
import { followName, moverLogin } from '../../shared/protocol/transfer-operations.ts';
import { ok, type Result } from '../../shared/result.ts';
import { passwordOf } from '../access/credentials.ts';
import { accessOf, accessReads, nextAccessRevision, sendAccess } from '../access/send-access.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { transition } from '../branches/branch.ts';
import { BUSY_WAIT_MS } from '../branches/clone-source.ts';
import { makePassword, scramVerifier } from '../crypto/scram.ts';
import { seal, unseal } from '../crypto/seal.ts';
import type { AuditActor, MovingBranch } from '../database/column-types.ts';
import { inActiveProject, isUnmoving } from '../database/conditions.ts';
import {
  type Database,
  hasChanged,
  inOneBatch,
  insertIf,
  isOneOf,
  isThere,
  type Statement,
} from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { KEPT_MS, type MoveRow, moves } from '../database/move-schema.ts';
import {
  auditEvents,
  branchCredentials,
  hosts,
  type JobRow,
  jobs,
  networkRules,
  type ProjectRow,
  projectBranches,
  projects,
  snapshots,
} from '../database/schema.ts';
import { isFollowing, LIVE_STATES } from '../following/follow-record.ts';
import { acceptsProjects, hasPlaceOn, hasRoomOn } from '../hosts/host.ts';
import { HostCallError } from '../hosts/host-client.ts';
import { isCancelled, isUncancelled } from '../jobs/cancel-job.ts';
import { isOpenJob, newJob, READINGS } from '../jobs/job-store.ts';
import { JobCancelledError, type SagaContext, SourceUnsuitableError, saga } from '../jobs/saga.ts';
import type { Settings } from '../settings.ts';
import { givesNames, nameProject } from './dns-names.ts';

/**
 * A project moves to another host. `main` follows there while the other branches are copied, which can only be read
 * meanwhile. Then both hosts are closed, the last changes arrive, and the record of the project names the other host.
 * Until that statement the move can be undone; after it, it goes on until it is done.
 */

type Context = SagaContext<'project.move'>;

/** A validated request to move a project. */
export interface MoveRequest {
  jobId: string;
  project: Pick<ProjectRow, 'id' | 'tenantId' | 'hostId' | 'createdBy' | 'storageQuotaGib'>;
  toHostId: string;
  branches: 'all' | 'protected';
  dropsSnapshots: boolean;
  /** Not while another project moves from its host. */
  alone: boolean;
  actor: AuditActor;
}

const BLOCKED = STORAGE_STATES.filter((state) => ACCESS_OF_STATE[state] !== 'open');
/** Statuses of a branch that has a database. */
const WITH_DATABASE = ['active', 'expired'] as const;

/** The branches of the project that have a database, `main` first, with their sizes on its host. */
export async function movingBranches(
  db: Database,
  projectId: string,
  sizes: Record<string, number>,
): Promise<(MovingBranch & { isProtected: boolean })[]> {
  const rows = await db
    .select()
    .from(projectBranches)
    .where(and(eq(projectBranches.projectId, projectId), inArray(projectBranches.status, WITH_DATABASE)))
    .orderBy(sql`is_default desc`, projectBranches.createdAt, projectBranches.id);
  return rows.map(({ id, branchName: name, databaseName: database, protected: isProtected }) => ({
    ...{ id, name, database, isProtected, bytes: sizes[id] ?? 0 },
    ...{ state: 'waiting' as const, frozen: false },
    ...{ buildId: crypto.randomUUID(), snapshotId: crypto.randomUUID() },
  }));
}

/** Whether a project moves from the host. */
const isMovingFrom = (hostId: string) =>
  isThere(jobs, and(eq(jobs.hostId, hostId), eq(jobs.kind, 'project.move'), isOpenJob));

const sealOwner = (jobId: string) => ['move', jobId];

/**
 * Opens the job, with the password of its login.
 * @param sizes of the branches, in bytes
 * @returns or PROJECT_MOVING, FOLLOW_STATE, PROJECT_BUSY while another job is open, WRITE_BLOCKED, SNAPSHOTS_STAY,
 *   HOST_UNAVAILABLE for a host that is drained, HOST_FULL
 */
export async function reserveMove(
  db: Database,
  settings: Settings,
  { jobId, project, toHostId, branches: wanted, dropsSnapshots, alone, actor }: MoveRequest,
  sizes: Record<string, number>,
  now: Date,
): Promise<Result<JobRow, Failure>> {
  const { id: projectId, tenantId, hostId, createdBy } = project;
  const all = await movingBranches(db, projectId, sizes);
  const arriving = all.filter(({ isProtected }) => wanted === 'all' || isProtected);
  const leftOut = all.filter((branch) => !arriving.includes(branch)).map(({ id }) => id);
  const branches = arriving.map(({ isProtected: _, ...branch }) => branch);
  const job = newJob(
    'project.move',
    { branchId: null, branchIds: branches.map(({ id }) => id), toHostId, leftOut, dropsSnapshots },
    { id: jobId, projectId, hostId, actor, createdBy },
    now,
  );
  const { keyId, sealed } = await seal(settings.CREDENTIAL_KEYS, sealOwner(jobId), makePassword());
  const row: MoveRow = {
    ...{ projectId, jobId, fromHostId: hostId, toHostId, phase: 'building', keyId, sealedPassword: sealed },
    ...{ admittedAt: null, follows: null, branches, keptUntil: null, createdAt: now, updatedAt: now },
  };
  const metadata = { job_id: jobId, from_host_id: hostId, to_host_id: toHostId };
  const event = auditEvent('project.move.started', actor, { projectId, metadata }, now);
  const ofProject = eq(jobs.projectId, projectId);
  const changing = and(ofProject, isOpenJob, notInArray(jobs.kind, [...READINGS]));
  const kept = and(eq(snapshots.projectId, projectId), inArray(snapshots.status, ['making', 'ready']));
  const written = await guardedWrite(db, {
    first: [jobs, job],
    require: [
      ...inActiveProject(projectId, tenantId),
      [isThere(projects, and(eq(projects.id, projectId), eq(projects.hostId, hostId))), 'PROJECT_MOVING'],
      isUnmoving(projectId),
      [sql`not ${isThere(jobs, changing)}`, 'PROJECT_BUSY'],
      ...(alone ? [[sql`not ${isMovingFrom(hostId)}`, 'HOST_BUSY'] as const] : []),
      [sql`not ${isFollowing(projectId, [...LIVE_STATES, 'copying'])}`, 'FOLLOW_STATE'],
      [
        sql`not ${isThere(projects, and(eq(projects.id, projectId), inArray(projects.storageState, BLOCKED)))}`,
        'WRITE_BLOCKED',
      ],
      ...(dropsSnapshots ? [] : [[sql`not ${isThere(snapshots, kept)}`, 'SNAPSHOTS_STAY'] as const]),
      [acceptsProjects(toHostId), 'HOST_UNAVAILABLE'],
      [hasPlaceOn(toHostId, projectId), 'HOST_FULL'],
      [hasRoomOn(settings, toHostId, projectId, project.storageQuotaGib), 'HOST_FULL'],
    ],
    rest: (isWritten) => [
      insertIf(db, auditEvents, event, isWritten),
      // The former host may still have what an earlier move has left there: `clear` drops it.
      db.delete(moves).where(and(eq(moves.projectId, projectId), isWritten)),
      insertIf(db, moves, row, isWritten),
    ],
  });
  return written.ok ? ok(job) : written;
}

interface Moving {
  move: MoveRow;
  project: ProjectRow;
  password: string;
  from: typeof hosts.$inferSelect;
  to: typeof hosts.$inferSelect;
}

/** Null for a project that is being deleted before it has moved. */
async function load({ db, job, settings }: Context): Promise<Moving | null> {
  const ofProject = eq(projects.id, job.projectId);
  const [[project], [move], [from], [to]] = await db.batch([
    db.select().from(projects).where(ofProject),
    db.select().from(moves).where(eq(moves.jobId, job.id)),
    db.select().from(hosts).where(eq(hosts.id, job.hostId)),
    db.select().from(hosts).where(eq(hosts.id, job.input.toHostId)),
  ]);
  if (!project || !move?.sealedPassword || !from || !to) return null;
  if (project.status !== 'active' && move.phase !== 'moved') return null;
  const { keyId, sealedPassword: sealed } = move;
  const password = await unseal(settings.CREDENTIAL_KEYS, sealOwner(job.id), { keyId, sealed });
  return { project, move, from, to, password };
}

/** Stores what is known of the move. */
async function store({ db, job }: Context, { move }: Moving, change: Partial<MoveRow>): Promise<void> {
  Object.assign(move, change);
  await db
    .update(moves)
    .set({ ...change, updatedAt: new Date() })
    .where(eq(moves.jobId, job.id));
}

const setBranch = (context: Context, moving: Moving, id: string, change: Partial<MovingBranch>) =>
  store(context, moving, {
    branches: moving.move.branches.map((branch) => (branch.id === id ? { ...branch, ...change } : branch)),
  });

const mainOf = ({ move: { branches } }: Moving): MovingBranch => {
  const [main] = branches;
  if (!main) throw new Error('a move without main');
  return main;
};

const toHost = <M extends Method>(context: Context, method: M, params: Params<M>): Promise<MethodResult<M>> =>
  context.callHostOf(context.job.input.toHostId)(method, params);

const of = ({ job }: Context, { id, database }: Pick<MovingBranch, 'id' | 'database'>) => ({
  ...{ project_id: job.projectId, branch_id: id, database },
});

const sourceUrl = ({ job }: Context, { from, password }: Moving, database: string) =>
  `postgresql://${moverLogin(job.id)}:${encodeURIComponent(password)}@${hostInUrl(from.dbHost)}:${from.directPort}/${database}`;
const hostInUrl = (address: string) => (address.includes(':') ? `[${address}]` : address);

/** The login ends by itself if nothing extends it. */
const VALID_SECONDS = 3600;
const EXTEND_EVERY_MS = 300_000;

/**
 * Makes the login on the former host, or extends it, with the branches that can only be read.
 * @throws SourceUnsuitableError if it was removed meanwhile, so that branches could be written, or could not be removed
 */
async function admit(context: Context, moving: Moving): Promise<void> {
  const { move, to, password } = moving;
  const { admitted_at, can_remove } = await context.callHost('move.admit', {
    ...{ job_id: context.job.id, project_id: context.job.projectId, database: mainOf(moving).database },
    verifier: await scramVerifier(password),
    from: [to.dbHost],
    valid_seconds: VALID_SECONDS,
    frozen: move.branches.filter(({ frozen }) => frozen).map(({ id }) => id),
  });
  if (!can_remove)
    throw new SourceUnsuitableError(
      'The former host cannot remove what a move leaves. Replace its pg_hba.conf and pg_ident.conf by what `branchgate-agent configuration` prints, and reload PostgreSQL.',
    );
  if (move.admittedAt === null) await store(context, moving, { admittedAt: admitted_at });
  if (move.admittedAt !== admitted_at)
    throw new SourceUnsuitableError(
      'The former host has removed the login of the move, because the gateway did not extend it in time. Move the project again.',
    );
}

/** Keeps the login while `work` lasts. */
async function whileAdmitted<T>(context: Context, moving: Moving, work: () => Promise<T>): Promise<T> {
  const timer = setInterval(() => void admit(context, moving).catch(() => {}), EXTEND_EVERY_MS);
  try {
    return await work();
  } finally {
    clearInterval(timer);
  }
}

/** A step before the hosts are closed, which can be cancelled. */
const whileBuilding =
  (run: (context: Context, moving: Moving) => Promise<unknown>) =>
  async (context: Context, moving: Moving) => {
    if (moving.move.phase !== 'building') return;
    if (await isCancelled(context.db, context.job.id)) throw new JobCancelledError();
    await whileAdmitted(context, moving, () => run(context, moving));
    if (await isCancelled(context.db, context.job.id)) throw new JobCancelledError();
  };

type Findings = MethodResult<'transfer.copy'>['findings'];

/** The former host may have been killed. Without an end, a project would stay closed, or a wrong address unnoticed. */
const AWAY_MS = { beforeCopy: 15 * 60_000, whileCopying: Number.POSITIVE_INFINITY, whileClosed: 120_000 };

/**
 * What ends an attempt: what is only not reached is tried again.
 * @param since when that is given up after its limit
 */
function failureOf(findings: Findings, since: Date, limit: keyof typeof AWAY_MS, about = ''): Error {
  const text = about + findings.map(({ message }) => message).join(' ');
  const isAway = findings.length > 0 && findings.every(({ problem }) => problem === 'connection');
  return isAway && Date.now() - since.getTime() < AWAY_MS[limit]
    ? new Error(text)
    : new SourceUnsuitableError(text);
}

/** A host that was set up for an earlier release lacks them. */
const SETTINGS_OF_HOST: readonly string[] = ['wal_level', 'wal_keep_size'];
const SET_UP =
  'Set wal_level and max_slot_wal_keep_size of the former host as `branchgate-agent configuration` prints them, and restart its PostgreSQL.';

/**
 * Whether every change of `main` can be followed: a table without a key, or one that is not logged, has changes that do
 * not arrive, so such a `main` is copied like the other branches.
 */
async function examine(context: Context, moving: Moving): Promise<void> {
  if (moving.move.follows !== null) return;
  const main = mainOf(moving);
  const { source, findings } = await toHost(context, 'transfer.probe', {
    ...{ project_id: context.job.projectId, source_url: sourceUrl(context, moving, main.database) },
    ...{ use: 'follow', into: null, tables: null, publication: null, of_host: true },
    room_bytes: Number.MAX_SAFE_INTEGER,
  });
  const wrong = findings.filter(
    ({ severity, problem }) => severity === 'error' || problem === 'wal_keep_size',
  );
  if (!source || wrong.length > 0) {
    if (wrong.some(({ problem }) => SETTINGS_OF_HOST.includes(problem)))
      throw new SourceUnsuitableError([...wrong.map(({ message }) => message), SET_UP].join(' '));
    throw failureOf(wrong, moving.move.createdAt, 'beforeCopy');
  }
  const follows = !source.has_more && source.tables.every((table) => table.follows === 'all');
  await store(context, moving, { follows });
}

/** Drops what an earlier move of the project has left on the other host, once it is known that this one can begin. */
async function clear(context: Context, moving: Moving): Promise<void> {
  await examine(context, moving);
  if (moving.move.branches.some(({ state }) => state !== 'waiting')) return;
  await toHost(context, 'project.drop', { job_id: context.job.id, project_id: context.job.projectId });
}

/** Makes empty branches on the other host, with their logins, to which nobody can connect. */
async function build(context: Context, moving: Moving): Promise<void> {
  const { db, job, settings } = context;
  const { CREDENTIAL_KEYS } = settings;
  const ids = moving.move.branches.map(({ id }) => id);
  const [credentials, [project], ...restrictions] = await db.batch([
    db.select().from(branchCredentials).where(isOneOf(branchCredentials.branchId, ids)),
    ...accessReads(db, job.projectId),
  ]);
  if (!project) return;
  const access = await accessOf(CREDENTIAL_KEYS, project, ...restrictions);
  const closed = { ...access, closed: ids, verifiers: {} };
  for (const { id, database, buildId, state } of moving.move.branches) {
    if (state !== 'waiting') continue;
    const rows = credentials.filter(({ branchId }) => branchId === id);
    const verifier = async (role: BranchRole) => scramVerifier(await passwordOf(CREDENTIAL_KEYS, rows, role));
    const [owner, read_write, read_only] = await Promise.all([
      verifier('owner'),
      verifier('read_write'),
      verifier('read_only'),
    ]);
    const branch = { branch_id: id, database, build_id: buildId };
    const about = { job_id: job.id, project_id: job.projectId };
    await toHost(context, 'branch.prepare', {
      ...{ ...about, access: closed },
      branches: [{ ...branch, verifiers: { owner, read_write, read_only } }],
    });
    const plain = { ...about, branches: [branch] };
    await toHost(context, 'branch.clone', { ...plain, source: null, busy_wait: BUSY_WAIT_MS });
    await toHost(context, 'branch.finalize', plain);
    await setBranch(context, moving, id, { state: 'built' });
  }
}

/** What `main` follows; null: it is copied as the others. */
const followOf = ({ job }: Context) => ({ slot: followName(job.projectId), publication: null });

/**
 * Copies a branch of the former host into that of the other one.
 * @throws SourceUnsuitableError, JobCancelledError
 */
async function copyBranch(context: Context, moving: Moving, id: string, follows: boolean): Promise<void> {
  const { db, job } = context;
  const current = () => moving.move.branches.find((branch) => branch.id === id);
  const branch = current();
  if (!branch || branch.state === 'copied') return;
  const { id: job_id } = job;
  const { snapshotId: snapshot_id, database } = branch;
  const about = of(context, branch);
  const source_url = sourceUrl(context, moving, database);
  if (branch.state === 'built') {
    const { copied, findings } = await toHost(context, 'transfer.copy', {
      ...{ ...about, job_id, source_url, tables: null, jobs: COPIED_AT_A_TIME, busy_wait: BUSY_WAIT_MS },
      room_bytes: Number.MAX_SAFE_INTEGER,
      follow: follows ? followOf(context) : null,
      of_host: true,
    });
    if (!copied) {
      if (await isCancelled(db, job.id)) throw new JobCancelledError();
      throw failureOf(findings, moving.move.createdAt, 'whileCopying', `${branch.name}: `);
    }
    await setBranch(context, moving, id, { state: 'loaded' });
  }
  await toHost(context, 'reset.swap', { ...about, job_id, snapshot_id });
  if (follows)
    await toHost(context, 'follow.start', {
      ...{ ...about, ...followOf(context), source_url, tables: null, of_host: true },
    });
  await toHost(context, 'snapshot.drop', { project_id: job.projectId, snapshot_id });
  await setBranch(context, moving, id, { state: 'copied' });
  showBranches(context, moving);
}

const COPIED_AT_A_TIME = 4;

function showBranches({ report }: Context, { move: { branches } }: Moving): void {
  const done = branches.filter(({ state }) => state === 'copied').length;
  report({ percent: Math.min(99, Math.floor((100 * done) / branches.length)) });
}

const copyMain = async (context: Context, moving: Moving): Promise<void> => {
  if (moving.move.follows) await copyBranch(context, moving, mainOf(moving).id, true);
};

/** Copies the branches that do not follow, one after another, `main` as the last one. */
async function copyOthers(context: Context, moving: Moving): Promise<void> {
  const [main, ...others] = moving.move.branches;
  for (const { id } of [...others, ...(main && !moving.move.follows ? [main] : [])]) {
    if (await isCancelled(context.db, context.job.id)) throw new JobCancelledError();
    await setBranch(context, moving, id, { frozen: true });
    await admit(context, moving);
    await copyBranch(context, moving, id, false);
  }
}

const LEVEL_BYTES = 16 * 2 ** 20;
const LEVEL_EVERY_MS = 500;
/** A branch that is not level after this time does not keep up with what is written. Milliseconds. */
const LEVEL_WITHIN_MS = 6 * 3_600_000;

/** Waits until `main` is level, and compares its rows. @throws SourceUnsuitableError, JobCancelledError */
async function compare(context: Context, moving: Moving): Promise<void> {
  if (!moving.move.follows) return;
  const about = of(context, mainOf(moving));
  const deadline = Date.now() + LEVEL_WITHIN_MS;
  for (;;) {
    const { state, problem, lag_bytes } = await toHost(context, 'follow.status', about);
    if (problem) throw new SourceUnsuitableError(`main does not follow: ${problem.message}`);
    if (state === 'absent') throw new SourceUnsuitableError('The other host has lost what main followed.');
    if (lag_bytes !== null && lag_bytes < LEVEL_BYTES) break;
    if (Date.now() > deadline)
      throw new SourceUnsuitableError('main is written to faster than its changes arrive.');
    if (await isCancelled(context.db, context.job.id)) throw new JobCancelledError();
    await new Promise((resolve) => setTimeout(resolve, LEVEL_EVERY_MS));
  }
  const { compared, findings } = await toHost(context, 'move.compare', { ...about, job_id: context.job.id });
  if (!compared) throw failureOf(findings, moving.move.createdAt, 'whileCopying');
}

/** Closes the former host, and has the last changes arrive. */
async function fence(context: Context, moving: Moving): Promise<void> {
  const { db, job, settings, callHostOf } = context;
  if (moving.move.phase === 'moved') return;
  // Without it, a branch could have been written after its copy.
  await admit(context, moving);
  if (moving.move.phase === 'building') {
    const thisMove = eq(moves.jobId, job.id);
    const mayFence = and(thisMove, eq(moves.phase, 'building'), isUncancelled(job.id));
    const [fenced] = await db.batch([
      db.update(moves).set({ phase: 'fenced', updatedAt: new Date() }).where(mayFence),
      nextAccessRevision(db, job.projectId, isThere(moves, and(thisMove, eq(moves.phase, 'fenced')))),
    ]);
    if (!hasChanged(fenced)) throw new JobCancelledError();
    Object.assign(moving.move, { phase: 'fenced', updatedAt: new Date() });
  }
  await sendAccess(db, settings.CREDENTIAL_KEYS, callHostOf, job.projectId);
  if (!moving.move.follows) return;
  const { cut_over, findings } = await toHost(context, 'follow.cutover', {
    ...{ ...of(context, mainOf(moving)), job_id: job.id, writes_refused: true, is_compared: true },
  });
  if (!cut_over) throw failureOf(findings, moving.move.updatedAt, 'whileClosed');
}

/** Makes the other host that of the project: the one statement that decides. */
async function switchHost({ db, job }: Context, moving: Moving): Promise<void> {
  if (moving.move.phase === 'moved') return;
  const { toHostId, leftOut, dropsSnapshots } = job.input;
  const now = new Date();
  const keptUntil = new Date(now.getTime() + KEPT_MS);
  const hasMoved = isThere(moves, and(eq(moves.jobId, job.id), eq(moves.phase, 'moved')));
  const ofProject = <T extends { projectId: typeof jobs.projectId }>(table: T) =>
    eq(table.projectId, job.projectId);
  await inOneBatch(db, [
    db
      .update(moves)
      .set({ phase: 'moved', keptUntil, updatedAt: now })
      .where(and(eq(moves.jobId, job.id), eq(moves.phase, 'fenced'))),
    db
      .update(projects)
      .set({ hostId: toHostId, accessApplied: -1, accessRevision: sql`access_revision + 1`, updatedAt: now })
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
          transition(db, 'delete', and(isOneOf(projectBranches.id, leftOut), hasMoved), now),
        ]),
    ...(dropsSnapshots ? forgetSnapshots(db, job.projectId, hasMoved) : []),
  ]);
  moving.move.phase = 'moved';
}

/** What cannot be restored any more: the other host has none of these databases. */
const forgetSnapshots = (
  db: Database,
  projectId: string,
  condition: ReturnType<typeof isThere>,
): Statement[] => {
  const ofDeleted = sql`(select branch_id from ${snapshots} where project_id = ${projectId} and kind = 'deleted')`;
  return [
    db.delete(branchCredentials).where(and(sql`${branchCredentials.branchId} in ${ofDeleted}`, condition)),
    db
      .update(projectBranches)
      .set({ deletesAt: null })
      .where(
        and(sql`${projectBranches.id} in ${ofDeleted}`, eq(projectBranches.status, 'deleted'), condition),
      ),
    db.delete(snapshots).where(and(eq(snapshots.projectId, projectId), condition)),
  ];
};

/** After the switch nothing is undone, so every failure is tried again. */
const untilDone =
  (run: (context: Context, moving: Moving) => Promise<unknown>) => async (context: Context, moving: Moving) =>
    run(context, moving).catch((error) => {
      throw error instanceof HostCallError ? new Error(`${error.code}: ${error.message}`) : error;
    });

const open = ({ db, settings, callHostOf, job }: Context) =>
  sendAccess(db, settings.CREDENTIAL_KEYS, callHostOf, job.projectId);

const release = ({ job, callHost }: Context) =>
  callHost('move.release', { job_id: job.id, project_id: job.projectId });

export const moveProjectJob = saga<'project.move', Moving>({
  steps: [
    [{ name: 'admit', run: whileBuilding(admit) }],
    [{ name: 'clear', run: whileBuilding(clear) }],
    [{ name: 'build', run: whileBuilding(build) }],
    [{ name: 'copy', run: whileBuilding(copyMain) }],
    [{ name: 'branches', run: whileBuilding(copyOthers) }],
    [{ name: 'compare', run: whileBuilding(compare) }],
    [{ name: 'fence', run: fence }],
    [{ name: 'switch', run: switchHost }],
    [{ name: 'open', run: untilDone(open) }],
    [
      {
        name: 'name',
        when: (_job, settings) => givesNames(settings),
        run: untilDone(({ db, settings, job }) => nameProject(db, settings, job.projectId)),
      },
    ],
    [{ name: 'release', run: untilDone(release) }],
  ],
  // Copies take as long as they take, and what is not reached is waited for.
  patience: () => Number.POSITIVE_INFINITY,
  load,
  complete: ({ db, job }, { move }, now) => {
    const { toHostId: to_host_id, leftOut, dropsSnapshots } = job.input;
    const metadata = {
      ...{ from_host_id: job.hostId, to_host_id, branches: move.branches.length },
      ...{ left_out: leftOut.length, dropped_snapshots: dropsSnapshots },
    };
    const event = auditEvent(
      'project.moved',
      job.input.actor,
      { id: job.id, projectId: job.projectId, metadata },
      now,
    );
    return [
      insertIf(db, auditEvents, event, sql`true`),
      inTenantOfProject(db, job.projectId, [job.id]),
      db.update(moves).set({ sealedPassword: null, updatedAt: now }).where(eq(moves.jobId, job.id)),
    ];
  },
  undo: {
    run: undo,
    record: ({ db, job }, _refused, now) => [
      db.update(moves).set({ sealedPassword: null, updatedAt: now }).where(eq(moves.jobId, job.id)),
    ],
  },
});

/** The former host serves its clients again before the other one is reached, which may be gone for good. */
async function undo(context: Context): Promise<void> {
  const { db, job, settings, callHostOf } = context;
  const { id: job_id, projectId: project_id } = job;
  const [move] = await db.select().from(moves).where(eq(moves.jobId, job_id));
  if (move?.phase === 'moved') throw new Error('a project that has moved does not go back');
  const wasFenced = isThere(moves, and(eq(moves.jobId, job_id), eq(moves.phase, 'fenced')));
  await db.batch([
    nextAccessRevision(db, project_id, wasFenced),
    db.update(moves).set({ phase: 'undone', updatedAt: new Date() }).where(eq(moves.jobId, job_id)),
  ]);
  await sendAccess(db, settings.CREDENTIAL_KEYS, callHostOf, project_id);
  await release(context);
  await toHost(context, 'transfer.cancel', { job_id, project_id });
  // What an earlier move has left there stays until its day is over, if this one has not dropped it yet.
  if (move && move.follows !== null) await toHost(context, 'project.drop', { job_id, project_id });
}
