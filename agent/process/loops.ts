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

interface Polling {
  /** Milliseconds after which no further check begins; `Infinity` for no limit. */
  within: number;
  /** Milliseconds between two checks. */
  every: number;
  /** Ends the polling before its time. */
  signal?: AbortSignal | undefined;
}

/**
 * Runs `check` repeatedly, the first time immediately, until it returns a truthy value. A check that throws ends
 * the polling with its error.
 * @returns that value, or null when the time is over or `signal` is aborted
 */
export async function pollUntil<T>(
  check: () => Promise<T | null | undefined | false>,
  { within, every, signal }: Polling,
): Promise<T | null> {
  const deadline = performance.now() + within;
  for (;;) {
    const result = await check();
    if (result) return result;
    if (signal?.aborted || performance.now() >= deadline) return null;
    await sleep(every, undefined, { signal }).catch(() => {});
    if (signal?.aborted) return null;
  }
}
