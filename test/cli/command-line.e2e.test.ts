import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, inject, onTestFinished, test } from 'vitest';
import { connectionOf } from '../../console/pages/connect/snippets.ts';
import { ROOT } from '../../dev/build/repository.ts';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import type { Api, ProjectBody } from '../support/api.ts';
import { CommandLine } from '../support/command-line.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { firstByDay, IS_NIGHTLY } from '../support/nightly.ts';
import { Browser } from '../support/sign-in/browser.ts';
import { temporaryFolder } from '../support/stack/stack.ts';
import { apiOf, ownerOf, tokenOf } from '../support/tenants.ts';

const run = promisify(execFile);
const TENANT = 'command-line';
const { url, devDir } = inject('stack');
const DISTRACTING = { BRANCHGATE_URL: url, BRANCHGATE_TOKEN: '' };

let api: Api;
let project: ProjectBody;
let cli: CommandLine;
let viewer: CommandLine;

beforeAll(async () => {
  api = await ownerOf(TENANT);
  project = await api.project('Shop');
  const settings = { BRANCHGATE_URL: url, BRANCHGATE_PROJECT: project.id };
  cli = await CommandLine.open({ ...settings, BRANCHGATE_TOKEN: await tokenOf({ tenant: TENANT }) });
  viewer = await CommandLine.open({
    ...settings,
    BRANCHGATE_TOKEN: await tokenOf({ tenant: TENANT, role: 'viewer' }),
  });
  await api.branch(project.id, 'pr-1');
});
afterAll(() => {
  for (const { folder } of [cli, viewer]) rmSync(folder, { recursive: true, force: true });
});

const branchNames = async () => {
  const path = `/api/v1/projects/${project.id}/branches`;
  const { body } = await api.get<{ branches: { branch_name: string }[] }>(path);
  return body.branches.map(({ branch_name }) => branch_name);
};

