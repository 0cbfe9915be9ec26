import type { CloneMethod } from './create-clone.ts';

/** Clones that run concurrently. The agent's other sessions stay for rules, logins and drops. */
const OF_HOST = 11;
/**
 * Clones of one tenant, and those that stay for tenants that have none. A copy of a large database takes minutes;
 * with reflinks a clone takes milliseconds, and nothing has to be kept.
 */
const LIMITS: Record<CloneMethod, { ofTenant: number; kept: number }> = {
  copy: { ofTenant: 4, kept: 3 },
  reflink: { ofTenant: OF_HOST, kept: 0 },
};

interface Turn {
  /** The database that is cloned. */
  source: string;
  tenant: string;
}

/**
 * Lets clones begin before they take one of the agent's sessions: calls that wait in a session for their
 * source would leave none for the operations of other tenants.
 */
export class CloneTurns {
  readonly #limits: (typeof LIMITS)[CloneMethod];
  readonly #running: Turn[] = [];
  readonly #waiting: (Turn & { start: () => void })[] = [];
  #endedAt = 0;

  constructor(method: CloneMethod) {
    this.#limits = LIMITS[method];
  }

  /**
   * Waits until no other clone of the source runs, and the host has a place for the tenant. The tenant with the
   * fewest clones is next, and of one tenant the clone that came first.
   * @returns ends the turn; to be called once
   */
  async begin(source: string, tenant: string): Promise<() => void> {
    const turn = { source, tenant };
    if (this.#mayRun(turn)) this.#running.push(turn);
    else await new Promise<void>((start) => this.#waiting.push({ ...turn, start }));
    return () => this.#end(turn);
  }

  /** Milliseconds since the last clone; 0 while one runs or waits. */
  get idleMs(): number {
    return this.#running.length + this.#waiting.length > 0 ? 0 : performance.now() - this.#endedAt;
  }

  #mayRun({ source, tenant }: Turn): boolean {
    const own = this.#runningOf(tenant);
    return (
      own < this.#limits.ofTenant &&
      this.#running.length < OF_HOST - (own > 0 ? this.#limits.kept : 0) &&
      !this.#running.some((turn) => turn.source === source)
    );
  }

  #runningOf(tenant: string): number {
    return this.#running.filter((turn) => turn.tenant === tenant).length;
  }

  /** A turn that ends can make room for two: of its own tenant, and one that was kept. */
  #end({ source }: Turn): void {
    this.#endedAt = performance.now();
    this.#running.splice(
      this.#running.findIndex((turn) => turn.source === source),
      1,
    );
    for (;;) {
      const [next] = this.#waiting
        .filter((waiting) => this.#mayRun(waiting))
        .toSorted((one, other) => this.#runningOf(one.tenant) - this.#runningOf(other.tenant));
      if (!next) return;
      this.#waiting.splice(this.#waiting.indexOf(next), 1);
      this.#running.push(next);
      next.start();
    }
  }
}
