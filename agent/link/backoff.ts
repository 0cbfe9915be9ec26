import type { LinkEnd } from './agent-link.ts';

const FIRST_MS = 200;
const LONGEST_MS = 5_000;
/** After a refusal, or when another agent with this identity took over: dialling at once would go on for ever. */
const UNWELCOME_MS = 30_000;
/** A link that was up for so long counts as a success. */
const LASTED_MS = 10_000;

/** When to dial again: soon at first, then ever later; jittered, so that many hosts don't come back in step. */
export class Backoff {
  #failures = 0;

  /** Milliseconds to wait. @param random between 0 and 1 */
  next(end: LinkEnd, random: number): number {
    const jitter = 0.5 + random / 2;
    if (end.unwelcome) return UNWELCOME_MS * jitter;
    if (end.linkedFor >= LASTED_MS) this.#failures = 0;
    const wait = Math.min(LONGEST_MS, FIRST_MS * 2 ** this.#failures);
    this.#failures += 1;
    return wait * jitter;
  }
}
