import type { Env } from '../../../edge/env.ts';
import type { Bucket } from '../../../edge/rate-limits/buckets.ts';
import { consume, refund } from '../../../edge/rate-limits/consume.ts';
import { LIMITS, type LimitName, type LimitTable } from '../../../edge/rate-limits/limits.ts';
import { RateLimiter } from '../../../edge/rate-limits/rate-limiter.ts';
import type { RateWindow } from '../../../edge/rate-limits/window.ts';

/** The limiter as the gateway uses it, with windows as long as the test says, and a look into its objects. */

const limitsWith = (windowSeconds: number) =>
  Object.fromEntries(
    Object.entries(LIMITS).map(([name, limit]) => [name, { ...limit, windowSeconds }]),
  ) as LimitTable;

export class TestedRateLimiter extends RateLimiter {
  #calls = 0;

  constructor(ctx: DurableObjectState, env: Env) {
    super(ctx, env, limitsWith(env.WINDOW_SECONDS as number));
  }

  override async consume(name: LimitName) {
    this.#calls += 1;
    return super.consume(name);
  }

  /** Loses its memory and every call that has not been answered. */
  async reset() {
    this.ctx.abort('reset by the test');
  }

  /** What its storage holds, and since it came into memory: the rows changed there, the calls received. */
  async inspect() {
    const { storage } = this.ctx;
    const { windows, ...rest } = Object.fromEntries(await storage.list());
    return {
      windows: Object.fromEntries((windows as Map<LimitName, RateWindow> | undefined) ?? []),
      rest,
      alarm: await storage.getAlarm(),
      rowsChanged: storage.sql.exec<{ n: number }>('select total_changes() as n').one().n,
      calls: this.#calls,
    };
  }
}

export type Inspection = Awaited<ReturnType<TestedRateLimiter['inspect']>>;

interface TestedEnv extends Env {
  RATE_LIMITER: DurableObjectNamespace<TestedRateLimiter>;
}

export interface TestRequest {
  charge: Bucket;
  /** Takes to make at once; 0 asks for an inspection instead. */
  times: number;
  /** The object is reset as the takes arrive. */
  reset: boolean;
  /** Takes back one count instead. */
  givesBack?: true;
}

export default {
  async fetch(request, env) {
    const { charge, times, reset, givesBack } = await request.json<TestRequest>();
    const object = env.RATE_LIMITER.get(env.RATE_LIMITER.idFromName(charge.bucket));
    if (givesBack) {
      await refund(env, charge);
      return Response.json(null);
    }
    if (times === 0) return Response.json(await object.inspect());
    const resetting = reset ? object.reset().catch(() => {}) : undefined;
    const verdicts = await Promise.all(Array.from({ length: times }, () => consume(env, charge)));
    await resetting;
    return Response.json(verdicts);
  },
} satisfies ExportedHandler<TestedEnv>;
