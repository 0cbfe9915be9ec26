import type { JWTPayload } from 'jose';
import type { CompanyProvider, Forgery } from './company-provider.ts';

const claims = (change: Record<string, unknown>) => (given: JWTPayload) => ({ ...given, ...change });
/**
 * ID tokens that must not be accepted: what is wrong, and the claims or the token that has it.
 * @param other a provider of another tenant
 */
export const forgeriesOf = (
  provider: CompanyProvider,
  other: CompanyProvider,
): [wrong: string, make: () => Forgery][] => [
  ...['other', '', [], ['other'], 'gateway '].map(
    (aud) => [`aud ${JSON.stringify(aud)}`, () => ({ claims: claims({ aud }) })] as [string, () => object],
  ),
  ...['https://login.example', '', null].map(
    (iss) => [`iss ${iss}`, () => ({ claims: claims({ iss }) })] as [string, () => object],
  ),
  ['iss of the other provider', () => ({ claims: claims({ iss: other.url }) })],
  ['iss with a slash', () => ({ claims: (given) => ({ ...given, iss: `${given.iss}/` }) })],
  ...['other', '', null].map(
    (nonce) => [`nonce ${nonce}`, () => ({ claims: claims({ nonce }) })] as [string, () => object],
  ),
  ...[-3600, -60].map(
    (past) =>
      [`exp ${past} s`, () => ({ claims: claims({ exp: Math.floor(Date.now() / 1000) + past }) })] as [
        string,
        () => object,
      ],
  ),
  ['no exp', () => ({ claims: ({ exp: _, ...given }) => given })],
  ['no iat', () => ({ claims: ({ iat: _, ...given }) => given })],
  ['no sub', () => ({ claims: ({ sub: _, ...given }) => given })],
  ['empty sub', () => ({ claims: claims({ sub: '' }) })],
  ['sub of 300 characters', () => ({ claims: claims({ sub: 'x'.repeat(300) }) })],
  ['a number as sub', () => ({ claims: claims({ sub: 7 as unknown as string }) })],
  ['nbf in an hour', () => ({ claims: claims({ nbf: Math.floor(Date.now() / 1000) + 3600 }) })],
  ['azp of another client', () => ({ claims: claims({ aud: ['gateway', 'other'], azp: 'other' }) })],
  ['alg none', () => ({ token: (given) => provider.unsigned(given) })],
  [
    'alg none with a signature',
    () => ({
      token: async (given) => {
        const [, payload, signature] = (await provider.sign(given)).split('.');
        return `${Buffer.from('{"alg":"none"}').toString('base64url')}.${payload}.${signature}`;
      },
    }),
  ],
  [
    'another key under the same kid',
    () => ({ token: (given) => provider.sign(given, {}, provider.otherKey) }),
  ],
  ['the key of the other provider', () => ({ token: (given) => provider.sign(given, {}, other.privateKey) })],
  ['an unknown kid', () => ({ token: (given) => provider.sign(given, { kid: 'unknown' }) })],
  [
    'a changed payload',
    () => ({
      token: async (given) => {
        const [header, , signature] = (await provider.sign(given)).split('.');
        const payload = Buffer.from(JSON.stringify({ ...given, sub: 'mallory' })).toString('base64url');
        return `${header}.${payload}.${signature}`;
      },
    }),
  ],
  ['no ID token at all', () => ({ token: async () => '' })],
  ['a text as ID token', () => ({ token: async () => 'no.jwt' })],
  ...[false, 'false', undefined, 0, 1, null].map(
    (value) =>
      [`email_verified ${value}`, () => ({ claims: claims({ email_verified: value }) })] as [
        string,
        () => object,
      ],
  ),
  ...[
    'ada@evil.example',
    'ada@sub.acme.example',
    'ada@acme.example.evil.example',
    'ada',
    '@acme.example',
    '',
  ].map((email) => [`the address ${email}`, () => ({ claims: claims({ email }) })] as [string, () => object]),
  ['a list of addresses', () => ({ claims: claims({ email: ['ada@acme.example'] }) })],
  [
    'tid that is not in the issuer, without email_verified',
    () => ({ claims: claims({ email_verified: undefined, tid: 'another-directory' }) }),
  ],
];
