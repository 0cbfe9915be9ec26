import { expect, test } from 'vitest';
import { type Expected, verifyHandshake } from '../../../edge/host-link/handshake.ts';
import { PROTOCOL_VERSION } from '../../../shared/protocol/version.ts';
import { type AnswerInput, makeHostKey, signAnswer } from '../../support/host/host-key.ts';

const now = Date.parse('2026-11-21T12:00:00Z');
const iat = now / 1000;
const host = await makeHostKey();
const attacker = await makeHostKey();
const expected: Expected = {
  hostId: 'a4b5e2a4-3a8f-4f3e-9d6c-0a1b2c3d4e5f',
  audience: 'gateway.example.com',
  nonce: 'n'.repeat(43),
  publicKey: host.publicKey,
};
const valid: AnswerInput = {
  iss: expected.hostId,
  aud: expected.audience,
  nonce: expected.nonce,
  epoch: 7,
  iat,
};

const verify = async (token: string) => verifyHandshake(token, expected, now);

test('a valid answer returns its epoch', async () => {
  expect(await verify(await signAnswer(host.privateKey, valid))).toEqual({
    ok: true,
    epoch: 7,
    protocol: PROTOCOL_VERSION,
  });
});

test.each<[string, Partial<AnswerInput>, string]>([
  ['another host', { iss: 'ffffffff-3a8f-4f3e-9d6c-0a1b2c3d4e5f' }, 'signature'],
  ['another gateway', { aud: 'evil.example.com' }, 'audience'],
  ['another challenge', { nonce: 'm'.repeat(43) }, 'nonce'],
  ['another protocol version', { protocol: PROTOCOL_VERSION + 1 }, 'protocol'],
  ['ten minutes ago', { iat: iat - 600 }, 'clock'],
  ['ten minutes ahead', { iat: iat + 600 }, 'clock'],
  ['a claim too many', { admin: true }, 'signature'],
  ['no whole epoch', { epoch: 7.5 }, 'signature'],
  ['an epoch past all counting', { epoch: 2 ** 53 }, 'signature'],
])('an answer for %s is refused', async (_name, claims, reason) => {
  expect(await verify(await signAnswer(host.privateKey, { ...valid, ...claims }))).toEqual({
    ok: false,
    reason,
  });
});

test('a clock difference of a few minutes is tolerated', async () => {
  for (const skew of [-240, 240]) {
    expect((await verify(await signAnswer(host.privateKey, { ...valid, iat: iat + skew }))).ok).toBe(true);
  }
});

const unsigned = (header: object) =>
  [header, valid].map((part) => Buffer.from(JSON.stringify(part)).toString('base64url')).join('.');

test.each<[string, () => string | Promise<string>]>([
  ["an attacker's key", () => signAnswer(attacker.privateKey, valid)],
  ['a token made for another purpose', () => signAnswer(host.privateKey, valid, { typ: 'JWT' })],
  ['no signature', () => `${unsigned({ alg: 'none', typ: 'branchgate-link+jwt' })}.`],
  [
    'the public key used as an HMAC secret',
    () => signAnswer(Buffer.from(host.publicKey.x, 'base64url'), valid, { alg: 'HS256' }),
  ],
  ['no token at all', () => 'answer'],
])('%s is refused', async (_name, makeToken) => {
  expect(await verify(await makeToken())).toEqual({ ok: false, reason: 'signature' });
});
