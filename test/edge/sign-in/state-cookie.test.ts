import { generateCookie } from 'hono/cookie';
import { describe, expect, test } from 'vitest';
import { readSettings } from '../../../edge/settings.ts';
import { sealState, stateCookie, unsealState } from '../../../edge/sign-in/state-cookie.ts';

const key = (id: string, byte: number) => `${id}:${Buffer.alloc(32, byte).toString('base64')}`;

const settingsWith = (changed: Record<string, string> = {}) =>
  readSettings({
    BASE_URL: 'https://api.example.com',
    IDP_URL: 'https://idp.example.com',
    CREDENTIAL_KEYS: key('1', 7),
    JWT_KEYS: key('1', 8),
    PLATFORM_SECRET: 'p'.repeat(32),
    ...changed,
  });

const STARTED = {
  nonce: 'nonce-1',
  verifier: 'verifier-1',
  returnTo: `/${'ü'.repeat(511)}`,
  response: 'page' as const,
  cli: null,
};
const GATEWAY = { kind: 'idp_sign_in', id: null, callbackPath: '/api/v1/auth/idp/callback' } as const;
const company = (id: string) =>
  ({ kind: 'sso_sign_in', id, callbackPath: `/api/v1/auth/sso/${id}/callback` }) as const;
type Provider = typeof GATEWAY | ReturnType<typeof company>;
const NOW = new Date('2026-11-21T12:00:00Z');

const seal = (state: string, provider: Provider = GATEWAY) =>
  sealState(settingsWith(), provider, state, STARTED, NOW);
const unseal = (
  state: string,
  value: string | undefined,
  {
    settings = settingsWith(),
    now = NOW,
    provider = GATEWAY,
  }: { settings?: ReturnType<typeof settingsWith>; now?: Date; provider?: Provider } = {},
) => unsealState(settings, provider, state, value, now);

describe('the cookie of a sign-in', () => {
  test('is sent to the callback only, and over TLS its name has the prefix `__Secure-`', () => {
    const line = (baseUrl: string) => {
      const { name, attributes } = stateCookie(settingsWith({ BASE_URL: baseUrl }), GATEWAY, 'a1');
      return generateCookie(name, 'value', attributes);
    };
    expect(line('https://api.example.com')).toBe(
      '__Secure-idp_sign_in_a1=value; Max-Age=600; Path=/api/v1/auth/idp/callback; HttpOnly; Secure; SameSite=Lax',
    );
    expect(line('http://127.0.0.1:8787')).toBe(
      'idp_sign_in_a1=value; Max-Age=600; Path=/api/v1/auth/idp/callback; HttpOnly; SameSite=Lax',
    );
  });

  test('is short enough for browsers and unreadable', async () => {
    const state = 'a'.repeat(43);
    const { name, attributes } = stateCookie(settingsWith(), GATEWAY, state);
    const line = generateCookie(name, await seal(state), attributes);
    expect(line.length).toBeLessThan(4096);
    for (const value of ['nonce-1', 'verifier-1', 'ü', '%C3%BC']) expect(line).not.toContain(value);
  });

  test('returns what was sealed, for ten minutes', async () => {
    const value = await seal('a1');
    expect(await unseal('a1', value)).toMatchObject(STARTED);
    const last = new Date('2026-11-21T12:09:59Z');
    expect(await unseal('a1', value, { now: last })).toMatchObject(STARTED);
    const expired = new Date('2026-11-21T12:10:00Z');
    expect(await unseal('a1', value, { now: expired })).toBeNull();
  });

  test('stays valid after a change of the sealing key while the old key is configured', async () => {
    const value = await seal('a1');
    const both = settingsWith({ CREDENTIAL_KEYS: `${key('2', 9)},${key('1', 7)}` });
    expect(await unseal('a1', value, { settings: both })).toMatchObject(STARTED);
    const other = settingsWith({ CREDENTIAL_KEYS: key('2', 9) });
    expect(await unseal('a1', value, { settings: other })).toBeNull();
  });

  test('is invalid for another state', async () => {
    expect(await unseal('b2', await seal('a1'))).toBeNull();
  });

  test('is invalid at another provider, of a company or of the gateway', async () => {
    const providers = [GATEWAY, company('one'), company('two')];
    for (const sealedFor of providers)
      for (const provider of providers) {
        const started = await unseal('a1', await seal('a1', sealedFor), { provider });
        expect(started !== null, `${sealedFor.id} at ${provider.id}`).toBe(sealedFor === provider);
      }
  });

  test.each([GATEWAY, company('one')])(
    'of $kind has a name that a hostile state cannot leave',
    (provider) => {
      const { name } = stateCookie(
        settingsWith(),
        provider,
        `a1; Domain=.evil.example\r\nx=${'b'.repeat(99)}`,
      );
      expect(name).toMatch(/^__Secure-(?:idp|sso)_sign_in_[\w-]{1,64}$/);
    },
  );

  test.each([undefined, '', 'a', '{}', 'null', '{"keyId":"1","sealed":"AAAA"}', '\ufffd'])(
    'that the gateway did not set (%j) is invalid',
    async (value) => expect(await unseal('a1', value)).toBeNull(),
  );
});
