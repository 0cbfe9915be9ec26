import { and, eq, inArray, sql } from 'drizzle-orm';
import type { BranchRole } from '../../shared/branch/login.ts';
import type { Method, MethodResult, Params } from '../../shared/protocol/operations.ts';
import { followName, moverLogin } from '../../shared/protocol/transfer-operations.ts';
import { passwordOf } from '../access/credentials.ts';
import { accessOf, accessReads, nextAccessRevision, sendAccess } from '../access/send-access.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { transition } from '../branches/branch.ts';
import { BUSY_WAIT_MS } from '../branches/clone-source.ts';
import { forgetSnapshots } from '../branches/drop-snapshots.ts';
import { scramVerifier } from '../crypto/scram.ts';
import { unseal } from '../crypto/seal.ts';
import type { MovingBranch } from '../database/column-types.ts';
import { hasChanged, inOneBatch, insertIf, isOneOf, isThere } from '../database/database.ts';
import { KEPT_MS, type MoveRow, moves } from '../database/move-schema.ts';
import {
  auditEvents,
  branchCredentials,
  hosts,
  jobs,
  networkRules,
  type ProjectRow,
  projectBranches,
  projects,
} from '../database/schema.ts';
import { HostCallError } from '../hosts/host-client.ts';
import { isCancelled, isUncancelled } from '../jobs/cancel-job.ts';
import { isOpenJob } from '../jobs/job-store.ts';
import {
  HostLostError,
  JobCancelledError,
  type SagaContext,
  SourceUnsuitableError,
  saga,
} from '../jobs/saga.ts';
import { logEvent } from '../log.ts';
import { failureOf, isAway, LOST_MS, REACHED_MS, whileClosed } from './away-host.ts';
import { givesNames, nameProject } from './dns-names.ts';
import { sealOwner } from './reserve-move.ts';

/**
 * A project moves to another host. `main` follows there while the other branches are copied, which can only be read
 * meanwhile. Then both hosts are closed, the last changes arrive, and the record of the project names the other host.
 * Until that statement the move can be undone; after it, it is tried until it is done.
 */

type Context = SagaContext<'project.move'>;

interface Moving {
  move: MoveRow;
  project: ProjectRow;
  password: string;
  /** Hosts may be gone once the project has moved. */
  from: typeof hosts.$inferSelect | undefined;
  to: typeof hosts.$inferSelect | undefined;
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
  if (!project || !move?.sealedPassword) return null;
  if (!(project.status === 'active' && from && to) && move.phase !== 'moved') return null;
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
    awaySince: null,
    branches: moving.move.branches.map((branch) => (branch.id === id ? { ...branch, ...change } : branch)),
  });

const mainOf = ({ move: { branches } }: Moving): MovingBranch => {
  const [main] = branches;
  if (!main) throw new Error('a move without main');
  return main;
};

/** Attempts that have reached the other host. */
const reached = new WeakSet<Context>();

async function toHost<M extends Method>(
  context: Context,
  method: M,
  params: Params<M>,
): Promise<MethodResult<M>> {
  const result = await context.callHostOf(context.job.input.toHostId)(method, params);
  reached.add(context);
  return result;
}

const of = ({ job }: Context, { id, database }: Pick<MovingBranch, 'id' | 'database'>) => ({
  ...{ project_id: job.projectId, branch_id: id, database },
});

function sourceUrl({ job }: Context, { from, password }: Moving, database: string): string {
  if (!from) throw new Error('a move without its former host');
  return `postgresql://${moverLogin(job.id)}:${encodeURIComponent(password)}@${from.dbHost}:${from.directPort}/${database}`;
}

/** The login ends by itself if nothing extends it. */
const VALID_SECONDS = 900;
const EXTEND_EVERY_MS = 180_000;

const NOT_EXTENDED =
  'The former host has removed the login of the move, because the gateway did not extend it in time. Move the project again.';

/**
 * Makes the login on the former host, or extends it, with the branches that can only be read.
 * @throws SourceUnsuitableError if it was removed meanwhile, so that branches could be written, or could not be removed
 */
async function admit(context: Context, moving: Moving): Promise<void> {
  const { move, to, password } = moving;
  const { admitted_at, can_remove } = await context.callHost('move.admit', {
    ...{ job_id: context.job.id, project_id: context.job.projectId, database: mainOf(moving).database },
    verifier: await scramVerifier(password),
    from: [to?.dbHost ?? ''],
    valid_seconds: VALID_SECONDS,
    frozen: move.branches.filter(({ frozen }) => frozen).map(({ id }) => id),
  });
  if (!can_remove)
    throw new SourceUnsuitableError(
      'The former host cannot remove what a move leaves. Replace its pg_hba.conf and pg_ident.conf by what `branchgate-agent configuration` prints, and reload PostgreSQL.',
    );
  if (move.admittedAt === null) await store(context, moving, { admittedAt: admitted_at });
  if (move.admittedAt !== admitted_at) throw new SourceUnsuitableError(NOT_EXTENDED);
}

/**
 * Keeps the login while `work` lasts. An extension that is under way ends with it.
 * @param every milliseconds; set by tests only
 */
