import type { FollowProblem, FollowReport } from '../../shared/protocol/follow.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { LogFollower } from '../logs/follow-log.ts';
import { currentPostgresLog, postgresLogsBetween } from '../logs/postgres-log.ts';
import { tryLock } from '../postgres/locks.ts';
import { HostError } from '../process/host-error.ts';
import { TroubleLog } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';
import { freeBytes } from '../volumes/volumes.ts';
import { withoutValue } from './copy-rows.ts';
import {
  followedNow,
  followStatus,
  LOST,
  PROMOTED,
  readFollowedSlot,
  type WatchedHost,
} from './follow-status.ts';
import { type FollowHost, withFollowed } from './followed-session.ts';
import {
  continueFollowing,
  disable,
  type Followed,
  readFollowed,
  refresh,
  requireFollowed,
  storeProblem,
} from './following.ts';
import { bringUpToSource, readSourceChanges } from './schema-changes.ts';
import { short } from './source-address.ts';

/** Watches the branches that follow: their errors, their slots, the schemas of their sources. */

const CHECK_EVERY_MS = 1_000;
const STORE_EVERY_MS = 30_000;
const COMPARE_EVERY_MS = 60_000;
/** A report is lost when the link is down. */
const REPEAT_AFTER_MS = 60_000;

/** Kinds of processes in PostgreSQL's log. Quotes are escaped inside a JSON string, so no text can contain these marks. */
const WORKERS = ['apply', 'tablesync'].map((kind) => `"backend_type":"logical replication ${kind} worker"`);

/** The fields used of a line of PostgreSQL's `jsonlog`. */
interface WorkerLine {
  dbname?: string;
  error_severity?: string;
  state_code?: string;
  message?: string;
  context?: string;
}

/** An error of a worker about a change that it was applying. */
export interface ApplyError {
  database: string;
  sqlstate: string;
  table: string | null;
  message: string;
}

/**
 * SQLSTATEs that say nothing about a change: of the connection, of a lock, of a server that stops or has no room. The
 * worker begins again by itself.
 */
const PASSING = /^(?:08|40|53|57|58|55P03|55006)/;
/** The class of a table that is not here, whose message names it. */
const OF_TABLES = '55';
const TARGET = /for replication target relation "((?:[^"]|"")+)"/;
const RELATION = /target relation "((?:[^"]|"")+)"/;

