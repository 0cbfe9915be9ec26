import { HostError } from '../process/host-error.ts';

/** Recoveries of one tenant that may wait. */
const WAITING_OF_TENANT = 2;

/** Lets one recovery run at a time: it takes a second PostgreSQL. Waiting takes none of the agent's sessions. */
export class RecoveryTurns {
  #isRunning = false;
  readonly #waiting: { tenant: string; start: () => void }[] = [];

  /** @returns ends the turn; to be called once @throws HostError HOST_BUSY */
  async begin(tenant: string): Promise<() => void> {
    if (this.#isRunning) {
      if (this.#waiting.filter((one) => one.tenant === tenant).length >= WAITING_OF_TENANT)
        throw new HostError('HOST_BUSY', `${WAITING_OF_TENANT} recoveries of the tenant wait already`);
      await new Promise<void>((start) => this.#waiting.push({ tenant, start }));
    }
    this.#isRunning = true;
    return () => this.#end();
  }

  #end(): void {
    const next = this.#waiting.shift();
    if (next) next.start();
    else this.#isRunning = false;
  }
}