test.runIf(IS_NIGHTLY)('the packed command line installs and runs with npx in an empty folder', async () => {
  const folder = temporaryFolder();
  const npm = (...words: string[]) => run('npm', words, { cwd: folder, env: cli.environment });
  // The prepack script builds it.
  const { stdout } = await run('npm', ['pack', '--json', '--pack-destination', folder], {
    cwd: join(ROOT, 'cli'),
  });
  const packed = JSON.parse(stdout.slice(stdout.search(/^[[{]/m)));
  const [{ filename, files }] = Array.isArray(packed) ? packed : Object.values(packed);
  const sizes = Object.fromEntries(
    files.map(({ path, size }: { path: string; size: number }) => [path, size]),
  );
  expect(Object.keys(sizes).toSorted()).toEqual(['dist/branchgate.mjs', 'dist/mcp.mjs', 'package.json']);
  expect(sizes['dist/branchgate.mjs']).toBeLessThan(500_000);
  // Without the keychain, which is native and optional, so that the test needs no registry.
  await npm('install', '--offline', '--omit=optional', '--no-audit', '--no-fund', join(folder, filename));
  const shown = await npm('exec', '--offline', '--', 'branchgate', 'branch', 'list', '--json');
  expect(JSON.parse(shown.stdout)).toHaveLength(2);
  rmSync(folder, { recursive: true });
});

test.each(
  firstByDay<[number, boolean, string]>(1, [
    [17, false, 'postgresql-client-18'],
    [18, true, 'pg_dump (PostgreSQL) 18.1'],
  ]),
)('doctor compares pg_dump %i with the servers', async (major, ok, text) => {
  const folder = temporaryFolder();
  const program = join(folder, 'pg_dump');
  writeFileSync(program, `#!/bin/sh\necho 'pg_dump (PostgreSQL) ${major}.1'\n`, { mode: 0o755 });
  const env = { PATH: `${folder}:${process.env.PATH}` };
  const { stdout } = await cli.start(['doctor', '--json'], env).result;
  const { checks } = JSON.parse(stdout) as { checks: { check: string }[] };
  expect(checks.find(({ check }) => check === 'pg_dump')).toEqual({
    check: 'pg_dump',
    ok,
    result: expect.stringContaining(text),
  });
  rmSync(folder, { recursive: true });
});

test('branch create says how many direct sessions the clone ends, and a pooled one is none', async () => {
  const { direct_url, database_url } = await api.credentials(project.id, 'main');
  await api.allow(project.id);
  const [direct, pooled] = await Promise.all([connect(direct_url), connect(database_url)]);
  for (const client of [direct, pooled]) client.on('error', () => {});
  await pooled.query('select 1');
  const { code, stderr } = await cli.run('branch', 'create', 'from-busy');
  expect(code).toBe(0);
  expect(stderr).toContain('The clone ends 1 direct session of main.');
  expect(stderr).toMatch(
    /^The branch counts \d[\d.]* MiB against the storage quota, of which \d[\d.]* MiB of \d[\d.]* MiB are used\.$/m,
  );
  await expect(direct.query('select 1')).rejects.toThrow();
  expect((await pooled.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
  await pooled.end();
  if (IS_NIGHTLY)
    expect((await cli.run('branch', 'create', 'from-idle')).stderr).not.toContain('direct session');
  for (const name of IS_NIGHTLY ? ['from-busy', 'from-idle'] : ['from-busy'])
    await api.delete(`/api/v1/projects/${project.id}/branches/${name}?purge=true`);
});

test('extension list has those that the owner can create, and with --all the others', async () => {
  const names = async (...options: string[]) =>
    (await cli.json<{ name: string }[]>('extension', 'list', ...options)).map(({ name }) => name);
  const own = await names();
  expect(own).toContain('pgcrypto');
  expect(own).not.toContain('postgres_fdw');
  expect(await names('--all')).toEqual(expect.arrayContaining([...own, 'postgres_fdw']));
});

describe('the output', () => {
  test.each(
    firstByDay(1, [
      ['branch list', '/branches', 'branches'],
      ['project list', '/api/v1/projects', 'projects'],
      ['rule list', '/network-rules', 'network_rules'],
      ['job list', '/jobs', 'jobs'],
      ['trust list', '/trusts', 'trusts'],
      ['snapshot list', '/snapshots', 'snapshots'],
      ['key list', '/api/v1/api-keys', 'api_keys'],
      ['grant list', '/api/v1/oauth-grants', 'oauth_grants'],
      ['table list', '/branches/main/tables', 'tables'],
    ] as const),
  )('of %s --json are the records of the API', async (command, path, field) => {
    const full = path.startsWith('/api') ? path : `/api/v1/projects/${project.id}${path}`;
    // A measurement can come between the two.
    await eventually(async () => {
      const { body } = await api.get(full);
      expect(await cli.json(...command.split(' '))).toEqual(body[field]);
    });
  });

  test.each(
    firstByDay(0, [
      ['whoami', '/api/v1/me'],
      ['project get', ''],
      ['usage', '/usage'],
    ] as const),
  )('of %s --json is the record of the API', async (command, path) => {
    const full = path.startsWith('/api') ? path : `/api/v1/projects/${project.id}${path}`;
    const printed = await cli.json(...command.split(' '));
    const { body } = await api.get(full);
    expect(Object.keys(printed)).toEqual(Object.keys(body));
  });

  test('is about the project that the argument names, also next to --project', async () => {
    expect(await cli.json('project', 'get', 'Shop', '--project', 'nowhere')).toMatchObject({
      id: project.id,
    });
  });

  test('has the named fields only, as values separated by tabs, and without colour in a pipe', async () => {
    const { stdout } = await cli.run('branch', 'get', 'pr-1', '--json=branch_name,status');
    expect(JSON.parse(stdout)).toEqual({ branch_name: 'pr-1', status: 'active' });
    const plain = await cli.run('branch', 'list');
    expect(plain.stdout.split('\n')[1]).toMatch(/^pr-1\tactive\t/);
    expect(plain.stdout).not.toContain('\x1b');
  });

  test('has no password, except where it is asked for', async () => {
    const { database_url, direct_url } = await api.credentials(project.id, 'pr-1');
    const passwords = [database_url, direct_url].map((text) => new URL(text).password);
    const commands = ['credentials rotate pr-1 --role read_only', 'psql pr-1 -- -c \\q', 'branch get pr-1'];
    for (const command of firstByDay(2, commands)) {
      const { code, stdout, stderr } = await cli.run(...command.split(' '));
      expect([command, code]).toEqual([command, 0]);
      for (const password of passwords) expect(stdout + stderr).not.toContain(password);
    }
    const asked = await cli.run('connection-string', 'pr-1');
    // The same as on the Connect page.
    expect(asked.stdout).toBe(`${connectionOf(database_url, true).url}\n`);
    if (!IS_NIGHTLY) return;
    expect((await cli.run('connection-string', 'pr-1', '--direct', '--format', 'env')).stdout).toContain(
      `export DIRECT_URL='${connectionOf(direct_url, true).url}'\n`,
    );
    const serverless = (await cli.run('connection-string', 'pr-1', '--format', 'serverless')).stdout;
    expect(serverless).toMatch(/fetchEndpoint = 'http:\/\/[^']+\/sql';\n.*neon\('postgresql:\/\/u_/);
    expect(serverless).toMatch(
      /wsProxy = \(host, port\) => `\$\{host\}\/v2\?address=\$\{host\}:\$\{port\}`;/,
    );
    expect((await cli.run('connection-string', 'pr-1', '--format', 'jdbc')).stdout).toMatch(
      /^jdbc:postgresql:\/\/127\.0\.0\.1:\d+\/db_\S+\?user=u_\w+&password=\S+&sslmode=verify-full&sslrootcert=branchgate-ca\.pem\n$/,
    );
  });
});

test('a Node migration runs with the file and the lines of connection-string', async () => {
  const migration = join(cli.folder, 'migrate.cjs');
  writeFileSync(
    migration,
    `const { Client } = require('${join(ROOT, 'node_modules/pg')}');
     const client = new Client({ connectionString: process.env.DIRECT_URL });
     client.connect().then(() => client.query('create table if not exists by_node (id int)')).then(() => client.end());`,
  );
  const written = await cli.run('connection-string', 'pr-1', '--direct', '--format', 'dotenv');
  expect(written).toMatchObject({ code: 0, stderr: expect.stringContaining('branchgate-ca.pem') });
  writeFileSync(join(cli.folder, '.env'), written.stdout);
  const environment = { cwd: cli.folder, env: { PATH: process.env.PATH ?? '' } };
  await run(process.execPath, ['--env-file=.env', migration], environment);
  const line = /"(.*)"/.exec(written.stdout)?.[1] ?? '';
  const read = await run('psql', [line, '-Atc', "select to_regclass('by_node')"], environment);
  expect(read.stdout).toBe('by_node\n');
  expect(await cli.run('connection-string', 'pr-1', '--ca', 'no-folder/ca.pem')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--ca'),
  });
});

describe('exit codes', () => {
  test.each(
    firstByDay<[string, number, string]>(1, [
      ['branch get nowhere', 3, 'branchgate branch list'],
      ['branch create UPPER', 2, '[name]'],
      ['branch create pr-8 --ttl 5s', 2, '--ttl: Must be at least 60 seconds (1 minute).'],
      ['branch diff main', 6, 'main has no parent'],
      ['branch frobnicate', 2, 'unknown command'],
      ['project delete Shop', 2, '--yes'],
      ['project update Shop', 2, '--quota'],
      ['branch extend pr-1', 2, '--ttl'],
      ['branch create pr-1', 6, 'BRANCH_EXISTS'],
      ['rule test 192.0.2.1 pr-1', 5, 'No network rule'],
      ['exec --ephemeral --branch pr-1 -- true', 2, '--from'],
      ['exec --branch pr-1 -- no-such-program', 127, 'was not found'],
      ['exec --branch pr-1 -- /etc/passwd', 126, 'is not executable'],
      ['trust github nope', 2, 'owner/repository'],
      ['api GET //evil.example', 2, 'one slash'],
    ]),
  )('%s: %i', async (command, code, sentence) => {
    const result = await cli.run(...command.split(' '));
    expect(result).toMatchObject({ code, stdout: '', stderr: expect.stringContaining(sentence) });
  });

  test('5 for a role that may not, 4 without a token, 8 without a gateway, 124 after a timeout', async () => {
    expect(await viewer.run('branch', 'create', 'mine')).toMatchObject({ code: 5 });
    const nobody = cli.start(['branch', 'list'], { BRANCHGATE_TOKEN: '' });
    expect(await nobody.result).toMatchObject({
      code: 4,
      stderr: expect.stringContaining('branchgate login'),
    });
    const away = cli.start(['branch', 'list'], { BRANCHGATE_URL: 'http://127.0.0.1:1' });
    expect(await away.result).toMatchObject({ code: 8, stderr: expect.stringContaining('unreachable') });
    const { body } = await api.get<{ jobs: { id: string }[] }>(`/api/v1/projects/${project.id}/jobs`);
    const late = await cli.run('job', 'watch', body.jobs[0]?.id ?? '', '--timeout', '0s');
    expect(late).toMatchObject({ code: 124, stderr: expect.stringContaining('timed out') });
  });

  test('a token in the environment goes to no address that a file of the folder names', async () => {
    writeFileSync(
      join(cli.folder, '.branchgate.json'),
      JSON.stringify({ url: 'https://evil.example', project: 'p' }),
    );
    const { result } = cli.start(['branch', 'list'], { BRANCHGATE_URL: '' });
    expect(await result).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('BRANCHGATE_URL is missing'),
    });
    rmSync(join(cli.folder, '.branchgate.json'));
  });

  test('login waits for nobody when nobody is there', async () => {
    const { result } = cli.start(['login', url], DISTRACTING);
    expect(await result).toMatchObject({ code: 4, stderr: expect.stringContaining('BRANCHGATE_API_KEY') });
  });
});

