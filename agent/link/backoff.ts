import { backoff } from '../../shared/backoff.ts';
import type { LinkEnd } from './agent-link.ts';

const FAILED = { first: 200, longest: 5_000 };
/** After a refusal, or when another agent with this identity took over: an immediate redial would fail again. */
const REFUSED_MS = 30_000;
/** A link that was up for this long counts as a success. */
const STABLE_AFTER_MS = 10_000;

/** How long the agent waits before it dials the gateway again. */
export class RedialBackoff {
  #failures = 0;

  /** Milliseconds to wait. @param random jitter, from 0 to 1 */
  next(end: LinkEnd, random: number): number {
    if (end.refused) return backoff(0, { first: REFUSED_MS, longest: REFUSED_MS, random });
    if (end.linkedFor >= STABLE_AFTER_MS) this.#failures = 0;
    const wait = backoff(this.#failures, { ...FAILED, random });
    this.#failures += 1;
    return wait;
  }
}
