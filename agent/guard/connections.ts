import { projectDatabaseName } from '../../shared/branch/database-name.ts';
import type { Finding, Guard, GuardedBranch, Observation, TenantSession } from './guard.ts';

/** Who is over a limit again this often, a second apart and within this time, is blocked. */
const STRIKES = 3;
const STRIKE_MS = 1_000;
const FORGIVEN_AFTER_MS = 10_000;

/** Shares of all connections: above the first, the tenant with the most loses idle sessions, then also others. */
const CROWDED = 0.8;
const NEARLY_FULL = 0.9;

interface Strikes {
  count: number;
  last: number;
}

type InBranch = TenantSession & { branch: GuardedBranch };

/** Whose sessions have a limit together. */
type Holder = 'project_id' | 'tenant';

/**
 * Sessions of one project, and of all projects of one tenant. Those above a limit are ended. Several tenants
 * together may still be too many: then the one with the most loses its newest.
 */
export class Connections implements Guard {
  readonly name = 'connections';
  readonly reason = 'connections';
  readonly #limits: Record<Holder, number>;
  /** By project and by tenant. */
  readonly #strikes = new Map<string, Strikes>();

  constructor(limits: Record<Holder, number>) {
    this.#limits = limits;
  }

  check({ at, sessions, connections }: Observation): Finding[] {
    for (const [holder, { last }] of this.#strikes)
      if (at - last > FORGIVEN_AFTER_MS) this.#strikes.delete(holder);
    const all = sessions.filter((session): session is InBranch => session.branch?.kind === 'branch');
    const ofProjects = this.#aboveLimit(all, 'project_id', this.#limits.project_id, at);
    const kept = without(all, ofProjects);
    const belowHalf = Math.ceil((connections.max - connections.reserved) / 2) - 1;
    const ofTenants = this.#aboveLimit(kept, 'tenant', Math.min(this.#limits.tenant, belowHalf), at);
    const left = without(kept, ofTenants);
    return [...ofProjects, ...ofTenants, ...aboveAll(left, connections.max)];
  }

  #aboveLimit(sessions: readonly InBranch[], by: Holder, limit: number, at: number): ConnectionFinding[] {
    return [...Map.groupBy(sessions, ({ branch }) => branch[by])].flatMap(([holder, own]) => {
      if (own.length <= limit) return [];
      const sessions = inOrderOfPrecedence(own).slice(limit);
      const blocks = this.#strike(`${by} ${holder}`, at) >= STRIKES;
      const branches = blocks ? [...new Set(sessions.map(({ branch }) => branch))] : [];
      return [{ sessions, branches, detail: { [by]: holder, connections: own.length } }];
    });
  }

  #strike(holder: string, at: number): number {
    const strikes = this.#strikes.get(holder);
    if (!strikes) this.#strikes.set(holder, { count: 1, last: at });
    else if (at - strikes.last >= STRIKE_MS)
      this.#strikes.set(holder, { count: strikes.count + 1, last: at });
    return this.#strikes.get(holder)?.count ?? 0;
  }
}

type ConnectionFinding = Finding & { sessions: readonly InBranch[] };

function without(sessions: readonly InBranch[], findings: readonly ConnectionFinding[]): InBranch[] {
  const ended = new Set(findings.flatMap((finding) => finding.sessions));
  return sessions.filter((session) => !ended.has(session));
}

/** The newest idle sessions of the tenant with the most, as many as are too many; nearly full, also others. */
function aboveAll(sessions: readonly InBranch[], max: number): Finding[] {
  const excess = sessions.length - Math.floor(max * CROWDED);
  if (excess <= 0) return [];
  const [most = []] = [...Map.groupBy(sessions, ({ branch }) => branch.tenant).values()].toSorted(
    (one, other) => other.length - one.length,
  );
  const endable = sessions.length > max * NEARLY_FULL ? most : most.filter(isIdle);
  const ended = endable.toSorted(idleThenNewest).slice(-Math.min(excess, endable.length));
  if (ended.length === 0) return [];
  return [
    { sessions: ended, branches: [], detail: { tenant: most[0]?.branch.tenant, all: sessions.length } },
  ];
}

const isIdle = ({ isActive, transactionSeconds }: TenantSession) => !isActive && transactionSeconds === 0;
const isOfMain = ({ branch }: InBranch) => projectDatabaseName(branch.database) === branch.database;
const idleThenNewest = (one: InBranch, other: InBranch) =>
  Number(isIdle(one)) - Number(isIdle(other)) || one.begun - other.begun;