test('branches are created with their choices, extended, pinned and deleted', async () => {
  await run('git', ['init', '--quiet', cli.folder]);
  const choices = ['--ttl', '2h', '--lease', '10m', '--label', 'pr=7', '--allow', '203.0.113.0/24'];
  const made = await cli.json('branch', 'create', 'pr-7', '--from', 'pr-1', ...choices);
  expect(made).toMatchObject({ branch_name: 'pr-7', lease_seconds: 600, labels: { pr: '7' }, created: true });
  expect((await cli.run('rule', 'test', '203.0.113.9', 'pr-7')).code).toBe(0);
  const again = await cli.json('branch', 'create', 'pr-7', '--from', 'pr-1', '--if-exists', 'return');
  expect(again).toMatchObject({ created: false });
  expect(await cli.json('branch', 'list', '--label', 'pr=7')).toEqual([
    expect.objectContaining({ id: made.id }),
  ]);
  expect(await cli.json('checkout', 'pr-7')).toEqual({ branch: 'pr-7' });
  // Nobody is there to see a browser, so the address is printed.
  const pageOf = (branch: string, page: string) => `${url}/projects/${project.id}/branches/${branch}/${page}`;
  expect((await cli.run('open')).stdout).toBe(`${pageOf('pr-7', 'tables')}\n`);
  expect(await cli.json('open', 'main', '--page', 'sql')).toEqual({ url: pageOf('main', 'sql') });
  expect((await cli.run('open', 'nowhere')).code).toBe(3);
  const rule = await api.allow(project.id, '192.0.2.0/24', String(made.id));
  expect(await cli.json('rule', 'remove', rule.id)).toEqual({ id: rule.id });
  if (IS_NIGHTLY) expect((await cli.run('checkout')).stdout).toBe('pr-7\n');
  expect(await cli.json('branch', 'renew', '--lease', '20m')).toMatchObject({ lease_seconds: 1200 });
  expect(await cli.json('branch', 'get')).toMatchObject({ branch_name: 'pr-7' });
  expect(await cli.json('branch', 'extend', '--ttl', '3h')).toMatchObject({ ttl_seconds: 10_800 });
  expect(await cli.json('branch', 'rename', 'pr-7', 'pr-8')).toMatchObject({
    id: made.id,
    branch_name: 'pr-8',
  });
  // The pin follows.
  expect(await cli.json('branch', 'rename', 'pr-8', 'pr-7')).toMatchObject({ branch_name: 'pr-7' });
  expect(await cli.json('checkout')).toEqual({ branch: 'pr-7' });
  const unnamed = await cli.json<{ branch_name: string }>('branch', 'create', '--lease', '10m');
  expect(unnamed.branch_name).toMatch(/^branch-[0-9a-f]{10}$/);
  const batch = await cli.json<unknown[]>('branch', 'create', 'w-', '--count', '2', '--ttl', '1h');
  expect(batch).toHaveLength(2);
  const created = ['pr-7', 'w-1', 'w-2', unnamed.branch_name];
  const deletion = await cli.run('branch', 'delete', ...created);
  expect(deletion.code).toBe(0);
  expect(deletion.stderr).toBe(
    ['pr-7', unnamed.branch_name]
      .map((name) => `${name} is deleted for good: it cannot be restored.\n`)
      .join(''),
  );
  expect((await cli.run('checkout', '--unpin')).code).toBe(0);
  expect(await branchNames()).toEqual(['main', 'pr-1']);
});

