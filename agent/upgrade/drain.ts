import { setTimeout as sleep } from 'node:timers/promises';
import type { Method } from '../../shared/protocol/operations.ts';

/** Operations that can take minutes, because they copy a database. */
const CLONING: ReadonlySet<Method> = new Set(['branch.clone', 'batch.clone', 'reset.clone', 'snapshot.take']);

/**
 * Lets clones finish before the agent ends. Clones that are asked for meanwhile get no answer: their call fails with
 * the link, and their job repeats it with the next agent. Everything else is served until the link ends.
 */
export class Drain {
  readonly #clones = new Set<Promise<unknown>>();
  #hasBegun = false;

  run<T>(method: Method, operation: () => Promise<T>): Promise<T> {
    if (!CLONING.has(method)) return operation();
    if (this.#hasBegun) return new Promise(() => {});
    const clone = operation();
    this.#clones.add(clone);
    const forget = () => this.#clones.delete(clone);
    clone.then(forget, forget);
    return clone;
  }

  /** Resolves when no clone is in progress, or after `within` milliseconds. */
  async begin(within: number): Promise<void> {
    this.#hasBegun = true;
    await Promise.race([Promise.allSettled(this.#clones), sleep(within, undefined, { ref: false })]);
  }
}