/** @returns null for a line that is about no change */
export function readApplyError(line: string): ApplyError | null {
  const { dbname, error_severity, state_code, message = '', context = '' } = parse(line);
  if (error_severity !== 'ERROR' || dbname === undefined || state_code === undefined) return null;
  // Only an error of a change has the transaction that it is from.
  if (PASSING.test(state_code) || !/replication origin "pg_\d+/.test(context)) return null;
  const [, table = null] = TARGET.exec(context) ?? RELATION.exec(message) ?? [];
  const reason = state_code.startsWith(OF_TABLES) ? message : withoutValue(message, state_code);
  return { database: dbname, sqlstate: state_code, table: table && short(table), message: short(reason) };
}

function parse(line: string): WorkerLine {
  try {
    return JSON.parse(line);
  } catch {
    return {};
  }
}

const problemOf = ({ message, table }: ApplyError): FollowProblem => ({
  code: 'apply',
  message: `PostgreSQL refuses a change${table === null ? '' : ` of ${table}`} here: ${message}. Change the row or the constraint at the source, or the schema of both, and resume.`,
  ...{ table, statement: null },
});

const MB = 2 ** 20;
const NO_ROOM = { code: 'quota', table: null, statement: null } as const;

/**
 * Why the branch may not grow. Its worker is no client that a block ends, and a source could send until the disk of all
 * tenants is full.
 */
async function roomProblem(
  { settings }: Pick<FollowHost, 'settings'>,
  { is_over_quota }: Pick<Followed, 'is_over_quota'>,
): Promise<FollowProblem | null> {
  if (is_over_quota)
    return { ...NO_ROOM, message: 'The storage quota is used up. Raise it or delete branches, and resume.' };
  if ((await freeBytes(settings.PGDATA_DIR)) < settings.MIN_FREE_DISK_MB * MB)
    return {
      ...NO_ROOM,
      message: 'The disk of the database host is nearly full. Contact its operator, and resume.',
    };
  return null;
}

interface Known {
  storedAt: number;
  comparedAt: number;
  reportedAt: number;
  reported: string;
  busy: Promise<void> | null;
}

export class FollowWatch {
  readonly #host: WatchedHost;
  readonly #report: (report: FollowReport) => void;
  readonly #troubles: TroubleLog;
  readonly #compareEvery: number;
  readonly #known = new Map<string, Known>();
  /** By database: what its worker has failed with. */
  readonly #errors = new Map<string, ApplyError>();
  /** The last report of a branch that follows no more is owed. */
  readonly #ids = new Map<string, Pick<Followed, 'project_id' | 'branch_id'>>();

  /** @param compareEvery milliseconds between two comparisons of the schemas; set by tests only */
  constructor(host: WatchedHost, report: (report: FollowReport) => void, compareEvery = COMPARE_EVERY_MS) {
    this.#host = host;
    this.#report = report;
    this.#compareEvery = compareEvery;
    this.#troubles = new TroubleLog(host.log);
  }

  async run(signal: AbortSignal): Promise<void> {
    const { settings, log } = this.#host;
    const errors = new LogFollower({
      locate: () => currentPostgresLog(settings),
      between: postgresLogsBetween,
      marks: WORKERS,
      onLines: (lines) => {
        for (const line of lines) this.note(readApplyError(line));
      },
    });
    const following = errors.follow(signal, (trouble) => {
      if (trouble !== null) this.#troubles.report('follow.log_unread', 'log', trouble);
    });
    await runLoop(() => this.check(), { every: CHECK_EVERY_MS, signal, log, failed: 'follow.unwatched' });
    await Promise.all([following, ...[...this.#known.values()].map(({ busy }) => busy)]);
  }

  note(error: ApplyError | null): void {
    if (error) this.#errors.set(error.database, error);
  }

  /** @param now milliseconds of a monotonic clock */
  async check(now = performance.now()): Promise<void> {
    // A host that is being closed for its standby has disabled them.
    if (!this.#host.rules.isClosed)
      await continueFollowing(this.#host, (session, database) => tryLock(session, `source:${database}`));
    const followed = await followedNow(this.#host.postgres);
    await this.#host.lags.read(this.#host.postgres, followed);
    for (const one of followed) {
      const known = this.#knownOf(one);
      if (this.#host.lags.isDue(one.branch_id)) this.#try(one, readFollowedSlot(this.#host, one));
      if (now - known.storedAt >= STORE_EVERY_MS) {
        known.storedAt = now;
        this.#try(one, this.#host.lags.store(this.#host.postgres, one.branch_id));
      }
      // One branch whose source does not answer holds up no other one.
      known.busy ??= this.#try(one, this.#look(one, known, now)).finally(() => {
        known.busy = null;
      });
      this.#notify(one, known, now);
    }
    const present = new Set(followed.map(({ branch_id }) => branch_id));
    for (const [branchId, ids] of this.#ids) {
      if (present.has(branchId)) continue;
      this.#ids.delete(branchId);
      this.#known.delete(branchId);
      this.#report({ ...ids, ...GONE, observed_at: new Date().toISOString() });
    }
  }

  #try = ({ branch_id }: Followed, work: Promise<unknown>): Promise<void> =>
    work.then(
      () => {},
      (error) => this.#troubles.report('follow.unwatched', branch_id, error, { branch_id }),
    );

  #knownOf({ branch_id, project_id }: Followed): Known {
    const known = this.#known.get(branch_id) ?? {
      ...{ storedAt: Number.NEGATIVE_INFINITY, comparedAt: performance.now() },
      ...{ reportedAt: Number.NEGATIVE_INFINITY, reported: '', busy: null },
    };
    this.#known.set(branch_id, known);
    this.#ids.set(branch_id, { branch_id, project_id });
    return known;
  }

  async #look(followed: Followed, known: Known, now: number): Promise<void> {
    if (this.#host.lags.slotOf(followed.branch_id)?.isLost && !followed.problem)
      await this.#stop(followed, LOST);
    if (followed.problem || followed.cutover) return;
    const noRoom = await roomProblem(this.#host, followed);
    if (noRoom) return this.#stop(followed, noRoom);
    const error = this.#errors.get(followed.database);
    // Another host is followed for a move, which ends when anything is wrong.
    if (followed.print !== null) return error && this.#stop(followed, problemOf(error));
    if (error) {
      known.comparedAt = now;
      await this.#bringUp(followed, problemOf(error));
      // A later one of the time before is about the same change.
      this.#errors.delete(followed.database);
    } else if (now - known.comparedAt >= this.#compareEvery) {
      known.comparedAt = now;
      const changes = await readSourceChanges(this.#host, followed);
      if (changes?.length) await this.#bringUp(followed, null);
    }
  }

  /** With the lock of the branch, unless it has changed since. */
  async #withLock(followed: Followed, action: (present: Followed) => Promise<unknown>): Promise<void> {
    await withFollowed(this.#host, followed, async (session) => {
      const [present] = await readFollowed(session, { branch_id: followed.branch_id });
      if (present?.since && !present.problem && !present.cutover) await action(present);
    });
  }

  #bringUp(followed: Followed, reason: FollowProblem | null): Promise<void> {
    return this.#withLock(followed, async (present) => {
      if (reason) await disable(this.#host, present);
      await bringUpToSource(this.#host, present, reason);
    });
  }

  #stop(followed: Followed, problem: FollowProblem): Promise<void> {
    return this.#withLock(followed, async (present) => {
      await disable(this.#host, present);
      await storeProblem(this.#host.postgres, present.branch_id, problem);
      this.#host.log('follow.stopped', { branch_id: present.branch_id, code: problem.code });
    });
  }

  #notify(followed: Followed, known: Known, now: number): void {
    const { project_id, branch_id, problem, additions } = followed;
    const slot = this.#host.lags.slotOf(branch_id);
    const state = problem ? 'stopped' : 'following';
    const slot_warning =
      slot?.keep_bytes != null && slot.keep_bytes > 0 && slot.slot_bytes >= slot.keep_bytes / 2;
    const text = JSON.stringify({ state, problem, slot_warning, additions });
    if (text === known.reported && now - known.reportedAt < REPEAT_AFTER_MS) return;
    Object.assign(known, { reported: text, reportedAt: now });
    this.#report({
      ...{ project_id, branch_id, observed_at: new Date().toISOString(), state, problem, slot_warning },
      lag_bytes: slot?.lag_bytes ?? null,
      lag_seconds: this.#host.lags.of(branch_id),
      ...{ slot_bytes: slot?.slot_bytes ?? null, keep_bytes: slot?.keep_bytes ?? null, additions },
    });
  }
}

const GONE: Omit<FollowReport, 'project_id' | 'branch_id' | 'observed_at'> = {
  ...{ state: 'absent', problem: null, slot_warning: false, lag_bytes: null, lag_seconds: null },
  ...{ slot_bytes: null, keep_bytes: null, additions: [] },
};

/** @throws HostError INVALID_CALL, and HOST_BUSY while it is cut over */
export async function resumeFollowing(
  host: WatchedHost,
  params: Params<'follow.resume'>,
): Promise<MethodResult<'follow.resume'>> {
  await withFollowed(host, params, async (session) => {
    const followed = await requireFollowed(session, params.branch_id);
    if (followed.cutover) throw new HostError('HOST_BUSY', 'the branch is being cut over');
    if (!followed.problem) {
      // The owner of the source may have added tables to the publication.
      if (followed.publication !== null) await refresh(host, followed);
      return;
    }
    if (followed.problem.message === PROMOTED.message) return;
    const noRoom = await roomProblem(host, followed);
    if (noRoom) await storeProblem(session, followed.branch_id, noRoom);
    else await bringUpToSource(host, followed, null, params.apply_changes);
  });
  return followStatus(host, params);
}
