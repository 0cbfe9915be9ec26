import { setTimeout as sleep } from 'node:timers/promises';

interface Polling {
  /** Milliseconds after which polling stops. */
  within: number;
  /** Milliseconds between two checks. */
  every: number;
  /** Stops polling early. */
  signal?: AbortSignal | undefined;
}

/**
 * Runs `check` immediately and then repeatedly, until it resolves to a truthy value.
 * @returns that value, or null when time ran out or `signal` aborted
 * @throws what `check` throws
 */
export async function pollUntil<T>(
  check: () => Promise<T | null | undefined | false>,
  { within, every, signal }: Polling,
): Promise<T | null> {
  const deadline = performance.now() + within;
  while (!signal?.aborted) {
    const found = await check();
    if (found) return found;
    if (performance.now() >= deadline) return null;
    await sleep(every, undefined, { ...(signal && { signal }) }).catch(() => {});
  }
  return null;
}
