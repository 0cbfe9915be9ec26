import { generateKeyPairSync, X509Certificate } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { importJWK, SignJWT } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { enrol } from '../../agent/link/enrol.ts';
import { requestCertificate, setDnsChallenge } from '../../agent/link/host-certificate.ts';
import type { HostIdentity } from '../../agent/link/identity.ts';
import { CERTIFICATE_TYPE, DNS_CHALLENGE_TYPE } from '../../shared/protocol/host-certificate.ts';
import { CloudflareDns } from '../support/cloudflare-dns.ts';
import { type LinkGateway, startLinkGateway } from '../support/worker/link-gateway.ts';

/** The agent's own request against the route in workerd; only Cloudflare's API is a stand-in. */

const VALUE = 'v'.repeat(43);

const dns = new CloudflareDns();
let folder: string;
let gateway: LinkGateway;
let identity: HostIdentity;

beforeAll(async () => {
  await dns.start();
  folder = await mkdtemp(join(tmpdir(), 'branchgate-dns-'));
  gateway = await startLinkGateway({
    stateDir: folder,
    bindings: { ...dns.settings, DB_DOMAIN: 'projects.example.com' },
  });
  identity = await enrolled('db1');
});
afterAll(async () => {
  await gateway.stop();
  dns.stop();
  await rm(folder, { recursive: true });
});
beforeEach(() => {
  dns.records = [];
  dns.isRefusing = false;
});

async function enrolled(name: string, more: object = {}): Promise<HostIdentity> {
  const body = { name, db_host: `${name}.example.com`, ...more };
  const response = await gateway.asOperator('POST', '/hosts', body);
  const { enrolment_token: token } = (await response.json()) as { enrolment_token: string };
  return enrol({ gatewayUrl: gateway.url, stateDir: join(folder, name), token });
}

const serverKey = () =>
  generateKeyPairSync('ec', { namedCurve: 'P-256' }).publicKey.export({ format: 'jwk' });
const set = (value: string | null) => setDnsChallenge(gateway.url, identity, value);

test('a host has the record of its own name set, replaced and removed, and others stay', async () => {
  dns.records = [{ id: 'theirs', type: 'TXT', name: '_acme-challenge.db1.example.com', content: '"other"' }];
  expect(await set(VALUE)).toBe('db1.example.com');
  await set('w'.repeat(43));
  expect(dns.records).toEqual([
    expect.objectContaining({ id: 'theirs' }),
    expect.objectContaining({
      name: '_acme-challenge.db1.example.com',
      content: `"${'w'.repeat(43)}"`,
      ttl: 60,
      comment: `branchgate host ${identity.host_id}`,
    }),
  ]);
  await set(null);
  expect(dns.records.map(({ id }) => id)).toEqual(['theirs']);
});

interface Forgery {
  key?: string;
  typ?: string;
  aud?: string;
  iat?: number;
  host?: string;
  claims?: object;
}

test.each<[string, Forgery]>([
  ['signed by another host', { key: 'other' }],
  ['of another host', { host: 'other' }],
  ['for another gateway', { aud: 'gateway.example.com' }],
  ['of another kind', { typ: 'branchgate-answer+jwt' }],
  ['of an hour ago', { iat: -3600 }],
  ['with a text or key of its own', { claims: { value: 'v=spf1 -all', server_key: { kty: 'EC' } } }],
  [
    'with a key that is no point',
    { claims: { value: 'a', server_key: { ...serverKey(), x: 'A'.repeat(43) } } },
  ],
])('a request %s is refused and sets nothing', async (_what, change) => {
  const other = await enrolled(`other-${crypto.randomUUID().slice(0, 8)}`);
  const signer = change.key ? other : identity;
  const now = Math.floor(Date.now() / 1000) + (change.iat ?? 0);
  const host_id = change.host ? other.host_id : identity.host_id;
  for (const [path, typ] of [
    ['dns-challenge', DNS_CHALLENGE_TYPE],
    ['certificate', CERTIFICATE_TYPE],
  ] as const) {
    const token = await new SignJWT({ value: VALUE, server_key: serverKey(), ...change.claims })
      .setProtectedHeader({ alg: 'EdDSA', typ: change.typ ?? typ })
      .setIssuer(identity.host_id)
      .setAudience(change.aud ?? new URL(gateway.url).host)
      .setIssuedAt(now)
      .setExpirationTime(now + 60)
      .sign(await importJWK(signer.private_key, 'EdDSA'));
    const response = await gateway.post(`/agent/v1/${path}`, { host_id, token });
    expect([path, response.status, dns.records]).toEqual([path, 401, []]);
  }
});

