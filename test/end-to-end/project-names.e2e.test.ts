import { execFile } from 'node:child_process';
import { rmSync } from 'node:fs';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api, type ProjectBody } from '../support/api.ts';
import { CloudflareDns } from '../support/cloudflare-dns.ts';
import { CommandLine } from '../support/command-line.ts';
import { eventually } from '../support/eventually.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

/** The certificate of the local servers covers it. */
const DOMAIN = 'db.localhost';
const run = promisify(execFile);
const dns = new CloudflareDns();
let stack: Stack;
let api: Api;
let platform: Api;

beforeAll(async () => {
  await dns.start();
  stack = await startStack({ env: { ...dns.settings, DB_DOMAIN: DOMAIN } });
  api = new Api(stack.url, await stack.token());
  platform = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET ?? '');
  // Which names its certificate covers is known after the first reconciliation.
  await eventually(async () => {
    const { body } = await platform.get<{ hosts: object[] }>('/platform/v1/hosts');
    expect(body.hosts).toMatchObject([{ description: { certificate_names: ['localhost', `*.${DOMAIN}`] } }]);
  });
});
afterAll(async () => {
  await stack?.stop();
  dns.stop();
});

/** Connects as a client with this name and a resolver of the zone. @returns the address of the server's port */
async function connectByName(url: string): Promise<string> {
  const verified = new URL(url);
  const address = dns.resolve(verified.hostname);
  if (address === null) throw new Error(`${verified.hostname} has no address`);
  verified.searchParams.set('sslmode', 'verify-full');
  verified.searchParams.set('sslrootcert', stack.state.ca_file);
  verified.searchParams.set('hostaddr', address);
  const { stdout } = await run('psql', [verified.href, '-Atc', 'select current_database()']);
  return stdout.trim();
}

test('a project has a name of its own in each URL, by which clients verify the server', async () => {
  const project = await api.project('Shop', { app_key: 'web_shop' });
  const branch = await api.branch(project.id, 'pr-1');
  const name = `web-shop-prod.${DOMAIN}`;
  expect(dns.resolve(name)).toBe('127.0.0.1');
  for (const ref of ['main', 'pr-1'])
    for (const query of ['', '?role=read_only', '?role=owner']) {
      const { database_url, direct_url } = await api.credentials(project.id, ref, query);
      expect([database_url, direct_url].map((url) => new URL(url ?? '').hostname)).toEqual([name, name]);
    }
  const { database_url, direct_url } = await api.credentials(project.id, 'pr-1');
  for (const url of [database_url, direct_url]) expect(await connectByName(url)).toBe(branch.database_name);
  const cli = await CommandLine.open({
    BRANCHGATE_URL: stack.url,
    BRANCHGATE_PROJECT: project.id,
    BRANCHGATE_TOKEN: await stack.token(),
  });
  expect((await cli.run('connection-string', 'main')).stdout).toContain(`@${name}:`);
  rmSync(cli.folder, { recursive: true });

  await api.delete(`/api/v1/projects/${project.id}`);
  await eventually(async () => expect(dns.resolve(name)).toBeNull());
});

test('a project is created while the DNS service is away as soon as it is back', async () => {
  dns.isRefusing = true;
  const creation = api.post<ProjectBody & { id: string }>(
    '/api/v1/projects',
    { name: 'Late', app_key: 'late' },
    { Prefer: 'wait=1' },
  );
  const { status } = await creation;
  expect(status).toBe(202);
  dns.isRefusing = false;
  await eventually(async () => {
    const { body } = await api.get<{ projects: ProjectBody[] }>('/api/v1/projects');
    expect(body.projects.find(({ name }) => name === 'Late')).toMatchObject({ status: 'active' });
  });
  expect(dns.resolve(`late-prod.${DOMAIN}`)).toBe('127.0.0.1');
});

test('a record that is lost, and the address of the host, are repaired by the reconciliation', async () => {
  await api.project('Lost', { app_key: 'lost' });
  dns.records = dns.records.filter(({ name }) => name !== `lost-prod.${DOMAIN}`);
  const { body } = await platform.get<{ hosts: { id: string }[] }>('/platform/v1/hosts');
  await platform.patch(`/platform/v1/hosts/${body.hosts[0]?.id}`, { db_host: 'localhost' });
  // A link begins with a reconciliation.
  await stack.kill('agent');
  await eventually(async () => expect(dns.resolve(`lost-prod.${DOMAIN}`)).toBe('localhost'));
});
