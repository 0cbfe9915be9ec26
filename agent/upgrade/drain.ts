import { setTimeout as sleep } from 'node:timers/promises';
import type { Method } from '../../shared/protocol/operations.ts';
import { HostError } from '../process/host-error.ts';

/** Operations that can take minutes, because they copy a database. */
const CLONING: ReadonlySet<Method> = new Set(['branch.clone', 'reset.clone', 'snapshot.take']);

/**
 * Lets clones finish before the agent ends. Clones that are asked for meanwhile are refused immediately,
 * because a call without an answer keeps its place on the link, and their job repeats them. Everything else
 * is served until the link ends.
 */
export class Drain {
  readonly #clones = new Set<Promise<unknown>>();
  #hasBegun = false;

  /** @throws HostError HOST_BUSY */
  async run<T>(method: Method, operation: () => Promise<T>): Promise<T> {
    if (!CLONING.has(method)) return operation();
    if (this.#hasBegun) throw new HostError('HOST_BUSY', 'the agent is being replaced');
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

/**
 * Calls `drain` at the first signal. Later ones, of a second `upgrade`, change nothing; without a listener
 * they would end the process.
 */
export function drainAt(signal: NodeJS.Signals, drain: () => Promise<void>): void {
  let isDraining = false;
  process.on(signal, () => {
    if (isDraining) return;
    isDraining = true;
    drain();
  });
}
