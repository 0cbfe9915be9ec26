import { execFile } from 'node:child_process';
import { rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { rootCertificates } from 'node:tls';
import { promisify } from 'node:util';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { AUTHORITY_FILE, connectionOf, SNIPPETS } from '../../console/pages/connect/snippets.ts';
import { ROOT } from '../../dev/build/repository.ts';
import type { Credentials, ProjectBody } from '../support/api.ts';
import { temporaryFolder } from '../support/stack/stack.ts';
import { readStackFile } from '../support/stack/started-stack.ts';
import { ownerOf } from '../support/tenants.ts';

const run = promisify(execFile);
const folder = temporaryFolder();
const files = { right: join(folder, 'ca.crt'), wrong: join(folder, 'wrong.crt') };
let credentials: Credentials;

beforeAll(async () => {
  const api = await ownerOf('verified-tls');
  const { body: project } = await api.post<ProjectBody>('/api/v1/projects', { name: 'Verified' });
  const path = `/api/v1/projects/${project.id}`;
  await api.post(`${path}/network-rules`, { cidr: '127.0.0.1' });
  credentials = (await api.get<Credentials>(`${path}/branches/main/credentials`)).body;
  writeFileSync(files.right, credentials.ca_certificate ?? '');
  writeFileSync(files.wrong, rootCertificates[0] ?? '');
});
afterAll(() => rmSync(folder, { recursive: true }));

const PORTS = ['database_url', 'direct_url'] as const;

/** The URL as given, with the host name and the authority verified. */
function verified(port: (typeof PORTS)[number], ca: string): string {
  const url = new URL(credentials[port] ?? '');
  url.searchParams.set('sslmode', 'verify-full');
  url.searchParams.set('sslrootcert', ca);
  return url.href;
}

test('the credentials and stack.json name the same authority', () => {
  const { ca_certificate, ca_file } = readStackFile(inject('stack').devDir);
  expect(credentials.ca_certificate).toMatch(/^-----BEGIN CERTIFICATE-----/);
  expect(ca_certificate).toBe(credentials.ca_certificate);
  expect(ca_file).toBe(join(inject('stack').devDir, 'ca.crt'));
});

describe.each(PORTS)('%s', (port) => {
  test('psql verifies the server, and refuses another authority', async () => {
    const psql = (ca: string) => run('psql', [verified(port, ca), '-Atc', 'select 1']);
    expect((await psql(files.right)).stdout).toBe('1\n');
    await expect(psql(files.wrong)).rejects.toMatchObject({
      stderr: expect.stringContaining('certificate verify failed'),
    });
  });

  test('node-postgres verifies the server, and refuses another authority', async () => {
    const connect = async (ca: string) => {
      const client = new pg.Client({ connectionString: verified(port, ca) });
      await client.connect();
      return client.end();
    };
    await connect(files.right);
    await expect(connect(files.wrong)).rejects.toThrow(/unable to (?:get local issuer|verify)/);
  });

  test('a Node program trusts the authority by its environment, with the URL as given', async () => {
    const program = `import pg from 'pg';
      const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
      await client.connect();
      console.log((await client.query('select 1 as one')).rows);
      await client.end();`;
    const node = (env: Record<string, string>) =>
      run(process.execPath, ['--input-type=module', '-e', program], {
        env: { PATH: process.env.PATH, DATABASE_URL: credentials[port], ...env },
      });
    expect((await node({ NODE_EXTRA_CA_CERTS: files.right })).stdout).toBe('[ { one: 1 } ]\n');
    await expect(node({})).rejects.toMatchObject({ stderr: expect.stringContaining('certificate') });
  });

  test.each([
    'extra_float_digits=3',
    'options=-c statement_timeout=5000',
    'statement_timeout=5000',
    'lock_timeout=5000',
    'idle_in_transaction_session_timeout=5000',
    'jit=off',
  ])('accepts the startup parameter %s', async (parameter) => {
    const [name = '', ...value] = parameter.split('=');
    const url = new URL(credentials[port] ?? '');
    const client = new pg.Client({
      host: url.hostname,
      port: Number(url.port),
      user: url.username,
      password: url.password,
      database: url.pathname.slice(1),
      ssl: { ca: credentials.ca_certificate },
    });
    // `options` of the constructor knows only some of them; they are all sent alike.
    const startup = client as unknown as { getStartupConf(): Record<string, string> };
    const given = startup.getStartupConf.bind(client);
    startup.getStartupConf = () => ({ ...given(), [name]: value.join('=') });
    await client.connect();
    expect((await client.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
    await client.end();
  });
});

test('a timeout that is sent at the login applies on the direct port only', async () => {
  const url = (port: (typeof PORTS)[number]) =>
    `${verified(port, files.right)}&options=${encodeURIComponent('-c statement_timeout=4321')}`;
  const show = async (port: (typeof PORTS)[number]) =>
    (await run('psql', [url(port), '-Atc', 'show statement_timeout'])).stdout.trim();
  expect(await show('direct_url')).toBe('4321ms');
  expect(await show('database_url')).toBe('0');
});

/** How a person runs a snippet of the Connect page: a program, the snippet and a line that prints. */
const PROGRAMS: Record<string, [program: string, before: string, after: string]> = {
  psql: ['sh', '', " -Atc 'select 7'"],
  env: ['sh', '', '\nfor url in "$DATABASE_URL" "$DIRECT_URL"; do psql "$url" -Atc "select 7"; done'],
  'node-postgres': ['node', '', '\nconsole.log(rows.length + 6); await pool.end();'],
  drizzle: [
    'node',
    "import { drizzle } from 'drizzle-orm/node-postgres';\n",
    "\nconsole.log((await db.execute('select 7 as n')).rows[0].n); await db.$client.end();",
  ],
};

test.each(Object.entries(PROGRAMS))(
  'the snippet %s of the Connect page connects and prints no warning',
  async (id, [program, before, after]) => {
    const home = temporaryFolder();
    symlinkSync(join(ROOT, 'node_modules'), join(home, 'node_modules'));
    writeFileSync(join(home, AUTHORITY_FILE), credentials.ca_certificate ?? '');
    const { code } = SNIPPETS.find((snippet) => snippet.id === id) ?? {};
    const snippet = code?.({
      pooled: connectionOf(credentials.database_url ?? '', true),
      direct: connectionOf(credentials.direct_url ?? '', true),
      pooledKey: '',
      directKey: '',
    });
    const settings = [...(snippet ?? '').matchAll(/(\w+_URL)="([^"]*)"/g)].map(([, name, url]) => [
      name,
      url,
    ]);
    // A snippet of several files has its program at the end.
    const text = before + snippet?.replace(/^[\s\S]*\/\/ db\.ts\n/, '') + after;
    const words = program === 'sh' ? ['-c', text] : ['--input-type=module', '-e', text];
    const { stdout, stderr } = await run(program === 'sh' ? 'sh' : process.execPath, words, {
      cwd: home,
      env: { PATH: process.env.PATH, HOME: home, ...Object.fromEntries(settings) },
    });
    expect([
      stdout
        .trim()
        .split('\n')
        .every((line) => line === '7'),
      stderr,
    ]).toEqual([true, '']);
    rmSync(home, { recursive: true });
  },
);
