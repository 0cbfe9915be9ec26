import type { Env } from '../../../edge/env.ts';
import type { Bucket } from '../../../edge/rate-limits/buckets.ts';
import type { RateWindow, WantedShare } from '../../../edge/rate-limits/counters.ts';
import { consume, type LimitDecision, refund } from '../../../edge/rate-limits/limiter-client.ts';
import { LIMITS, type LimitName, type LimitTable } from '../../../edge/rate-limits/limits.ts';
import { RateLimiter } from '../../../edge/rate-limits/rate-limiter.ts';

/**
 * The limiter as the gateway uses it, with a clock and windows that the test sets, and access to its objects.
 */

const machineTime = Date.now;
/** Milliseconds that the clock of the gateway and its objects is ahead of the machine's. */
let ahead = 0;
Date.now = () => machineTime() + ahead;

const startTimer = setTimeout;
/** Delays of the timers that were started. */
const delays: number[] = [];
globalThis.setTimeout = ((task: () => void, milliseconds: number) => {
  delays.push(milliseconds);
  return startTimer(task, milliseconds);
}) as typeof setTimeout;

const limitsWith = (windowSeconds: number) =>
  Object.fromEntries(
    Object.entries(LIMITS).map(([name, limit]) => [name, { ...limit, windowSeconds }]),
  ) as LimitTable;

export class TestedRateLimiter extends RateLimiter {
  #calls = 0;
  #delays: number[] = [];

  constructor(ctx: DurableObjectState, env: Env) {
    super(ctx, env, limitsWith(env.WINDOW_SECONDS as number));
  }

  override async consume(name: LimitName, wanted?: WantedShare | null) {
    this.#calls += 1;
    const before = delays.length;
    const counted = super.consume(name, wanted);
    this.#delays.push(...delays.slice(before));
    return counted;
  }

  /** Loses its memory and every pending call. */
  async reset() {
    this.ctx.abort('reset by the test');
  }

  /** Runs the alarm as the runtime does. */
  ring(): Promise<void> {
    return this.alarm();
  }

  /**
   * Its storage, and since it came into memory: the rows changed, the calls received, the delays of its
   * writes.
   */
  async inspect() {
    const { storage } = this.ctx;
    const { windows, ...rest } = Object.fromEntries(await storage.list());
    return {
      windows: Object.fromEntries((windows as Map<LimitName, RateWindow> | undefined) ?? []),
      rest,
      alarm: await storage.getAlarm(),
      rowsChanged: storage.sql.exec<{ n: number }>('select total_changes() as n').one().n,
      calls: this.#calls,
      delays: this.#delays,
    };
  }
}

export type Inspection = Awaited<ReturnType<TestedRateLimiter['inspect']>>;

interface TestedEnv extends Env {
  RATE_LIMITER: DurableObjectNamespace<TestedRateLimiter>;
}

export interface TestRequest {
  bucket: Bucket;
  /** Concurrent requests to count; 0 asks for an inspection instead. */
  times: number;
  /**
   * How an isolate of the gateway counts: the requests borrow shares, concurrently or one after the other.
   */
  borrows?: 'at_once' | 'in_turn';
  /** The object is reset as the requests arrive. */
  reset: boolean;
  /** Refunds one count instead. */
  refunds?: true;
  /** Milliseconds to advance the clock by; an alarm that is due then runs. */
  advance?: number;
}

export default {
  async fetch(request, env, context) {
    const { bucket, times, borrows, reset, refunds, advance } = await request.json<TestRequest>();
    const object = env.RATE_LIMITER.get(env.RATE_LIMITER.idFromName(bucket.bucket));
    if (advance !== undefined) {
      ahead += advance;
      const { alarm } = await object.inspect();
      if (alarm !== null && alarm <= Date.now()) await object.ring();
      return Response.json(null);
    }
    if (refunds) {
      await refund(env, bucket);
      return Response.json(null);
    }
    if (times === 0) return Response.json(await object.inspect());
    if (borrows) {
      const take = () => consume(env, bucket, (work) => context.waitUntil(work));
      if (borrows === 'at_once') return Response.json(await Promise.all(Array.from({ length: times }, take)));
      const inTurn: LimitDecision[] = [];
      for (let n = 0; n < times; n++) inTurn.push(await take());
      return Response.json(inTurn);
    }
    const resetting = reset ? object.reset().catch(() => {}) : undefined;
    const decisions = await Promise.all(Array.from({ length: times }, () => consume(env, bucket)));
    await resetting;
    return Response.json(decisions);
  },
} satisfies ExportedHandler<TestedEnv>;
