import { setTimeout as sleep } from 'node:timers/promises';

/**
 * Calls `work` until `signal` aborts, and pauses after each call.
 * @param work never throws
 * @param pauseMs in milliseconds; the signal ends it
 */
export async function repeat(
  work: () => Promise<unknown>,
  pauseMs: number,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    await work();
    await sleep(pauseMs, undefined, { signal }).catch(() => {});
  }
}