test.runIf(IS_NIGHTLY)(
  'branches are reset, protected, deleted and restored, and created from snapshots',
  async () => {
    const checkpoint = await cli.json('checkpoint', 'create', 'pr-1', '--label', 'first');
    expect(checkpoint).toMatchObject({ label: 'first', number: 1 });
    expect(await cli.json('checkpoint', 'list', 'pr-1')).toEqual([checkpoint]);
    expect(await cli.json('undo', 'pr-1')).toEqual({
      ...checkpoint,
      safety_checkpoint_id: expect.any(String),
    });
    const snapshot = await cli.json<{ id: string }>('snapshot', 'create', 'pr-1', '--name', 'before');
    const made = await cli.json('branch', 'create', 'pr-9', '--snapshot', 'before', '--ttl', '1h');
    expect(made).toMatchObject({ branch_name: 'pr-9', ttl_seconds: 3600 });
    expect(await cli.run('branch', 'reset', 'pr-9', '--to', 'before')).toMatchObject({
      code: 0,
      stderr: expect.stringMatching(/^What pr-9 held is the snapshot [0-9a-f-]{36} for 24 hours:/),
    });
    expect(await cli.json('branch', 'protect', 'pr-9')).toMatchObject({ protected: true });
    const refused = [
      ['branch reset pr-9', 5, '--confirm'],
      ['branch delete pr-9 --purge', 2, '--yes'],
      ['branch create pr-10 --snapshot before --from pr-1', 2, '--snapshot latest'],
      ['branch restore pr-9', 3, '--status deleted'],
      ['connection-string nope', 3, 'No branch nope was found in this project. (NOT_FOUND)'],
      ['undo pr-1', 3, 'no 1 checkpoint behind'],
      ['undo pr-1 --steps 1 --to x', 2, '--to or --steps'],
      ['snapshot delete nowhere', 3, 'snapshot list'],
    ] as const;
    const refuse = async ([command, code, sentence]: (typeof refused)[number]) =>
      expect(await cli.run(...command.split(' '))).toMatchObject({
        code,
        stderr: expect.stringContaining(sentence),
      });
    await Promise.all(refused.map(refuse));
    expect(await cli.run('branch', 'delete', 'pr-9')).toMatchObject({
      code: 5,
      stderr: expect.stringContaining('branchgate branch unprotect'),
    });
    expect(await cli.json('branch', 'unprotect', 'pr-9')).toMatchObject({ protected: false });
    expect((await cli.run('branch', 'delete', 'pr-9')).code).toBe(0);
    expect(await cli.json('branch', 'restore', 'pr-9', '--name', 'pr-10')).toMatchObject({ id: made.id });
    const deleted = await Promise.all([
      cli.run('branch', 'delete', 'pr-10', '--purge', '--yes'),
      cli.json('snapshot', 'delete', 'before'),
    ]);
    expect(deleted).toMatchObject([{ code: 0 }, { id: snapshot.id }]);
    expect(await branchNames()).toEqual(['main', 'pr-1']);
  },
);

test('operators add, change, drain and remove hosts; a tenant may not', async () => {
  const operator = { BRANCHGATE_PLATFORM_SECRET: gatewaySecrets(devFolder(devDir)).PLATFORM_SECRET };
  const { result } = cli.start(['host', 'list', '--json'], operator);
  const { code, stdout } = await result;
  const hosts = JSON.parse(stdout);
  expect(code).toBe(0);
  const [host] = hosts.filter(({ linked }: { linked: boolean }) => linked);
  if (IS_NIGHTLY) {
    // Not drained: other tests create projects.
    const undone = await cli.start(['host', 'drain', host.name, '--undo', '--json'], operator).result;
    expect(JSON.parse(undone.stdout)).toMatchObject({ id: host.id, draining: false });
    expect((await cli.start(['host', 'drain', 'nowhere'], operator).result).code).toBe(3);
  }
  const status = await cli.start(['host', 'drain', host.name, '--status'], operator).result;
  expect([status.code, status.stderr]).toEqual([3, expect.stringContaining(`${host.name} is not drained.`)]);
  expect(await cli.start(['host', 'remove', host.name, '--yes'], operator).result).toMatchObject({
    code: 6,
    stderr: expect.stringContaining('There are projects on this host'),
  });

  const added = await cli.start(['host', 'add', 'eu-9', '--address', 'eu-9.example.com'], operator).result;
  expect(added.stdout).toMatch(/^branchgate-agent join --gateway http\S+ --host eu-9 --token [\w-]{43}\n$/);
  const renamed = ['host', 'set', 'eu-9', '--address', 'db.example.com', '--json'];
  expect(JSON.parse((await cli.start(renamed, operator).result).stdout)).toMatchObject({
    name: 'eu-9',
    db_host: 'db.example.com',
  });
  if (IS_NIGHTLY) {
    const again = await cli.start(['host', 'set', 'eu-9', '--new-machine', '--json'], operator).result;
    expect(JSON.parse(again.stdout).enrolment_token).not.toBe(added.stdout.trim().split(' ').at(-1));
    expect((await cli.start(['host', 'set', 'eu-9'], operator).result).code).toBe(2);
  }
  expect(await cli.start(['host', 'remove', 'eu-9', '--yes'], operator).result).toMatchObject({ code: 0 });
  expect(await cli.run('host', 'list')).toMatchObject({ code: 4 });
});

