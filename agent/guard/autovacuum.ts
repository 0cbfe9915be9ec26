import { BRANCH_ROLES } from '../../shared/branch/login.ts';
import { inLoginSession } from '../postgres/login-session.ts';
import type { AgentSettings } from '../process/settings.ts';
import type { AutovacuumWorker, Finding, Guard, GuardedBranch, Observation } from './guard.ts';

/** Longest time that a worker may analyse one table, or wait for a lock meanwhile. */
const ANALYSE_SECONDS = 120;
const LOCK_SECONDS = 10;
/**
 * While no worker is free, a tenant has a worker for as many seconds, and for so many more each second. What it has
 * above leaves the worker to others.
 */
const SHARE_SECONDS = 120;
const SHARE_A_SECOND = 0.2;
/** What the time since the last check counts at most. */
const CHECK_SECONDS = 1;
/** While no worker is free, a tenant that has had several for so long leaves one to others. */
const SEVERAL_SECONDS = 30;
/** Workers of one branch that are ended within this time count once. */
const ONE_STRIKE_MS = 10_000;
const FORGIVEN_AFTER_MS = 3_600_000;

interface Strikes {
  branch: GuardedBranch;
  count: number;
  last: number;
  relations: Set<number>;
}

/** Turns autovacuum off for tables of a branch. @returns their names */
type TurnOff = (branch: GuardedBranch, relations: readonly number[]) => Promise<string[]>;

/**
 * Workers of autovacuum, of which the host has three. Analysing a table runs functions of its owner: those of
 * index expressions, of statistics and of range types. One that sleeps keeps the worker, and no other table of
 * the host is vacuumed. The second time, autovacuum is turned off for the table and the branch is blocked.
 */
export class AutovacuumWorkers implements Guard {
  readonly name = 'autovacuum';
  readonly reason = 'autovacuum';
  readonly #turnOff: TurnOff;
  /** By branch. */
  readonly #strikes = new Map<string, Strikes>();
  /** Seconds that each tenant has had of workers, less its share since. */
  readonly #used = new Map<string, number>();
  #checked = Number.NaN;
  /** Turned off since the last check, or not; the block must not end the session that does it. */
  #due: Finding[] = [];

  constructor(turnOff: TurnOff) {
    this.#turnOff = turnOff;
  }

  check({ at, workers, workersMax }: Observation): Finding[] {
    for (const [branch, { last }] of this.#strikes)
      if (at - last > FORGIVEN_AFTER_MS) this.#strikes.delete(branch);
    const held = workers.filter(isHeld);
    for (const worker of held) this.#strike(worker, at);
    const isFull = workers.length >= workersMax;
    this.#count(isFull ? workers : [], at);
    const taken = isFull ? [this.#longestAboveShare(workers), newestOfSeveral(workers)] : [];
    const ended = [...new Set([...held, ...taken.filter((worker) => worker !== null)])];
    const due = this.#due;
    this.#due = [];
    return ended.length === 0 ? due : [...due, { sessions: ended, branches: [], detail: detailOf(ended) }];
  }

  #count(workers: readonly AutovacuumWorker[], at: number): void {
    const seconds = Math.min(CHECK_SECONDS, (at - this.#checked) / 1000 || 0);
    this.#checked = at;
    for (const [tenant, used] of this.#used) {
      const left = used - SHARE_A_SECOND * seconds;
      if (left > 0) this.#used.set(tenant, left);
      else this.#used.delete(tenant);
    }
    for (const worker of workers.filter(({ isAnalysing }) => isAnalysing)) {
      const tenant = tenantOf(worker);
      this.#used.set(tenant, (this.#used.get(tenant) ?? 0) + seconds);
    }
  }

  /**
   * The worker that has analysed tables for longest, of the tenant that is furthest above its share; null if none is.
   * The tenant's other branches count too: a worker for each of them would otherwise have a turn of its own.
   */
  #longestAboveShare(workers: readonly AutovacuumWorker[]): AutovacuumWorker | null {
    const used = (worker: AutovacuumWorker) => this.#used.get(tenantOf(worker)) ?? 0;
    const [longest] = workers
      .filter((worker) => worker.isAnalysing && used(worker) > SHARE_SECONDS)
      .toSorted((one, other) => used(other) - used(one) || one.begun - other.begun);
    return longest ?? null;
  }

  #strike({ branch, relations }: AutovacuumWorker, at: number): void {
    if (!branch) return;
    const known = this.#strikes.get(branch.branch_id);
    const strikes = known ?? { branch, count: 0, last: Number.NEGATIVE_INFINITY, relations: new Set() };
    for (const relation of relations) strikes.relations.add(relation);
    if (at - strikes.last >= ONE_STRIKE_MS) {
      strikes.count += 1;
      strikes.last = at;
      if (strikes.count >= 2) this.#settle(strikes);
    }
    this.#strikes.set(branch.branch_id, strikes);
  }

  /** Not awaited: the other watchdogs must run. */
  #settle({ branch, relations }: Strikes): void {
    const block = (detail: Finding['detail']) => {
      this.#due.push({ sessions: [], branches: [branch], detail });
    };
    this.#turnOff(branch, [...relations]).then(
      (tables) => block({ autovacuum_off: tables }),
      (error: Error) => block({ autovacuum_off: [], reason: error.message }),
    );
  }
}

