import { execFileSync } from 'node:child_process';
import { createPublicKey, generateKeyPairSync, type KeyObject, X509Certificate } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { certifyServer, isIpAddress, makeAuthority } from '../../../edge/crypto/x509.ts';
import { temporaryFolder } from '../../support/stack/stack.ts';

const NOW = new Date('2026-11-26T12:00:00Z');

type Jwk = Parameters<typeof certifyServer>[0];

const newPair = () => generateKeyPairSync('ec', { namedCurve: 'P-256' });
const jwkOf = (key: KeyObject) => key.export({ format: 'jwk' }) as Jwk;
const serverKey = () => jwkOf(newPair().publicKey);

/** What OpenSSL says of a certificate for this address, by the strict rules that Python 3.13 has. */
function verified(authority: string, certificate: string, address: string): string {
  const folder = temporaryFolder();
  const ca = join(folder, 'ca.pem');
  const leaf = join(folder, 'leaf.pem');
  writeFileSync(ca, authority);
  writeFileSync(leaf, certificate);
  const name = isIpAddress(address) ? '-verify_ip' : '-verify_hostname';
  const options = ['-x509_strict', '-purpose', 'sslserver', '-attime', String(NOW.getTime() / 1000)];
  try {
    const words = ['verify', ...options, '-CAfile', ca, name, address, leaf];
    return execFileSync('openssl', words, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  } catch (error) {
    return String((error as { stderr: string }).stderr);
  }
}

test.each(['192.0.2.7', 'db1.example.com'])(
  'OpenSSL accepts the certificate of the authority for %s, and for no other address',
  async (address) => {
    const authority = await makeAuthority(NOW);
    const key = serverKey();
    const certificate = await certifyServer(authority.key, [address], key, NOW);
    expect(verified(authority.certificate, certificate, address)).toContain(': OK');
    const other = isIpAddress(address) ? '192.0.2.8' : 'db2.example.com';
    expect(verified(authority.certificate, certificate, other)).toContain('mismatch');
    const stranger = await makeAuthority(NOW);
    expect(verified(stranger.certificate, certificate, address)).toContain('unable to get local issuer');

    const leaf = new X509Certificate(certificate);
    expect(leaf.ca).toBe(false);
    expect(leaf.checkIssued(new X509Certificate(authority.certificate))).toBe(true);
    expect(leaf.publicKey.equals(createPublicKey({ key: { ...key }, format: 'jwk' }))).toBe(true);
    expect([leaf.validFromDate, leaf.validToDate]).toEqual([
      new Date('2026-11-25T12:00:00Z'),
      new Date('2027-02-24T12:00:00Z'),
    ]);
  },
);

test('a server cannot sign with its certificate, and the authority has no authority below it', async () => {
  const authority = await makeAuthority(NOW);
  expect(new X509Certificate(authority.certificate).ca).toBe(true);
  const pair = newPair();
  const own = await certifyServer(authority.key, ['192.0.2.7'], jwkOf(pair.publicKey), NOW);
  const forged = await certifyServer(jwkOf(pair.privateKey), ['192.0.2.9'], serverKey(), NOW);
  expect(verified(authority.certificate + own, forged, '192.0.2.9')).not.toContain(': OK');
});

test('an authority that is made often is well-formed each time, whatever its numbers begin with', async () => {
  for (let round = 0; round < 40; round += 1) {
    const authority = await makeAuthority(NOW);
    const certificate = await certifyServer(authority.key, ['db.example.com'], serverKey(), NOW);
    const issuer = new X509Certificate(authority.certificate);
    expect(new X509Certificate(certificate).verify(issuer.publicKey)).toBe(true);
    expect(issuer.verify(issuer.publicKey)).toBe(true);
  }
});

test('a key that is no point of the curve is refused', async () => {
  const authority = await makeAuthority(NOW);
  const key = { ...serverKey(), x: 'A'.repeat(43) };
  await expect(certifyServer(authority.key, ['db.example.com'], key, NOW)).rejects.toThrow();
});
