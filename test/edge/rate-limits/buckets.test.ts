import fc from 'fast-check';
import { Hono } from 'hono';
import { describe, expect, test } from 'vitest';
import { bucketOf } from '../../../edge/rate-limits/buckets.ts';

const ID = 'aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee';
const PROJECT = '["project","acme","aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"]';
const TENANT = '["tenant","acme"]';

const tenantBucket = (path: string) => bucketOf.tenant('acme', { method: 'GET', path }).bucket;

describe('a tenant', () => {
  test.each([
    ['its own paths', `/api/v1/projects/${ID}`, PROJECT],
    ['paths below', `/api/v1/projects/${ID}/branches/main/tables/t/rows`, PROJECT],
    ["the quota's path (spec 9)", `/v1/projects/${ID}`, PROJECT],
    ['another spelling of its id', `/api/v1/projects/${ID.toUpperCase()}`, PROJECT],
    ['a trailing slash', `/api/v1/projects/${ID}/`, PROJECT],
    ['the list', '/api/v1/projects', TENANT],
    ['what is no id', '/api/v1/projects/shop/branches', TENANT],
    ['more than an id', `/api/v1/projects/${ID}0/branches`, TENANT],
    ['an id elsewhere', `/api/v1/jobs/${ID}`, TENANT],
    ['a project below another path', `/x/api/v1/projects/${ID}`, TENANT],
    ['what no route serves', '/api/v1/nothing', TENANT],
  ])('%s', (_name, path, bucket) => {
    expect(tenantBucket(path)).toBe(bucket);
  });

  test('a percent-encoded path has the bucket of its route', async () => {
    const app = new Hono().get('/api/v1/projects/:id', (c) =>
      c.json([c.req.param('id'), tenantBucket(c.req.path)]),
    );
    const spelled = `/%61pi/v1/project%73/${ID.replace('a', '%61').replace('-', '%2D')}?a=/b`;
    expect(await (await app.request(spelled)).json()).toEqual([ID, PROJECT]);
  });

  test.each([
    ['GET', 'reads'],
    ['HEAD', 'reads'],
    ['POST', 'writes'],
    ['PATCH', 'writes'],
    ['DELETE', 'writes'],
    ['OPTIONS', 'writes'],
    ['get', 'writes'],
  ])('%s is counted as %s', (method, limit) => {
    expect(bucketOf.tenant('acme', { method, path: '/' }).limit).toBe(limit);
    expect(bucketOf.platform({ method, path: '/platform/v1/hosts' })).toEqual({
      bucket: '["platform"]',
      limit,
    });
  });
});

const addressBucket = (address: string | null) => bucketOf.public(address).bucket;

describe('a client without a token', () => {
  test.each([
    ['IPv4', '192.0.2.7', '["address","192.0.2.7"]'],
    ['IPv4 in IPv6', '::ffff:192.0.2.7', '["address","192.0.2.7"]'],
    ['IPv6, by its /64', '2001:db8:1:2:3:4:5:6', '["address","2001:db8:1:2::/64"]'],
    ['IPv6 written otherwise', '2001:0DB8:0001:2:ffff::', '["address","2001:db8:1:2::/64"]'],
    ['none', null, '["address","unknown"]'],
    ['no address', 'localhost', '["address","unknown"]'],
    ['nothing', '', '["address","unknown"]'],
    ['two', '192.0.2.7, 192.0.2.8', '["address","unknown"]'],
    ['a network', '192.0.2.0/24', '["address","unknown"]'],
    ['IPv4 in another base', '0xc0.0.2.7', '["address","unknown"]'],
    ['an interface', 'fe80::1%eth0', '["address","unknown"]'],
  ])('%s', (_name, address, bucket) => {
    expect(bucketOf.public(address)).toEqual({ bucket, limit: 'public' });
    expect(bucketOf.failedAuthentication(address)).toEqual({ bucket, limit: 'failed_authentication' });
  });

  test('every address has a bucket, shared only within its /64', () => {
    const halves = fc.tuple(fc.bigInt(0n, (1n << 64n) - 1n), fc.bigInt(0n, (1n << 64n) - 1n));
    const written = (network: bigint, host: bigint) =>
      ((network << 64n) | host).toString(16).padStart(32, '0').match(/.{4}/g)?.join(':') ?? '';
    fc.assert(
      fc.property(halves, halves, ([network, host], [otherNetwork, otherHost]) => {
        fc.pre(network !== 0n && otherNetwork !== 0n);
        const bucket = addressBucket(written(network, host));
        expect(addressBucket(written(network, otherHost))).toBe(bucket);
        expect(addressBucket(written(otherNetwork, host)) === bucket).toBe(network === otherNetwork);
      }),
    );
    fc.assert(fc.property(fc.string(), (text) => addressBucket(text).length > 0));
  });
});

test('no tenant name leads to the bucket of another tenant', () => {
  const tenant = fc.oneof(
    fc.string(),
    fc.array(fc.constantFrom('"', ',', '[', ']', '\\', 'a', ID)).map((parts) => parts.join('')),
  );
  const path = fc.constantFrom(`/v1/projects/${ID}`, '/api/v1/me');
  fc.assert(
    fc.property(tenant, path, tenant, path, (a, pathOfA, b, pathOfB) => {
      const ofA = bucketOf.tenant(a, { method: 'GET', path: pathOfA }).bucket;
      const ofB = bucketOf.tenant(b, { method: 'GET', path: pathOfB }).bucket;
      expect(ofA === ofB).toBe(a === b && pathOfA === pathOfB);
      expect([ofA, ofB]).not.toContain('["platform"]');
    }),
  );
});
