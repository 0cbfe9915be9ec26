import { convertV4MiniflareOptions, Miniflare } from 'miniflare';
import type { Bucket } from '../../../edge/rate-limits/buckets.ts';
import type { LimitDecision } from '../../../edge/rate-limits/limiter-client.ts';
import type { Inspection, TestRequest } from './rate-limit-worker.ts';
import { bundle, SETTINGS } from './worker.ts';

const OBJECTS_OF = 'isolate-0';
const CLASS = 'TestedRateLimiter';

/** Isolates of the gateway that share the limiter's objects, which are those of the first one. */
export async function startIsolates(count: number) {
  const script = await bundle('rate-limit-worker');
  const names = Array.from({ length: count }, (_, n) => `isolate-${n}`);
  const worker = new Miniflare(
    convertV4MiniflareOptions({
      host: '127.0.0.1',
      port: 0,
      cf: false,
      telemetry: { enabled: false },
      workers: names.map((name) => ({
        name,
        modules: true,
        script,
        compatibilityDate: '2026-11-01',
        compatibilityFlags: ['nodejs_compat'],
        bindings: { ...SETTINGS, WINDOW_SECONDS: 3600 },
        durableObjects: {
          RATE_LIMITER: {
            className: CLASS,
            useSQLite: true,
            ...(name !== OBJECTS_OF && { scriptName: OBJECTS_OF }),
          },
        },
      })),
    }),
  );
  await worker.ready;
  const post = async (isolate: number, request: TestRequest) => {
    const { fetch } = await worker.getWorker(names[isolate] ?? '');
    const response = await fetch('http://isolate/', { method: 'POST', body: JSON.stringify(request) });
    return response.json();
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
