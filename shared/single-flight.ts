/**
 * A function that does `work`. Calls during a run share its result.
 * @returns takes the arguments of the call that begins the run
 */
export function singleFlight<A extends unknown[], T>(
  work: (...args: A) => Promise<T>,
): (...args: A) => Promise<T> {
  let running: Promise<T> | null = null;
  return (...args) => {
    running ??= work(...args).finally(() => {
      running = null;
    });
    return running;
  };
}

/**
 * A function that does `work`, one run at a time. Calls during a run share the next one, because the present
 * one may have read its input before them.
 */
export function sharedNextFlight<A extends unknown[], T>(
  work: (...args: A) => Promise<T>,
): (...args: A) => Promise<T> {
  let running: Promise<unknown> = Promise.resolve();
  let next: Promise<T> | null = null;
  return (...args) => {
    next ??= running
      .catch(() => {})
      .then(() => {
        next = null;
        const run = work(...args);
        running = run;
        return run;
      });
    return next;
  };
}
