import { expect, test } from 'vitest';
import { hashPassword, isPassword } from '../../../../edge/sign-in/accounts/password-hash.ts';

const base64 = (text: string) => Buffer.from(text).toString('base64');
const kept = (log2N: number, p: number, salt: string, hash: string) =>
  `scrypt$${log2N}$8$${p}$${base64(salt)}$${Buffer.from(hash, 'hex').toString('base64')}`;

// RFC 7914 section 12.
test.each([
  [
    'password',
    kept(
      10,
      16,
      'NaCl',
      'fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b3731622eaf30d92e22a3886ff109279d9830dac727afb94a83ee6d8360cbdfa2cc0640',
    ),
  ],
  [
    'pleaseletmein',
    kept(
      14,
      1,
      'SodiumChloride',
      '7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2d5432955613f0fcf62d49705242a9af9e61e85dc0d651e40dfcf017b45575887',
    ),
  ],
])('the vector of %s, and no other password', async (password, hash) => {
  expect(await isPassword(password, hash)).toBe(true);
  expect(await isPassword(`${password} `, hash)).toBe(false);
});

test('a password is kept with its cost, under a salt of its own', async () => {
  const [one, other] = await Promise.all([hashPassword('correct horse'), hashPassword('correct horse')]);
  expect(one).toMatch(/^scrypt\$15\$8\$3\$[A-Za-z0-9+/]{22}==\$[A-Za-z0-9+/]{43}=$/);
  expect(one).not.toBe(other);
  expect(await isPassword('correct horse', one)).toBe(true);
  expect(await isPassword('correct horse', other)).toBe(true);
});

test('composed and decomposed letters are the same password', async () => {
  expect(await isPassword('cafe\u0301 cafe\u0301', await hashPassword('caf\u00e9 caf\u00e9'))).toBe(true);
});

test('no account, no password', async () => {
  expect(await isPassword('', null)).toBe(false);
});
