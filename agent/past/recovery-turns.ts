import { HostError } from '../process/host-error.ts';

/** Recoveries of one tenant that may wait. */
const WAITING_OF_TENANT = 2;

/**
 * Lets one recovery run at a time: it takes a second PostgreSQL. Waiting takes none of the agent's sessions. The next one is
 * of another tenant if one waits, so nobody waits for more than one recovery of each other tenant.
 */
export class RecoveryTurns {
  #isRunning = false;
  /** Ends the drill that has the turn. */
  #drill: AbortController | null = null;
  readonly #waiting: { tenant: string; start: () => void }[] = [];

  /** @returns ends the turn; to be called once @throws HostError HOST_BUSY */
  async begin(tenant: string): Promise<() => void> {
    if (this.#isRunning) {
      if (this.#waiting.filter((one) => one.tenant === tenant).length >= WAITING_OF_TENANT)
        throw new HostError('HOST_BUSY', `${WAITING_OF_TENANT} recoveries of the tenant wait already`);
      this.#drill?.abort();
      await new Promise<void>((start) => this.#waiting.push({ tenant, start }));
    }
    this.#isRunning = true;
    return () => this.#end(tenant);
  }

  /** The turn of a drill, whose signal aborts when a user wants to recover. @returns null while there is a recovery */
  beginDrill(): { signal: AbortSignal; end: () => void } | null {
    if (this.#isRunning) return null;
    this.#isRunning = true;
    this.#drill = new AbortController();
    return { signal: this.#drill.signal, end: () => this.#end() };
  }

  /** @param last the tenant whose recovery has ended */
  #end(last?: string): void {
    this.#drill = null;
    const next = this.#waiting.find(({ tenant }) => tenant !== last) ?? this.#waiting[0];
    if (!next) {
      this.#isRunning = false;
      return;
    }
    this.#waiting.splice(this.#waiting.indexOf(next), 1);
    next.start();
  }
}
