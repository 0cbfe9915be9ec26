/** Longer than anything takes on a busy machine: a time that is promised is measured by a benchmark. */
const WITHIN_S = 60;

/** Repeats the check until it passes. @throws the last error of the check after `seconds` */
export async function eventually<T>(check: () => Promise<T>, seconds = WITHIN_S): Promise<T> {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}
