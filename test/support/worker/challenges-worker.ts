import type { Env } from '../../../edge/env.ts';
import type { ChallengeBook } from '../../../edge/sign-in/email-codes/challenge.ts';
import { Challenges } from '../../../edge/sign-in/email-codes/challenges.ts';
import { challengesOf } from '../../../edge/sign-in/email-codes/challenges-stub.ts';

/** Challenges under a clock that the test sets, dying when it says so, with a look into their storage. */

export type Fault = 'before_account' | 'after_account';

let offsetMs = 0;
let fault: Fault | null = null;

/** D1 that fails once before a batch, or whose caller dies once after it. */
function faulty(binding: D1Database, die: () => void): D1Database {
  return new Proxy(binding, {
    get(target, name) {
      if (name !== 'batch') return Reflect.get(target, name).bind(target);
      return async (statements: D1PreparedStatement[]) => {
        const due = fault;
        fault = null;
        if (due === 'before_account') throw new Error('D1 is away');
        const answers = await target.batch(statements);
        if (due === 'after_account') die();
        return answers;
      };
    },
  });
}

export class TestedChallenges extends Challenges {
  constructor(ctx: DurableObjectState, env: Env) {
    super(ctx, { ...env, DB: faulty(env.DB, () => ctx.abort('killed by the test')) });
  }

  protected override now(): number {
    return Date.now() + offsetMs;
  }

  /** Loses its memory and every call that has not been answered. */
  async reset() {
    this.ctx.abort('reset by the test');
  }

  /** What the alarm does when it fires. */
  async wake() {
    await this.alarm();
  }

  /** `wrongTries`: codes of a first factor that were looked at and wrong. */
  async inspect() {
    const { storage } = this.ctx;
    const kept = [...(await storage.list()).keys()];
    const alarm = await storage.getAlarm();
    const wrongTries = storage.kv.get<ChallengeBook>('book')?.counts.first_factor.wrongTries.length ?? 0;
    return { kept, alarmInMs: alarm && alarm - this.now(), wrongTries };
  }
}

interface TestedEnv extends Env {
  CHALLENGES: DurableObjectNamespace<TestedChallenges>;
}

export interface ChallengesCall {
  address: string;
  method: 'start' | 'verify' | 'wake' | 'reset' | 'inspect';
  /** Of each call; all are made at once. */
  args: unknown[];
  /** How far the objects' clock is ahead. */
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
