import { Hono } from 'hono';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { AppContext, AppEnv } from '../../../../edge/app-env.ts';
import type { Env } from '../../../../edge/env.ts';
import { forgetState, readState, storeState } from '../../../../edge/sign-in/provider/sign-in-state.ts';

const keyOf = (id: string, byte: number) => `${id}:${Buffer.alloc(32, byte).toString('base64')}`;

/** A new object each time: settings are remembered with it. */
const envOf = (changed: Record<string, string> = {}) =>
  ({
    BASE_URL: 'https://api.example.com',
    IDP_URL: 'https://idp.example.com',
    CREDENTIAL_KEYS: keyOf('1', 7),
    JWT_KEYS: keyOf('1', 8),
    PLATFORM_SECRET: 'p'.repeat(32),
    ...changed,
  }) as unknown as Env;

const BEGUN = { nonce: 'nonce-1', verifier: 'verifier-1', returnTo: `/${'ü'.repeat(511)}` };

/** Runs what has a request's context. @returns what it gave, and the cookie that it set */
async function inRequest<T>(work: (c: AppContext) => T | Promise<T>, env: Env, cookie = '') {
  let given: T | undefined;
  const app = new Hono<AppEnv>().get('/', async (c) => {
    given = await work(c as AppContext);
    return c.body(null);
  });
  const response = await app.request('/', { headers: { cookie } }, env);
  return { given, line: response.headers.get('set-cookie') ?? '' };
}

async function keep(state: string, env = envOf()): Promise<string> {
  return (await inRequest((c) => storeState(c, state, BEGUN), env)).line;
}

const pairOf = (line: string) => line.split(';')[0] ?? '';

const kept = async (state: string, cookie: string, env = envOf()) =>
  (await inRequest((c) => readState(c, state), env, cookie)).given;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['Date'], now: new Date('2026-11-21T12:00:00Z') });
});

afterEach(() => {
  vi.useRealTimers();
});

describe('the cookie of a sign-in', () => {
  test('is for the callback alone, and over TLS it has the prefix that says so', async () => {
    expect(await keep('a1')).toMatch(
      /^__Secure-idp_sign_in_a1=[^;]+; Max-Age=600; Path=\/api\/v1\/auth\/idp\/callback; HttpOnly; Secure; SameSite=Lax$/,
    );
    const local = await keep('a1', envOf({ BASE_URL: 'http://127.0.0.1:8787' }));
    expect(local).toMatch(/^idp_sign_in_a1=/);
    expect(local).not.toContain('Secure');
  });

  test('is short enough for browsers, and says nothing of what it holds', async () => {
    const line = await keep('a'.repeat(43));
    expect(line.length).toBeLessThan(4096);
    for (const value of ['nonce-1', 'verifier-1', 'ü', '%C3%BC']) expect(line).not.toContain(value);
  });

  test('gives back what was kept, for ten minutes', async () => {
    const cookie = pairOf(await keep('a1'));
    expect(await kept('a1', cookie)).toMatchObject(BEGUN);
    vi.setSystemTime(new Date('2026-11-21T12:09:59Z'));
    expect(await kept('a1', cookie)).toMatchObject(BEGUN);
    vi.setSystemTime(new Date('2026-11-21T12:10:00Z'));
    expect(await kept('a1', cookie)).toBeNull();
  });

  test('outlives a change of the sealing key while the old one is kept', async () => {
    const cookie = pairOf(await keep('a1'));
    const both = `${keyOf('2', 9)},${keyOf('1', 7)}`;
    expect(await kept('a1', cookie, envOf({ CREDENTIAL_KEYS: both }))).toMatchObject(BEGUN);
    expect(await kept('a1', cookie, envOf({ CREDENTIAL_KEYS: keyOf('2', 9) }))).toBeNull();
  });

  test('is none for another state, even under its name', async () => {
    const cookie = pairOf(await keep('a1'));
    expect(await kept('b2', cookie)).toBeNull();
    expect(await kept('b2', cookie.replace('sign_in_a1', 'sign_in_b2'))).toBeNull();
  });

  test.each(['', 'a', '%7B%7D', 'null', '%7B%22keyId%22%3A%221%22%2C%22sealed%22%3A%22AAAA%22%7D', '%FF'])(
    'that we did not make (%j) holds nothing',
    async (value) => expect(await kept('a1', `__Secure-idp_sign_in_a1=${value}`)).toBeNull(),
  );

  test('without the prefix is none over TLS', async () => {
    const cookie = pairOf(await keep('a1')).replace('__Secure-', '');
    expect(await kept('a1', cookie)).toBeNull();
  });

  test('is taken away by the same name and path', async () => {
    const { line } = await inRequest((c) => void forgetState(c, 'a1'), envOf());
    expect(line).toMatch(
      /^__Secure-idp_sign_in_a1=; Max-Age=0; Path=\/api\/v1\/auth\/idp\/callback;.* Secure/,
    );
  });
});
