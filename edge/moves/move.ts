import { eq, sql } from 'drizzle-orm';
import { followName } from '../../shared/protocol/transfer-operations.ts';
import { verifiersOf } from '../access/credentials.ts';
import { accessFacts, accessOf, accessReads, nextAccessRevision, sendAccess } from '../access/send-access.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { BUSY_WAIT_MS } from '../branches/clone-source.ts';
import { emptyWith } from '../branches/create-branches.ts';
import { insertIf, isOneOf } from '../database/database.ts';
import { KEPT_MS, moves } from '../database/move-schema.ts';
import { auditEvents, branchCredentials, jobs, projects } from '../database/schema.ts';
import { HostCallError } from '../hosts/host-client.ts';
import { isCancelled } from '../jobs/cancel-job.ts';
import { HostLostError, JobCancelledError, SourceUnsuitableError, saga } from '../jobs/saga.ts';
import { logEvent } from '../log.ts';
import { givesNames, nameProject } from '../projects/dns-names.ts';
import { failureOf, isAway, LOST_MS, REACHED_MS } from './away-host.ts';
import {
  admit,
  type Context,
  load,
  type Moving,
  mainOf,
  of,
  reached,
  setBranch,
  sourceUrl,
  store,
  toHost,
  whileAdmitted,
} from './moving.ts';
import { changePhase, nextState, raiseAccess } from './states.ts';
import { fence } from './switch.ts';

/**
 * A project moves to another host. `main` follows there while the other branches are copied, which can only be read
 * meanwhile. Then both hosts are closed, the last changes arrive, and the record of the project names the other host.
 * Until that statement the move can be undone; after it, it is tried until it is done.
 */

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
 * Examines whether every change of `main` can be followed: a table without a key, or one that is not logged, has changes that do
 * not arrive, so such a `main` is copied like the other branches.
 */
async function examine(context: Context, moving: Moving): Promise<void> {
  if (moving.move.follows !== null) return;
  const main = mainOf(moving);
  const { source, findings } = await toHost(context, 'transfer.probe', {
    project_id: context.job.projectId,
    source_url: sourceUrl(context, moving, main.database),
    use: 'follow',
    into: null,
    tables: null,
    publication: null,
    of_host: true,
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
    job_id: context.job.id,
    project_id: context.job.projectId,
    up_to_revision: moving.project.accessRevision,
  });
  // A rebuilt database has a newer revision, so a late drop leaves it.
  await nextAccessRevision(context.db, context.job.projectId, sql`true`);
}

/** Makes empty branches on the other host, with their logins, to which nobody can connect. */
async function build(context: Context, moving: Moving): Promise<void> {
  const { db, job, settings } = context;
  const { CREDENTIAL_KEYS } = settings;
  const ids = moving.move.branches.map(({ id }) => id);
  const [credentials, ...rows] = await db.batch([
    db.select().from(branchCredentials).where(isOneOf(branchCredentials.branchId, ids)),
    ...accessReads(db, job.projectId),
  ]);
  const facts = accessFacts(rows);
  if (!facts) return;
  const { project } = facts;
  const access = await accessOf(CREDENTIAL_KEYS, facts);
  const closed = { ...access, closed: ids, verifiers: {} };
  for (const moved of moving.move.branches) {
    const { id, database, buildId } = moved;
    const built = nextState('build', moved);
    if (built === null) continue;
    const rows = credentials.filter(({ branchId }) => branchId === id);
    const branch = { branch_id: id, database, build_id: buildId };
    const about = { job_id: job.id, project_id: job.projectId };
    await toHost(context, 'branch.prepare', {
      ...about,
      access: closed,
      branches: [{ ...branch, verifiers: await verifiersOf(CREDENTIAL_KEYS, rows) }],
    });
    const plain = { ...about, branches: [branch] };
    await toHost(context, 'branch.clone', {
      ...plain,
      ...emptyWith(moving.project),
      busy_wait: BUSY_WAIT_MS,
    });
    await toHost(context, 'branch.finalize', plain);
    await setBranch(context, moving, id, { state: built, revision: project.accessRevision });
  }
}

/** Subscription of `main`; null: it is copied as the others. */
const followOf = ({ job }: Context) => ({ slot: followName(job.projectId), publication: null });

/**
 * Copies a branch of the former host into that of the other one.
 * @throws SourceUnsuitableError, JobCancelledError
 */
