import type { Miniflare } from 'miniflare';
import { beforeEach, describe, expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { newSigner, type Provider, startProvider } from '../../support/sign-in/provider.ts';
import { bundle, startWorker } from '../../support/worker/worker.ts';

const signer = newSigner('key-1');
const claims = (gid: string) => ({
  gid,
  email: 'ada@example.com',
  role: 'owner',
  exp: new Date(Date.now() + 3_600_000).toISOString(),
});

let provider: Provider;
let gateway: Miniflare;
let url: string;

/** A fresh isolate and provider for each test. */
beforeEach(async () => {
  provider = await startProvider(signer);
  gateway = startWorker(await bundle('authentication-worker'), { bindings: { IDP_URL: provider.url } });
  url = (await gateway.ready).origin;
  return async () => {
    await gateway.dispose();
    await provider.stop();
  };
});

async function ask(token: string, signal: AbortSignal | null = null) {
  const response = await fetch(url, { headers: { authorization: `Bearer ${token}` }, signal });
  return (await response.json()) as Record<string, unknown>;
}

describe('in workerd', () => {
  test('100 concurrent first requests share one fetch of the keys', async () => {
    const tokens = await Promise.all(Array.from({ length: 100 }, (_, n) => signer.token(claims(`g-${n}`))));
    const results = await Promise.all(tokens.map((token) => ask(token)));
    expect(results.map(({ gid }) => gid)).toEqual(tokens.map((_, n) => `g-${n}`));
    expect(provider.requests).toBe(1);
  });

  test('100 concurrent tokens with unknown keys cause one fetch', async () => {
    await ask(await signer.token(claims('g')));
    const storm = Array.from({ length: 100 }, (_, n) =>
      signer.rawToken(JSON.stringify(claims('g')), JSON.stringify({ kid: `invented-${n}` })),
    );
    const results = await Promise.all(storm.map((token) => ask(token)));
    expect(new Set(results.map(({ reason }) => reason))).toEqual(new Set(['key_unknown']));
    expect(provider.requests).toBe(2);
  });

  test('a fetch outlives the client that caused it, and serves the others', async () => {
    const token = await signer.token(claims('g'));
    provider.fault = (response) => {
      setTimeout(() => response.end(JSON.stringify(provider.document)), 500);
    };
    const impatient = new AbortController();
    const gone = ask(token, impatient.signal).catch(() => 'gone');
    await eventually(async () => expect(provider.requests).toBe(1));
    const patient = ask(token);
    impatient.abort();
    expect(await gone).toBe('gone');
    expect(await patient).toMatchObject({ gid: 'g' });
    expect(provider.requests).toBe(1);
  });

  test('a redirect of the key endpoint is not followed', async () => {
    provider.fault = (response) => response.writeHead(302, { location: '/elsewhere' }).end();
    expect(await ask(await signer.token(claims('g')))).toMatchObject({ code: 'KEYS_UNAVAILABLE' });
    expect(provider.requests).toBe(1);
  });
});
