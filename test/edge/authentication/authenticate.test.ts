import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type AuthenticationSettings, authenticate } from '../../../edge/authentication/authenticate.ts';
import { rejection } from '../../../edge/authentication/rejection.ts';
import { unwrap } from '../../../edge/errors.ts';
import { newSigner, type Provider, settingsFor, startProvider } from '../../support/sign-in/provider.ts';

const NOW = new Date('2026-11-21T12:00:00Z');
const later = (seconds: number) => new Date(NOW.getTime() + seconds * 1000);

const signer = newSigner('key-1');
const attacker = newSigner('key-1');
let provider: Provider;
let settings: AuthenticationSettings;

beforeAll(async () => {
  provider = await startProvider(signer);
  settings = settingsFor(provider);
});
afterAll(() => provider.stop());

const authenticateAt = async (now: Date, authorization: string | null) =>
  unwrap(await authenticate(authorization, { settings, now, waitUntil: () => {} }));

/** The internal reason of a rejection; also checks that its public code is the same for all. */
async function refusal(authorization: string | null, now = NOW): Promise<string> {
  const outcome = await authenticate(authorization, { settings, now, waitUntil: () => {} });
  if (outcome.ok) throw new Error(`not refused: ${JSON.stringify(outcome.value)}`);
  const { reason = '', ...failure } = outcome.failure;
  expect(failure).toEqual({ code: 'UNAUTHENTICATED' });
  return reason;
}

const CLAIMS = {
  gid: 'g-1',
  email: 'ada@example.com',
  role: 'acme.owner',
  scp: ['branchgate:read', 'other:write'],
  iat: later(-60).toISOString(),
  nbf: later(-30).toISOString(),
  exp: later(600).toISOString(),
  ctx: { tenant_id: 'acme' },
};
const FOOTER = { kid: 'key-1', alg: 'v4.public', typ: 'paseto' };
const raw = (claims: unknown, footer: unknown = FOOTER) =>
  signer.rawToken(JSON.stringify(claims), footer === null ? null : JSON.stringify(footer));

describe('a token signed by another implementation', () => {
  test('identifies its bearer', async () => {
    expect(await authenticateAt(NOW, `Bearer ${await signer.token(CLAIMS)}`)).toEqual({
      issuer: provider.url,
      gid: 'g-1',
      email: 'ada@example.com',
      role: 'owner',
      scopes: ['branchgate:read', 'other:write'],
      service: 'branchgate',
      tenantId: 'acme',
      issuedAt: later(-60),
      expiresAt: later(600),
    });
  });

  test('without tenant, scopes and iat', async () => {
    const { ctx, scp, iat, ...claims } = CLAIMS;
    const identity = await authenticateAt(NOW, `bearer ${await signer.token(claims)}`);
    expect(identity).toMatchObject({ tenantId: null, scopes: [], issuedAt: later(-30) });
  });

  test('without iat and nbf counts as issued at the epoch', async () => {
    const { iat, nbf, ...claims } = CLAIMS;
    expect((await authenticateAt(NOW, `Bearer ${raw(claims)}`)).issuedAt).toEqual(new Date(0));
  });

  test('with a bare footer', async () => {
    expect((await authenticateAt(NOW, `Bearer ${raw(CLAIMS, { kid: 'key-1' })}`)).gid).toBe('g-1');
  });
});

const good = raw(CLAIMS);
const head = good.slice(0, 10);
const body = good.slice(10).split('.')[0] ?? '';
const foot = good.split('.').at(-1);
const flipped = (text: string, at: number) => {
  const bytes = Buffer.from(text, 'base64url');
  bytes.writeUInt8(bytes.readUInt8(at) ^ 1, at);
  return bytes.toString('base64url');
};
/** Sets one of the unused bits in the last character of the text. */
const secondSpelling = (text: string) => {
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
  return text.slice(0, -1) + alphabet.charAt(alphabet.indexOf(text.slice(-1)) + 1);
};
/** The same message and signature with a footer whose length is not a multiple of three bytes. */
const looseFooter = [0, 1, 2].map((more) => raw(CLAIMS, { kid: 'key-1', pad: 'x'.repeat(more) }));
const jwt = `${Buffer.from('{"alg":"none"}').toString('base64url')}.e30.`;

