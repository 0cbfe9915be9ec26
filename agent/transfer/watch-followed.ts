import type { FollowProblem, FollowReport } from '../../shared/protocol/follow.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { tryLock } from '../postgres/locks.ts';
import { HostError } from '../process/host-error.ts';
import { TroubleLog } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';
import { type ApplyError, ApplyErrors } from './apply-errors.ts';
import {
  followedNow,
  followStatus,
  LOST,
  PROMOTED,
  readFollowedSlot,
  type WatchedHost,
} from './follow-status.ts';
import { withFollowed } from './followed-session.ts';
import {
  continueFollowing,
  disable,
  enable,
  type Followed,
  readFollowed,
  refresh,
  requireFollowed,
  storeProblem,
} from './following.ts';
import { bringUpToSource, compareWithSource } from './schema-changes.ts';

/** Watches the branches that follow: their errors, their slots, the schemas of their sources. */

const CHECK_EVERY_MS = 1_000;
const STORE_EVERY_MS = 30_000;
const COMPARE_EVERY_MS = 60_000;
/** A report is lost when the link is down. */
const REPEAT_AFTER_MS = 60_000;

const problemOf = ({ message, table }: ApplyError): FollowProblem => ({
  code: 'apply',
  message: `PostgreSQL refuses a change${table === null ? '' : ` of ${table}`} here: ${message}. Change the row or the constraint at the source, or the schema of both, and resume.`,
  table,
  statement: null,
});

/** The worker says why in PostgreSQL's log, and nobody may write so much there. */
const UNHEARD: FollowProblem = {
  code: 'apply',
  message:
    'PostgreSQL refuses a change here, and what runs in the schema of the source writes too much to the log of the host to find out why. Remove the messages from its functions, and resume.',
  table: null,
  statement: null,
};

/** A block ends clients, and PostgreSQL starts a worker again. @param excess in the words of `Excesses` */
const problemOfExcess = (excess: string): FollowProblem => ({
  code: 'apply',
  message: `What the changes of the source run here ${excess}. Change its triggers, checks and functions, or write less at a time, and resume.`,
  table: null,
  statement: null,
});

const NO_ROOM: FollowProblem = {
  code: 'quota',
  message: 'The storage quota is used up. Raise it or delete branches, and resume.',
  table: null,
  statement: null,
};

interface Known {
  storedAt: number;
  comparedAt: number;
  reportedAt: number;
  reported: string;
  /** Print of the catalogs of the source when its schema was that of the branch. */
  print: string | null;
  busy: Promise<void> | null;
}

export class FollowWatch {
  readonly #host: WatchedHost;
  readonly #report: (report: FollowReport) => void;
  readonly #troubles: TroubleLog;
  readonly #compareEvery: number;
  readonly #known = new Map<string, Known>();
  readonly #errors: ApplyErrors;
  /** The last report of a branch that follows no more is owed. */
  readonly #ids = new Map<string, Pick<Followed, 'project_id' | 'branch_id'>>();

  /** @param compareEvery milliseconds between two comparisons of the schemas; set by tests only */
  constructor(host: WatchedHost, report: (report: FollowReport) => void, compareEvery = COMPARE_EVERY_MS) {
    this.#host = host;
    this.#report = report;
    this.#compareEvery = compareEvery;
    this.#errors = new ApplyErrors(host);
    this.#troubles = new TroubleLog(host.log);
  }

