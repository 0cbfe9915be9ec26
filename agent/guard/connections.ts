import { projectDatabaseName } from '../../shared/branch/database-name.ts';
import type { Finding, Guard, GuardedBranch, Observation, TenantSession } from './guard.ts';

/** A project that is over its limit again this often, a second apart and within this time, is blocked. */
const STRIKES = 3;
const STRIKE_MS = 1_000;
const FORGIVEN_AFTER_MS = 10_000;

interface Strikes {
  count: number;
  last: number;
}

type InBranch = TenantSession & { branch: GuardedBranch };

/** Sessions of one project, over all of its branches. Those above the limit are ended. */
export class ProjectConnections implements Guard {
  readonly name = 'connections';
  readonly reason = 'connections';
  readonly #limit: number;
  /** By project. */
  readonly #strikes = new Map<string, Strikes>();

  constructor(limit: number) {
    this.#limit = limit;
  }

  check({ at, sessions }: Observation): Finding[] {
    for (const [project, { last }] of this.#strikes)
      if (at - last > FORGIVEN_AFTER_MS) this.#strikes.delete(project);
    const known = sessions.filter((session): session is InBranch => session.branch !== null);
    return [...Map.groupBy(known, ({ branch }) => branch.project_id)].flatMap(([project, own]) => {
      if (own.length <= this.#limit) return [];
      const sessions = inOrderOfPrecedence(own).slice(this.#limit);
      const blocks = this.#strike(project, at) >= STRIKES;
      const branches = blocks ? [...new Set(sessions.map(({ branch }) => branch))] : [];
      return [{ sessions, branches, detail: { project_id: project, connections: own.length } }];
    });
  }

  #strike(project: string, at: number): number {
    const strikes = this.#strikes.get(project);
    if (!strikes) this.#strikes.set(project, { count: 1, last: at });
    else if (at - strikes.last >= STRIKE_MS)
      this.#strikes.set(project, { count: strikes.count + 1, last: at });
    return this.#strikes.get(project)?.count ?? 0;
  }
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
