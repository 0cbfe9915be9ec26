import type { Answer, AnswerOutcome, ChallengeOrder } from '../../../edge/sign-in/email-codes/challenge.ts';
import { migratedD1 } from '../records/d1.ts';
import { startMailServer } from '../sign-in/mail-server.ts';
import type { ChallengesCall, Fault, TestedChallenges } from './challenges-worker.ts';
import { bundle, SETTINGS, startWorker } from './worker.ts';

type Inspection = Awaited<ReturnType<TestedChallenges['inspect']>>;

/** Challenges in real workerd with a real D1, and where they post their mails to. */
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
    const body = JSON.stringify({ address, method, args, offsetMs, fault } satisfies ChallengesCall);
    fault = null;
    const response = await fetch(url, { method: 'POST', body });
    const answer = await response.json();
    if (!response.ok) throw new Error((answer as { error: string }).error);
    return answer as [R, ...R[]];
  }

  return {
    mails,
    database,
    /** The objects' clock, Unix milliseconds. */
    now: () => Date.now() + offsetMs,
    pass: (milliseconds: number) => {
      offsetMs += milliseconds;
    },
    /** Of the next call. */
    plant: (next: Fault) => {
      fault = next;
    },
    of: (address: string) => ({
      start: async (order: Omit<ChallengeOrder, 'address'>) =>
        (await calls<{ expiresAt: number }>(address, 'start', [{ ...order, address }]))[0],
      /** All at once. */
      verify: (...answers: Answer[]) => calls<AnswerOutcome>(address, 'verify', answers),
      wake: () => calls(address, 'wake', [null]),
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
