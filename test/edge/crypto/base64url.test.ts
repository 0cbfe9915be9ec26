import { expect, test } from 'vitest';
import { decodeBase64url } from '../../../edge/crypto/encoding.ts';

test('decodes what Node encodes, at every length', () => {
  for (let length = 0; length < 70; length += 1) {
    const bytes = crypto.getRandomValues(new Uint8Array(length));
    expect(decodeBase64url(Buffer.from(bytes).toString('base64url'))).toEqual(bytes);
  }
});

test.each([
  ['padding', 'YQ=='],
  ['a foreign character', 'YW+j'],
  ['the other alphabet', 'YW/j'],
  ['a space', 'YW Jj'],
  ['a newline at the end', 'YWJj\n'],
  ['a length that nothing encodes to', 'YWJjY'],
  ['bits left over after one byte', 'YR'],
  ['bits left over after two bytes', 'YWK'],
])('rejects %s', (_what, text) => {
  expect(decodeBase64url(text)).toBeNull();
});

test('accepts exactly one encoding of the same bytes', () => {
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
  const taken = [...alphabet].filter((last) => decodeBase64url(`Y${last}`) !== null);
  expect(taken).toHaveLength(4);
});