describe('a bad token', () => {
  test.each<[string, string | null, string]>([
    ['none', null, 'token_missing'],
    ['an empty header', '', 'token_scheme_not_bearer'],
    ['another scheme', `Basic ${good}`, 'token_scheme_not_bearer'],
    ['no scheme', good, 'token_scheme_not_bearer'],
    ['two tokens', `Bearer ${good} ${good}`, 'token_scheme_not_bearer'],
    ['too long', `Bearer ${good}${'A'.repeat(8192)}`, 'token_too_long'],
    ['a JWT', `Bearer ${jwt}`, 'token_kind_unknown'],
    ['a local token', `Bearer v4.local.${body}.${foot}`, 'token_kind_unknown'],
    ['another version', `Bearer v3.public.${body}.${foot}`, 'token_kind_unknown'],
    ['the header in capitals', `Bearer V4.PUBLIC.${body}.${foot}`, 'token_kind_unknown'],
    ['nothing after the header', `Bearer ${head}`, 'token_form_wrong'],
    ['a signature over nothing', `Bearer ${head}${'A'.repeat(86)}.${foot}`, 'token_form_wrong'],
    ['a part too many', `Bearer ${good}.${foot}`, 'token_form_wrong'],
    ['padding', `Bearer ${head}${body}==.${foot}`, 'token_form_wrong'],
    ['a foreign character', `Bearer ${head}+${body.slice(1)}.${foot}`, 'token_form_wrong'],
    ['an empty footer after a dot', `Bearer ${head}${body}.`, 'token_form_wrong'],
    ['no footer', `Bearer ${raw(CLAIMS, null)}`, 'footer_missing'],
    [
      'a footer of over 1 KiB',
      `Bearer ${raw(CLAIMS, { ...FOOTER, x: 'x'.repeat(1024) })}`,
      'footer_too_long',
    ],
    [
      'a footer that is not JSON',
      `Bearer ${signer.rawToken(JSON.stringify(CLAIMS), 'key-1')}`,
      'footer_wrong',
    ],
    ['a footer without kid', `Bearer ${raw(CLAIMS, { alg: 'v4.public' })}`, 'footer_wrong'],
    ['a kid that is no text', `Bearer ${raw(CLAIMS, { kid: ['key-1'] })}`, 'footer_wrong'],
    ['another alg', `Bearer ${raw(CLAIMS, { ...FOOTER, alg: 'none' })}`, 'footer_wrong'],
    ['another typ', `Bearer ${raw(CLAIMS, { ...FOOTER, typ: 'JWT' })}`, 'footer_wrong'],
    ['an unknown kid', `Bearer ${raw(CLAIMS, { kid: 'key-2' })}`, 'key_unknown'],
    [
      'kid __proto__',
      `Bearer ${signer.rawToken(JSON.stringify(CLAIMS), '{"kid":"__proto__"}')}`,
      'key_unknown',
    ],
    [
      'another key under the same kid',
      `Bearer ${attacker.rawToken(JSON.stringify(CLAIMS), JSON.stringify(FOOTER))}`,
      'signature_wrong',
    ],
    ['one bit of the message', `Bearer ${head}${flipped(body, 3)}.${foot}`, 'signature_wrong'],
    [
      'one bit of the signature',
      `Bearer ${head}${flipped(body, Buffer.from(body, 'base64url').length - 40)}.${foot}`,
      'signature_wrong',
    ],
    [
      'the footer of another token',
      `Bearer ${head}${body}.${raw(CLAIMS, { kid: 'key-1' }).split('.').at(-1)}`,
      'signature_wrong',
    ],
    [
      'a signature of zeros',
      `Bearer ${head}${Buffer.concat([Buffer.from('{}'), Buffer.alloc(64)]).toString('base64url')}.${foot}`,
      'signature_wrong',
    ],
    ['a message that is no JSON', `Bearer ${signer.rawToken('ada', JSON.stringify(FOOTER))}`, 'claims_wrong'],
    ['no exp', `Bearer ${raw({ ...CLAIMS, exp: undefined })}`, 'claims_wrong'],
    ['expired', `Bearer ${raw({ ...CLAIMS, exp: later(0).toISOString() })}`, 'token_expired'],
    ['not yet valid', `Bearer ${raw({ ...CLAIMS, nbf: later(31).toISOString() })}`, 'token_not_yet_valid'],
  ])('%s', async (_what, authorization, reason) => {
    expect(await refusal(authorization)).toBe(reason);
  });

  test('a second encoding of a valid one', async () => {
    const loose = looseFooter.filter((token) => (token.split('.').at(-1)?.length ?? 0) % 4 !== 0);
    expect(loose.length).toBeGreaterThan(0);
    for (const token of loose) {
      expect((await authenticateAt(NOW, `Bearer ${token}`)).gid).toBe('g-1');
      expect(await refusal(`Bearer ${secondSpelling(token)}`)).toBe('token_form_wrong');
    }
  });
});

