import { execFile, spawn } from 'node:child_process';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { beforeAll, expect, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../../dev/stack/dev-folder.ts';
import { Api, type ProjectBody } from '../../support/api.ts';
import { CloudflareDns } from '../../support/cloudflare-dns.ts';
import { CommandLine } from '../../support/command-line.ts';
import { eventually } from '../../support/eventually.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import type { Client, Visit } from '../../support/stack/named-client.ts';
import type { Stack } from '../../support/stack/stack.ts';
import { pathOf, runAt, TwoHosts } from '../../support/stack/two-hosts.ts';
import { TcpProxy } from '../../support/tcp-proxy.ts';

/** The certificate of the local servers covers it. */
export const DOMAIN = 'db.localhost';
const run = promisify(execFile);
/** A process that connects by name, and has this zone as its resolver. */
class NamedClient {
  readonly visits: Visit[] = [];
  readonly #child = spawn(
    process.execPath,
    [join(import.meta.dirname, '../../support/stack/named-client.ts')],
    {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    },
  );

  constructor(zone: CloudflareDns, client: Client) {
    this.#child.on('message', (message: { resolve: string } | { visit: Visit }) => {
      if ('visit' in message) this.visits.push(message.visit);
      else this.#child.send(zone.resolve(message.resolve) ?? '');
    });
    this.#child.send(client);
  }

  /** Resolves once it has counted so often at the server with this port. */
  hasVisited = (port: number, times: number) =>
    eventually(async () =>
      expect(
        this.visits.filter((visit) => visit.port === String(port)).length,
        JSON.stringify(this.visits.slice(-2)),
      ).toBeGreaterThanOrEqual(times),
    );

  stop = () => this.#child.kill('SIGKILL');
}

interface NamedHost {
  id: string;
  direct_port: number;
  pooled_port: number;
  description: { certificate_names: string[] } | null;
}