test.runIf(IS_NIGHTLY)('the difference of a branch is counted and listed', async () => {
  await query(
    (await api.credentials(project.id, 'pr-1', '?role=owner')).direct_url,
    "create table differs (id int primary key, note text); insert into differs values (1, 'a'), (2, 'b')",
  );
  await cli.json('branch', 'create', 'pr-8', '--from', 'pr-1');
  await query(
    (await api.credentials(project.id, 'pr-8', '?role=owner')).direct_url,
    "update differs set note = 'x' where id = 2; delete from differs where id = 1",
  );
  const { stdout } = await cli.run('branch', 'diff', 'pr-8');
  expect(stdout).toMatch(/^public\tdiffers\t0\t1\t1\t\w+\n$/);
  const rows = await cli.run('branch', 'diff', 'pr-8', '--against', 'pr-1', '--rows', 'differs');
  expect(rows.stdout).toBe(
    'deleted\t{"id":1}\t{"id":1,"note":"a"}\t\nupdated\t{"id":2}\t{"note":"b"}\t{"note":"x"}\n',
  );
  expect(await cli.json('branch', 'diff', 'pr-8')).toMatchObject({
    schema: null,
    rows: { not_compared: [] },
  });
  await query(
    (await api.credentials(project.id, 'pr-8', '?role=owner')).direct_url,
    'alter table differs add more int',
  );
  const statement = /ALTER TABLE \S*differs\S* ADD COLUMN .*more.*;\n$/;
  const schema = await cli.run('branch', 'diff', 'pr-8', '--schema');
  expect(schema.stdout).toContain('\nadded\tcolumn\tpublic.differs.more\t');
  expect(schema.stdout).toMatch(statement);
  const statements = await cli.run('branch', 'diff', 'pr-8', '--statements');
  expect(statements.stdout).toMatch(new RegExp(`^${statement.source}`));
  expect((await cli.run('branch', 'delete', 'pr-8')).code).toBe(0);
});

test('a new project shows its size, that its host is connected, and another one of its name', async () => {
  const named = await api.call<{ id: string; warning?: string }>('POST', '/api/v1/projects', {
    body: { name: 'Shop' },
  });
  expect(named.body.warning).toContain('Another project is named Shop too');
  // Also where the client did not wait for the creation, and sends its key again.
  const headers = { 'idempotency-key': crypto.randomUUID(), prefer: 'wait=0' };
  const again = () =>
    api.call<{ id: string; warning?: string }>('POST', '/api/v1/projects', {
      body: { name: 'Shop' },
      headers,
    });
  const repeated = await eventually(async () => {
    const response = await again();
    expect(response.status).toBe(201);
    return response.body;
  });
  expect(repeated.warning).toContain('Another project is named Shop too');
  const renamed = async (name: string) => cli.run('project', 'update', repeated.id, '--name', name);
  if (IS_NIGHTLY) expect(await renamed('Shop only')).toMatchObject({ code: 0, stderr: '' });
  else await api.patch(`/api/v1/projects/${repeated.id}`, { name: 'Shop only' });
  expect((await renamed('Shop')).stderr).toContain('Another project is named Shop too');
  await api.delete(`/api/v1/projects/${repeated.id}`);
  await eventually(async () => {
    const { body } = await api.get(`/api/v1/projects/${named.body.id}/usage`);
    expect(body).toMatchObject({ host_connected: true });
    expect(body.storage_used_bytes).toBeGreaterThan(0);
  }, 10);
  const leased = await api.branch(named.body.id, 'leased', { lease_seconds: 300 });
  const { body: usage } = await api.get<{ branches: { database_size_bytes: number }[] }>(
    `/api/v1/projects/${named.body.id}/usage`,
  );
  expect(usage.branches.every(({ database_size_bytes }) => database_size_bytes > 0)).toBe(true);
  const { body } = await api.get(`/api/v1/projects/${named.body.id}`);
  expect(body).toMatchObject({ branch_count: 2, leased_branch_count: 1 });
  expect(await api.delete(`/api/v1/projects/${named.body.id}/branches/${leased.id}`)).toMatchObject({
    body: { restorable_until: null },
  });
});

