import { randomUUID } from 'node:crypto';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import { groupName } from '../../shared/branch/login.ts';
import type { Params } from '../../shared/protocol/operations.ts';
import { createUnusedClone } from '../cloning/create-clone.ts';
import type { Host } from '../host.ts';
import { pollUntil } from '../poll-until.ts';
import { identifier, type Queryable, type Session } from '../postgres/connect.ts';
import { protectDatabase } from '../postgres/database-settings.ts';
import { dropDatabase } from '../postgres/databases.ts';
import { limited } from '../postgres/limited.ts';
import { releaseLock, takeLock, tryLock, withLocks } from '../postgres/locks.ts';
import { type OnProgress, partOf } from '../progress.ts';
import { HostError } from '../servers/host-error.ts';
import { comparedDatabaseName } from '../snapshots/snapshot-databases.ts';
import type { Side, Sides } from './sides.ts';

type Wanted = Pick<Params<'branch.diff'>, 'project_id' | 'branch_id' | 'database' | 'against'>;

/** Comparisons of all projects at once. */
const PLACES = ['0', '1'];
/** One more, so that two long ones do not make everybody wait. */
const PLACE_OF_SHORT = 'short';
/** Milliseconds of a short one. */
const SHORT_MS = 10_000;
/** For the end of another comparison. */
const WAIT_MS = 1_000;
const LOOK_EVERY_MS = 50;

/** Of the progress of a comparison, where a snapshot is copied for it block by block. */
const COPYING_SHARE = 0.5;

interface Budget {
  /** Milliseconds that are left. */
  left: () => number;
  onProgress: OnProgress | undefined;
}

type Action<T> = (sides: Sides, session: Session, budget: Budget) => Promise<T>;

/**
 * Runs `action` with both sides open for reading: a snapshot as a clone that is dropped afterwards. A project compares
 * once at a time.
 * @param within milliseconds for the clone of a snapshot and the action
 * @param action gets a session of the platform in the agent's own database too
 * @throws HostError PROJECT_BUSY, HOST_BUSY, SOURCE_MISSING for what is not of the project
 */
export async function withSides<T>(
  host: Host,
  wanted: Wanted,
  within: number,
  action: Action<T>,
  onProgress?: OnProgress,
): Promise<T> {
  const leave = host.comparisons.enter(wanted.project_id);
  try {
    return await inPlace(host, wanted, within, action, onProgress);
  } finally {
    leave();
  }
}

function inPlace<T>(
  host: Host,
  { project_id, branch_id, database, against }: Wanted,
  within: number,
  action: Action<T>,
  onProgress?: OnProgress,
): Promise<T> {
  const until = performance.now() + within;
  const left = () => Math.max(1, Math.round(until - performance.now()));
  return withLocks(host.sessions, [], async (session) => {
    await takePlace(session, project_id, within);
    const after = { branch_id, database };
    await requireBranch(session, project_id, after);
    if ('branch_id' in against) {
      await requireBranch(session, project_id, against);
      return action({ before: against, after }, session, { left, onProgress });
    }
    const snapshot = { project_id, branch_id, snapshot_id: against.snapshot_id };
    const copied = host.cloneMethod === 'copy' ? COPYING_SHARE : 0;
    const budget = { left, onProgress: partOf(onProgress, 0, copied) };
    return withOpenSnapshot(host, session, snapshot, budget, (before) =>
      action({ before, after }, session, { left, onProgress: partOf(onProgress, copied, 1) }),
    );
  });
}

async function takePlace(session: Session, projectId: string, within: number): Promise<void> {
  const options = { within: WAIT_MS, every: LOOK_EVERY_MS };
  if (!(await pollUntil(() => tryLock(session, `difference:${projectId}`), options)))
    throw new HostError('PROJECT_BUSY', 'another comparison of this project is under way');
  const places = within <= SHORT_MS ? [PLACE_OF_SHORT, ...PLACES] : PLACES;
  const isPlaced = async () => {
    for (const place of places) if (await tryLock(session, `difference:${place}`)) return true;
    return false;
  };
  if (!(await pollUntil(isPlaced, options)))
    throw new HostError('HOST_BUSY', 'too many comparisons are under way');
}

/** The gateway has checked it; this host refuses as well to read what is another project's. */
async function requireBranch(db: Queryable, projectId: string, { branch_id, database }: Side): Promise<void> {
  const { rows } = await db.query(
    'SELECT FROM branch WHERE project_id = $1 AND branch_id = $2 AND database = $3',
    [projectId, branch_id, database],
  );
  if (rows.length === 0) throw new HostError('SOURCE_MISSING', `the project has no branch ${database}`);
}

async function withOpenSnapshot<T>(
  host: Host,
  session: Session,
  { project_id, branch_id, snapshot_id }: { project_id: string; branch_id: string; snapshot_id: string },
  { left, onProgress }: Budget,
  action: (side: Side) => Promise<T>,
): Promise<T> {
  const { rows } = await session.query('SELECT FROM snapshot WHERE project_id = $1 AND snapshot_id = $2', [
    project_id,
    snapshot_id,
  ]);
  if (rows.length === 0) throw new HostError('SOURCE_MISSING', `the project has no snapshot ${snapshot_id}`);
  const id = randomUUID();
  const database = comparedDatabaseName(id);
  // Whoever drops leftovers takes this lock.
  await takeLock(session, `clone:${id}`);
  await limited(session, left(), () => takeLock(session, `clone:${snapshot_id}`));
  try {
    const clone = { name: database, source: snapshotDatabaseName(snapshot_id) };
    await limited(session, left(), () => createUnusedClone(host, session, clone, onProgress));
    await releaseLock(session, `clone:${snapshot_id}`);
    // No rule names it, so only the agent gets in.
    const name = identifier(database);
    await session.query(
      `REVOKE ALL ON DATABASE ${name} FROM PUBLIC;
       GRANT CONNECT ON DATABASE ${name} TO ${identifier(groupName(project_id, 'read_only'))};
       ${protectDatabase(host.settings, database)}`,
    );
    return await action({ branch_id, database });
  } finally {
    await dropDatabase(session, database);
  }
}
