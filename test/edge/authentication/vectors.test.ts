import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { isSignedBy, splitPaseto } from '../../../edge/authentication/paseto.ts';
import { Paserk } from '../../../edge/authentication/provider-keys.ts';
import { unwrap } from '../../../edge/errors.ts';
import paserkVectors from '../../vectors/paserk-k4-public.json' with { type: 'json' };
import pasetoVectors from '../../vectors/paseto-v4-public.json' with { type: 'json' };

const Vector = z.object({
  name: z.string(),
  'expect-fail': z.boolean(),
  'public-key': z.string().optional(),
  token: z.string(),
  payload: z.string().nullable(),
  footer: z.string(),
  'implicit-assertion': z.string(),
});

const hex = (text: string) => new Uint8Array(Buffer.from(text, 'hex'));
const text = (bytes: Uint8Array) => Buffer.from(bytes).toString('utf8');
const bytes = (given: string) => new TextEncoder().encode(given);

const vectors = z.array(Vector).parse(pasetoVectors.tests);
const SOME_KEY = vectors.find((vector) => vector['public-key'])?.['public-key'] ?? '';

describe('the official v4.public vectors', () => {
  test.each(vectors.filter((vector) => !vector['expect-fail']))('$name is valid', async (vector) => {
    const parts = unwrap(splitPaseto(vector.token));
    expect(text(parts.message)).toBe(vector.payload);
    expect(text(parts.footer)).toBe(vector.footer);
    const key = hex(vector['public-key'] ?? '');
    expect(await isSignedBy(key, parts, bytes(vector['implicit-assertion']))).toBe(true);
    // The gateway uses no implicit assertion, so a token with one is rejected.
    expect(await isSignedBy(key, parts)).toBe(vector['implicit-assertion'] === '');
  });

  test.each(vectors.filter((vector) => vector['expect-fail']))('$name fails', async (vector) => {
    const key = hex(vector['public-key'] ?? SOME_KEY);
    const check = async () =>
      isSignedBy(key, unwrap(splitPaseto(vector.token)), bytes(vector['implicit-assertion']));
    if (vector.token.startsWith('v4.public.')) expect(await check()).toBe(false);
    else await expect(check()).rejects.toThrow('token_form_wrong');
  });
});

describe('the official k4.public vectors', () => {
  test.each(paserkVectors.tests.filter((vector) => !vector['expect-fail']))('$name', ({ key, paserk }) => {
    expect(Paserk.parse(paserk)).toEqual(hex(key));
  });

  test.each(paserkVectors.tests.filter((vector) => vector['expect-fail']))('$name', ({ key }) => {
    const encoded = Buffer.from(key, 'hex').toString('base64url');
    for (const header of ['k4.public.', 'k3.public.']) {
      expect(Paserk.safeParse(header + encoded).success).toBe(false);
    }
  });
});
