import { describe, expect, test } from 'vitest';
import { checkTimes, readClaims } from '../../../edge/authentication/paseto.ts';
import { unwrap } from '../../../edge/errors.ts';

const NOW = new Date('2026-11-21T12:00:00Z');
const seconds = (offset: number) => NOW.getTime() / 1000 + offset;
const rfc3339 = (offset: number) => new Date(NOW.getTime() + offset * 1000).toISOString();

const USER = { gid: 'g-1', email: 'ada@example.com', role: 'owner' };
const readBytes = (bytes: Uint8Array) => unwrap(readClaims(bytes));
const read = (claims: unknown) => readBytes(new TextEncoder().encode(JSON.stringify(claims)));

describe('timestamps', () => {
  test.each([
    ['Unix seconds', seconds(60)],
    ['RFC 3339 in UTC', rfc3339(60)],
    ['RFC 3339 with an offset', '2026-11-21T14:01:00+02:00'],
  ])('%s', (_form, exp) => {
    expect(read({ ...USER, exp }).exp).toEqual(new Date(NOW.getTime() + 60_000));
  });

  test.each([
    ['soon'],
    ['2026-02-30T00:00:00Z'],
    ['2026-11-21 12:00:00Z'],
    ['1795262400'],
    [1e17],
    [null],
    [true],
  ])('%s is rejected', (exp) => {
    expect(() => read({ ...USER, exp })).toThrow('claims_wrong');
  });
});

describe('validity', () => {
  test.each([
    ['a second before exp', { exp: seconds(1) }, null],
    ['at exp', { exp: seconds(0) }, 'token_expired'],
    ['a second after exp: no skew here', { exp: seconds(-1) }, 'token_expired'],
    ['nbf 30 s ahead', { exp: seconds(60), nbf: seconds(30) }, null],
    ['nbf 31 s ahead', { exp: seconds(60), nbf: rfc3339(31) }, 'token_not_yet_valid'],
    ['iat ahead', { exp: seconds(60), iat: seconds(50) }, null],
  ])('%s', (_when, times, reason) => {
    const check = () => unwrap(checkTimes(read({ ...USER, ...times }), NOW));
    if (reason) expect(check).toThrow(reason);
    else expect(check).not.toThrow();
  });
});

describe('claims', () => {
  const valid = { ...USER, exp: seconds(60) };

  test('scopes and tenant default to none, and other claims are ignored', () => {
    expect(read({ ...valid, jti: 'x', aud: ['y'] })).toMatchObject({ ...USER, scp: [] });
    expect(read({ ...valid, ctx: {} }).ctx?.tenant_id).toBeUndefined();
    expect(read({ ...valid, ctx: { tenant_id: null } }).ctx?.tenant_id).toBeNull();
  });

  test.each([
    ['no exp', USER],
    ['no gid', { ...valid, gid: undefined }],
    ['an empty gid', { ...valid, gid: '' }],
    ['a number as gid', { ...valid, gid: 7 }],
    ['a very long gid', { ...valid, gid: 'g'.repeat(321) }],
    ['no email', { ...valid, email: undefined }],
    ['no role', { ...valid, role: undefined }],
    ['roles as an array', { ...valid, role: ['owner'] }],
    ['scopes as text', { ...valid, scp: 'branchgate:read' }],
    ['a scope that is no text', { ...valid, scp: [1] }],
    ['an empty tenant', { ...valid, ctx: { tenant_id: '' } }],
    ['a tenant that is no text', { ...valid, ctx: { tenant_id: { $ne: null } } }],
    ['an array', [valid]],
    ['null', null],
  ])('%s is rejected', (_what, claims) => {
    expect(() => read(claims)).toThrow('claims_wrong');
  });

  test('a message that is not JSON or not UTF-8 is rejected', () => {
    expect(() => readBytes(new TextEncoder().encode('{"gid":'))).toThrow('claims_wrong');
    expect(() => readBytes(new Uint8Array([0x22, 0xff, 0x22]))).toThrow('claims_wrong');
  });
});