const isHeld = ({ isAnalysing, wait, transactionSeconds }: AutovacuumWorker) =>
  wait === 'asleep' ||
  (isAnalysing && transactionSeconds > (wait === 'locked out' ? LOCK_SECONDS : ANALYSE_SECONDS));

/** While the branch is not known, each worker counts for itself. */
const tenantOf = ({ branch, key }: AutovacuumWorker) => branch?.tenant ?? key;

/**
 * The newest worker of the tenant that has several and the most of them. The others complete what they have begun, and
 * its next tables wait for their turn as those of other tenants do.
 */
function newestOfSeveral(workers: readonly AutovacuumWorker[]): AutovacuumWorker | null {
  const before = Date.now() / 1000 - SEVERAL_SECONDS;
  const [most = []] = [
    ...Map.groupBy(
      workers.filter(({ branch, begun }) => branch && begun < before),
      ({ branch }) => branch?.tenant,
    ).values(),
  ].toSorted((one, other) => other.length - one.length);
  if (most.length < 2) return null;
  const [newest] = most
    .filter(({ isAnalysing }) => isAnalysing)
    .toSorted((one, other) => other.begun - one.begun);
  return newest ?? null;
}

const detailOf = (workers: readonly AutovacuumWorker[]) => ({
  relations: [...new Set(workers.flatMap(({ relations }) => relations))],
  wait: workers[0]?.wait,
});

/** The names are those of the catalog, qualified and quoted. */
const OWN_RELATIONS = `
  SELECT oid::regclass::text AS name, relkind = 'i' AS is_index FROM pg_class
  WHERE oid = ANY ($1::oid[]) AND relkind IN ('r', 'm', 'i') AND pg_has_role(current_user, relowner, 'USAGE')`;

/**
 * Turns autovacuum off for these tables, and the summaries of these BRIN indexes, as the logins that own them.
 * Autovacuum still freezes their rows before transaction ids run out, which runs no function of a tenant.
 * @param relations oids
 * @returns the names
 * @throws Error when a login is refused, or a session of the tenant holds a lock
 */
export async function turnAutovacuumOff(
  settings: AgentSettings,
  branch: GuardedBranch,
  relations: readonly number[],
): Promise<string[]> {
  const names: string[] = [];
  for (const role of BRANCH_ROLES) {
    await inLoginSession(settings, branch, role, async (session) => {
      const { rows } = await session.query<{ name: string; is_index: boolean }>(OWN_RELATIONS, [relations]);
      for (const { name, is_index } of rows) {
        const statement = is_index
          ? `ALTER INDEX ${name} SET (autosummarize = off)`
          : `ALTER TABLE ${name} SET (autovacuum_enabled = off)`;
        await session.query(statement);
        names.push(name);
      }
    });
  }
  return names;
}