export async function whileAdmitted<T>(
  context: Context,
  moving: Moving,
  work: () => Promise<T>,
  every = EXTEND_EVERY_MS,
): Promise<T> {
  let extending: Promise<void> = Promise.resolve();
  const timer = setInterval(() => {
    extending = extending.then(() => admit(context, moving)).catch(() => {});
  }, every);
  try {
    return await work();
  } finally {
    clearInterval(timer);
    await extending;
  }
}

/** Ends a move whose hosts are not closed yet, and one of which is away at each attempt. @throws HostLostError */
async function unlessLost(context: Context, moving: Moving, work: () => Promise<unknown>): Promise<void> {
  const began = Date.now();
  const isAnswered = () => reached.has(context) || Date.now() - began > REACHED_MS;
  const setAway = async (awaySince: Date | null) => {
    if (moving.move.awaySince?.getTime() !== awaySince?.getTime())
      await store(context, moving, { awaySince });
  };
  try {
    await work();
    // The other host is called after the former one.
    if (isAnswered()) await setAway(null);
  } catch (error) {
    const isUnlinked = error instanceof HostCallError && error.code === 'HOST_UNAVAILABLE';
    const { awaySince } = moving.move;
    if (isUnlinked && awaySince && !isAnswered() && Date.now() - awaySince.getTime() > LOST_MS)
      throw new HostLostError('A host has been away for 15 minutes.');
    if (!isUnlinked) await setAway(null);
    else if (!awaySince || isAnswered()) await setAway(new Date());
    throw error;
  }
}

/** A step before the hosts are closed, which can be cancelled. */
const whileBuilding =
  (run: (context: Context, moving: Moving) => Promise<unknown>) =>
  async (context: Context, moving: Moving) => {
    if (moving.move.phase !== 'building') return;
    if (await isCancelled(context.db, context.job.id)) throw new JobCancelledError();
    await unlessLost(context, moving, () => whileAdmitted(context, moving, () => run(context, moving)));
    if (await isCancelled(context.db, context.job.id)) throw new JobCancelledError();
  };

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
  await toHost(context, 'project.drop', {
    ...{ job_id: context.job.id, project_id: context.job.projectId },
    up_to_revision: moving.project.accessRevision,
  });
  // What is built has a newer one, so a drop that is late leaves it.
  await nextAccessRevision(context.db, context.job.projectId, sql`true`);
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
    await setBranch(context, moving, id, { state: 'built', revision: project.accessRevision });
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
  const { db, job } = context;
  if (moving.move.phase === 'moved') return;
  if (moving.move.phase === 'building') {
    // Before clients notice anything.
    await admit(context, moving);
    const thisMove = eq(moves.jobId, job.id);
    const mayFence = and(thisMove, eq(moves.phase, 'building'), isUncancelled(job.id));
    const now = new Date();
    const [fenced] = await db.batch([
      db.update(moves).set({ phase: 'fenced', fencedAt: now, updatedAt: now }).where(mayFence),
      nextAccessRevision(db, job.projectId, isThere(moves, and(thisMove, eq(moves.phase, 'fenced')))),
    ]);
    if (!hasChanged(fenced)) throw new JobCancelledError();
    Object.assign(moving.move, { phase: 'fenced', fencedAt: now, updatedAt: now });
  }
  await whileClosed(moving.move.fencedAt, async () => {
    await takeOver(context, moving);
    await switchHost(context, moving);
  });
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
async function takeOver(context: Context, moving: Moving): Promise<void> {
  const { db, job, settings, callHost, callHostOf } = context;
  const { move } = moving;
  await sendAccess(db, settings.CREDENTIAL_KEYS, callHostOf, job.projectId);
  const [{ admitted_at, changed }, { sizes }] = await Promise.all([
    callHost('move.close', {
      ...{ job_id: job.id, project_id: job.projectId },
      frozen: move.branches.slice(move.follows ? 1 : 0).map(({ id }) => id),
    }),
    // The other host may have lost what was copied.
    toHost(context, 'project.size', { project_id: job.projectId }),
  ]);
  const absent = move.branches.filter(({ id }) => !Object.hasOwn(sizes, id)).map(({ name }) => name);
  if (absent.length > 0)
    throw new SourceUnsuitableError(`${absent.join(', ')}: lost on the other host. Move the project again.`);
  await requireUnprotected(context);
  if (admitted_at !== move.admittedAt) throw new SourceUnsuitableError(NOT_EXTENDED);
  const written = move.branches.filter(({ id }) => changed.includes(id)).map(({ name }) => name);
  if (changed.length > 0)
    throw new SourceUnsuitableError(
      `${written.join(', ')}: changed while it could only be read, for instance by a function SECURITY DEFINER, or PostgreSQL was restarted. Move the project again.`,
    );
  if (!move.follows) return;
  const { cut_over, findings } = await toHost(context, 'follow.cutover', {
    ...{ ...of(context, mainOf(moving)), job_id: job.id, writes_refused: true, is_compared: true },
  });
  if (!cut_over) throw failureOf(findings, move.fencedAt ?? move.updatedAt, 'whileClosed');
}

