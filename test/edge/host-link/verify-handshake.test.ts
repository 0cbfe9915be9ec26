import { expect, test } from 'vitest';
import { type Expected, verifyHandshake } from '../../../edge/host-link/verify-handshake.ts';
import { PROTOCOL_VERSION } from '../../../shared/protocol/version.ts';
import { type AnswerInput, makeHostKey, signAnswer } from '../../support/host/host-key.ts';

const now = Date.parse('2026-11-21T12:00:00Z');
const iat = now / 1000;
const host = await makeHostKey();
const stranger = await makeHostKey();
const expected: Expected = {
  hostId: 'a4b5e2a4-3a8f-4f3e-9d6c-0a1b2c3d4e5f',
  audience: 'gateway.example.com',
  nonce: 'n'.repeat(43),
  publicKey: host.publicKey,
};
const honest: AnswerInput = {
  iss: expected.hostId,
  aud: expected.audience,
  nonce: expected.nonce,
  epoch: 7,
  iat,
};

const judge = async (token: string) => verifyHandshake(token, expected, now);

test('an honest answer gives its epoch', async () => {
  expect(await judge(await signAnswer(host.privateKey, honest))).toEqual({ ok: true, epoch: 7 });
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
  expect(await judge(await signAnswer(host.privateKey, { ...honest, ...claims }))).toEqual({
    ok: false,
    reason,
  });
});

test('a clock that is off by a few minutes is put up with', async () => {
  for (const skew of [-240, 240]) {
    expect((await judge(await signAnswer(host.privateKey, { ...honest, iat: iat + skew }))).ok).toBe(true);
  }
});

const unsigned = (header: object) =>
  [header, honest].map((part) => Buffer.from(JSON.stringify(part)).toString('base64url')).join('.');

test.each<[string, () => string | Promise<string>]>([
  ["a stranger's key", () => signAnswer(stranger.privateKey, honest)],
  ['a token made for another purpose', () => signAnswer(host.privateKey, honest, { typ: 'JWT' })],
  ['no signature', () => `${unsigned({ alg: 'none', typ: 'branchgate-link+jwt' })}.`],
  [
    'the public key used as an HMAC secret',
    () => signAnswer(Buffer.from(host.publicKey.x, 'base64url'), honest, { alg: 'HS256' }),
  ],
  ['no token at all', () => 'answer'],
])('%s is refused', async (_name, makeToken) => {
  expect(await judge(await makeToken())).toEqual({ ok: false, reason: 'signature' });
});
