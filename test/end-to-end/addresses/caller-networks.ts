import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { rulesFolder } from '../../../agent/process/settings.ts';
import { RULE_FILES } from '../../../agent/servers/configuration.ts';
import { branchPerFile, branchSetup, workerBranch } from '../../../vitest/fixture.ts';
import { Api, type ProjectBody } from '../../support/api.ts';
import { CommandLine } from '../../support/command-line.ts';
import { openBrowser, visit } from '../../support/console/browser.ts';
import { signInOnPage, siteOf } from '../../support/console/person.ts';
import { eventually } from '../../support/eventually.ts';
import { freePort } from '../../support/free-port.ts';
import { gatewayFront } from '../../support/gateway-front.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import { HAS_PYTEST, runPytest } from '../../support/pytest.ts';
import { newOwner } from '../../support/sign-in/people.ts';
import { type Stack, temporaryFolder } from '../../support/stack/stack.ts';
import { openDoor, socketClient, socketQuery } from '../../support/web-socket.ts';

const run = promisify(execFile);
const BOTH = ['127.0.0.1/32', '::1/128'];

/** The gateway over IPv6, and the source of a list of networks that rules name. Over IPv4, the gateway has its own address. */
export class Surroundings {
  networks = Array.from({ length: 10 }, (_, n) => `104.${16 + 2 * n}.0.0/16`);
  readonly #gateway: string;
  #ports = { front: 0, source: 0 };
  readonly #source = createServer((_, response) => void response.end(this.networks.join('\n')));
  readonly #front: Server;

  /** @param gatewayPort on which it will listen */
  constructor(gatewayPort: string) {
    this.#gateway = `127.0.0.1:${gatewayPort}`;
    this.#front = gatewayFront(this.#gateway);
  }

