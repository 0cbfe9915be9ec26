import { SETTINGS, startWorker } from '../support/worker/worker.ts';
import { bundlePeer, installPeers, peerVersions } from './peers.ts';
import type { Report } from './report.ts';
import { median, runInterleaved, timed } from './rounds.ts';

const ROUNDS = 11;
const REQUESTS = 400;
const CONCURRENCY = 20;
/** Limit of one window in the measurement of over-admission. */
const ALLOWED = 100;

const METHOD = `Requests of one client through a Hono middleware that counts them in a Durable Object: ours, and \`hono-rate-limiter\` \
with the Durable Object store of \`@hono-rate-limiter/cloudflare\`, in one Worker. Interleaved in ${ROUNDS} rounds: \
${REQUESTS} requests, ${CONCURRENCY} concurrently, sent within the Worker, so that no HTTP is measured; "none" is the \
route without a limiter. Over-admission: the same number of requests, all concurrent, in a window that allows \
${ALLOWED}, with a new client each time. Storage is on disk.`;

type Side = 'ours' | 'theirs' | 'none';

/** @param signal aborts it */
export async function measureRateLimiter(signal: AbortSignal): Promise<Report> {
  installPeers();
  const worker = startWorker(await bundlePeer('limiter-worker'), {
    durableObjects: {
      RATE_LIMITER: { className: 'RateLimiter', useSQLite: true },
      PEER: { className: 'DurableObjectRateLimiter', useSQLite: true },
    },
    bindings: {
      ...SETTINGS,
      LIMIT_READS_PER_MINUTE: '100000000',
      LIMIT_WRITES_PER_MINUTE: String(ALLOWED),
    },
  });
  try {
    const { origin } = await worker.ready;
    const run = async (path: string, concurrency: number): Promise<number> => {
      signal.throwIfAborted();
      const body = JSON.stringify({ path, requests: REQUESTS, concurrency });
      const response = await fetch(origin, { method: 'POST', body });
      if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
      return (await response.json()) as number;
    };
    const timeOf = (side: Side) => () => timed(() => run(`/${side}/reads/client`, CONCURRENCY));
    const overAdmission = (side: Side) => async () =>
      (await run(`/${side}/writes/${crypto.randomUUID()}`, REQUESTS)) - ALLOWED;
    const times = await runInterleaved(ROUNDS, {
      ours: timeOf('ours'),
      theirs: timeOf('theirs'),
      none: timeOf('none'),
    });
    const over = await runInterleaved(ROUNDS, {
      ours: overAdmission('ours'),
      theirs: overAdmission('theirs'),
    });
    return {
      title: 'Rate limiter',
      method: METHOD,
      setting: peerVersions('@hono-rate-limiter/cloudflare', 'hono-rate-limiter', 'hono'),
      goals: [
        {
          name: 'decisions a second, ours ÷ theirs',
          measured: median(times.theirs) / median(times.ours),
          limit: 2,
          atLeast: true,
          unit: '×',
        },
        {
          name: 'over-admission, ours, worst round',
          measured: Math.max(...over.ours),
          limit: 0,
          unit: 'requests',
        },
        {
          name: 'over-admission, theirs, worst round',
          measured: Math.max(...over.theirs),
          limit: null,
          unit: 'requests',
        },
      ],
      times: { [`${REQUESTS} requests`]: times },
      counts: { [`Admitted beyond ${ALLOWED}`]: over },
    };
  } finally {
    await worker.dispose();
  }
}
