import { readdirSync, readFileSync } from 'node:fs';
import type { Bucket } from '../../../edge/rate-limits/buckets.ts';
import type { LimitDecision } from '../../../edge/rate-limits/limiter-client.ts';
import type { Inspection, TestRequest } from './rate-limit-worker.ts';
import { bundle, SETTINGS, startWorker } from './worker.ts';

const WORKER = 'rate-limit-gateway';
const CLASS = 'TestedRateLimiter';

/** The limiter in workerd, its objects' storage in `stateDir`. */
export async function startRateLimitGateway(options: {
  stateDir: string;
  windowSeconds: number;
  limits?: Record<string, string>;
}) {
  const before = new Set(workerdsOfThisProcess());
  const worker = startWorker(await bundle('rate-limit-worker'), {
    name: WORKER,
    resourcePersistencePath: options.stateDir,
    durableObjects: { RATE_LIMITER: { className: CLASS, useSQLite: true } },
    bindings: { ...SETTINGS, WINDOW_SECONDS: options.windowSeconds, ...options.limits },
  });
  const url = (await worker.ready).origin;
  const [workerd] = workerdsOfThisProcess().filter((pid) => !before.has(pid));
  if (workerd === undefined) throw new Error('no workerd was started');

  const post = async (request: TestRequest) =>
    (await fetch(url, { method: 'POST', body: JSON.stringify(request) })).json();

  return {
    /** That many concurrent requests, in one isolate. */
    takes: async (bucket: Bucket, times = 1) =>
      (await post({ bucket, times, reset: false })) as LimitDecision[],
    /** The same while the object is reset under the calls. */
    takesInReset: async (bucket: Bucket, times: number) =>
      (await post({ bucket, times, reset: true })) as LimitDecision[],
    refunds: async (bucket: Bucket) => {
      await post({ bucket, times: 0, reset: false, refunds: true });
    },
    /** Advances the clock, and runs the alarm of the bucket's object if it is due. */
    advance: async (bucket: Bucket, milliseconds: number) => {
      await post({ bucket, times: 0, reset: false, advance: milliseconds });
    },
    inspect: async (bucket: Bucket) => (await post({ bucket, times: 0, reset: false })) as Inspection,
    /** Takes the object out of memory, as the runtime does with an idle one. */
    evict: (bucket: Bucket) => worker.unsafeEvictDurableObject(WORKER, CLASS, { name: bucket.bucket }),
    /** Kills workerd without a chance to write. */
    crash: async () => {
      process.kill(workerd, 'SIGKILL');
      await worker.dispose();
    },
    stop: () => worker.dispose(),
  };
}

export type RateLimitGateway = Awaited<ReturnType<typeof startRateLimitGateway>>;

function workerdsOfThisProcess(): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        const [, command, parent] =
          /^\d+ \((.*)\) \S (\d+)/.exec(readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? [];
        return command === 'workerd' && parent === String(process.pid);
      } catch {
        return false;
      }
    })
    .map(Number);
}