test('a request for a record is no request for a certificate, and the reverse', async () => {
  for (const [path, typ] of [
    ['certificate', DNS_CHALLENGE_TYPE],
    ['dns-challenge', CERTIFICATE_TYPE],
  ] as const) {
    const token = await new SignJWT({ value: VALUE, server_key: serverKey() })
      .setProtectedHeader({ alg: 'EdDSA', typ })
      .setIssuer(identity.host_id)
      .setAudience(new URL(gateway.url).host)
      .setIssuedAt()
      .setExpirationTime('60s')
      .sign(await importJWK(identity.private_key, 'EdDSA'));
    expect((await gateway.post(`/agent/v1/${path}`, { host_id: identity.host_id, token })).status).toBe(401);
  }
});

describe("the gateway's own authority", () => {
  const issue = (host: HostIdentity) => requestCertificate(gateway.url, host, serverKey());
  const authorityOf = async ({ host_id }: HostIdentity) => {
    const response = await gateway.asOperator('GET', `/hosts/${host_id}`);
    return ((await response.json()) as { ca_certificate: string | null }).ca_certificate;
  };

  test('certifies the address of each host and the names of its projects, and clients of all hosts get the same authority', async () => {
    const byAddress = await enrolled('by-address', { db_host: '192.0.2.7' });
    const byName = await enrolled('by-name');
    // At the same time, so that two requests may make it.
    const issued = await Promise.all([issue(byAddress), issue(byName)]);
    const authority = await authorityOf(byAddress);
    expect(await authorityOf(byName)).toBe(authority);
    const { publicKey } = new X509Certificate(authority ?? '');
    const certificates = issued.map(({ certificate }) => new X509Certificate(certificate));
    expect(certificates.map(({ subjectAltName }) => subjectAltName)).toEqual([
      'IP Address:192.0.2.7, DNS:*.projects.example.com',
      'DNS:by-name.example.com, DNS:*.projects.example.com',
    ]);
    expect(certificates.map((certificate) => certificate.verify(publicKey))).toEqual([true, true]);
    expect((await issue(byAddress)).db_host).toBe('192.0.2.7');
    expect(await authorityOf(byAddress)).toBe(authority);
  });

  test('no name of an IP address is proven by DNS', async () => {
    const byAddress = await enrolled('by-other-address', { db_host: '192.0.2.8' });
    await expect(setDnsChallenge(gateway.url, byAddress, VALUE)).rejects.toMatchObject({
      code: 'DNS_NOT_CONFIGURED',
    });
  });

  test('replaces no authority of the operator', async () => {
    const { certificate } = await issue(await enrolled('without'));
    const given = await enrolled('with-authority', { ca_certificate: certificate });
    await expect(issue(given)).rejects.toMatchObject({ code: 'HOST_HAS_AUTHORITY' });
    expect(await authorityOf(given)).toBe(certificate);
  });
});

test('a refusal of the DNS service is reported without its reason', async () => {
  dns.isRefusing = true;
  await expect(set(VALUE)).rejects.toThrow('DNS service');
});

test('a removed host is refused', async () => {
  const removed = await enrolled('removed');
  await gateway.asOperator('DELETE', `/hosts/${removed.host_id}`);
  await expect(setDnsChallenge(gateway.url, removed, VALUE)).rejects.toThrow('valid bearer token');
  expect(dns.records).toEqual([]);
});
