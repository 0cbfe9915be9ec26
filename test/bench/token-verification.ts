import { newSigner, startProvider } from '../support/sign-in/provider.ts';
import type { VerificationOrder } from '../support/worker/verification-worker.ts';
import { bundle, startWorker } from '../support/worker/worker.ts';
import type { Goal, Report } from './report.ts';
import { median, runInterleaved, timed } from './rounds.ts';

const ROUNDS = 11;
const TOKENS = 50;
const LIMIT = 0.1;

const METHOD = `PASETO v4.public tokens with the claims of an access token, verified in workerd in sequence. Each of ${ROUNDS} rounds \
has ${TOKENS} new tokens and verifies them, interleaved: as the gateway does, for the first time (noble, strict RFC \
8032) and again (from its cache of verified tokens); by \`crypto.subtle\` alone, with the key imported and the signed \
bytes prepared beforehand; and by the package \`paseto\`. The clock is outside, because a Worker's clock stands still \
while it computes. Times are those of one verification.`;

/** @param signal aborts it */
export async function measureTokenVerification(signal: AbortSignal): Promise<Report> {
  const signer = newSigner('key-1');
  const provider = await startProvider(signer);
  const worker = startWorker(await bundle('verification-worker'), { bindings: { IDP_URL: provider.url } });
  try {
    const { origin } = await worker.ready;
    const post = async (order: VerificationOrder) => {
      const response = await fetch(origin, { method: 'POST', body: JSON.stringify(order) });
      await response.arrayBuffer();
      if (!response.ok) throw new Error(`${order.way}: ${response.status}`);
    };
    const verify =
      (way: VerificationOrder['way'], times = 1) =>
      async () =>
        ((await timed(() => post({ way, times }))) * 1000) / (times * TOKENS);
    const newTokens = async () => {
      signal.throwIfAborted();
      const exp = new Date(Date.now() + 3_600_000).toISOString();
      const claims = (n: number) => ({
        gid: `user-${n}`,
        email: 'ada@example.com',
        role: 'owner',
        scp: ['branchgate:read', 'branchgate:write'],
        exp,
        ctx: { tenant_id: 'acme' },
        jti: crypto.randomUUID(),
      });
      const tokens = await Promise.all(Array.from({ length: TOKENS }, (_, n) => signer.token(claims(n))));
      await post({ way: 'prepare', times: 1, tokens, paserk: signer.entry.public_key });
    };
    const times = await runInterleaved(ROUNDS, {
      'gateway, cold': async () => {
        await newTokens();
        return verify('gateway')();
      },
      'gateway, warm': verify('gateway', 400),
      'crypto.subtle': verify('subtle', 20),
      'package paseto': verify('paseto', 20),
    });
    const ratio = (
      one: keyof typeof times,
      other: keyof typeof times,
      limit: number | null = null,
    ): Goal => ({
      name: `${one} ÷ ${other}`,
      measured: median(times[one]) / median(times[other]),
      limit,
      unit: '×',
    });
    return {
      title: 'Verification of tokens',
      method: METHOD,
      goals: [
        ratio('gateway, warm', 'crypto.subtle', LIMIT),
        ratio('gateway, cold', 'crypto.subtle'),
        ratio('package paseto', 'crypto.subtle'),
        ratio('gateway, cold', 'package paseto'),
      ],
      counts: { 'Microseconds a verification': times },
    };
  } finally {
    await worker.dispose();
    await provider.stop();
  }
}
