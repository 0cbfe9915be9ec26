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
  /** The last copy of the source that began after the turn was asked for. */
  copy: symbol | null;
  /** The clone that has it. */
  twin: string | null;
}

/** The place of a clone among those of its source. */
export interface CloneTurn {
  /**
   * A clone that was made of the source while this one waited, so that it has what this one is to have. It goes when
   * its branch is published.
   */
  readonly twin: string | null;
  /** To be called before the content of the source is copied. */
  copies(): void;
  /** Offers a clone to those that waited when its copy began. */
  offer(name: string): void;
  /** To be called once. */
  end(): void;
}

/**
 * Lets clones begin before they take one of the agent's sessions: calls that wait in a session for their
 * source would leave none for the operations of other tenants.
 */
export class CloneTurns {
  readonly #limits: (typeof LIMITS)[CloneMethod];
  readonly #running: Turn[] = [];
  readonly #waiting: { turn: Turn; start: () => void }[] = [];
  #endedAt = 0;

  constructor(method: CloneMethod) {
    this.#limits = LIMITS[method];
  }

  /**
   * Waits until no other clone of the source runs, and the host has a place for the tenant. The tenant with the
   * fewest clones is next, and of one tenant the clone that came first.
   */
  async begin(source: string, tenant: string): Promise<CloneTurn> {
    const turn: Turn = { source, tenant, copy: null, twin: null };
    if (this.#mayRun(turn)) this.#running.push(turn);
    else await new Promise<void>((start) => this.#waiting.push({ turn, start }));
    return {
      twin: turn.twin,
      copies: () => {
        turn.copy = Symbol(source);
        for (const other of this.#waitingFor(source)) other.copy = turn.copy;
      },
      offer: (name) => {
        for (const other of this.#waitingFor(source)) if (other.copy === turn.copy) other.twin = name;
      },
      end: () => this.#end(turn),
    };
  }

  #waitingFor(source: string): Turn[] {
    return this.#waiting.map(({ turn }) => turn).filter((turn) => turn.source === source);
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
  #end(ended: Turn): void {
    this.#endedAt = performance.now();
    this.#running.splice(this.#running.indexOf(ended), 1);
    for (;;) {
      const [next] = this.#waiting
        .filter(({ turn }) => this.#mayRun(turn))
        .toSorted((one, other) => this.#runningOf(one.turn.tenant) - this.#runningOf(other.turn.tenant));
      if (!next) return;
      this.#waiting.splice(this.#waiting.indexOf(next), 1);
      this.#running.push(next.turn);
      next.start();
    }
  }
}
