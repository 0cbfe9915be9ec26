import { describe, expect, test } from 'vitest';
import { setUpSecret, stepOf, totpUri } from '../../../edge/sign-in/second-factor.ts';

/** RFC 6238 appendix B: the ASCII seed `12345678901234567890` and the last six digits of its codes. */
const SECRET = 'GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ';
const CODES = [
  [59, '287082'],
  [1111111109, '081804'],
  [1111111111, '050471'],
  [1234567890, '005924'],
  [2000000000, '279037'],
  [20000000000, '353130'],
] as const;

const at = (seconds: number) => new Date(seconds * 1000);

describe('codes', () => {
  test.each(CODES)('at %i the code is %s', (seconds, code) => {
    expect(stepOf(SECRET, code, at(seconds))).toBe(Math.floor(seconds / 30));
  });

  // 287082 is the code of step 1: seconds 30 to 59.
  test.each([
    [-1, null],
    [0, 1],
    [29, 1],
    [30, 1],
    [89.999, 1],
    [90, null],
    [3600, null],
  ])('the code of seconds 30 to 59, at second %d: step %s', (seconds, step) => {
    expect(stepOf(SECRET, '287082', at(seconds))).toBe(step);
  });

  test.each(['', '28708', '2870820', '287083', '94287082'])('%j is refused', (code) => {
    expect(stepOf(SECRET, code, at(59))).toBe(null);
  });
});

test('the URI contains all parameters for an app', () => {
  const uri = new URL(totpUri(SECRET, { issuer: 'branchgate', label: 'ada+one@example.com' }));
  expect(uri.protocol).toBe('otpauth:');
  expect(uri.host).toBe('totp');
  expect(decodeURIComponent(uri.pathname)).toBe('/branchgate:ada+one@example.com');
  expect(Object.fromEntries(uri.searchParams)).toEqual({
    issuer: 'branchgate',
    secret: SECRET,
    algorithm: 'SHA1',
    digits: '6',
    period: '30',
  });
});

describe('the secret of a set-up', () => {
  const key = (fill: number) => ({ id: String(fill), bytes: new Uint8Array(32).fill(fill) });

  test('has 20 bytes in base32, the same for the same token', async () => {
    const secret = await setUpSecret([key(1)], 'token 1');
    expect(secret).toMatch(/^[A-Z2-7]{32}$/);
    expect(await setUpSecret([key(1), key(2)], 'token 1')).toBe(secret);
  });

  test('differs by token and by key', async () => {
    const secrets = await Promise.all([
      setUpSecret([key(1)], 'token 1'),
      setUpSecret([key(1)], 'token 2'),
      setUpSecret([key(2)], 'token 1'),
    ]);
    expect(new Set(secrets).size).toBe(3);
  });
});