/** Keys of order 1, 2, 4 and 8: with ZIP 215 they verify forged signatures. */
const SMALL_ORDER_KEYS = [
  '0100000000000000000000000000000000000000000000000000000000000000',
  'ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f',
  '0000000000000000000000000000000000000000000000000000000000000000',
  '26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05',
];

test.each(SMALL_ORDER_KEYS)('the small-order key %s verifies nothing', async (key) => {
  const weak = await startProvider();
  const point = Buffer.from(key, 'hex');
  weak.document = {
    keys: [{ kid: 'weak', alg: 'v4.public', public_key: `k4.public.${point.toString('base64url')}` }],
  };
  const identityPoint = Buffer.from(SMALL_ORDER_KEYS[0] ?? '', 'hex');
  const forged = Buffer.concat([Buffer.from(JSON.stringify(CLAIMS)), identityPoint, Buffer.alloc(32)]);
  const token = `v4.public.${forged.toString('base64url')}.${Buffer.from('{"kid":"weak"}').toString('base64url')}`;
  const attempt = await authenticate(`Bearer ${token}`, {
    settings: settingsFor(weak),
    now: NOW,
    waitUntil: () => {},
  });
  expect(attempt).toEqual({ ok: false, failure: rejection('signature_wrong') });
  await weak.stop();
});

test('a malformed token is rejected as such even while there are no keys', async () => {
  const nowhere = { settings: settingsFor({ url: 'http://127.0.0.1:1' }), now: NOW, waitUntil: () => {} };
  const attempt = await authenticate('Bearer v4.public.AAAA', nowhere);
  expect(attempt).toEqual({ ok: false, failure: rejection('token_form_wrong') });
});

describe('a token seen before', () => {
  test('is checked against the clock each time', async () => {
    const token = `Bearer ${await signer.token({ ...CLAIMS, exp: later(100).toISOString() })}`;
    expect((await authenticateAt(NOW, token)).gid).toBe('g-1');
    expect((await authenticateAt(later(99), token)).gid).toBe('g-1');
    expect(await refusal(token, later(100))).toBe('token_expired');
    expect(await refusal(token, later(-61))).toBe('token_not_yet_valid');
  });

  test('does not make a token valid that differs in one character', async () => {
    await authenticateAt(NOW, `Bearer ${good}`);
    expect(await refusal(`Bearer ${head}${flipped(body, 9)}.${foot}`)).toBe('signature_wrong');
  });

  test('is rejected again if it was rejected', async () => {
    const forged = `Bearer ${attacker.rawToken(JSON.stringify(CLAIMS), JSON.stringify(FOOTER))}`;
    expect(await refusal(forged)).toBe('signature_wrong');
    expect(await refusal(forged)).toBe('signature_wrong');
  });
});
