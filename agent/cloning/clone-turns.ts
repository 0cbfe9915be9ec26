/** Of the agent's sessions for operations; the others stay for rules, logins and drops. */
const OF_HOST = 11;

/**
 * Lets clones begin before they take one of the agent's sessions: calls that wait in a session for their
 * source would leave none for the operations of other tenants.
 */
export class CloneTurns {
  readonly #running: string[] = [];
  readonly #waiting: { source: string; start: () => void }[] = [];

  /**
   * Waits until no other clone of the source runs and the host has a place, in order of arrival.
   * @returns ends the turn; to be called once
   */
  async begin(source: string): Promise<() => void> {
    if (this.#mayRun(source)) this.#running.push(source);
    else await new Promise<void>((start) => this.#waiting.push({ source, start }));
    return () => this.#end(source);
  }

  #mayRun(source: string): boolean {
    return this.#running.length < OF_HOST && !this.#running.includes(source);
  }

  /** At most one of those that wait can begin then. */
  #end(source: string): void {
    this.#running.splice(this.#running.indexOf(source), 1);
    const index = this.#waiting.findIndex((waiting) => this.#mayRun(waiting.source));
    const [next] = index === -1 ? [] : this.#waiting.splice(index, 1);
    if (!next) return;
    this.#running.push(next.source);
    next.start();
  }
}
