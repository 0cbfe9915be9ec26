import { generateKeyPairSync } from 'node:crypto';
import { SignJWT, UnsecuredJWT } from 'jose';
import { beforeAll, describe, expect, test } from 'vitest';
import { authenticate } from '../../../edge/authentication/authenticate.ts';
import { type OwnClaims, signOwnToken, verifyOwnToken } from '../../../edge/authentication/own-tokens.ts';
import { unwrap } from '../../../edge/errors.ts';
import type { Failure } from '../../../shared/failures.ts';
import type { Result } from '../../../shared/result.ts';
import { newSigner, settingsFor, startProvider } from '../../support/sign-in/provider.ts';

const NOW = new Date('2026-11-21T12:00:00Z');
const later = (seconds: number) => new Date(NOW.getTime() + seconds * 1000);
const LIFE = { issuedAt: NOW, expiresAt: later(900) };
const settings = settingsFor({ url: 'http://127.0.0.1:1' });
const [key] = settings.JWT_KEYS;
if (!key) throw new Error('no key');

const ID = '0b9f3f1e-5a52-4f6a-8f6e-0f6f5d9b7a11';
const ACCESS = {
  sub: ID,
  email: 'ada@example.com',
  role: 'owner',
  scp: ['branchgate:read', 'branchgate:write'],
  tenant_id: 'acme',
  sid: ID,
};
const PRE_AUTH: OwnClaims<'pre_auth'> = {
  user: { issuer: settings.BASE_URL, gid: ID, email: 'ada@example.com' },
  step: 'verify',
  first_factor: 'password',
  sealed: null,
  version: 0,
  jti: ID,
};

async function reasonOf(work: Promise<Result<unknown, Failure>>): Promise<string> {
  const outcome = await work;
  if (outcome.ok) throw new Error(`not refused: ${JSON.stringify(outcome.value)}`);
  const { reason = '', ...failure } = outcome.failure;
  expect(failure).toEqual({ code: 'UNAUTHENTICATED' });
  return reason;
}

const refusal = (token: string, now = NOW) => reasonOf(verifyOwnToken(settings, 'access', token, now));

const tokens = {} as Record<'access' | 'refresh' | 'pre_auth', string>;
beforeAll(async () => {
  tokens.access = await signOwnToken(settings, 'access', ACCESS, LIFE);
  tokens.refresh = await signOwnToken(settings, 'refresh', { sub: ID, sid: ID, jti: ID }, LIFE);
  tokens.pre_auth = await signOwnToken(settings, 'pre_auth', PRE_AUTH, LIFE);
});

test('an access token identifies its bearer', async () => {
  const context = { settings, now: NOW, waitUntil: () => {} };
  expect(unwrap(await authenticate(`Bearer ${tokens.access}`, context))).toEqual({
    issuer: settings.BASE_URL,
    gid: ID,
    email: 'ada@example.com',
    role: 'owner',
    scopes: ['branchgate:read', 'branchgate:write'],
    service: 'branchgate',
    tenantId: 'acme',
    issuedAt: NOW,
    expiresAt: later(900),
    sessionId: ID,
  });
});

const KINDS = ['access', 'refresh', 'pre_auth'] as const;
const CONFUSIONS = KINDS.flatMap((given) =>
  KINDS.filter((wanted) => wanted !== given).map((wanted) => ({ given, wanted })),
);

test.each(CONFUSIONS)('a token of kind $given is rejected as kind $wanted', async ({ given, wanted }) => {
  expect(await reasonOf(verifyOwnToken(settings, wanted, tokens[given], NOW))).toBe('own_token_wrong');
  unwrap(await verifyOwnToken(settings, given, tokens[given], NOW));
});

describe('rejected', () => {
  /** A forged token. */
  const forged = (header: { alg: string; kid?: string }, bytes: Uint8Array, more = {}) =>
    new SignJWT({ ...ACCESS, ...more })
      .setProtectedHeader(header)
      .setIssuer(settings.BASE_URL)
      .setAudience('branchgate:access')
      .setIssuedAt(NOW)
      .setExpirationTime(later(900))
      .sign(bytes);

  test('but not the same token with the right key', async () => {
    const token = await forged({ alg: 'HS256', kid: key.id }, key.bytes);
    unwrap(await verifyOwnToken(settings, 'access', token, NOW));
  });

  test('no signature', async () => {
    const unsigned = new UnsecuredJWT(ACCESS)
      .setIssuer(settings.BASE_URL)
      .setAudience('branchgate:access')
      .setIssuedAt(NOW)
      .setExpirationTime(later(900))
      .encode();
    expect(await refusal(unsigned)).toBe('token_kind_unknown');
    expect(await refusal(`${unsigned}AAAA`)).not.toBe('not refused');
  });

  test("the provider's public key as a secret", async () => {
    const { publicKey } = generateKeyPairSync('ed25519');
    const bytes = Buffer.from(publicKey.export({ format: 'jwk' }).x ?? '', 'base64url');
    expect(await refusal(await forged({ alg: 'HS256', kid: key.id }, bytes))).toBe('signature_wrong');
  });

  test('another algorithm with the right key', async () => {
    const bytes = new Uint8Array(64).fill(7);
    const keyed = { ...settings, JWT_KEYS: [{ id: '1', bytes }] };
    const token = await forged({ alg: 'HS512', kid: '1' }, bytes);
    expect(await reasonOf(verifyOwnToken(keyed, 'access', token, NOW))).toBe('own_token_wrong');
  });

  test('an unknown key id, or none', async () => {
    expect(await refusal(await forged({ alg: 'HS256', kid: 'other' }, key.bytes))).toBe('key_unknown');
    expect(await refusal(await forged({ alg: 'HS256' }, key.bytes))).toBe('key_unknown');
  });

  test('another issuer', async () => {
    const elsewhere = { ...settings, BASE_URL: 'https://other.example.com' };
    expect(await refusal(await signOwnToken(elsewhere, 'access', ACCESS, LIFE))).toBe('own_token_wrong');
  });

  test('at the second of its expiry and later', async () => {
    unwrap(await verifyOwnToken(settings, 'access', tokens.access, later(899)));
    expect(await refusal(tokens.access, later(900))).toBe('token_expired');
  });

  test('another encoding of the same token', async () => {
    const last = tokens.access.at(-1) ?? '';
    const twin = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
    const same = twin[twin.indexOf(last) ^ 1] ?? '';
    expect(await refusal(tokens.access.slice(0, -1) + same)).toBe('token_kind_unknown');
    expect(await refusal(`${tokens.access}=`)).toBe('token_kind_unknown');
  });

  test('incomplete claims', async () => {
    const token = await forged({ alg: 'HS256', kid: key.id }, key.bytes, { tenant_id: undefined });
    expect(await refusal(token)).toBe('claims_wrong');
  });
});

test('a PASETO is never verified as a JWT, nor the reverse', async () => {
  const signer = newSigner('key-1');
  const provider = await startProvider(signer);
  try {
    const context = { settings: settingsFor(provider), now: NOW, waitUntil: () => {} };
    const [header = '', payload = '', signature = ''] = tokens.access.split('.');
    const disguised = `v4.public.${payload}.${header}${signature}`;
    await reasonOf(authenticate(`Bearer ${disguised}`, context));
    const paseto = await signer.token({ ...ACCESS, gid: ID, exp: later(900).toISOString() });
    expect(await reasonOf(verifyOwnToken(settings, 'access', paseto, NOW))).toBe('token_kind_unknown');
  } finally {
    await provider.stop();
  }
});