test('a terminal shows tables, sizes and times as people read them', async () => {
  await query(
    (await api.credentials(project.id, 'pr-1')).direct_url,
    'create table shown (id int primary key)',
  );
  const onTerminal = async (...words: string[]) => {
    const line = [...cli.words, ...words].map((word) => `'${word}'`).join(' ');
    const shown = await run('script', ['-qefc', line, '/dev/null'], {
      env: { ...cli.environment, NO_COLOR: '1' },
      cwd: cli.folder,
    });
    return shown.stdout.replaceAll('\r', '');
  };
  const usage = await onTerminal('usage');
  expect(usage).toMatch(/^storage_used_bytes +\d[\d.]* MiB$/m);
  expect(usage).toMatch(/^Branches\nBRANCH NAME +DATABASE SIZE +NEXT BRANCH/m);
  // From when the sizes are, once they were measured.
  expect(usage).toMatch(/^observed_at/m);
  expect(usage).toMatch(/^disk_measured_at/m);
  expect(usage).toMatch(/^main +\d[\d.]* MiB /m);
  if (IS_NIGHTLY) expect(await onTerminal('branch', 'list')).toMatch(/^main .+ ago /m);
  const table = await onTerminal('table', 'get', 'shown', '--branch', 'pr-1');
  expect(table).toMatch(/^Columns\nNAME +TYPE +NULLABLE/m);
  expect(table).toMatch(/^id +integer +not null/m);

  expect(await cli.run('branch', 'diff', 'pr-1', '--against', 'pr-1')).toMatchObject({
    code: 0,
    stdout: '',
    stderr: expect.stringContaining('Nothing differs.'),
  });
});

test('rows are filtered and ordered, and a statement is run', async () => {
  const { direct_url } = await api.credentials(project.id, 'pr-1', '?role=owner');
  await query(direct_url, 'create table ranked (id int primary key, note text)');
  const words = ['query', 'insert into ranked select n, $1 from generate_series(1, 3) n'];
  const options = ['--branch', 'pr-1'];
  const [written, refused] = await Promise.all([
    cli.run(...words, '--param', 'a b', '--write', ...options),
    cli.run(...words, '--param', 'a b', ...options),
  ]);
  expect(written).toMatchObject({ code: 0, stdout: '', stderr: 'INSERT 3\n' });
  expect(refused).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/STATEMENT_REFUSED\) Run it with --write\./),
  });
  const both = await cli.run(
    'query',
    "alter table ranked alter column note set default 'x'; select 'a' as b",
    '--owner',
    ...options,
  );
  expect(both).toMatchObject({ code: 0, stdout: 'a\n', stderr: 'ALTER\n' });
  const filter = ['--filter', 'id gt 1', '--filter', 'note contains A B'];
  const [rows, found] = await Promise.all([
    cli.run('rows', 'ranked', ...filter, '--order', 'id desc', ...options),
    cli.run('query', 'select id, note as id from ranked limit 1', ...options),
  ]);
  expect(rows.stdout).toBe('3\ta b\n2\ta b\n');
  expect(found.stdout).toBe('1\ta b\n');
});

test('the changes of a project are followed', async () => {
  const { child, result } = cli.start(['events', '--json']);
  // Also after a time-out, when the test itself does not go on.
  onTestFinished(async () => {
    child.kill('SIGKILL');
    await result;
  });
  let output = '';
  child.stdout?.on('data', (text: string) => {
    output += text;
  });
  await eventually(async () => expect(output).toContain('"type":"ready"'), 60);
  const rule = await cli.json<{ id: string }>('rule', 'add', '192.0.2.7', '--ttl', '1h');
  if (IS_NIGHTLY) {
    const extended = await cli.json('rule', 'extend', rule.id, '--ttl', 'forever');
    expect(extended).toMatchObject({ id: rule.id, expires_at: null });
  }
  expect(await cli.json('rule', 'extend', rule.id, '--via', 'sql')).toMatchObject({ via: 'sql' });
  expect(await cli.run('rule', 'test', '192.0.2.7')).toMatchObject({ code: 5 });
  expect(await cli.json('rule', 'test', '192.0.2.7', '--via', 'sql')).toMatchObject([{ id: rule.id }]);
  await eventually(async () => expect(output).toContain(rule.id), 60);
  const [first = ''] = output.split('\n');
  expect(JSON.parse(first)).toMatchObject({ type: 'ready', data: { project_id: project.id } });
});

