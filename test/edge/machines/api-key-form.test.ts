import { crc32 } from 'node:zlib';
import { expect, test } from 'vitest';
import { isApiKey, makeApiKey, readApiKey } from '../../../edge/machines/api-keys.ts';

test('a key has an id of 16 characters, 32 random bytes, and the CRC-32 of both', () => {
  const { key, id, secret } = makeApiKey();
  expect(id).toMatch(/^[a-z2-7]{16}$/);
  expect(Buffer.from(secret, 'base64url')).toHaveLength(32);
  const text = `bg_${id}_${secret}`;
  expect(key).toBe(text + crc32(text).toString(16).padStart(8, '0'));
  expect(readApiKey(key)).toEqual({ id, secret });
  expect(isApiKey(key)).toBe(true);
});

test('no two keys are the same', () => {
  const keys = Array.from({ length: 200 }, makeApiKey);
  expect(new Set(keys.map(({ id }) => id)).size).toBe(200);
  expect(new Set(keys.map(({ secret }) => secret)).size).toBe(200);
});

test('any mistyped character is noticed', () => {
  const { key } = makeApiKey();
  for (let at = 0; at < key.length; at += 1) {
    const other = key[at] === 'a' ? 'b' : 'a';
    expect(readApiKey(key.slice(0, at) + other + key.slice(at + 1)), `at ${at}`).toBeNull();
  }
  for (const text of ['', 'bg_', key.slice(1), key.slice(0, -1), `${key}0`, ` ${key}`, `${key}\n`]) {
    expect(readApiKey(text), text).toBeNull();
  }
});
