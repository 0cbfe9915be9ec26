import { describe, expect, test } from 'vitest';
import { makePassword, openPassword, scramVerifier, sealPassword } from '../../../edge/crypto/scram.ts';

const BRANCH = '0f0e0d0c-0b0a-4908-8706-050403020100';
const key = (id: string) => ({ id, bytes: crypto.getRandomValues(new Uint8Array(32)) });

describe('SCRAM verifier', () => {
  test('is what PostgreSQL stores for the example of RFC 7677, section 3', async () => {
    const salt = Uint8Array.from(atob('W22ZaJ0SNY7soEsUEjb6gQ=='), (c) => c.charCodeAt(0));
    expect(await scramVerifier('pencil', salt)).toBe(
      'SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=',
    );
  });

  test('has a salt of its own each time', async () => {
    expect(await scramVerifier('same')).not.toBe(await scramVerifier('same'));
  });
});

describe('sealed password', () => {
  test('opens for the branch and role it was sealed for', async () => {
    const keys = [key('k1')];
    const sealed = await sealPassword(keys, BRANCH, 'owner', 'secret');
    expect(await openPassword(keys, BRANCH, 'owner', sealed)).toBe('secret');
  });

  test('opens after a new key was put in front', async () => {
    const old = key('k1');
    const sealed = await sealPassword([old], BRANCH, 'owner', 'secret');
    expect(await openPassword([key('k2'), old], BRANCH, 'owner', sealed)).toBe('secret');
  });

  test.each([
    ['another branch', 'ffffffff-0b0a-4908-8706-050403020100', 'owner'],
    ['another role', BRANCH, 'read_write'],
  ] as const)('does not open for %s', async (_, branch, role) => {
    const keys = [key('k1')];
    const sealed = await sealPassword(keys, BRANCH, 'owner', 'secret');
    await expect(openPassword(keys, branch, role, sealed)).rejects.toThrow();
  });

  test('does not open under another key of the same id, and names a key that is gone', async () => {
    const sealed = await sealPassword([key('k1')], BRANCH, 'owner', 'secret');
    await expect(openPassword([key('k1')], BRANCH, 'owner', sealed)).rejects.toThrow();
    await expect(openPassword([key('k2')], BRANCH, 'owner', sealed)).rejects.toThrow('k1');
  });
});

test('a password needs no escaping in a URL and is never the same twice', () => {
  const passwords = Array.from({ length: 100 }, makePassword);
  expect(new Set(passwords).size).toBe(100);
  for (const password of passwords) expect(password).toMatch(/^[A-Za-z0-9_-]{32}$/);
});