describe('exec', () => {
  const script = (text: string) => ['--', 'sh', '-c', text];

  test('gives the command verified connections, and no password in an argument', async () => {
    const { code, stdout, stderr } = await cli.run(
      'exec',
      '--branch',
      'pr-1',
      ...script(
        `psql -Atc "select 'as owner'" && psql "$DATABASE_URL" -Atc "select 'pooled'" && stat -c %a "$PGPASSFILE" &&
         echo "$DATABASE_URL" && test -z "$PGPASSWORD" && tr '\\0' ' ' < /proc/$PPID/cmdline`,
      ),
    );
    expect([code, stderr]).toEqual([0, '']);
    const [owner, pooled, mode, given = '', argv] = stdout.split('\n');
    expect([owner, pooled, mode]).toEqual(['as owner', 'pooled', '600']);
    expect(given).toContain('sslmode=verify-full');
    expect(argv).not.toContain(new URL(given).password);
  });

  test('runs Node programs that verify the server, and removes its files', async () => {
    const program = `const { Client } = require('${join(ROOT, 'node_modules/pg')}');
      const client = new Client({ connectionString: process.env.DATABASE_URL });
      client.connect().then(() => client.end()).then(() => console.log(process.env.PGPASSFILE));`;
    const { code, stdout } = await cli.run('exec', '--branch', 'pr-1', '--', process.execPath, '-e', program);
    expect(code).toBe(0);
    expect(statSync(stdout.trim(), { throwIfNoEntry: false })).toBeUndefined();
  });

  test.each(
    firstByDay<[string, string, number]>(1, [
      ['an exit code', 'exit 7', 7],
      ['a signal', 'kill -KILL $$', 137],
    ]),
  )('passes on %s', async (_, text, code) => {
    expect((await cli.run('exec', '--branch', 'pr-1', ...script(text))).code).toBe(code);
  });

  test('refuses an inherited DATABASE_URL', async () => {
    const { result } = cli.start(['exec', '--branch', 'pr-1', '--', 'true'], {
      DATABASE_URL: 'postgres://production',
    });
    expect(await result).toMatchObject({ code: 2, stderr: expect.stringContaining('env -u DATABASE_URL') });
  });

  test('--ephemeral has a branch of its own, which is gone when the command has ended', async () => {
    const { code, stdout, stderr } = await cli.run(
      'exec',
      '--ephemeral',
      '--',
      'psql',
      '-Atc',
      'select current_database()',
    );
    expect(code).toBe(0);
    const name = /Branch: (exec-\w+)/.exec(stderr)?.[1];
    expect(stdout.trim()).toMatch(new RegExp(`_br_${name}$`));
    expect(await branchNames()).toEqual(['main', 'pr-1']);
  });

  test.runIf(IS_NIGHTLY)(
    '--ephemeral in a full project names the limit and who raises it, and runs nothing',
    async () => {
      const full = await api.project('Full');
      expect(await api.fill(full.id)).toMatchObject({ status: 429, body: { limit: 10, current: 10 } });
      const ephemeral = ['exec', '--ephemeral', '--project', full.id];
      const { code, stdout, stderr } = await cli.run(...ephemeral, ...script('echo ran'));
      expect([code, stdout]).toEqual([7, '']);
      expect(stderr).toMatch(/branch_limit.*platform operator/);
      await api.delete(`/api/v1/projects/${full.id}`);
    },
  );

  test('--ephemeral leaves nothing after Ctrl-C, which the command gets too', async () => {
    // The signal of the terminal and the one that is passed on may arrive one after the other.
    const text = `trap "trap '' INT; echo interrupted; exit 3" INT; echo ready; while :; do sleep 0.1; done`;
    const { child, result } = cli.start(['exec', '--ephemeral', ...script(text)]);
    let output = '';
    child.stdout?.on('data', (chunk: string) => {
      output += chunk;
    });
    await eventually(async () => expect(output).toContain('ready'), 60);
    expect(await branchNames()).toHaveLength(3);
    process.kill(-(child.pid ?? 0), 'SIGINT');
    expect(await result).toMatchObject({ code: 3, stdout: 'ready\ninterrupted\n' });
    expect(await branchNames()).toEqual(['main', 'pr-1']);
  });
});

test.runIf(IS_NIGHTLY)(
  'behind two translations of addresses, the refusal names the address that the host sees',
  async () => {
    const front = createServer((incoming, outgoing) => {
      const headers = { ...incoming.headers, 'cf-connecting-ip': '203.0.113.7' };
      const passed = request(
        new URL(incoming.url ?? '', url).href,
        { method: incoming.method, headers },
        (answer) => {
          outgoing.writeHead(answer.statusCode ?? 502, answer.headers);
          answer.pipe(outgoing);
        },
      );
      incoming.pipe(passed);
    });
    await once(front.listen(0, '127.0.0.1'), 'listening');
    const { port } = front.address() as AddressInfo;
    const { id } = await api.project('Private network');
    const inside = await CommandLine.open({
      BRANCHGATE_URL: `http://127.0.0.1:${port}`,
      BRANCHGATE_PROJECT: id,
      BRANCHGATE_TOKEN: await tokenOf({ tenant: TENANT }),
    });
    try {
      const psql = () => inside.run('psql', '--', '-Atc', 'select 1');
      const refused = await psql();
      expect(refused.code).toBe(2);
      expect(refused.stderr).toContain('203.0.113.7/32 may connect to main until');
      expect(refused.stderr).toMatch(
        /sees this machine as 127\.0\.0\.1, .*`branchgate rule add observed --branch main`/,
      );
      await api.allow(id, '203.0.113.7/32');
      expect((await inside.run('doctor')).stdout).toMatch(/address\s+false\s.*as 127\.0\.0\.1/);
      // With the rule of its creator.
      await (await apiOf({ tenant: TENANT, role: 'admin' })).branch(id, 'theirs');
      const added = await inside.run('rule', 'add', 'observed', '--branch', 'main', '--json');
      expect(JSON.parse(added.stdout)).toMatchObject({ cidr: '127.0.0.1/32' });
      expect(added.stderr).toContain('of another member is for 127.0.0.1/32 too.');
      expect(await psql()).toMatchObject({ code: 0, stdout: '1\n' });
      const again = await inside.run('rule', 'add', 'observed');
      expect([again.code, again.stderr]).toEqual([1, expect.stringContaining('a rule admits it')]);
    } finally {
      front.closeAllConnections();
      front.close();
      rmSync(inside.folder, { recursive: true, force: true });
    }
  },
);

