import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { accessToken } from '../../../dev/identity-provider/access-token.ts';
import { keyDocument, rotateKey } from '../../../dev/identity-provider/key-ring.ts';
import { verifyPaseto } from '../../support/sign-in/verify-paseto.ts';

let stateDir: string;
beforeEach(() => {
  stateDir = mkdtempSync(join(tmpdir(), 'branchgate-keys-'));
});
afterEach(() => rmSync(stateDir, { recursive: true }));

const now = new Date();
const later = (seconds: number) => new Date(now.getTime() + seconds * 1000);
const sign = () =>
  accessToken(stateDir, {
    email: 'ada@example.com',
    role: 'owner',
    tenant: 'acme',
    scopes: ['branchgate:read'],
    issuedAt: now,
    expiresAt: later(3600),
  });

test('the key document has the form of specification 5, and the keys are stored', async () => {
  const document = await keyDocument(stateDir, now);
  expect(document).toEqual({
    keys: [
      {
        kid: expect.any(String),
        alg: 'v4.public',
        public_key: expect.stringMatching(/^k4\.public\.[\w-]{43}$/),
      },
    ],
  });
  expect(await keyDocument(stateDir, now)).toEqual(document);
  expect(statSync(join(stateDir, 'paseto-keys.json')).mode & 0o777).toBe(0o600);
});

test('a rotated key signs immediately, and the previous one is published until it is withdrawn', async () => {
  const before = await sign();
  const kid = await rotateKey(stateDir, later(60));
  const after = await sign();

  const both = await keyDocument(stateDir, later(59));
  expect(both.keys).toHaveLength(2);
  expect((await verifyPaseto(before, both)).claims.email).toBe('ada@example.com');
  expect((await verifyPaseto(after, both)).footer.kid).toBe(kid);

  const one = await keyDocument(stateDir, later(60));
  expect(one.keys.map((key) => key.kid)).toEqual([kid]);
});

test('a damaged key file is refused with an error that contains no key', async () => {
  writeFileSync(join(stateDir, 'paseto-keys.json'), '{"signing": "k4.secret.abc"');
  await expect(sign()).rejects.toThrow(/paseto-keys\.json is damaged/);
  await expect(sign()).rejects.not.toThrow(/k4\.secret/);
});
