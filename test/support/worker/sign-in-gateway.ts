import type { Bucket } from '../../../edge/rate-limits/buckets.ts';
import type { RateLimiter } from '../../../edge/rate-limits/rate-limiter.ts';
import { migratedD1 } from '../records/d1.ts';
import { startMailServer } from '../sign-in/mail-server.ts';
import type { SignInSite } from '../sign-in/sign-in.ts';
import { remoteObject } from './remote-bindings.ts';
import { bundle, isolateUrl, OBJECTS, SETTINGS, startWorker } from './worker.ts';

/**
 * The complete gateway in workerd with a D1 and a mail server, but without a host.
 * @param settings override the defaults; undefined removes a setting
 * @param isolates share one D1 and one set of objects
 */
export async function startSignInGateway(
  settings: Record<string, string | undefined> = {},
  { script = 'sign-in-worker', isolates = 1 }: { script?: string; isolates?: number } = {},
) {
  const mailServer = await startMailServer();
  const bindings = {
    ...SETTINGS,
    LIMIT_PUBLIC_PER_MINUTE: '100000',
    MAIL_API_URL: mailServer.url,
    ...settings,
  };
  const worker = startWorker(
    await bundle(script),
    {
      d1Databases: ['DB'],
      durableObjects: OBJECTS,
      bindings: Object.fromEntries(Object.entries(bindings).filter(([, value]) => value !== undefined)),
    },
    { isolates },
  );
  return {
    url: (await worker.ready).origin,
    isolateUrl: (isolate: number) => isolateUrl(worker, isolate),
    database: await migratedD1(worker),
    mails: () => mailServer.posted.map(({ body }) => body),
    /** Sets the status of the mail server's responses. */
    setMailStatus: mailServer.answersWith,
    /** Consumes from a limit. */
    consume: async ({ bucket, limit }: Bucket, times: number) => {
      const limiter = remoteObject<RateLimiter>(worker, 'RATE_LIMITER', bucket);
      for (let n = 0; n < times; n++) await limiter.consume(limit);
    },
    stop: async () => {
      await worker.dispose();
      await mailServer.stop();
    },
  } satisfies SignInSite & Record<string, unknown>;
}

export type SignInGateway = Awaited<ReturnType<typeof startSignInGateway>>;
