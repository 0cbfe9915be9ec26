import { afterEach, describe, expect, test, vi } from 'vitest';
import { pasetoKeysAt } from '../../../edge/authentication/authenticate.ts';
import { unwrap } from '../../../edge/errors.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { newSigner, type Provider, type Signer, startProvider } from '../../support/sign-in/provider.ts';

const START = Date.parse('2026-11-21T12:00:00Z');
const HOUR = 3600;

const first = newSigner('first');
const second = newSigner('second');

let provider: Provider;
let cache: ReturnType<typeof pasetoKeysAt>;
let background: Promise<unknown>[];
let log: string[];

async function begin(...signers: Signer[]): Promise<void> {
  provider = await startProvider(...signers);
  cache = pasetoKeysAt(`${provider.url}/keys`);
  background = [];
  log = [];
  vi.spyOn(console, 'log').mockImplementation((line: string) => log.push(line));
}

afterEach(async () => {
  vi.restoreAllMocks();
  await provider.stop();
});

const at = (seconds: number) => ({
  now: new Date(START + seconds * 1000),
  waitUntil: (work: Promise<unknown>) => background.push(work),
});
const publish = (...signers: Signer[]) => {
  provider.document = { keys: signers.map(({ entry }) => entry) };
};
const knows = async (kid: string, seconds: number) =>
  unwrap(await cache.ringFor(kid, at(seconds))).keys.has(kid);

test('concurrent requests share one fetch of the keys', async () => {
  await begin(first);
  const results = await Promise.all(Array.from({ length: 100 }, () => knows('first', 0)));
  expect(results.every(Boolean)).toBe(true);
  expect(await knows('first', 10)).toBe(true);
  expect(provider.requests).toBe(1);
  expect(background).toHaveLength(1);
});

describe('rotation', () => {
  test('a new key is found immediately, and cached tokens of the old set are dropped', async () => {
    await begin(first);
    const before = unwrap(await cache.ringFor('first', at(0)));
    publish(first, second);
    const after = unwrap(await cache.ringFor('second', at(1)));
    expect(after.keys.has('second')).toBe(true);
    expect(after).not.toBe(before);
    expect(after.verified.size).toBe(0);
  });

  test('any number of unknown keys causes one fetch in 30 s', async () => {
    await begin(first);
    await knows('first', 0);
    const storm = (seconds: number) =>
      Promise.all(Array.from({ length: 100 }, (_, n) => knows(`invented-${n}`, seconds)));
    expect((await storm(1)).some(Boolean)).toBe(false);
    expect(provider.requests).toBe(2);
    await storm(30);
    expect(provider.requests).toBe(2);
    await storm(31);
    expect(provider.requests).toBe(3);
  });

  test('after an hour the keys are fetched in the background, and a withdrawn key becomes invalid', async () => {
    await begin(first, second);
    await knows('first', 0);
    publish(second);
    expect(await knows('first', HOUR - 1)).toBe(true);
    expect(provider.requests).toBe(1);
    expect(await knows('first', HOUR)).toBe(true);
    await Promise.all(background);
    expect(provider.requests).toBe(2);
    expect(await knows('first', HOUR + 1)).toBe(false);
    expect(await knows('second', HOUR + 1)).toBe(true);
  });

  test('fetching the same keys again keeps the cached tokens', async () => {
    await begin(first);
    const before = unwrap(await cache.ringFor('first', at(0)));
    await cache.current(at(HOUR));
    await Promise.all(background);
    expect(provider.requests).toBe(2);
    expect(await cache.current(at(HOUR + 1))).toBe(before);
  });

  test('an isolate that was idle for hours fetches first', async () => {
    await begin(first, second);
    await knows('first', 0);
    publish(second);
    expect(await knows('first', 5 * HOUR)).toBe(false);
  });

  test('when all keys are withdrawn, no key remains in use', async () => {
    await begin(first);
    await knows('first', 0);
    publish();
    await expect(knows('second', 1)).rejects.toMatchObject({ failure: { code: 'KEYS_UNAVAILABLE' } });
    publish(second);
    expect(await knows('second', 31)).toBe(true);
  });
});

describe('while the provider is down', () => {
  test('known keys remain in use without delay, and a fetch is attempted every 30 s', async () => {
    await begin(first);
    await knows('first', 0);
    provider.fault = (response) => response.writeHead(503).end();
    for (const seconds of [HOUR, HOUR + 1, HOUR + 29]) {
      expect(await knows('first', seconds)).toBe(true);
      await Promise.all(background);
    }
    expect(provider.requests).toBe(2);
    expect(await knows('first', HOUR + 30)).toBe(true);
    await Promise.all(background);
    expect(provider.requests).toBe(3);
    expect(await knows('first', 9 * HOUR)).toBe(true);
    expect(log.join()).toContain('keys.unavailable');
  });

  test('without any key the result is KEYS_UNAVAILABLE, with one fetch per second', async () => {
    await begin(first);
    provider.fault = (response) => response.writeHead(503).end();
    const attempt = (seconds: number) => expect(knows('first', seconds)).rejects.toThrow();
    await Promise.all(Array.from({ length: 20 }, () => attempt(0)));
    await attempt(0.5);
    expect(provider.requests).toBe(1);
    provider.fault = null;
    expect(await knows('first', 1)).toBe(true);
  });

  test.each<[string, NonNullable<Provider['fault']>]>([
    ['an error', (response) => response.writeHead(500).end('{"keys":[]}')],
    ['a redirect', (response) => response.writeHead(302, { location: '/elsewhere' }).end()],
    ['no JSON', (response) => response.end('<html>')],
    ['another document', (response) => response.end('{"error":"maintenance"}')],
    ['too much', (response) => response.end(JSON.stringify({ keys: [], padding: 'x'.repeat(64 * 1024) }))],
    [
      'a truncated document',
      (response) => response.writeHead(200, { 'content-length': 100 }).write('{', () => response.destroy()),
    ],
  ])('%s counts as unavailable', async (_what, fault) => {
    await begin(first);
    await knows('first', 0);
    provider.fault = fault;
    expect(await knows('second', 1)).toBe(false);
    expect(provider.requests).toBe(2);
    expect(await knows('first', 2)).toBe(true);
  });

  test.runIf(IS_NIGHTLY)('a fetch without a response times out after 5 s', async () => {
    await begin(first);
    provider.fault = (response) => response.writeHead(200).write('{"keys":');
    await expect(knows('first', 0)).rejects.toMatchObject({ failure: { code: 'KEYS_UNAVAILABLE' } });
  });
});

test('plain HTTP to another machine is not attempted', async () => {
  await begin();
  cache = pasetoKeysAt('http://192.0.2.1/keys');
  await expect(knows('first', 0)).rejects.toMatchObject({ failure: { code: 'KEYS_UNAVAILABLE' } });
  expect(log.join()).toContain('must be https');
});