  async start(): Promise<void> {
    this.#ports = { front: await freePort(), source: await freePort() };
    await once(this.#source.listen(this.#ports.source, '127.0.0.1'), 'listening');
    await once(this.#front.listen(this.#ports.front, '::1'), 'listening');
  }

  get overIpv6(): string {
    return `http://[::1]:${this.#ports.front}`;
  }

  /** Settings of the stack. */
  get settings(): Record<string, string> {
    return {
      LISTEN_ADDRESSES: '127.0.0.1,::1',
      BASE_URL: this.overIpv6,
      IPV4_HOST: this.#gateway,
      IPV6_HOST: `[::1]:${this.#ports.front}`,
      CLOUDFLARE_NETWORKS_URLS: `http://127.0.0.1:${this.#ports.source}`,
      // It reads the list again every second.
      CRON_SECONDS: '1',
    };
  }

  stop(): void {
    for (const server of [this.#front, this.#source]) {
      server.closeAllConnections();
      server.close();
    }
  }
}

export function describeCallerNetworks(running: () => Stack, surroundings: Surroundings): void {
  let stack: Stack;
  let api: Api;
  let projectId: string;
  const programs = temporaryFolder();

  beforeAll(async () => {
    // No resolver of this machine knows the name of the project.
    const psql = `#!/bin/sh\nexport PATH='${process.env.PATH}' PGHOSTADDR=127.0.0.1\nexec psql "$@"\n`;
    writeFileSync(join(programs, 'psql'), psql, { mode: 0o755 });
    stack = running();
    api = new Api(stack.url, await stack.token());
    ({ id: projectId } = await api.project('Both'));
  });
  afterAll(() => rmSync(programs, { recursive: true }));

  const commandLine = async (url: string) =>
    CommandLine.open({
      BRANCHGATE_URL: url,
      BRANCHGATE_PROJECT: projectId,
      BRANCHGATE_TOKEN: await stack.token(),
      PATH: `${programs}:${process.env.PATH}`,
    });

  type Rules = { network_rules: { id: string; cidr: string; branch_id: string | null }[] };
  const path = () => `/api/v1/projects/${projectId}`;
  const rulesOf = async (branchId: string) =>
    (await api.get<Rules>(`${path()}/network-rules?branch_id=${branchId}`)).body.network_rules;
  const networksOf = async (branchId: string) => (await rulesOf(branchId)).map(({ cidr }) => cidr).toSorted();

  /** Connects to both ports over each family. The certificate is for 127.0.0.1. */
  async function connectOverBoth(branch: string): Promise<void> {
    const { direct_url, database_url } = await api.credentials(projectId, branch);
    for (const PGHOSTADDR of ['127.0.0.1', '::1'])
      for (const url of [direct_url, database_url])
        expect(
          (await run('psql', [url, '-Atc', 'select 7'], { env: { ...process.env, PGHOSTADDR } })).stdout,
        ).toBe('7\n');
  }

  test.each(firstByDay(1, ['IPv4', 'IPv6']))(
    'a branch that is made over %s lets its maker connect over both families at the first try',
    async (family) => {
      const cli = await commandLine(family === 'IPv4' ? stack.url : surroundings.overIpv6);
      const name = `over-${family.toLowerCase()}`;
      const { id } = await cli.json<{ id: string }>('branch', 'create', name);
      expect(await networksOf(id)).toEqual(BOTH);
      await connectOverBoth(name);

      for (const { id: rule } of await rulesOf(id)) await api.delete(`${path()}/network-rules/${rule}`);
      const warned = await cli.run('connection-string', name);
      expect(warned.stderr).toMatch(/127\.0\.0\.1\/32 and ::1\/128|::1\/128 and 127\.0\.0\.1\/32/);
      const connected = await cli.run('psql', name, '--', '-Atc', 'select 7');
      expect(connected.stdout, connected.stderr).toBe('7\n');
      for (const network of BOTH) expect(connected.stderr).toContain(network);
      expect(await networksOf(id)).toEqual([]);

      await cli.json('rule', 'add', 'me', '--branch', name);
      expect(await networksOf(id)).toEqual(BOTH);
      const { stderr } = await cli.run('connection-string', name);
      for (const network of BOTH) expect(stderr).not.toContain(network);
      rmSync(cli.folder, { recursive: true, force: true });
    },
  );

  test('the warning compares both addresses', async () => {
    const { body: branch } = await api.post<{ id: string }>(`${path()}/branches`, { branch_name: 'warned' });
    const warningFor = async (other: string) => {
      const query = `other_address=${encodeURIComponent(other)}`;
      const { body } = await api.get<{ warning?: string; missing_networks?: string[] }>(
        `${path()}/branches/warned/credentials?${query}`,
      );
      return [body.warning, body.missing_networks];
    };
    const missing = await warningFor('2001:db8::7');
    expect(missing).toEqual([
      expect.stringContaining(JSON.stringify({ cidr: '2001:db8::7/128', branch_id: branch.id })),
      ['2001:db8::7/128'],
    ]);
    await api.post(`${path()}/network-rules`, { cidr: '2001:db8::/32', branch_id: branch.id });
    expect(await warningFor('2001:db8::7')).toEqual([undefined, undefined]);
    const { status } = await api.get(`${path()}/branches/warned/credentials?other_address=2001:db8::/32`);
    expect(status).toBe(422);
  });

  test('a rule by name admits the ranges of its list, and follows a change of it with an audit event', async () => {
    const { body: named } = await api.post<{ id: string }>(`${path()}/branches`, {
      branch_name: 'named',
    });
    const create = (body: object) => api.post<{ id: string }>(`${path()}/network-rules`, body);
    const rule = await create({ network: 'cloudflare', branch_id: named.id });
    expect(rule).toMatchObject({
      status: 201,
      body: { network: 'cloudflare', cidr: 'cloudflare', status: 'applied' },
    });
    expect(await create({ network: 'cloudflare', branch_id: named.id })).toMatchObject({
      status: 409,
      body: { error: 'RULE_EXISTS', rule_id: rule.body.id },
    });
    expect(await create({ network: 'github-actions' })).toMatchObject({
      status: 503,
      body: { error: 'NETWORK_LIST_UNAVAILABLE' },
    });
    for (const body of [{ network: 'internet' }, { network: 'cloudflare', cidr: 'me' }, {}])
      expect((await create(body)).status).toBe(422);

    const file = () =>
      readFileSync(
        join(rulesFolder({ STATE_DIR: join(stack.state.host_dir, 'agent') }), RULE_FILES.postgresHba),
        'utf8',
      );
    for (const network of surroundings.networks) expect(file()).toContain(` ${network} scram-sha-256`);
    const cli = await commandLine(stack.url);
    /** By the code of the command, whether an address of each list is admitted. */
    const expectCodes = async (codes: { '1.0.0.4': number; '104.16.3.4': number }) => {
      for (const [address, code] of firstByDay(1, Object.entries(codes)))
        expect((await cli.run('rule', 'test', address, 'named')).code, address).toBe(code);
    };
    await expectCodes({ '1.0.0.4': 5, '104.16.3.4': 0 });

    surroundings.networks = [...surroundings.networks.slice(1), '1.0.0.0/24'];
    await eventually(async () => expect(file()).toContain(' 1.0.0.0/24 scram-sha-256'));
    const { body } = await api.get<{ audit_events: { metadata: object }[] }>(
      '/api/v1/audit-events?name=network_rule.list_changed',
    );
    expect(body.audit_events.map(({ metadata }) => metadata)).toEqual([
      expect.objectContaining({ network: 'cloudflare', added: 1, removed: 1 }),
    ]);
    await expectCodes({ '1.0.0.4': 0, '104.16.3.4': 5 });
    expect((await cli.run('rule', 'remove', rule.body.id)).code).toBe(0);
    rmSync(cli.folder, { recursive: true, force: true });
  });

  test('a client of IPv6 uses SQL over HTTP and WebSocket by a rule for its own family', async () => {
    const { body: branch } = await api.post<{ id: string }>(
      `${path()}/branches`,
      { branch_name: 'six' },
      { 'CF-Connecting-IP': '203.0.113.9' },
    );
    const { database_url, direct_url } = await api.credentials(projectId, 'six');
    const urls = [database_url, direct_url];
    openDoor({ port: stack.state.sql_port, ca: stack.state.ca_certificate }, '::1');
    const overSocket = (url: string) => socketQuery(url, 'select 7 as n').catch(({ code }) => code);
    const overHttp = async (url: string) => {
      const response = await fetch(`${surroundings.overIpv6}/sql`, {
        method: 'POST',
        headers: { 'Neon-Connection-String': url },
        body: JSON.stringify({ query: 'select 7 as n', params: [] }),
      });
      const { code, rows } = (await response.json()) as { code?: string; rows?: object[] };
      return code ?? rows;
    };
    const outcomes = async () => Promise.all(urls.flatMap((url) => [overSocket(url), overHttp(url)]));
    const rule = (cidr: string) =>
      api.post<{ id: string }>(`${path()}/network-rules`, { cidr, branch_id: branch.id, via: 'sql' });
    // A rule for all of the other family admits nobody of this one.
    expect(await rule('0.0.0.0/0')).toMatchObject({ status: 201 });
    expect(await outcomes()).toEqual(Array(4).fill('28000'));
    const own = await rule('::1/128');
    expect(await outcomes()).toEqual(Array(4).fill([{ n: 7 }]));
    const open = await socketClient(direct_url);
    const ended = open.query('select pg_sleep(300)').then(
      () => 'done',
      () => 'ended',
    );
    await api.delete(`${path()}/network-rules/${own.body.id}`);
    expect(await ended).toBe('ended');
    expect(await outcomes()).toEqual(Array(4).fill('28000'));
  });

  test.runIf(IS_NIGHTLY)('the fixtures for Vitest and pytest let both addresses connect', async () => {
    const environment = {
      BRANCHGATE_URL: stack.url,
      BRANCHGATE_PROJECT: projectId,
      BRANCHGATE_TOKEN: await stack.token(),
    };
    for (const [name, value] of Object.entries(environment)) vi.stubEnv(name, value);
    const idOf = async (name: string) =>
      (await api.get<{ id: string }>(`${path()}/branches/${name}`)).body.id;
    const migrated: string[][] = [];
    const end = await branchSetup({
      workers: 1,
      migrations: ['vitest/package.json'],
      migrate: async ({ branch_name }) => {
        migrated.push(await networksOf(await idOf(branch_name)));
      },
    })();
    const ofFile = await branchPerFile();
    try {
      expect(migrated).toEqual([BOTH]);
      vi.stubEnv('VITEST_POOL_ID', '1');
      for (const { branch_name } of [workerBranch(), ofFile]) {
        expect(await networksOf(await idOf(branch_name))).toEqual(BOTH);
        await connectOverBoth(branch_name);
      }
    } finally {
      vi.unstubAllEnvs();
      await ofFile.end();
      await end();
    }

    const folder = temporaryFolder();
    const program = `import os, subprocess
def test_families(branch):
    for address in ("127.0.0.1", "::1"):
        subprocess.run(["psql", branch.direct_url, "-c", "select 7"], env={**os.environ, "PGHOSTADDR": address}, check=True)
`;
    writeFileSync(join(folder, 'test_families.py'), program);
    if (HAS_PYTEST) expect((await runPytest(folder, environment)).stdout).toContain('1 passed');
    rmSync(folder, { recursive: true });
  });

  test.runIf(IS_NIGHTLY)('the console adds both addresses', async () => {
    const site = { ...siteOf(stack), url: surroundings.overIpv6 };
    const owner = await newOwner(site, 'both@example.org');
    const { body: project } = await owner.api.post<ProjectBody>('/api/v1/projects', { name: 'Console' });
    const browser = await openBrowser();
    try {
      const { page } = await visit(browser, surroundings.overIpv6);
      await signInOnPage(page, owner.email);
      await page.goto(`/projects/${project.id}/branches/main/connect`);
      await page.getByRole('button', { name: 'Show connection' }).click();
      await page.getByRole('button', { name: 'Allow ::1/128 and 127.0.0.1/32' }).click();
      await page.getByText('You can connect from here.').waitFor();

      await page.goto(`/projects/${project.id}/create-branch`);
      await page.getByLabel('Name', { exact: true }).fill('two');
      await page.getByRole('button', { name: 'Create branch' }).click();
      await page.getByText('You can connect from here.').or(page.getByText(/two/)).first().waitFor();
      await eventually(async () => {
        const { body } = await owner.api.get<Rules>(`/api/v1/projects/${project.id}/network-rules`);
        expect(body.network_rules.filter(({ branch_id }) => branch_id !== null).length).toBe(4);
      });
    } finally {
      await browser.close();
    }
  });
}
