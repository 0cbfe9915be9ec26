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

/** Sessions of one project, over all of its branches. The newest above the limit are ended. */
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
      const newest = own.toSorted((one, other) => one.begun - other.begun).slice(this.#limit);
      const blocks = this.#strike(project, at) >= STRIKES;
      const branches = blocks ? [...new Set(newest.map(({ branch }) => branch))] : [];
      return [{ sessions: newest, branches, detail: { project_id: project, connections: own.length } }];
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