test.runIf(IS_NIGHTLY)(
  'psql adds a rule for this machine where none lets it connect, says so, and removes it',
  async () => {
    const other = await api.project('Closed');
    const psql = () => cli.run('psql', '--project', other.id, '--', '-Atc', 'select 1');
    const { code, stdout, stderr } = await psql();
    expect({ code, stdout }).toEqual({ code: 0, stdout: '1\n' });
    expect(stderr).toContain('127.0.0.1/32 may connect to main until this command ends');
    const rules = () => cli.json<{ expires_at: string }[]>('rule', 'list', '--project', other.id);
    expect(await rules()).toEqual([]);

    const exec = (script: string) => cli.start(['exec', '--project', other.id, '--', 'sh', '-c', script]);
    const first = exec('until [ -e second ]; do sleep 0.1; done');
    await eventually(async () => expect(await rules()).toHaveLength(1), 60);
    // It needs the rule of the first one, which ends before it.
    const second = exec('touch second; until [ -e first-ended ]; do sleep 0.1; done');
    expect(await first.result).toMatchObject({ code: 0 });
    expect(await rules()).toHaveLength(1);
    writeFileSync(join(cli.folder, 'first-ended'), '');
    expect(await second.result).toMatchObject({ code: 0, stderr: '' });
    expect(await rules()).toEqual([]);

    const interrupted = cli.start(['psql', '--project', other.id, '--', '-c', 'select pg_sleep(60)']);
    await eventually(async () => expect(await rules()).toHaveLength(1));
    process.kill(-(interrupted.child.pid ?? 0), 'SIGINT');
    expect((await interrupted.result).code).not.toBe(0);
    expect(await rules()).toEqual([]);
    // Of no command so far, ended or interrupted.
    expect(readdirSync(cli.folder).filter((name) => name.startsWith('branchgate-'))).toEqual([]);

    const { child, result } = exec('sleep 60');
    await eventually(async () => expect(await rules()).toHaveLength(1));
    process.kill(-(child.pid ?? 0), 'SIGKILL');
    await result;
    const [{ expires_at } = { expires_at: '' }] = await rules();
    expect(Date.parse(expires_at) - Date.now()).toBeLessThan(3_600_000);
  },
);

test('completion offers the names of branches in bash', async () => {
  const [node = '', file = ''] = cli.words;
  const bin = join(cli.folder, 'bin-branchgate');
  writeFileSync(bin, `#!/bin/sh\nexec ${node} ${file} "$@"\n`, { mode: 0o755 });
  const { stdout: script } = await cli.run('completion', 'bash');
  const line = `branchgate() { ${bin} "$@"; }; ${script}
    COMP_WORDS=(branchgate branch get p); COMP_CWORD=3; _branchgate; printf '%s\\n' "\${COMPREPLY[@]}"`;
  const { stdout } = await run('bash', ['-c', line], { env: cli.environment, cwd: cli.folder });
  expect(stdout).toBe('pr-1\n');
});

describe('sign-in', () => {
  test('in a terminal, with the browser; the tokens are stored for their owner only, and are renewed', async () => {
    const person = await CommandLine.open({});
    const words = [...person.words, 'login', '--no-browser', url].map((word) => `'${word}'`).join(' ');
    const terminal = spawn('script', ['-qefc', words, '/dev/null'], {
      env: { ...person.environment, CI: '' },
      cwd: person.folder,
      stdio: ['pipe', 'pipe', 'ignore'],
    });
    const ended = once(terminal, 'close');
    let screen = '';
    terminal.stdout.setEncoding('utf8').on('data', (text: string) => {
      screen += text;
    });
    const address = await eventually(async () => {
      const found = /^(http\S+authorize\S+)\r?$/m.exec(screen)?.[1];
      if (!found) throw new Error(`no address in: ${screen}`);
      return found;
    }, 60);
    await new Browser(() => true).signIn(address, 'ada@example.com');
    expect((await ended)[0]).toBe(0);
    expect(screen).toContain('Signed in');
    expect(await person.json('whoami')).toMatchObject({ email: 'ada@example.com', tenant_id: 'acme' });

    const file = join(person.folder, 'branchgate/tokens.json');
    expect(statSync(file).mode & 0o777).toBe(0o600);
    const stored = JSON.parse(readFileSync(file, 'utf8'));
    for (const secret of [stored.default.access_token, stored.default.refresh_token])
      expect(screen).not.toContain(secret);
    writeFileSync(
      file,
      JSON.stringify({ default: { ...stored.default, access_token: 'v4.public.expired' } }),
    );
    expect(await person.json('whoami')).toMatchObject({ email: 'ada@example.com' });
    expect(await person.json('profile', 'list')).toEqual([
      { name: 'default', url, current: true, signed_in: true },
    ]);
    expect((await person.run('logout')).code).toBe(0);
    expect((await person.run('whoami')).code).toBe(4);
    rmSync(person.folder, { recursive: true });
  });

  test('an API key in the environment', async () => {
    const key = await cli.json<{ key: string; id: string }>('key', 'create', 'CI', '--days', '1');
    const machine = await CommandLine.open({ BRANCHGATE_URL: url, BRANCHGATE_API_KEY: key.key });
    expect(await machine.json('whoami')).toMatchObject({ actor_type: 'key' });
    expect((await cli.run('key', 'revoke', key.id)).code).toBe(0);
    // A gateway honours a revoked key for some seconds more (docs/machine-access.md).
    expect(await api.get('/api/v1/api-keys')).toMatchObject({ body: { api_keys: [] } });
    if (IS_NIGHTLY) {
      const wrong = machine.start(['whoami'], { BRANCHGATE_API_KEY: `${key.key}x` });
      expect(await wrong.result).toMatchObject({ code: 4 });
    }
    rmSync(machine.folder, { recursive: true });
  });
});