/** Makes the other host that of the project: the one statement that decides. */
export async function switchHost({ db, job }: Context, moving: Moving): Promise<void> {
  if (moving.move.phase === 'moved') return;
  const { toHostId, leftOut, dropsSnapshots } = job.input;
  const now = new Date();
  const keptUntil = new Date(now.getTime() + KEPT_MS);
  const noneProtected =
    leftOut.length === 0 ? sql`true` : sql`not ${isThere(projectBranches, isProtectedOf(job.input))}`;
  const hasMoved = isThere(moves, and(eq(moves.jobId, job.id), eq(moves.phase, 'moved')));
  const ofProject = <T extends { projectId: typeof jobs.projectId }>(table: T) =>
    eq(table.projectId, job.projectId);
  await inOneBatch(db, [
    // Excludes its undoing, which changes the phase too, and begins with the error of the job.
    db
      .update(moves)
      .set({ phase: 'moved', keptUntil, updatedAt: now })
      .where(and(eq(moves.jobId, job.id), eq(moves.phase, 'fenced'), isUncancelled(job.id), noneProtected)),
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
          transition(db, 'delete', and(isOneOf(projectBranches.id, leftOut), hasMoved), now),
        ]),
    ...(dropsSnapshots ? forgetSnapshots(db, job.projectId, hasMoved) : []),
  ]);
  const [move] = await db.select().from(moves).where(eq(moves.jobId, job.id));
  if (move?.phase !== 'moved') throw new Error('the move is being undone');
  Object.assign(moving.move, move);
}

/** The access whose passwords every branch on the other host has. */
const builtRevision = ({ move: { branches } }: Moving): number =>
  Math.min(...branches.map(({ revision }) => revision ?? -1));

/**
 * After the switch nothing is undone, so every failure is tried again, until a host counts as lost.
 * @param endsWith the failures that are left after that time
 */
const untilDone =
  (
    run: (context: Context, moving: Moving) => Promise<unknown>,
    endsWith: 'lost host' | 'any failure' = 'lost host',
  ) =>
  async (context: Context, moving: Moving) =>
    run(context, moving).catch((error) => {
      const movedAt = (moving.move.keptUntil?.getTime() ?? Date.now() + KEPT_MS) - KEPT_MS;
      const isLate = Date.now() - movedAt > LOST_MS;
      if (isLate && (endsWith === 'any failure' || isAway(error))) return logLeft(context, error);
      throw error instanceof HostCallError ? new Error(`${error.code}: ${error.message}`) : error;
    });

const logLeft = ({ job }: Context, error: unknown) =>
  logEvent('move.left', { job_id: job.id, project_id: job.projectId, reason: String(error) });

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
    [{ name: 'open', run: untilDone(open) }],
    [
      {
        name: 'name',
        when: (_job, settings) => givesNames(settings),
        // The reconciliation of the host writes it otherwise.
        run: untilDone(({ db, settings, job }) => nameProject(db, settings, job.projectId), 'any failure'),
      },
      { name: 'release', run: untilDone(release) },
    ],
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

/**
 * The former host serves its clients again before the other one is reached, which may be gone for good. One that is
 * away for long holds up nothing: its agent removes the login, and its reconciliation drops the rest.
 */
async function undo(context: Context): Promise<void> {
  const { db, job, settings, callHostOf } = context;
  const { id: job_id, projectId: project_id } = job;
  const thisMove = eq(moves.jobId, job_id);
  // Excludes the switch, which changes the phase too.
  const isUndoable = and(thisMove, inArray(moves.phase, ['building', 'fenced']));
  await db.batch([
    nextAccessRevision(db, project_id, isThere(moves, and(thisMove, eq(moves.phase, 'fenced')))),
    db.update(moves).set({ phase: 'undone', updatedAt: new Date() }).where(isUndoable),
  ]);
  const [[move], [project]] = await db.batch([
    db.select().from(moves).where(thisMove),
    db.select().from(projects).where(eq(projects.id, project_id)),
  ]);
  if (move?.phase === 'moved') {
    // The reply of the switch was lost, and its attempt has failed.
    await db.update(jobs).set({ error: null }).where(eq(jobs.id, job_id));
    throw new Error('a project that has moved does not go back');
  }
  const isLost = move ? Date.now() - move.updatedAt.getTime() > LOST_MS : true;
  const failures: unknown[] = [];
  const tidy = (work: Promise<unknown>) =>
    work.catch((error) => {
      if (isLost && isAway(error)) logLeft(context, error);
      else failures.push(error);
    });
  await Promise.all([
    tidy(sendAccess(db, settings.CREDENTIAL_KEYS, callHostOf, project_id)),
    tidy(release(context)),
  ]);
  await tidy(toHost(context, 'transfer.cancel', { job_id, project_id }));
  // What an earlier move has left there stays until its day is over, if this one has not dropped it yet.
  if (move && move.follows !== null)
    await tidy(
      toHost(context, 'project.drop', {
        ...{ job_id, project_id },
        ...(project && { up_to_revision: project.accessRevision }),
      }),
    );
  if (failures.length > 0) throw failures[0];
}
