import { openDatabase } from '../../../edge/database/database.ts';
import type { Env } from '../../../edge/env.ts';
import { readSettings } from '../../../edge/settings.ts';
import type { SignInContext } from '../../../edge/sign-in/sign-in-context.ts';
import { SETTINGS } from '../worker/worker.ts';

const MAIL_SETTINGS = { MAIL_API_URL: 'http://127.0.0.1:1', MAIL_API_KEY: 'key' };

/** A namespace whose objects respond to each call with the same value. @param record gets every call */
const namespaceOf = (
  responses: Record<string, unknown>,
  record: (method: string, ...args: unknown[]) => void,
) => ({
  idFromName: (name: string) => name,
  get: () =>
    Object.fromEntries(
      Object.entries(responses).map(([method, response]) => [
        method,
        async (...args: unknown[]) => {
          record(method, ...args);
          return response;
        },
      ]),
    ),
});

/** A D1 that records the statements that are prepared. */
const recordingD1 = (binding: D1Database, record: (statement: string) => void): D1Database =>
  new Proxy(binding, {
    get(target, name) {
      const method = Reflect.get(target, name).bind(target);
      if (name !== 'prepare') return method;
      return (statement: string) => {
        record(statement);
        return method(statement);
      };
    },
  });

/**
 * A context of sign-in in this process: a real D1, limits that admit everything, and `Challenges` objects for
 * which every code is wrong.
 * @param work gets each D1 statement and each call of an object, in order
 */
export function signInContext(
  d1: D1Database,
  { now = () => new Date(), work = [] }: { now?: () => Date; work?: string[] } = {},
): SignInContext & { finishBackground(): Promise<unknown> } {
  const background: Promise<unknown>[] = [];
  const admitted = { admitted: true, limit: 1, remaining: 0, endsAt: 0, restMs: 0 };
  const env = {
    ...SETTINGS,
    ...MAIL_SETTINGS,
    DB: recordingD1(d1, (statement) => work.push(`D1: ${statement}`)),
    RATE_LIMITER: namespaceOf({ consume: admitted, refund: undefined }, (method, limit) =>
      work.push(`RateLimiter.${method}(${limit})`),
    ),
    CHALLENGES: namespaceOf({ start: { expiresAt: 0 }, verify: { ok: false, failure: 'wrong' } }, (method) =>
      work.push(`Challenges.${method}`),
    ),
  } as unknown as Env;
  return {
    env,
    settings: readSettings(env),
    db: openDatabase(env.DB),
    client: { ip: '192.0.2.1', userAgent: 'test', requestId: 'request-1' },
    waitUntil: (promise) => void background.push(promise),
    now,
    finishBackground: () => Promise.all(background),
  };
}
