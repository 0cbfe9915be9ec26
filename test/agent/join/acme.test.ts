import { X509Certificate } from 'node:crypto';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { startAcmeServer } from '../../support/acme-server.ts';
import { selfSigned } from '../../support/certificates.ts';
import { type JoinMachine, joinMachine } from '../../support/join-machine.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

let machine: JoinMachine;
let acme: Awaited<ReturnType<typeof startAcmeServer>>;

beforeEach(async () => {
  machine = await joinMachine();
  await machine.enrol();
  acme = await startAcmeServer({ recordsOf: (name) => machine.txtRecords(name) });
  machine.write('etc/branchgate/agent.env', `ACME_DIRECTORY=${acme.directory}\n`);
});
afterEach(async () => {
  await acme.stop();
  await machine.stop();
});

const NO_FILES: object = { tlsCert: undefined, tlsKey: undefined };
const join = (options: Parameters<JoinMachine['join']>[0] = {}) =>
  machine.join({ join: NO_FILES, ...options });
const certificate = () => new X509Certificate(machine.read('etc/branchgate/tls/server.crt'));
const changesOf = ({ done }: Awaited<ReturnType<JoinMachine['join']>>) =>
  done.flatMap(({ changes }) => changes);
/** What the timer does. */
const renew = () => join({ only: ['certificate'] });

test('without files a host gets a certificate for its own name, and a timer renews it', async () => {
  await join();
  expect(certificate().subjectAltName).toBe('DNS:db1.example.com');
  expect(certificate().verify(new X509Certificate(acme.authority).publicKey)).toBe(true);
  expect(machine.txtRecords('_acme-challenge.db1.example.com'), 'the record is removed').toEqual([]);
  expect(machine.read('etc/systemd/system/branchgate-certificate.service')).toContain(
    'ExecStart=/usr/bin/branchgate-agent join --only certificate',
  );
  expect(machine.calls()).toContain('enable --now branchgate-certificate.timer');
  const { serialNumber } = certificate();
  expect(changesOf(await join())).toEqual([]);
  expect(certificate().serialNumber).toBe(serialNumber);
  await machine.leave();
  expect(machine.exists('etc/systemd/system/branchgate-certificate.timer')).toBe(false);
  expect(machine.exists('etc/branchgate/tls')).toBe(false);
});

test.runIf(IS_NIGHTLY)('it is renewed 30 days before its end, and both servers read it', async () => {
  acme.lasting(10);
  await join();
  const before = certificate();
  acme.lasting(90);
  expect(changesOf(await renew())).toEqual([
    'got a certificate by ACME',
    'wrote /etc/branchgate/tls/server.key',
    'wrote /etc/branchgate/tls/server.crt',
    'reloaded postgresql@18-main.service',
    'reloaded pgbouncer.service',
  ]);
  expect(certificate().serialNumber).not.toBe(before.serialNumber);
  expect(changesOf(await renew())).toEqual([]);
  expect(acme.issued()).toEqual(['db1.example.com', 'db1.example.com']);
});

test.runIf(IS_NIGHTLY)('a renewal that is killed at any change is completed by the next one', async () => {
  acme.lasting(10);
  await join();
  const { serialNumber } = certificate();
  acme.lasting(90);
  // Each run has a new key, so one that is killed early makes no progress.
  let acts = 0;
  while ((await join({ only: ['certificate'], acts })).isKilled) acts += 2;
  expect(acts).toBeGreaterThan(4);
  expect(certificate().serialNumber).not.toBe(serialNumber);
  expect(machine.calls().slice(-2)).toEqual([
    'reload postgresql@18-main.service',
    'reload pgbouncer.service',
  ]);
  expect(machine.exists('etc/branchgate/tls/unread')).toBe(false);
});

test('where the gateway proves no name, it certifies the host itself, and the timer renews that', async () => {
  machine.setChallenges(false);
  machine.ageCertificates(61);
  await join();
  const before = certificate();
  expect(before.verify(new X509Certificate(machine.authority).publicKey)).toBe(true);
  expect(before.subjectAltName).toBe('DNS:db1.example.com');
  expect(machine.calls()).toContain('enable --now branchgate-certificate.timer');
  machine.ageCertificates(0);
  // A gateway that can prove names meanwhile: the clients know its authority, so the certificate stays its own.
  machine.setChallenges(true);
  expect(changesOf(await renew())).toEqual([
    "got a certificate of the gateway's authority",
    'wrote /etc/branchgate/tls/server.key',
    'wrote /etc/branchgate/tls/server.crt',
    'reloaded postgresql@18-main.service',
    'reloaded pgbouncer.service',
  ]);
  expect(certificate().serialNumber).not.toBe(before.serialNumber);
  expect(changesOf(await renew())).toEqual([]);
  expect(acme.issued()).toEqual([]);
  const own = selfSigned(machine.root, { name: 'own' });
  await machine.join({ join: { tlsCert: own.certFile, tlsKey: own.keyFile } });
  expect(machine.exists('etc/branchgate/tls/of-gateway')).toBe(false);
  expect(machine.calls()).toContain('disable --now branchgate-certificate.timer');
});

test.runIf(IS_NIGHTLY)(
  'a public certificate is not replaced by one of the gateway, and files of the operator end the renewal',
  async () => {
    await join();
    acme.lasting(10);
    machine.write('etc/branchgate/tls/server.crt', '');
    machine.setChallenges(false);
    await expect(renew()).rejects.toMatchObject({
      kind: 'usage',
      message: expect.stringMatching(
        /cannot prove the name of this host.*give the certificate chain and the key/,
      ),
    });
    const own = selfSigned(machine.root, { name: 'own' });
    await machine.join({ join: { tlsCert: own.certFile, tlsKey: own.keyFile } });
    expect(machine.exists('etc/branchgate/tls/acme-account.key')).toBe(false);
    expect(machine.calls()).toContain('disable --now branchgate-certificate.timer');
    expect(changesOf(await renew())).toEqual([]);
  },
);
