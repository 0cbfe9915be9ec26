import type { Env } from '../../../edge/env.ts';
import { type AddressState, challengesOf } from '../../../edge/sign-in/challenge.ts';
import { Challenges } from '../../../edge/sign-in/challenges.ts';

/** `Challenges` with an injected clock, injected faults and access to their storage. */

export type Fault = 'before_account' | 'after_account';

let offsetMs = 0;
let fault: Fault | null = null;

/** A D1 that fails once before a batch, or aborts its caller once after it. */
function faultyD1(binding: D1Database, abort: () => void): D1Database {
  return new Proxy(binding, {
    get(target, name) {
      if (name !== 'batch') return Reflect.get(target, name).bind(target);
      return async (statements: D1PreparedStatement[]) => {
        const injected = fault;
        fault = null;
        if (injected === 'before_account') throw new Error('D1 is unavailable');
        const results = await target.batch(statements);
        if (injected === 'after_account') abort();
        return results;
      };
    },
  });
}

export class TestedChallenges extends Challenges {
  constructor(ctx: DurableObjectState, env: Env) {
    super(ctx, { ...env, DB: faultyD1(env.DB, () => ctx.abort('aborted by the test')) });
  }

  protected override now(): number {
    return Date.now() + offsetMs;
  }

  /** Discards the object's memory and its pending calls. */
  async reset() {
    this.ctx.abort('reset by the test');
  }

  async fireAlarm() {
    await this.alarm();
  }

  /** `wrongAttempts`: wrong codes of a first factor that were evaluated. */
  async inspect() {
    const { storage } = this.ctx;
    const keys = [...(await storage.list()).keys()];
    const alarm = await storage.getAlarm();
    const wrongAttempts = storage.kv.get<AddressState>('book')?.counts.first_factor.wrongTries.length ?? 0;
    return { keys, alarmInMs: alarm && alarm - this.now(), wrongAttempts };
  }
}

interface TestedEnv extends Env {
  CHALLENGES: DurableObjectNamespace<TestedChallenges>;
}

export interface ChallengesCall {
  address: string;
  method: 'start' | 'verify' | 'fireAlarm' | 'reset' | 'inspect';
  /** One argument per call; the calls are concurrent. */
  args: unknown[];
  /** The offset of the objects' clock. */
  offsetMs: number;
  fault: Fault | null;
}

export default {
  async fetch(request, env: TestedEnv) {
    const { address, method, args, ...more } = await request.json<ChallengesCall>();
    ({ offsetMs, fault } = more);
    const stub = challengesOf(env, address) as unknown as Record<string, (arg: unknown) => Promise<unknown>>;
    try {
      return Response.json(await Promise.all(args.map((arg) => stub[method]?.(arg))));
    } catch (error) {
      return Response.json({ error: String(error) }, { status: 500 });
    }
  },
} satisfies ExportedHandler<TestedEnv>;
