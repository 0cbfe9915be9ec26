import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createSecureContext, TLSSocket } from 'node:tls';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Schemas } from '../../client/client.ts';
import { hostFindings } from '../../operator/doctor.ts';
import { selfSigned } from '../support/certificates.ts';
import { MAIL, Operator, URL_OF_GATEWAY } from '../support/operator/operator.ts';

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
  available_version: null,
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
    last_backup_at: new Date(Date.now() - HOUR_MS).toISOString(),
    last_archived_at: null,
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

describe('a deployed gateway', () => {
  let operator: Operator;
  beforeAll(async () => {
    operator = await Operator.open();
    operator.releaseMigrations();
    await operator.deploy(...operator.words());
  }, 120_000);
  afterAll(() => operator.close());

  /** What `npm run deploy -- doctor` says. */
  async function diagnosed(): Promise<{ code: number | null; results: Record<string, string> }> {
    const { code, stdout, stderr } = await operator.run('doctor', '--json');
    const { checks } = JSON.parse(stdout || stderr) as {
      checks: { check: string; ok: boolean; result: string }[];
    };
    const entries = checks.map(({ check, ok, result }) => [check, ok ? 'ok' : result]);
    return { code, results: Object.fromEntries(entries) };
  }

  test('in order, it lacks only a host, and the command that adds one is named', async () => {
    operator.hasHost = true;
    expect(await diagnosed()).toEqual({
      code: 1,
      results: {
        gateway: 'ok',
        database: 'ok',
        secrets: 'ok',
        settings: 'ok',
        mail: 'ok',
        'sign-in provider': 'ok',
        hosts: 'There is no database host. Add one with `branchgate host add`.',
      },
    });
    operator.hasHost = false;
    const { gateway } = (await diagnosed()).results;
    expect(gateway).toContain('no database host is connected. Add one with `branchgate host add`.');
  });

  test('each fault is named with its remedy, and the others are still checked', async () => {
    const { cloudflare } = operator;
    operator.gateway = () => new Response('error', { status: 500 });
    for (const { database } of cloudflare.databases.values())
      database.exec('DELETE FROM d1_migrations WHERE id = (SELECT max(id) FROM d1_migrations)');
    const { bindings } = cloudflare.serving('gate');
    bindings.splice(
      bindings.findIndex(({ name }) => name === 'JWT_KEYS'),
      1,
    );
    operator.unreachable.add(MAIL);
    operator.providerStatus = 404;
    const { code, results } = await diagnosed();
    expect(code).toBe(1);
    expect(results).toEqual({
      gateway: `${URL_OF_GATEWAY} does not answer: it responded to /readyz with status 500. Run \`npm run deploy\` again, and look at the Worker's logs in the dashboard.`,
      database: expect.stringMatching(/^D1 lacks 1 of \d+ migrations\. Run `npm run deploy -- upgrade`\.$/),
      secrets: 'The Worker lacks JWT_KEYS. Run `npm run deploy`.',
      settings: 'ok',
      mail: expect.stringMatching(/^mail\.example\.test cannot be reached: .*Check its address\.$/),
      'sign-in provider':
        'https://idp.example.test responds to its discovery document with status 404. Check IDP_URL.',
      hosts: expect.stringContaining('500'),
    });
  });
});
