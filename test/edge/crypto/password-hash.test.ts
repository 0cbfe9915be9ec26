import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import {
  hashPassword as hashPasswordResult,
  isPassword as isPasswordResult,
} from '../../../edge/crypto/password-hash.ts';
import { unwrap } from '../../../edge/errors.ts';
import { firstByDay } from '../../support/nightly.ts';
import { watchScrypt } from '../../support/watch-scrypt.ts';

const hashPassword = async (...about: Parameters<typeof hashPasswordResult>) =>
  unwrap(await hashPasswordResult(...about));
const isPassword = async (...about: Parameters<typeof isPasswordResult>) =>
  unwrap(await isPasswordResult(...about));

/** How many hashes have been started. */
let hashes = 0;

beforeEach(() => {
  hashes = 0;
  return watchScrypt(() => {
    hashes += 1;
  });
});
afterEach(() => vi.useRealTimers());

const base64 = (text: string) => Buffer.from(text).toString('base64');
const stored = (log2N: number, p: number, salt: string, hash: string) =>
  `scrypt$${log2N}$8$${p}$${base64(salt)}$${Buffer.from(hash, 'hex').toString('base64')}`;

// RFC 7914 section 12.
test.each([
  [
    'password',
    stored(
      10,
      16,
      'NaCl',
      'fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b3731622eaf30d92e22a3886ff109279d9830dac727afb94a83ee6d8360cbdfa2cc0640',
    ),
  ],
  [
    'pleaseletmein',
    stored(
      14,
      1,
      'SodiumChloride',
      '7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2d5432955613f0fcf62d49705242a9af9e61e85dc0d651e40dfcf017b45575887',
    ),
  ],
])('the vector of %s is accepted, and no other password', async (password, hash) => {
  expect(await isPassword(password, hash, 15)).toBe(true);
  expect(await isPassword(`${password} `, hash, 15)).toBe(false);
});

test('a hash contains its cost and a unique salt', async () => {
  const [one, other] = await Promise.all([
    hashPassword('correct horse', 15),
    hashPassword('correct horse', 15),
  ]);
  expect(one).toMatch(/^scrypt\$15\$8\$3\$[A-Za-z0-9+/]{22}==\$[A-Za-z0-9+/]{43}=$/);
  expect(one).not.toBe(other);
  for (const hash of firstByDay(1, [one, other]))
    expect(await isPassword('correct horse', hash, 15)).toBe(true);
});

test('composed and decomposed letters are equal', async () => {
  expect(await isPassword('cafe\u0301 cafe\u0301', await hashPassword('caf\u00e9 caf\u00e9', 10), 10)).toBe(
    true,
  );
});

test('a missing hash accepts no password', async () => {
  expect(await isPassword('', null, 10)).toBe(false);
});

test('concurrent hashes leave time for other requests between them', async () => {
  vi.useFakeTimers();
  // Later than the turns of the tests before.
  vi.setSystemTime(Date.now() + 60_000);
  const passwords = Array.from({ length: 5 }, () => isPassword('guess', null, 15));
  const counts: number[] = [];
  for (let turn = 0; turn < 6; turn++) {
    await vi.advanceTimersByTimeAsync(turn === 0 ? 0 : 500);
    counts.push(hashes);
  }
  expect(counts).toEqual([1, 2, 3, 4, 5, 5]);
  expect(await Promise.all(passwords)).toEqual(Array(5).fill(false));
});
