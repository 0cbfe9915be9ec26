import { randomUUID } from 'node:crypto';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import { groupName } from '../../shared/branch/login.ts';
import type { Params } from '../../shared/protocol/operations.ts';
import { type CloneHost, createUnusedClone } from '../cloning/create-clone.ts';
import { boundedSocket } from '../postgres/bounded-socket.ts';
import {
  AS_TEXT,
  identifier,
  inTransaction,
  type Pool,
  type Queryable,
  type Session,
} from '../postgres/connect.ts';
import { dropDatabase, protectWork } from '../postgres/databases.ts';
import { releaseLock, takeLock, tryLock, withLocks } from '../postgres/locks.ts';
import { limited } from '../postgres/postgres-failure.ts';
import { COMPARING } from '../postgres/sessions.ts';
import type { Excesses } from '../process/excesses.ts';
import { HostError } from '../process/host-error.ts';
import { pollUntil } from '../process/loops.ts';
import { type OnProgress, partOf } from '../process/progress.ts';
import { ProjectGate } from '../process/project-gate.ts';
import { asOptions, bounded, OPTIONS, openQuerySession, type RowsHost } from '../rows/branch-session.ts';
import { comparedDatabaseName } from '../snapshots/snapshot-databases.ts';

/** What it takes to compare two databases. */
export interface ComparisonHost extends RowsHost, CloneHost {
  /** For operations: each holds its locks in one of these sessions. */
  sessions: Pool;
  comparisons: Comparisons;
  excesses: Excesses;
}

/**
 * A database that the query login of this branch can read: the branch's own, or a clone of a snapshot.
 */
export interface Side {
  branch_id: string;
  database: string;
  /** The project of a copy, which is no branch. */
  project_id?: string;
}

/** What is compared: changes are those that lead from `before` to `after`. */
export interface Sides {
  before: Side;
  after: Side;
}

type Wanted = Pick<Params<'branch.diff'>, 'project_id' | 'branch_id' | 'database' | 'against'>;

/** Concurrent comparisons of all projects. */
const PLACES = ['0', '1'];
/** One more, so that two long ones do not make everybody wait. */
const PLACE_OF_SHORT = 'short';
/** Milliseconds of a short one. */
const SHORT_MS = 10_000;
/** For the end of another comparison. */
const WAIT_MS = 1_000;
const LOOK_EVERY_MS = 50;

/** The part of the progress that a snapshot takes which is copied for the comparison block by block. */
const COPYING_SHARE = 0.5;

interface Budget {
  /** Milliseconds that are left. */
  left: () => number;
  onProgress: OnProgress | undefined;
}

type Action<T> = (sides: Sides, session: Session, budget: Budget) => Promise<T>;

/**
 * Runs `action` with both sides open for reading: a snapshot as a clone that is dropped afterwards. A project
 * compares once at a time.
 * @param within milliseconds for the clone of a snapshot and the action
 * @param action gets a session of the platform in the agent's own database too
 * @throws HostError PROJECT_BUSY, HOST_BUSY, SOURCE_MISSING for what is not of the project
 */
export async function withSides<T>(
  host: ComparisonHost,
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
  host: ComparisonHost,
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
  host: ComparisonHost,
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
  // The removal of leftovers takes this lock.
  await takeLock(session, `clone:${id}`);
  await limited(session, left(), () => takeLock(session, `clone:${snapshot_id}`));
  try {
    const clone = { name: database, source: snapshotDatabaseName(snapshot_id) };
    await limited(session, left(), () => createUnusedClone(host, session, clone, onProgress));
    await releaseLock(session, `clone:${snapshot_id}`);
    // No rule names it, so only the agent gets in.
    const name = identifier(database);
    await session.query(
      `${protectWork(host.settings, database, { project_id })};
       GRANT CONNECT ON DATABASE ${name} TO ${identifier(groupName(project_id, 'read_only'))}`,
    );
    return await host.excesses.during(database, 'the comparison with the snapshot', () =>
      action({ branch_id, database }),
    );
  } finally {
    await dropDatabase(session, database);
  }
}

/** A clone of the database delays new sessions until it is complete. */
const CONNECT_WITHIN_MS = 5_000;

/**
 * Runs `action` in one snapshot of the database, as its query login. The statements are ours, over tables
 * and pg_catalog only, so no code of the tenant runs: a table with policies for this login is an error.
 * @param options.within milliseconds
 * @param options.signal ends it before
 * @param options.firstRows whether the first rows are wanted soon, rather than all rows
 * @throws HostError STATEMENT_REFUSED, TIME_LIMIT_REACHED
 */
export async function inSnapshotOf<T>(
  host: ComparisonHost,
  { branch_id, database }: Side,
  { within, firstRows, signal }: { within: number; firstRows: boolean; signal?: AbortSignal | undefined },
  action: (session: Session) => Promise<T>,
): Promise<T> {
  const session = await openQuerySession(branch_id, {
    host: host.settings.POSTGRES_SOCKET_DIR,
    port: host.settings.POSTGRES_PORT,
    database,
    application_name: COMPARING,
    options: asOptions({
      ...OPTIONS,
      default_transaction_isolation: 'repeatable read',
      default_transaction_read_only: 'on',
      row_security: 'off',
      work_mem: '16MB',
      cursor_tuple_fraction: firstRows ? 0.1 : 1,
      statement_timeout: within,
      transaction_timeout: within,
      // While the other side sorts.
      idle_in_transaction_session_timeout: within,
    }),
    types: AS_TEXT,
    stream: () => boundedSocket('comparison'),
    connectionTimeoutMillis: CONNECT_WITHIN_MS,
  });
  return bounded(host, session, () => inTransaction(session, () => action(session)), { within, signal });
}

/** Comparisons: of a project one runs and one waits for its end, and of the host three run at most. */
export class Comparisons extends ProjectGate {
  readonly #ofJobs = new Map<string, AbortController>();

  constructor() {
    super({ ofProject: 2, ofHost: 5, noun: 'comparison' });
  }

  /** @param stop ends the comparison of this job. @returns forgets it */
  begin(jobId: string | null, stop: AbortController): () => void {
    if (jobId === null) return () => {};
    this.#ofJobs.set(jobId, stop);
    return () => this.#ofJobs.delete(jobId);
  }

  /** @returns false if no comparison of this job is under way */
  stop(jobId: string): boolean {
    this.#ofJobs.get(jobId)?.abort();
    return this.#ofJobs.has(jobId);
  }
}
