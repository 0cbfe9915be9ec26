/**
 * Repeats the check until it passes. The limit only ends what never passes: on a busy machine everything
 * takes longer.
 * @throws the last error of the check after `seconds`
 */
export async function eventually<T>(check: () => Promise<T>, seconds = 60): Promise<T> {
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
