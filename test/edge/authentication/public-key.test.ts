import { describe, expect, test } from 'vitest';
import { readKeyDocument, sameKeys } from '../../../edge/authentication/provider-keys.ts';
import { newSigner } from '../../support/sign-in/provider.ts';

const first = newSigner('first');
const second = newSigner('second');
const kids = (document: unknown) => [...readKeyDocument(document).keys()];

describe('key document', () => {
  test('PASERK entries and JWKs give the same key', () => {
    const paserk = readKeyDocument({ keys: [first.entry] });
    const jwk = readKeyDocument({ keys: [first.jwk] });
    expect(paserk.get('first')).toHaveLength(32);
    expect(sameKeys(paserk, jwk)).toBe(true);
  });

  test('keys of other kinds and malformed keys are skipped', () => {
    const others = [
      { kid: 'rsa', kty: 'RSA', n: 'AQAB', e: 'AQAB' },
      { ...first.jwk, kid: 'x', crv: 'X25519' },
      { ...first.entry, kid: 'old', alg: 'v3.public' },
      { ...first.entry, kid: 'short', public_key: 'k4.public.AAAA' },
      { ...first.entry, kid: 'secret', public_key: first.entry.public_key.replace('public', 'secret') },
      { ...first.entry, kid: undefined },
      'text',
      null,
    ];
    expect(kids({ keys: [...others, second.entry] })).toEqual(['second']);
  });

  test('an empty list is accepted', () => {
    expect(kids({ keys: [] })).toEqual([]);
  });

  test.each([
    ['nothing in it can be read', { keys: [{ kid: 'rsa', kty: 'RSA' }] }],
    ['no list', { keys: { first: first.entry } }],
    ['a bare array', [first.entry]],
    ['no document', undefined],
  ])('%s is rejected', (_what, document) => {
    expect(() => readKeyDocument(document)).toThrow();
  });
});

test('key sets are equal if their ids and bytes are', () => {
  const read = (...entries: unknown[]) => readKeyDocument({ keys: entries });
  expect(sameKeys(read(first.entry, second.entry), read(second.entry, first.entry))).toBe(true);
  expect(sameKeys(read(first.entry), read(first.entry, second.entry))).toBe(false);
  expect(sameKeys(read(first.entry), read({ ...second.entry, kid: 'first' }))).toBe(false);
  expect(sameKeys(read(first.entry), read({ ...first.entry, kid: 'second' }))).toBe(false);
});