  async run(signal: AbortSignal): Promise<void> {
    const { log } = this.#host;
    const following = this.#errors.follow(signal, (trouble) => {
      if (trouble !== null) this.#troubles.report('follow.log_unread', 'log', trouble);
    });
    await runLoop(() => this.check(), { every: CHECK_EVERY_MS, signal, log, failed: 'follow.unwatched' });
    await Promise.all([following, ...[...this.#known.values()].map(({ busy }) => busy)]);
  }

  /** @param now milliseconds of a monotonic clock */
  async check(now = performance.now()): Promise<void> {
    // A host that is being closed for its standby has disabled them.
    if (!this.#host.rules.isClosed)
      await continueFollowing(this.#host, (session, database) => tryLock(session, `source:${database}`));
    const followed = await followedNow(this.#host.postgres);
    await this.#host.lags.read(this.#host.postgres, followed);
    await this.#errors.count();
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
      storedAt: Number.NEGATIVE_INFINITY,
      comparedAt: performance.now(),
      reportedAt: Number.NEGATIVE_INFINITY,
      reported: '',
      print: null,
      busy: null,
    };
    this.#known.set(branch_id, known);
    this.#ids.set(branch_id, { branch_id, project_id });
    return known;
  }

  async #look(followed: Followed, known: Known, now: number): Promise<void> {
    const { branch_id } = followed;
    if (this.#host.lags.slotOf(followed.branch_id)?.isLost && !followed.problem)
      await this.#stop(followed, LOST);
    if (followed.problem || followed.cutover) return;
    if (followed.is_over_quota) return this.#stop(followed, NO_ROOM);
    const excess = this.#host.excesses.take(followed.database);
    if (excess) return this.#stop(followed, problemOfExcess(excess));
    if (this.#errors.areNew(followed.database)) {
      known.comparedAt = now;
      await this.#onError(followed);
      // Another host is followed for a move, which ends when anything is wrong.
    } else if (followed.print === null && now - known.comparedAt >= this.#compareEvery) {
      known.comparedAt = now;
      const compared = await compareWithSource(this.#host, followed, known.print);
      if (!compared.ok) {
        const { message } = compared.failure;
        return this.#troubles.report('follow.not_compared', branch_id, message, { branch_id });
      }
      const { print, changes } = compared.value;
      const isSame = !changes || changes.left.length === 0;
      // A change is compared again when it was applied.
      known.print = isSame ? print : null;
      if (!isSame) await this.#withLock(followed, (present) => bringUpToSource(this.#host, present, null));
    }
  }

  /** With the lock of the branch, unless it has changed since. */
  async #withLock(followed: Followed, action: (present: Followed) => Promise<unknown>): Promise<void> {
    await withFollowed(this.#host, followed, async (session) => {
      const [present] = await readFollowed(session, { branch_id: followed.branch_id });
      if (present?.since && !present.problem && !present.cutover) await action(present);
    });
  }

  /** Hears why the worker fails, and stops unless an addition of the source's schema is the reason. */
  #onError(followed: Followed): Promise<void> {
    return this.#withLock(followed, async (present) => {
      const heard = await this.#errors.hear(present);
      if (heard === null) return enable(this.#host, present);
      const problem = heard === 'too much' ? UNHEARD : problemOf(heard);
      if (heard === 'too much' || present.print !== null) return this.#store(present, problem);
      return bringUpToSource(this.#host, present, problem);
    });
  }

  #stop(followed: Followed, problem: FollowProblem): Promise<void> {
    return this.#withLock(followed, async (present) => {
      await disable(this.#host, present);
      await this.#store(present, problem);
    });
  }

  async #store({ branch_id }: Followed, problem: FollowProblem): Promise<void> {
    await storeProblem(this.#host.postgres, branch_id, problem);
    this.#host.log('follow.stopped', { branch_id, code: problem.code });
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
      project_id,
      branch_id,
      observed_at: new Date().toISOString(),
      state,
      problem,
      slot_warning,
      lag_bytes: slot?.lag_bytes ?? null,
      lag_seconds: this.#host.lags.of(branch_id),
      slot_bytes: slot?.slot_bytes ?? null,
      keep_bytes: slot?.keep_bytes ?? null,
      additions,
    });
  }
}

const GONE: Omit<FollowReport, 'project_id' | 'branch_id' | 'observed_at'> = {
  state: 'absent',
  problem: null,
  slot_warning: false,
  lag_bytes: null,
  lag_seconds: null,
  slot_bytes: null,
  keep_bytes: null,
  additions: [],
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
    if (followed.is_over_quota) await storeProblem(session, followed.branch_id, NO_ROOM);
    else await bringUpToSource(host, followed, null, params.apply_changes);
  });
  return followStatus(host, params);
}
