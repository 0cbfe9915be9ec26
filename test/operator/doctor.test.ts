import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createSecureContext, TLSSocket } from 'node:tls';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Schemas } from '../../client/client.ts';
import { hostFindings } from '../../operator/doctor.ts';
import { selfSigned } from '../support/certificates.ts';

const HOUR_MS = 3_600_000;

let folder: string;
let certificate: ReturnType<typeof selfSigned>;
let port: number;

/** Presents the certificate as PostgreSQL and PgBouncer do: TLS begins after a request for it. */
const databaseServer = createServer((socket: Socket) => {
  socket.on('error', () => {});
  socket.once('data', () => {
    socket.write('S');
    const secureContext = createSecureContext({
      cert: readFileSync(certificate.certFile),
      key: readFileSync(certificate.keyFile),
    });
    new TLSSocket(socket, { isServer: true, secureContext }).on('error', () => {});
  });
});

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'branchgate-doctor-'));
  certificate = selfSigned(folder);
  await new Promise<void>((resolve) => databaseServer.listen(0, '127.0.0.1', resolve));
  port = (databaseServer.address() as AddressInfo).port;
});
afterAll(() => {
  databaseServer.close();
  rmSync(folder, { recursive: true });
});

const healthy = (): Schemas['Host'] => ({
  id: crypto.randomUUID(),
  name: 'db1',
  db_host: 'localhost',
  direct_port: port,
  pooled_port: port,
  ca_certificate: readFileSync(certificate.certFile, 'utf8'),
  linked: true,
  draining: false,
  region: null,
  capacity: null,
  available_version: null,
  members: [],
  project_count: 0,
  free_bytes: null,
  description: {
    described_at: new Date().toISOString(),
    agent_version: '1.0.0',
    postgres_version: '18.4',
    pooler_version: '1.25.2',
    clone_method: 'reflink',
    disk_bytes: null,
    largest_source: null,
    spares: null,
    last_backup_at: new Date(Date.now() - HOUR_MS).toISOString(),
    last_archived_at: null,
    certificate_names: ['localhost'],
    project_extensions: [],
    warnings: [],
  },
  enrolled_at: new Date().toISOString(),
  created_at: new Date().toISOString(),
});

const resultsOf = async (host: Schemas['Host']) =>
  Object.fromEntries((await hostFindings(host)).map(({ check, ok, result }) => [check, ok ? 'ok' : result]));

test('a host in order passes every check', async () => {
  expect(await resultsOf(healthy())).toEqual({
    'db1: agent': 'ok',
    'db1: name': 'ok',
    [`db1: certificate of port ${port}`]: 'ok',
    'db1: backups': 'ok',
  });
});

test('each fault of a host is named with its remedy, and the others are still checked', async () => {
  selfSigned(folder, { days: 10 });
  const { description, ...host } = healthy();
  if (!description) throw new Error('the host has a description');
  const old = new Date(Date.now() - 40 * HOUR_MS).toISOString();
  const faulty = { ...host, description: { ...description, warnings: ['A fault.'], last_backup_at: old } };
  expect(await resultsOf(faulty)).toEqual({
    'db1: agent': 'A fault.',
    'db1: name': 'ok',
    [`db1: certificate of port ${port}`]: expect.stringMatching(/^It ends in (9|10) days\. Renew it/),
    'db1: backups': 'The last backup is 40 hours old. Check its timer on the host.',
  });
  const untrusted = await resultsOf({ ...healthy(), ca_certificate: null });
  expect(untrusted[`db1: certificate of port ${port}`]).toMatch(/^Clients do not trust it: .*Replace it\.$/);
});

test('a host whose certificate does not cover the names of its projects', async () => {
  const checkNames = async (domain: string) =>
    (await hostFindings(healthy(), domain)).find(({ check }) => check === 'db1: names of projects');
  selfSigned(folder);
  expect(await checkNames('db.example.com')).toMatchObject({
    ok: false,
    result: expect.stringMatching(
      new RegExp(
        `^The certificate of port ${port} is not valid for \\*\\.db\\.example\\.com .* for localhost and`,
      ),
    ),
  });
  selfSigned(folder, { names: 'DNS:localhost,DNS:*.db.example.com' });
  expect(await checkNames('db.example.com')).toMatchObject({
    ok: true,
    result: 'the certificate is valid for *.db.example.com',
  });
  expect(await hostFindings(healthy())).toHaveLength(5);
});

test('a standby that is behind, one that does not follow, and a former primary', async () => {
  const host = healthy();
  const standbyOf = async (
    role: 'standby' | 'fenced',
    lag_bytes: number | null,
    lag_seconds: number | null,
  ) => {
    const members = [
      {
        host_id: crypto.randomUUID(),
        role: 'primary' as const,
        lag_bytes: null,
        lag_seconds: null,
        sync: null,
      },
      { host_id: host.id, role, lag_bytes, lag_seconds, sync: null },
    ];
    return resultsOf({ ...host, members });
  };
  const following = await standbyOf('standby', 10, 0.2);
  expect(following['db1: standby']).toBe('ok');
  expect(following).not.toHaveProperty('db1: backups');
  expect((await standbyOf('standby', 1e9, 300))['db1: standby']).toMatch(/^The standby is 300 s behind\./);
  expect((await standbyOf('standby', null, null))['db1: standby']).toMatch(
    /^There is no standby that follows\./,
  );
  expect(await standbyOf('fenced', null, null)).toEqual({
    'db1: standby': expect.stringMatching(
      /^Another host has taken its place\. Run `branchgate-agent rejoin`/,
    ),
  });
});

test('a host that is away, without a name, and one that never joined', async () => {
  const away = await resultsOf({ ...healthy(), linked: false, db_host: 'db1.invalid' });
  expect(away).toMatchObject({
    'db1: agent': expect.stringContaining('journalctl -u branchgate-agent'),
    'db1: name': expect.stringMatching(/^db1\.invalid has no address .*Make its DNS record\.$/),
    [`db1: certificate of port ${port}`]: expect.stringContaining('cannot be examined'),
  });
  const registered = await resultsOf({ ...healthy(), enrolled_at: null, description: null });
  expect(registered).toMatchObject({
    'db1: agent': expect.stringContaining('`branchgate host add` printed'),
    'db1: backups': expect.stringContaining('There is no backup.'),
  });
});