/** @param dns the zone of the stack's names */
export function describeProjectNames(running: () => Stack, dns: CloudflareDns): void {
  let stack: Stack;
  let api: Api;
  let platform: Api;

  beforeAll(async () => {
    stack = running();
    api = new Api(stack.url, await stack.token());
    platform = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET ?? '');
    // Which names its certificate covers is known after the first reconciliation.
    await eventually(async () => {
      const { body } = await platform.get<{ hosts: object[] }>('/platform/v1/hosts');
      expect(body.hosts).toMatchObject([
        { description: { certificate_names: ['localhost', `*.${DOMAIN}`] } },
      ]);
    });
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

  test.runIf(IS_NIGHTLY)(
    'a record that is lost, and the address of the host, are repaired by the reconciliation',
    async () => {
      await api.project('Lost', { app_key: 'lost' });
      dns.records = dns.records.filter(({ name }) => name !== `lost-prod.${DOMAIN}`);
      const { body } = await platform.get<{ hosts: { id: string }[] }>('/platform/v1/hosts');
      await platform.patch(`/platform/v1/hosts/${body.hosts[0]?.id}`, { db_host: 'localhost' });
      // A link begins with a reconciliation.
      await stack.kill('agent');
      await eventually(async () => expect(dns.resolve(`lost-prod.${DOMAIN}`)).toBe('localhost'));
    },
  );

  test.runIf(IS_NIGHTLY)(
    'processes that connect in a loop by name follow a project to another host, with the same URL',
    async () => {
      const zone = await new CloudflareDns().start();
      const two = await TwoHosts.start({ ...zone.settings, DB_DOMAIN: DOMAIN });
      const proxies: TcpProxy[] = [];
      const clients: NamedClient[] = [];
      try {
        const found = await eventually(async () => {
          const { body } = await two.platform.get<{ hosts: NamedHost[] }>('/platform/v1/hosts');
          for (const { description } of body.hosts)
            expect(description?.certificate_names).toContain(`*.${DOMAIN}`);
          return body.hosts;
        });
        const next = found.find(({ direct_port }) => direct_port === two.stack.state.direct_port);
        const former = found.find((host) => host !== next);
        if (!next || !former) throw new Error('a host is missing');
        // The hosts of a real installation have the same ports at different addresses.
        const address = '127.0.0.2';
        const ports = { direct_port: next.direct_port, pooled_port: next.pooled_port };
        for (const name of ['direct_port', 'pooled_port'] as const)
          proxies.push(await TcpProxy.start(former[name], null, { host: address, port: ports[name] }));
        const set = async (id: string, change: object) =>
          expect((await two.platform.patch(`/platform/v1/hosts/${id}`, change)).status).toBe(200);
        await set(former.id, { db_host: address, ...ports });
        await set(next.id, { draining: true });
        const project = await two.api.project('Named shop', { app_key: 'named_shop' });
        await set(next.id, { draining: false });
        await two.api.allow(project.id);
        const limited = await two.api.patch(`/api/v1/projects/${project.id}`, {
          connection_attempts_per_minute: 'max',
        });
        expect(limited.status, JSON.stringify(limited.body)).toBe(200);
        const name = `named-shop-prod.${DOMAIN}`;
        expect(zone.resolve(name)).toBe(address);
        const before = await two.api.credentials(project.id, 'main');
        const { database_url, direct_url } = before;
        const at = (url: string) => url.replace(name, zone.resolve(name) ?? '');
        await runAt(
          at(direct_url),
          "create table visit (who text primary key, n int not null); insert into visit values ('direct', 0), ('pooled', 0)",
        );
        // The hosts of a local stack have an authority each.
        const ca = [before.ca_certificate ?? '', two.stack.state.ca_certificate];
        for (const [who, url] of [
          ['direct', direct_url],
          ['pooled', database_url],
        ] as const) {
          expect(new URL(url).hostname).toBe(name);
          clients.push(new NamedClient(zone, { who, url, ca }));
        }
        for (const client of clients) await client.hasVisited(former.direct_port, 10);
        const { body: planned } = await two.platform.get(`${pathOf(project.id)}?host_id=${next.id}`);
        expect(planned).toMatchObject({ urls_change: false });

        await two.begin(project.id, next.id);
        await two.hasEnded(project.id, 'succeeded');
        for (const client of clients) await client.hasVisited(next.direct_port, 10);
        expect(zone.resolve(name)).toBe('127.0.0.1');
        const after = await two.api.credentials(project.id, 'main');
        expect([after.database_url, after.direct_url]).toEqual([database_url, direct_url]);

        for (const client of clients) client.stop();
        for (const { visits } of clients) {
          const seen = visits.map(({ port }) => port);
          const last = seen.lastIndexOf(String(former.direct_port));
          const first = seen.indexOf(String(next.direct_port));
          expect(first).toBeGreaterThan(last);
          // Each server had every commit that was confirmed before, by whichever.
          expect(visits.filter(({ port, n, least, most }) => port && !(n >= least && n <= most))).toEqual([]);
          // Nothing fails before the former host is closed, or after the other one has answered.
          const outside = [...visits.slice(0, last), ...visits.slice(first)];
          expect(outside.flatMap(({ error }) => error ?? [])).toEqual([]);
          process.stderr.write(`MEASURED by name: ${visits.length} visits, ${first - last - 1} failed\n`);
        }
        const rows = await runAt<{ who: string; n: number }>(
          at(direct_url),
          'select who, n from visit order by who',
        );
        for (const [at, { n }] of rows.entries()) {
          const last = clients[at]?.visits.at(-1);
          expect(n).toBeGreaterThanOrEqual((last?.least ?? 0) - 1);
        }
      } finally {
        for (const client of clients) client.stop();
        for (const proxy of proxies) proxy.stop();
        await two.stack.stop();
        zone.stop();
      }
    },
    300_000,
  );
}
