import type { Bucket } from '../../../edge/rate-limits/buckets.ts';
import type { RateLimiter } from '../../../edge/rate-limits/rate-limiter.ts';
import { migratedD1 } from '../records/d1.ts';
import { startMailServer } from '../sign-in/mail-server.ts';
import type { SignInSite } from '../sign-in/sign-in.ts';
import { bundle, OBJECTS, SETTINGS, startWorker } from './worker.ts';

/** The whole gateway in real workerd with a real D1 and a mail service, but no host. @param settings by name; undefined: left out */
export async function startSignInGateway(settings: Record<string, string | undefined> = {}) {
  const mailServer = await startMailServer();
  const wanted = {
    ...SETTINGS,
    LIMIT_PUBLIC_PER_MINUTE: '100000',
    MAIL_API_URL: mailServer.url,
    ...settings,
  };
  const worker = startWorker(await bundle('sign-in-worker'), {
    d1Databases: ['DB'],
    durableObjects: OBJECTS,
    bindings: Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== undefined)),
  });
  return {
    url: (await worker.ready).origin,
    database: await migratedD1(worker),
    mails: () => mailServer.posted.map(({ body }) => body),
    /** The status that the mail service answers with from now on. */
    mailAnswers: mailServer.answersWith,
    /** Counts so many more against a limit. */
    charge: async ({ bucket, limit }: Bucket, times: number) => {
      const limiters = await worker.getDurableObjectNamespace('RATE_LIMITER');
      const limiter = limiters.get(limiters.idFromName(bucket)) as unknown as RateLimiter;
      for (let n = 0; n < times; n++) await limiter.consume(limit);
    },
    stop: async () => {
      await worker.dispose();
      await mailServer.stop();
    },
  } satisfies SignInSite & Record<string, unknown>;
}

export type SignInGateway = Awaited<ReturnType<typeof startSignInGateway>>;
