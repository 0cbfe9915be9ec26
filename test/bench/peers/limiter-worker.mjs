import { DurableObjectRateLimiter, DurableObjectStore } from '@hono-rate-limiter/cloudflare';
import { Hono } from 'hono';
import { rateLimiter } from 'hono-rate-limiter';
import { consume } from '../../../edge/rate-limits/consume.ts';
import { RateLimiter } from '../../../edge/rate-limits/rate-limiter.ts';

/**
 * Two limiters as middlewares of the same route, each with a Durable Object that counts. A POST sends many requests of one
 * client through one of them. This is JavaScript, because the types of its imports are installed only for the benchmark.
 */

export { DurableObjectRateLimiter, RateLimiter };

const WINDOW_MS = 60_000;
const LIMITS = { reads: 'LIMIT_READS_PER_MINUTE', writes: 'LIMIT_WRITES_PER_MINUTE' };

/** Ours, with the headers that the gateway sends. */
const ours = (limit) => async (c, next) => {
  const decision = await consume(c.env, { bucket: c.req.param('bucket'), limit });
  if (!decision.admitted) return c.text('', 429);
  await next();
  c.header('X-RateLimit-Limit', String(decision.limit));
  c.header('X-RateLimit-Remaining', String(decision.remaining));
  c.header('X-RateLimit-Reset', String(decision.resetAt));
};

/** Theirs, created once per isolate, because its store needs a binding. */
function theirs(limit) {
  let limiter;
  return (c, next) => {
    limiter ??= rateLimiter({
      windowMs: WINDOW_MS,
      limit: Number(c.env[LIMITS[limit]]),
      keyGenerator: (c) => c.req.param('bucket'),
      store: new DurableObjectStore({ namespace: c.env.PEER }),
    });
    return limiter(c, next);
  };
}

const respond = (c) => c.json({ ok: true });

const app = new Hono()
  .get('/ours/reads/:bucket', ours('reads'), respond)
  .get('/ours/writes/:bucket', ours('writes'), respond)
  .get('/theirs/reads/:bucket', theirs('reads'), respond)
  .get('/theirs/writes/:bucket', theirs('writes'), respond)
  .get('/none/reads/:bucket', respond);

/** @returns how many of the requests were admitted */
async function run(env, context, { path, requests, concurrency }) {
  let admitted = 0;
  let left = requests;
  const client = async () => {
    while (left > 0) {
      left -= 1;
      const { status } = await app.fetch(new Request(`http://localhost${path}`), env, context);
      if (status === 200) admitted += 1;
    }
  };
  await Promise.all(Array.from({ length: concurrency }, client));
  return admitted;
}

export default {
  fetch: async (request, env, context) => Response.json(await run(env, context, await request.json())),
};
