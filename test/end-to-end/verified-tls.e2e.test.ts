import { execFile } from 'node:child_process';
import {
  existsSync,
  globSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { rootCertificates } from 'node:tls';
import { promisify } from 'node:util';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { connectionOf, SNIPPETS } from '../../console/pages/connect/snippets.ts';
import { ROOT } from '../../dev/build/repository.ts';
import { AUTHORITY_FILE } from '../../shared/branch/verified-url.ts';
import type { Credentials, ProjectBody } from '../support/api.ts';
import { install as installDebian } from '../support/debian.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
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

interface Program {
  /** What comes before and after the snippet. */
  before?: string;
  after?: string;
  /** The words of the command. @param text the snippet with what comes before and after */
  command: (text: string) => string[];
  /** The folder of its packages. */
  packages?: string;
}

const inShell = (text: string) => ['sh', '-c', text];
const inNode = (text: string) => [process.execPath, '--input-type=module', '-e', text];

/** How a person runs a snippet of the Connect page. */
const PROGRAMS: Record<string, Program> = {
  psql: { after: " -Atc 'select 7'", command: inShell },
  env: {
    after: '\nfor url in "$DATABASE_URL" "$DIRECT_URL"; do psql "$url" -Atc "select 7"; done',
    command: inShell,
  },
  'node-postgres': { after: '\nconsole.log(rows.length + 6); await pool.end();', command: inNode },
  drizzle: {
    before: "import { drizzle } from 'drizzle-orm/node-postgres';\n",
    after: "\nconsole.log((await db.execute('select 7 as n')).rows[0].n); await db.$client.end();",
    command: inNode,
  },
  serverless: {
    after: `
console.log(rows.length + 6);
console.log((await db.execute('select 7 as n')).rows[0].n);
console.log((await response.json()).rows[0].n);`,
    command: inNode,
  },
};

/** What the other snippets need stays here for the next night. */
const INSTALLED = join(ROOT, '.dev/snippets');
const PRISMA = '7.10.0';
const PRISMA_SCHEMA = `datasource db {
  provider = "postgresql"
}
generator client {
  provider = "prisma-client-js"
}
`;

const JDBC_DRIVER = globSync([
  join(homedir(), '.m2/repository/org/postgresql/postgresql/*/postgresql-*[0-9].jar'),
  '/usr/share/java/postgresql.jar',
])[0];
/** The first line of the snippet is the URL, the others are properties. */
const JDBC_PROGRAM = `class Snippet {
  public static void main(String[] words) throws Exception {
    String[] parts = words[0].split("\\n", 2);
    var properties = new java.util.Properties();
    properties.load(new java.io.StringReader(parts[1]));
    try (var connection = java.sql.DriverManager.getConnection(parts[0], properties)) {
      var rows = connection.createStatement().executeQuery("select 7");
      rows.next();
      System.out.println(rows.getInt(1));
    }
  }
}`;

/** Packages of Go that Debian does not have: where they are imported from, and a tag of their repository. */
const GO_SOURCES = [
  ['github.com/jackc/pgx/v5', 'jackc/pgx', 'v5.5.5'],
  ['github.com/jackc/puddle/v2', 'jackc/puddle', 'v2.2.1'],
] as const;
const GO_PACKAGES = [
  'golang-go',
  ...['crypto', 'sync', 'text'].map((name) => `golang-golang-x-${name}-dev`),
  ...['pgpassfile', 'pgservicefile'].map((name) => `golang-github-jackc-${name}-dev`),
];
const GO_BEFORE = `package main
import ("context"; "fmt"; "os"; "sync"; "github.com/jackc/pgx/v5/pgxpool")
func main() {
  ctx := context.Background()
`;
/** A statement that is used again on other connections than the one that prepared it. */
const GO_AFTER = `
  if err != nil { panic(err) }
  var all sync.WaitGroup
  for i := 0; i < 200; i++ {
    all.Add(1)
    go func() {
      defer all.Done()
      var n int
      if err := pool.QueryRow(ctx, "select $1::int", 7).Scan(&n); err != nil { panic(err) }
      fmt.Println(n)
    }()
  }
  all.Wait()
}`;

const RAILS_PROGRAM = `require 'active_record'
  settings = YAML.load(ERB.new(ARGV[0]).result)['production']
  ActiveRecord::Base.establish_connection(settings)
  puts ActiveRecord::Base.connection.select_value('select 7')`;

const NIGHTLY_PROGRAMS: Record<string, Program> = {
  prisma: {
    before: "import { PrismaClient } from '@prisma/client';\n",
    after: '\nconsole.log((await prisma.$queryRaw`select 7 as n`)[0].n); await prisma.$disconnect();',
    command: inNode,
    packages: join(INSTALLED, 'prisma/node_modules'),
  },
  'web-socket': {
    before: "import { PrismaClient } from '@prisma/client';\n",
    after: `
console.log((await pool.query('select 7 as n')).rows[0].n);
console.log((await db.transaction((t) => t.execute('select 7 as n'))).rows[0].n);
console.log((await prisma.$transaction((t) => t.$queryRaw\`select 7 as n\`))[0].n);
await prisma.$disconnect();
await pool.end();`,
    command: (text) => [
      'env',
      `NODE_EXTRA_CA_CERTS=${AUTHORITY_FILE}`,
      ...inNode(text.replace('}/v2', `}:${readStackFile(inject('stack').devDir).sql_port}/v2`)),
    ],
    packages: join(INSTALLED, 'prisma/node_modules'),
  },
  sqlalchemy: {
    command: (text) => [join(INSTALLED, 'python/bin/python3'), '-c', text.replace('now()', '7')],
  },
  ...(JDBC_DRIVER && {
    jdbc: { command: (text) => ['java', '-cp', JDBC_DRIVER, join(INSTALLED, 'Snippet.java'), text] },
  }),
  rails: { command: (text) => ['ruby', '-r', 'yaml', '-r', 'erb', '-e', RAILS_PROGRAM, text] },
  go: {
    before: GO_BEFORE,
    after: GO_AFTER,
    command: (text) => [
      ...[
        'env',
        'GO111MODULE=off',
        `GOPATH=${join(INSTALLED, 'go')}:/usr/share/gocode`,
        `GOCACHE=${join(INSTALLED, 'go-cache')}`,
      ],
      ...['sh', '-c', 'printf %s "$1" >main.go && go run main.go', 'sh', text],
    ],
  },
};

/** The version of a package that the repository has. */
const versionOf = (name: string): string =>
  JSON.parse(readFileSync(join(ROOT, 'node_modules', name, 'package.json'), 'utf8')).version;

/** Two hundred megabytes from the registries of npm, Python and Debian, and GitHub, unless an earlier night got them. */
async function install(): Promise<void> {
  installDebian('go', ...GO_PACKAGES);
  installDebian('ruby', 'ruby-activerecord', 'ruby-pg');
  for (const [name, repository, version] of GO_SOURCES) {
    const source = join(INSTALLED, 'go/src', name);
    if (existsSync(source)) continue;
    const part = `${source}.part`;
    rmSync(part, { recursive: true, force: true });
    await run('git', ['init', '--quiet', part]);
    await run('git', [
      '-C',
      part,
      'fetch',
      '--quiet',
      '--depth=1',
      `https://github.com/${repository}.git`,
      version,
    ]);
    await run('git', ['-C', part, 'checkout', '--quiet', 'FETCH_HEAD']);
    renameSync(part, source);
  }
  const mark = join(INSTALLED, `with-neon-and-prisma-${PRISMA}`);
  if (existsSync(mark)) return;
  const prisma = join(INSTALLED, 'prisma');
  mkdirSync(prisma, { recursive: true });
  writeFileSync(join(INSTALLED, 'Snippet.java'), JDBC_PROGRAM);
  writeFileSync(join(prisma, 'schema.prisma'), PRISMA_SCHEMA);
  writeFileSync(join(prisma, 'package.json'), '{ "private": true }');
  const ofPrisma = ['prisma', '@prisma/client', '@prisma/adapter-pg', '@prisma/adapter-neon'];
  const packages = [
    ...ofPrisma.map((name) => `${name}@${PRISMA}`),
    ...['drizzle-orm', '@neondatabase/serverless'].map((name) => `${name}@${versionOf(name)}`),
  ];
  await run('npm', ['install', '--ignore-scripts', '--no-audit', '--no-fund', ...packages], { cwd: prisma });
  // The client is generated without the engine of migrations, which would be downloaded.
  await run('node_modules/.bin/prisma', ['generate', '--schema=schema.prisma'], {
    cwd: prisma,
    env: { ...process.env, PRISMA_SCHEMA_ENGINE_BINARY: '/bin/true' },
  });
  const python = join(INSTALLED, 'python');
  await run('python3', ['-m', 'venv', python]);
  await run(join(python, 'bin/pip'), ['install', '--quiet', 'sqlalchemy==2.1.1', 'psycopg[binary]==3.3.6']);
  writeFileSync(mark, '');
}

describe('the snippets of the Connect page', () => {
  beforeAll(() => (IS_NIGHTLY ? install() : undefined));

  test.each(Object.entries({ ...PROGRAMS, ...(IS_NIGHTLY && NIGHTLY_PROGRAMS) }))(
    '%s connects and prints no warning',
    async (id, { before = '', after = '', command, packages = join(ROOT, 'node_modules') }) => {
      const home = temporaryFolder();
      symlinkSync(packages, join(home, 'node_modules'));
      writeFileSync(join(home, AUTHORITY_FILE), credentials.ca_certificate ?? '');
      const { code } = SNIPPETS.find((snippet) => snippet.id === id) ?? {};
      const snippet = code?.({
        pooled: connectionOf(credentials.database_url ?? '', true),
        direct: connectionOf(credentials.direct_url ?? '', true),
        gateway: inject('stack').url,
        pooledKey: '',
        directKey: '',
      });
      const settings = [...(snippet ?? '').matchAll(/(\w+_URL)="([^"]*)"/g)].map(([, name, url]) => [
        name,
        url,
      ]);
      // A snippet of several files has its program at the end.
      const [program = '', ...words] = command(
        before + snippet?.replace(/^[\s\S]*\/\/ db\.ts\n/, '') + after,
      );
      const { stdout, stderr } = await run(program, words, {
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
});
