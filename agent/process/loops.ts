import { setTimeout as sleep } from 'node:timers/promises';
import { type Log, TroubleLog } from './log.ts';

/** Work that runs until `signal` aborts. */
export type Loop = (signal: AbortSignal) => Promise<unknown>;

/** A loop has ended by an error, which is a defect: loops handle the failures of servers themselves. */
export class LoopFailed extends Error {
  override readonly name = 'LoopFailed';

  constructor(loop: string, cause: unknown) {
    super(`the loop "${loop}" has failed: ${cause instanceof Error ? cause.message : cause}`, { cause });
  }
}

/**
 * Runs loops by their names until `stop` aborts. One that rejects aborts it, with a `LoopFailed` as the
 * reason.
 */
export async function runLoops(loops: Readonly<Record<string, Loop>>, stop: AbortController): Promise<void> {
  const run = async ([name, loop]: [string, Loop]) => {
    try {
      await loop(stop.signal);
    } catch (error) {
      stop.abort(new LoopFailed(name, error));
    }
  };
  await Promise.all(Object.entries(loops).map(run));
}

/**
 * Calls `work` until `signal` aborts, and pauses after each call.
 * @param work never throws
 * @param pause in milliseconds, or computed from how long the call took; the signal ends it
 */
export async function repeat(work: () => Promise<unknown>, pause: Pause, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const started = performance.now();
    await work();
    const pauseMs = typeof pause === 'number' ? pause : pause(performance.now() - started);
    await sleep(pauseMs, undefined, { signal }).catch(() => {});
  }
}

type Pause = number | ((busyMs: number) => number);

interface Recurring {
  /** Milliseconds between two calls, as for `repeat`. */
  every: Pause;
  signal: AbortSignal;
  log: Log;
  /** The event of a failure, which is logged with its reason. */
  failed: string;
  /** The event of the first success after a failure. */
  recovered?: string;
}

/** Calls `work` until `signal` aborts. A failure is logged and does not end the loop. */
export async function runLoop(
  work: () => Promise<unknown>,
  { every, signal, log, failed, recovered }: Recurring,
): Promise<void> {
  const troubles = new TroubleLog(log);
  const attempt = () =>
    work().then(
      () => {
        if (troubles.clearAll() && recovered) log(recovered);
      },
      (error) => troubles.report(failed, 'work', error),
    );
  await repeat(attempt, every, signal);
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
 * Runs `check` repeatedly, the first time immediately, until it returns a truthy value. A check that throws
 * ends the polling with its error.
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
