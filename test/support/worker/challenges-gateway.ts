import type { ChallengeRequest, CodeSubmission, SubmissionResult } from '../../../edge/sign-in/challenge.ts';
import { migratedD1 } from '../records/d1.ts';
import { startMailServer } from '../sign-in/mail-server.ts';
import type { ChallengesCall, Fault, TestedChallenges } from './challenges-worker.ts';
import { bundle, SETTINGS, startWorker } from './worker.ts';

type Inspection = Awaited<ReturnType<TestedChallenges['inspect']>>;

/** `Challenges` objects in workerd with a D1, and the mail server that they post to. */
export async function startChallengesGateway() {
  const mails = await startMailServer();
  const worker = startWorker(await bundle('challenges-worker'), {
    d1Databases: ['DB'],
    durableObjects: { CHALLENGES: { className: 'TestedChallenges', useSQLite: true } },
    bindings: { ...SETTINGS, MAIL_API_URL: mails.url },
  });
  const url = (await worker.ready).origin;
  const database = await migratedD1(worker);
  let offsetMs = 0;
  let fault: Fault | null = null;

  async function calls<R>(
    address: string,
    method: ChallengesCall['method'],
    args: unknown[],
  ): Promise<[R, ...R[]]> {
    const call = JSON.stringify({ address, method, args, offsetMs, fault } satisfies ChallengesCall);
    fault = null;
    const response = await fetch(url, { method: 'POST', body: call });
    const body = await response.json();
    if (!response.ok) throw new Error((body as { error: string }).error);
    return body as [R, ...R[]];
  }

  return {
    mails,
    database,
    /** The clock of the objects, in Unix milliseconds. */
    now: () => Date.now() + offsetMs,
    advance: (milliseconds: number) => {
      offsetMs += milliseconds;
    },
    /** Makes the next call fail. */
    injectFault: (next: Fault) => {
      fault = next;
    },
    of: (address: string) => ({
      start: async (request: Omit<ChallengeRequest, 'address'>) =>
        (await calls<{ expiresAt: number }>(address, 'start', [{ ...request, address }]))[0],
      /** Submits all of them concurrently. */
      verify: (...submissions: CodeSubmission[]) => calls<SubmissionResult>(address, 'verify', submissions),
      fireAlarm: () => calls(address, 'fireAlarm', [null]),
      inspect: async () => (await calls<Inspection>(address, 'inspect', [null]))[0],
      reset: () => calls(address, 'reset', [null]).catch(() => {}),
    }),
    stop: async () => {
      await worker.dispose();
      await mails.stop();
    },
  };
}

export type ChallengesGateway = Awaited<ReturnType<typeof startChallengesGateway>>;
