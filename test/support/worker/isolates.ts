import type { Bucket } from '../../../edge/rate-limits/buckets.ts';
import type { LimitDecision } from '../../../edge/rate-limits/limiter-client.ts';
import type { Inspection, TestRequest } from './rate-limit-worker.ts';
import { bundle, isolateUrl, SETTINGS, startWorker } from './worker.ts';

/** Isolates of the gateway that share the limiter's objects. */
export async function startIsolates(count: number) {
  const worker = startWorker(
    await bundle('rate-limit-worker'),
    {
      bindings: { ...SETTINGS, WINDOW_SECONDS: 3600 },
      durableObjects: { RATE_LIMITER: { className: 'TestedRateLimiter', useSQLite: true } },
    },
    { isolates: count },
  );
  await worker.ready;
  const post = async (isolate: number, request: TestRequest) => {
    const address = await isolateUrl(worker, isolate);
    return (await fetch(address, { method: 'POST', body: JSON.stringify(request) })).json();
  };
  return {
    /** That many requests at one isolate. */
    takes: async (isolate: number, bucket: Bucket, times: number, borrows: 'at_once' | 'in_turn') =>
      (await post(isolate, { bucket, times, borrows, reset: false })) as LimitDecision[],
    inspect: async (bucket: Bucket) => (await post(0, { bucket, times: 0, reset: false })) as Inspection,
    stop: () => worker.dispose(),
  };
}

export type Isolates = Awaited<ReturnType<typeof startIsolates>>;
