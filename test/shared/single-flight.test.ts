import { expect, test } from 'vitest';
import { sharedNextFlight, singleFlight } from '../../shared/single-flight.ts';

/** Runs that end when the test ends them. */
function heldRuns() {
  const runs: PromiseWithResolvers<number>[] = [];
  const work = () => {
    const run = Promise.withResolvers<number>();
    runs.push(run);
    return run.promise;
  };
  return { runs, work };
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

test('calls during a run share its result, and a call after its failure begins another one', async () => {
  const { runs, work } = heldRuns();
  const call = singleFlight(work);
  const first = call();
  const second = call();
  runs[0]?.reject(new Error('planted'));
  await expect(first).rejects.toThrow('planted');
  await expect(second).rejects.toThrow('planted');
  const third = call();
  runs[1]?.resolve(2);
  expect(await third).toBe(2);
  expect(runs).toHaveLength(2);
});

test('calls during a run share the next one, which begins after it, however it ends', async () => {
  const { runs, work } = heldRuns();
  const call = sharedNextFlight(work);
  const first = call();
  await settled();
  const second = call();
  const third = call();
  await settled();
  expect(runs).toHaveLength(1);
  runs[0]?.reject(new Error('planted'));
  await expect(first).rejects.toThrow('planted');
  await settled();
  runs[1]?.resolve(2);
  expect(await Promise.all([second, third])).toEqual([2, 2]);
  expect(runs).toHaveLength(2);
});