/**
 * The sessions that may stay first come first: those of `main`, then one of each branch, the second of each,
 * and so on. A branch with more sessions than the others is therefore the first to lose some, its idle ones
 * before the others.
 */
function inOrderOfPrecedence(sessions: readonly InBranch[]): InBranch[] {
  const ranked = [...Map.groupBy(sessions, ({ branch }) => branch).values()].flatMap((own) =>
    own.toSorted(idleThenNewest).map((session, rank) => ({ session, rank: isOfMain(session) ? -1 : rank })),
  );
  return ranked
    .toSorted((one, other) => one.rank - other.rank || idleThenNewest(one.session, other.session))
    .map(({ session }) => session);
}

/**
 * How many clients each database has, at both instances of the pooler; null while all together have no more than
 * `few`.
 */
type ReadClients = (few: number) => Promise<ReadonlyMap<string, number> | null>;

interface PooledBranch {
  branch: GuardedBranch;
  clients: number;
}

/**
 * Clients of the pooler of one tenant, over all of its projects. Several tenants together may still be too many: then
 * the one with the most loses some. The pooler can disconnect only all clients of a database, so the branches with
 * the most are blocked until the others are within the limit.
 */
export class PooledClients implements Guard {
  readonly name = 'pooled clients';
  readonly reason = 'connections';
  readonly #limit: number;
  /** Of all tenants together. */
  readonly #limitOfAll: number;
  readonly #find: (database: string) => GuardedBranch | null;
  readonly #read: ReadClients;
  readonly #onTrouble: (trouble: unknown) => void;
  #clients: ReadonlyMap<string, number> | null = null;
  #isReading = false;

  /**
   * @param limit clients of one tenant
   * @param accepted clients that the pooler accepts, those that have not logged in included
   */
  constructor(
    { limit, accepted }: { limit: number; accepted: number },
    find: (database: string) => GuardedBranch | null,
    read: ReadClients,
    onTrouble: (trouble: unknown) => void,
  ) {
    this.#limit = Math.min(limit, Math.ceil(accepted / 2) - 1);
    this.#limitOfAll = Math.floor(accepted * CROWDED);
    this.#find = find;
    this.#read = read;
    this.#onTrouble = onTrouble;
  }

  /** Acts on the clients that were read since the last check. */
  check(): Finding[] {
    this.#readNext();
    const branches = [...(this.#clients ?? [])].flatMap(([database, clients]) => {
      const branch = this.#find(database);
      return branch ? [{ branch, clients }] : [];
    });
    this.#clients = null;
    const found = [...Map.groupBy(branches, ({ branch }) => branch.tenant).values()].flatMap((own) =>
      largestAbove(own, this.#limit),
    );
    const left = branches.filter((one) => !found.includes(one));
    return [...found, ...largestOfTenants(left, this.#limitOfAll)].map(({ branch, clients }) => ({
      sessions: [],
      branches: [branch],
      detail: { clients, tenant: branch.tenant },
    }));
  }

  /** Not awaited: the pooler may be away, and the other watchdogs must run. */
  #readNext(): void {
    if (this.#isReading) return;
    this.#isReading = true;
    this.#read(this.#limit)
      .then(
        (clients) => {
          this.#clients = clients;
          this.#onTrouble(null);
        },
        (error) => this.#onTrouble(error),
      )
      .finally(() => {
        this.#isReading = false;
      });
  }
}

const sumOf = (branches: readonly PooledBranch[]) => branches.reduce((sum, { clients }) => sum + clients, 0);
const mostFirst = (one: PooledBranch, other: PooledBranch) => other.clients - one.clients;

/** The branches with the most clients, until the others are within the limit. */
function largestAbove(branches: readonly PooledBranch[], limit: number): PooledBranch[] {
  let total = sumOf(branches);
  return branches.toSorted(mostFirst).filter(({ clients }) => {
    const isAbove = total > limit;
    if (isAbove) total -= clients;
    return isAbove;
  });
}

/** Branches of the tenant that has the most clients at the time, until all others are within the limit. */
function largestOfTenants(branches: readonly PooledBranch[], limit: number): PooledBranch[] {
  const left = branches.toSorted(mostFirst);
  const found: PooledBranch[] = [];
  while (sumOf(left) > limit) {
    const [most = []] = [...Map.groupBy(left, ({ branch }) => branch.tenant).values()].toSorted(
      (one, other) => sumOf(other) - sumOf(one),
    );
    const [largest] = most;
    if (!largest) break;
    found.push(...left.splice(left.indexOf(largest), 1));
  }
  return found;
}
