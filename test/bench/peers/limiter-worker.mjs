import { DurableObjectRateLimiter, DurableObjectStore } from '@hono-rate-limiter/cloudflare';
import { Hono } from 'hono';
import { rateLimiter } from 'hono-rate-limiter';
import { consume } from '../../../edge/rate-limits/consume.ts';
import { RateLimiter } from '../../../edge/rate-limits/rate-limiter.ts';

/**
 * Two limiters as middlewares of the same route, each with a Durable Object that counts. `/run` lets many requests of one
 * client through one of them. JavaScript, because the types of what it imports are not there before the benchmark runs.
 */

export { DurableObjectRateLimiter, RateLimiter };

const WINDOW_MS = 60_000;
const LIMITS = { reads: 'LIMIT_READS_PER_MINUTE', writes: 'LIMIT_WRITES_PER_MINUTE' };

/** Ours, with the headers that the gateway sends. */
const ours = (limit) => async (c, next) => {
  const verdict = await consume(c.env, { bucket: c.req.param('bucket'), limit });
  if (!verdict.admitted) return c.text('', 429);
  await next();
  c.header('X-RateLimit-Limit', String(verdict.limit));
  c.header('X-RateLimit-Remaining', String(verdict.remaining));
  c.header('X-RateLimit-Reset', String(verdict.resetAt));
};

/** Theirs, made once an isolate: its store needs a binding. */
function theirs(limit) {
  let limiter;
  return (c, next) => {
    limiter ??= rateLimiter({
      windowMs: WINDOW_MS,
      limit: Number(c.env[LIMITS[limit]]),
      keyGenerator: (asked) => asked.req.param('bucket'),
      store: new DurableObjectStore({ namespace: c.env.PEER }),
    });
    return limiter(c, next);
  };
}

const answer = (c) => c.json({ ok: true });

const app = new Hono()
  .get('/ours/reads/:bucket', ours('reads'), answer)
  .get('/ours/writes/:bucket', ours('writes'), answer)
  .get('/theirs/reads/:bucket', theirs('reads'), answer)
  .get('/theirs/writes/:bucket', theirs('writes'), answer)
  .get('/none/reads/:bucket', answer);

/** @returns how many of the requests were admitted */
async function run(env, context, { path, requests, atOnce }) {
  let admitted = 0;
  let left = requests;
  const client = async () => {
    while (left > 0) {
      left -= 1;
      const { status } = await app.fetch(new Request(`http://localhost${path}`), env, context);
      if (status === 200) admitted += 1;
    }
  };
  await Promise.all(Array.from({ length: atOnce }, client));
  return admitted;
}

export default {
  fetch: async (request, env, context) => Response.json(await run(env, context, await request.json())),
};