async function copyBranch(context: Context, moving: Moving, id: string, follows: boolean): Promise<void> {
  const { db, job } = context;
  const current = () => moving.move.branches.find((other) => other.id === id);
  const branch = current();
  if (!branch) return;
  const loaded = nextState('load', branch);
  const { id: job_id } = job;
  const { snapshotId: snapshot_id, database } = branch;
  const about = of(context, branch);
  const source_url = sourceUrl(context, moving, database);
  if (loaded !== null) {
    const { copied, findings } = await toHost(context, 'transfer.copy', {
      ...about,
      job_id,
      source_url,
      tables: null,
      jobs: COPIED_AT_A_TIME,
      busy_wait: BUSY_WAIT_MS,
      room_bytes: Number.MAX_SAFE_INTEGER,
      follow: follows ? followOf(context) : null,
      of_host: true,
    });
    if (!copied) {
      if (await isCancelled(db, job.id)) throw new JobCancelledError();
      throw failureOf(findings, moving.move.createdAt, 'whileCopying', `${branch.name}: `);
    }
    await setBranch(context, moving, id, { state: loaded });
  }
  const swapped = nextState('swap', current() ?? branch);
  if (swapped === null) return;
  await toHost(context, 'reset.swap', { ...about, job_id, snapshot_id });
  if (follows)
    await toHost(context, 'follow.start', {
      ...about,
      ...followOf(context),
      source_url,
      tables: null,
      of_host: true,
    });
  await toHost(context, 'snapshot.drop', { project_id: job.projectId, snapshot_id });
  await setBranch(context, moving, id, { state: swapped });
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

const LOST_SLOT =
  'The former host has removed WAL that the move needed. Raise its max_slot_wal_keep_size, and move the project again.';

/** Waits until `main` is level, and compares its rows. @throws SourceUnsuitableError, JobCancelledError */
async function compare(context: Context, moving: Moving): Promise<void> {
  if (!moving.move.follows) return;
  const about = of(context, mainOf(moving));
  const deadline = Date.now() + LEVEL_WITHIN_MS;
  for (;;) {
    const { state, problem, lag_bytes } = await toHost(context, 'follow.status', about);
    if (problem?.code === 'slot') throw new SourceUnsuitableError(LOST_SLOT);
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

const open = ({ db, settings, callHostOf, job }: Context, { opening }: Moving) =>
  sendAccess(db, settings.CREDENTIAL_KEYS, callHostOf, job.projectId, opening);

const release = ({ job, callHost }: Context) =>
  callHost('move.release', { job_id: job.id, project_id: job.projectId });

/** Only the current host knows the last commit that survived, and informs the tenants of its projects. */
async function begin(context: Context, moving: Moving): Promise<void> {
  if (moving.project.owesNotice) throw new Error('the tenant has not been informed of the failover yet');
  await admit(context, moving);
}

export const moveProjectJob = saga<'project.move', Moving>({
  steps: [
    [{ name: 'admit', run: whileBuilding(begin) }],
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
      from_host_id: job.hostId,
      to_host_id,
      branches: move.branches.length,
      left_out: leftOut.length,
      dropped_snapshots: dropsSnapshots,
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
      changePhase(db, 'end', { jobId: job.id, projectId: job.projectId, now }),
    ];
  },
  undo: {
    run: undo,
    record: ({ db, job }, _refused, now) => [
      changePhase(db, 'end', { jobId: job.id, projectId: job.projectId, now }),
    ],
  },
});

/** The records are older than the switch, as after a restored backup: the other host has clients of the project. */
const isInUse = (error: unknown) => error instanceof HostCallError && error.code === 'INVALID_CALL';

/**
 * The former host serves its clients again before the other one is reached, which may be gone for good. One that is
 * away for long holds up nothing: its agent removes the login, and its reconciliation drops the rest.
 */
async function undo(context: Context): Promise<void> {
  const { db, job, settings, callHostOf } = context;
  const { id: job_id, projectId: project_id } = job;
  const change = { jobId: job_id, projectId: project_id, now: new Date() };
  await db.batch([raiseAccess(db, 'undo', change), changePhase(db, 'undo', change)]);
  const [[move], [project]] = await db.batch([
    db.select().from(moves).where(eq(moves.jobId, job_id)),
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
      if ((isLost && isAway(error)) || isInUse(error)) logLeft(context, error);
      else failures.push(error);
    });
  await Promise.all([
    tidy(sendAccess(db, settings.CREDENTIAL_KEYS, callHostOf, project_id)),
    tidy(release(context)),
  ]);
  await tidy(toHost(context, 'transfer.cancel', { job_id, project_id }));
  // Leftovers of an earlier move stay there until their day is over, unless this move drops them first.
  if (move && move.follows !== null)
    await tidy(
      toHost(context, 'project.drop', {
        job_id,
        project_id,
        ...(project && { up_to_revision: project.accessRevision }),
      }),
    );
  if (failures.length > 0) throw failures[0];
}
