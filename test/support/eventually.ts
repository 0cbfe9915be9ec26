/** Runs the check again and again until it passes, at most for `seconds`; then its last error is thrown. */
export async function eventually<T>(check: () => Promise<T>, seconds = 15): Promise<T> {
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
