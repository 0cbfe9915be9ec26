import type { Env } from '../env.ts';
import { repeatIfLost } from '../lost-object.ts';
import type { LimitName, Refusals } from './limits.ts';

/** Time between two calls that add what this isolate has refused; a flood of refusals must not be one of calls. */
const SEND_EVERY_MS = 5_000;

/** Name of the `RateLimiter` object that holds the totals. */
const TOTALS = JSON.stringify(['refusals']);

/** What this isolate has refused since the last call. */
let unsent: Refusals = {};
let sentAt = Number.NEGATIVE_INFINITY;

const totals = ({ RATE_LIMITER }: Env) => RATE_LIMITER.get(RATE_LIMITER.idFromName(TOTALS));

export function countRefusal(limit: LimitName): void {
  unsent[limit] = (unsent[limit] ?? 0) + 1;
}

/** Adds this isolate's refusals to the totals, if it is time to. Never throws: a metric is not worth a failure. */
export async function sendRefusals(env: Env): Promise<void> {
  const now = Date.now();
  if (Object.keys(unsent).length === 0 || (now >= sentAt && now - sentAt < SEND_EVERY_MS)) return;
  const refusals = unsent;
  unsent = {};
  sentAt = now;
  await totals(env)
    .addRefusals(refusals)
    .catch(() => {});
}

/** Refusals of all isolates since the first deployment; those of the last seconds can be missing. */
export const readRefusals = (env: Env): Promise<Refusals> => repeatIfLost(() => totals(env).refusals());
