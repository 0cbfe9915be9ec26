import { execFileSync } from 'node:child_process';
import { existsSync, globSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { CommandLine } from '../support/command-line.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';

const TENANT = 'suites';
/** What is downloaded stays here for the next run. */
const CACHE = join(ROOT, '.dev/suites');
/** The versions of their packages are the newest ones of this day, so that a run repeats the one before. */
const PUBLISHED_BEFORE = '2026-09-01';
/** Limits of time only end what hangs. */
const SUITE_WITHIN_MS = 40 * 60_000;

type Edit = readonly [file: string, text: string, replacement: string];

/** A test suite of others, which runs against a branch. */
interface Suite {
  repository: string;
  tag: string;
  commit: string;
  /** The folders of the repository that the suite needs. */
  folders: readonly string[];
  /** The folder of its package. */
  root: string;
  /** The packages for development that its tests import. */
  needs: readonly string[];
  /** Where its files name a server of their own; they get that of the environment. */
  edits: readonly Edit[];
  /** Sources in TypeScript that its tests import as JavaScript. */
  compiled: readonly { from: string; to: string; format: 'esm' | 'cjs' }[];
  /** Commands of a shell in `root`, which write to `RESULTS`. */
  run: string;
  /** The outcome of each case, by its name. */
  read: (results: string) => Outcome[];
}

interface Outcome {
  name: string;
  /** Why the case failed; null if it passed. */
  failure: string | null;
}

const RESULTS = 'results.txt';
const NODE = `'${process.execPath}'`;

interface MochaCase {
  fullTitle: string;
  err: { message?: string };
}

function readMocha(text: string): Outcome[] {
  const { passes, failures } = JSON.parse(text) as { passes: MochaCase[]; failures: MochaCase[] };
  // A late error fails a case that has already passed or failed.
  const failed = new Map(failures.map(({ fullTitle, err }) => [fullTitle, err.message ?? 'failed']));
  return [
    ...passes.flatMap(({ fullTitle }) => (failed.has(fullTitle) ? [] : [{ name: fullTitle, failure: null }])),
    ...[...failed].map(([name, failure]) => ({ name, failure })),
  ];
}

/** Lines of `ok FILE` and `not ok FILE`, each after what its program printed if it failed. */
function readLines(text: string): Outcome[] {
  let printed: string[] = [];
  return text.split('\n').flatMap((line) => {
    const [, not, name] = /^(not )?ok (\S+)$/.exec(line) ?? [];
    if (name === undefined) {
      printed.push(line);
      return [];
    }
    const failure = not === undefined ? null : printed.join('\n');
    printed = [];
    return [{ name, failure }];
  });
}

function readVitest(text: string): Outcome[] {
  const { testResults } = JSON.parse(text) as {
    testResults: {
      message: string;
      name: string;
      assertionResults: { fullName: string; status: string; failureMessages: string[] }[];
    }[];
  };
  return testResults.flatMap(({ assertionResults, message, name }) => {
    // A file that cannot be loaded has no cases.
    if (assertionResults.length === 0 && message) return [{ name, failure: message }];
    return assertionResults
      .filter(({ status }) => status === 'passed' || status === 'failed')
      .map(({ fullName, status, failureMessages }) => ({
        name: fullName,
        failure: status === 'passed' ? null : failureMessages.join('\n'),
      }));
  });
}

const MOCHA = `${NODE} node_modules/mocha/bin/mocha.js --exit --reporter json --reporter-option output=${RESULTS}`;

const SUITES: Record<string, Suite> = {
  'node-postgres': {
    repository: 'brianc/node-postgres',
    tag: 'pg@8.23.0',
    commit: 'df274d1ba9ad9d11a8f1079314faeafde7208207',
    folders: ['packages/pg'],
    root: 'packages/pg',
    needs: ['async', 'bluebird', 'co', 'pg-copy-streams'],
    // It gives a login 100 ms, and one with TLS takes longer on a busy machine.
    edits: [['test/integration/client/pipelining-tests.js', 'query_timeout: 100 }', 'query_timeout: 2000 }']],
    compiled: [],
    // A file is a program of several cases, which ends at the first that fails. Some of them start servers without TLS,
    // or expect that nobody trusts the certificate; a branch accepts no connection without TLS.
    run: `for file in $(find test/integration -name '*-tests.js' | sort); do
      if timeout 60 ${NODE} "$file" >"$BRANCHGATE_LOG" 2>&1 ||
        timeout 60 env -u PGSSLMODE -u NODE_EXTRA_CA_CERTS ${NODE} "$file" >>"$BRANCHGATE_LOG" 2>&1
      then echo "ok \${file#test/}"
      else cat "$BRANCHGATE_LOG"; printf '\\nnot ok %s\\n' "\${file#test/}"; fi
    done >${RESULTS}`,
    read: readLines,
  },
  kysely: {
    repository: 'kysely-org/kysely',
    tag: 'v0.29.5',
    commit: 'f24018c789c3cf7ad03ccc672ada63a1ded87f88',
    folders: ['src', 'test/node'],
    root: '.',
    needs: [
      ...[
        '@electric-sql/pglite',
        'better-sqlite3',
        'chai',
        'chai-as-promised',
        'mocha',
        'mysql2',
        'pathe',
        'pg',
      ],
      ...[
        'pg-cursor',
        'prototype-pollution-vulnerable-lodash.merge-dont-upgrade',
        'sinon',
        'tarn',
        'tedious',
        'tsx',
      ],
    ],
    edits: [
      [
        'test/node/src/test-setup.ts',
        "  database: 'kysely_test',\n  host: 'localhost',\n  user: 'kysely',\n  password: 'kysely',\n  port: 5434,\n",
        '',
      ],
      // The same for the connection that cancels a statement.
      ['test/node/src/cancellation.test.ts', 'pg_sleep(0.1)', 'pg_sleep(2)'],
      ['test/node/src/cancellation.test.ts', 'setTimeout(250)', 'setTimeout(2500)'],
    ],
    compiled: [
      { from: 'src', to: 'dist', format: 'esm' },
      { from: 'test/node/src', to: 'test/node/dist', format: 'esm' },
    ],
    run: `DIALECTS=postgres ${MOCHA} --timeout 15000 'test/node/dist/**/*.test.js'`,
    read: readMocha,
  },
  knex: {
    repository: 'knex/knex',
    tag: '3.3.0',
    commit: 'e25d54bcb707714a17f5a5744eba5c4246bb4d1d',
    folders: ['lib', 'test', 'bin', 'types'],
    root: '.',
    needs: [
      ...[
        'chai',
        'chai-as-promised',
        'chai-subset-in-order',
        'cli-testlab',
        'mocha',
        'mock-fs',
        'pg',
        'pg-query-stream',
      ],
      ...[
        'rimraf',
        'semver',
        'sinon',
        'sinon-chai',
        'source-map-support',
        'tedious',
        'toxiproxy-node-client',
      ],
    ],
    edits: [
      ...['test/knexfile.js', 'test/integration2/util/knex-instance-provider.js'].map(
        (file): Edit => [
          file,
          '(process.env.KNEX_TEST && require(process.env.KNEX_TEST)) || {};',
          `{ postgres: {
            host: process.env.PGHOST, port: process.env.PGPORT, database: process.env.PGDATABASE,
            user: process.env.PGUSER, password: process.env.PGPASSWORD, ssl: true,
          } };`,
        ],
      ),
      // They give a login 50 to 200 ms.
      ...[
        ['acquireConnectionTimeout: 200', 'acquireConnectionTimeout: 5000'],
        ['acquireTimeoutMillis = 100', 'acquireTimeoutMillis = 5000'],
        ['.timeout(50, {', '.timeout(2000, {'],
        ['timeout: 50,', 'timeout: 2000,'],
        ['timeout of 50ms', 'timeout of 2000ms'],
        ['i++ < 4', 'i++ < 100'],
      ].map(
        ([text = '', replacement = '']): Edit => [
          'test/integration2/query/misc/additional.spec.js',
          text,
          replacement,
        ],
      ),
    ],
    compiled: [{ from: 'lib', to: 'lib', format: 'cjs' }],
    // The files of SQLite load its native module, whatever the dialect.
    run: `DB=postgres ${MOCHA} --timeout 10000 --config test/mocha-integration-config-test.js \\
      --ignore 'test/integration2/*/*sqlite*.spec.js'`,
    read: readMocha,
  },
  'pg-boss': {
    repository: 'timgit/pg-boss',
    tag: '12.27.0',
    commit: 'aa1ce16c9258dceeed23545e6e04adc33ce027f3',
    folders: ['src', 'test'],
    root: '.',
    needs: [
      ...[
        '@electric-sql/pglite',
        '@prisma/adapter-pg',
        '@prisma/client',
        '@tsconfig/node-ts',
        '@tsconfig/node22',
      ],
      ...[
        'cli-testlab',
        'drizzle-orm',
        'knex',
        'kysely',
        'luxon',
        'postgres',
        'prisma',
        'tsx',
        'typescript',
        'vitest',
      ],
    ],
    edits: [
      [
        'test/testHelper.ts',
        '    config.password = process.env.POSTGRES_PASSWORD || config.password\n',
        `    Object.assign(config, {
      host: process.env.PGHOST, port: Number(process.env.PGPORT), database: process.env.PGDATABASE,
      user: process.env.PGUSER, password: process.env.PGPASSWORD
    })\n`,
      ],
      ...[
        [
          '--host 127.0.0.1 --port 5432 --database pgboss --user postgres --password postgres',
          '--host $PGHOST --port $PGPORT --database $PGDATABASE --user $PGUSER --password $PGPASSWORD',
        ],
        [
          '--host 127.0.0.1 -d pgboss -u postgres -p postgres',
          '--host $PGHOST --port $PGPORT -d $PGDATABASE -u $PGUSER -p $PGPASSWORD',
        ],
      ].map(([text = '', replacement = '']): Edit => ['test/cliTest.ts', text, replacement]),
      // postgres.js reads this from nowhere else.
      ...['test/testHelper.ts', 'test/adapterTest.ts'].map(
        (file): Edit => [file, 'config.database}`', 'config.database}?sslmode=verify-full`'],
      ),
      // Limits of their own for cases that the machine may take longer for.
      ...[
        ['bamTest', '}, 10000)', '}, 100_000)'],
        ['cliTest', '}, 30_000)', '}, 300_000)'],
        ['retryTest', '{ timeout: 15000 }', '{ timeout: 150_000 }'],
        ['workLifecycleTest', '}, 20000)', '}, 200_000)'],
      ].map(([file, text = '', replacement = '']): Edit => [`test/${file}.ts`, text, replacement]),
      // A branch is the only database that its logins can use.
      ['test/testHelper.ts', "getDb({ database: 'postgres' })", 'getDb()'],
    ],
    compiled: [],
    // The client is generated without an engine, which would be downloaded.
    run: `PRISMA_SCHEMA_ENGINE_BINARY=/bin/true node_modules/.bin/prisma generate --schema=test/prisma/schema.prisma &&
      node_modules/.bin/vitest run --typecheck.enabled=false --maxWorkers=4 \\
        --testTimeout=300000 --hookTimeout=300000 --reporter=json --outputFile=${RESULTS}`,
    read: readVitest,
  },
};

/** @throws Error with what the program printed */
function call(folder: string, program: string, ...args: string[]): string {
  const env = { ...process.env, GIT_TERMINAL_PROMPT: '0' };
  return execFileSync(program, args, { cwd: folder, encoding: 'utf8', stdio: 'pipe', env, maxBuffer: 64e6 });
}

/** Installs a package with those of its packages for development that the tests need. */
function install(folder: string, { root, needs }: Suite): void {
  const file = join(folder, root, 'package.json');
  const {
    devDependencies = {},
    workspaces: _,
    ...rest
  } = JSON.parse(readFileSync(file, 'utf8')) as {
    devDependencies?: Record<string, string>;
    workspaces?: unknown;
  };
  const missing = needs.filter((name) => !(name in devDependencies));
  if (missing.length > 0) throw new Error(`${file} does not name ${missing.join(', ')}`);
  const kept = Object.fromEntries(needs.map((name) => [name, devDependencies[name]]));
  writeFileSync(file, JSON.stringify({ ...rest, devDependencies: kept }));
  const options = [
    `--before=${PUBLISHED_BEFORE}`,
    '--ignore-scripts',
    '--no-audit',
    '--no-fund',
    '--no-package-lock',
    '--legacy-peer-deps',
  ];
  call(join(folder, root), 'npm', 'install', ...options, '--no-workspaces');
}

/** Gets a suite from GitHub, unless an earlier run has. @returns its folder */
function download(name: string, suite: Suite): string {
  const folder = join(CACHE, `${name}-${suite.commit.slice(0, 12)}`);
  if (existsSync(folder)) return folder;
  const part = `${folder}.part`;
  rmSync(part, { recursive: true, force: true });
  const url = `https://github.com/${suite.repository}.git`;
  const clone = ['clone', '--quiet', '--depth=1', '--filter=blob:none', '--sparse'];
  try {
    call(ROOT, 'git', ...clone, `--branch=${suite.tag}`, url, part);
    call(part, 'git', 'sparse-checkout', 'set', ...suite.folders);
  } catch (error) {
    throw new Error(`the suite of ${name} could not be read from ${url}: this test needs GitHub`, {
      cause: error,
    });
  }
  expect(call(part, 'git', 'rev-parse', 'HEAD').trim(), `${suite.tag} was moved`).toBe(suite.commit);
  install(part, suite);
  renameSync(part, folder);
  return folder;
}

/** Makes its files as they are published, with its edits. */
async function prepare(folder: string, { edits, compiled, root }: Suite): Promise<void> {
  call(folder, 'git', 'checkout', '--quiet', '--force', '.');
  for (const [file, text, replacement] of edits) {
    const path = join(folder, root, file);
    const content = readFileSync(path, 'utf8');
    expect(content, path).toContain(text);
    writeFileSync(path, content.replaceAll(text, replacement));
  }
  for (const { from, to, format } of compiled) {
    const sources = globSync('**/*.ts', { cwd: join(folder, root, from) });
    await build({
      entryPoints: sources
        .filter((file) => !file.endsWith('.d.ts'))
        .map((file) => join(folder, root, from, file)),
      outbase: join(folder, root, from),
      outdir: join(folder, root, to),
      format,
      platform: 'node',
      target: 'node24',
      logLevel: 'error',
    });
  }
}

/** Rows of a table of docs/clients.md that start with this cell. */
function documented(first: string, columns: number): string[][] {
  const lines = readFileSync(join(ROOT, 'docs/clients.md'), 'utf8').split('\n');
  const rows = lines.map((line) =>
    line
      .split(/(?<!\\)\|/)
      .slice(1, -1)
      .map((cell) =>
        cell
          .trim()
          .replaceAll('\\|', '|')
          .replace(/^`(.*)`$/, '$1'),
      ),
  );
  return rows.filter((row) => row[0] === first && row.length === columns);
}

/** Downloads a hundred megabytes, and runs for minutes. */
describe.runIf(IS_NIGHTLY)('the test suites of clients', () => {
  let cli: CommandLine;
  beforeAll(async () => {
    const api = await ownerOf(TENANT);
    const project = await api.project('Suites');
    const settings = { BRANCHGATE_URL: inject('stack').url, BRANCHGATE_PROJECT: project.id };
    cli = await CommandLine.open({ ...settings, BRANCHGATE_TOKEN: await tokenOf({ tenant: TENANT }) });
  });
  afterAll(() => rmSync(cli.folder, { recursive: true, force: true }));

  test.each(Object.entries(SUITES))(
    '%s fails on a branch where docs/clients.md says so, and nowhere else',
    { timeout: SUITE_WITHIN_MS },
    async (name, suite) => {
      const folder = download(name, suite);
      await prepare(folder, suite);
      const root = join(folder, suite.root);
      const results = join(root, RESULTS);
      rmSync(results, { force: true });
      const script = `cd '${root}'
        export PATH='${join(process.execPath, '..')}':"$PATH" BRANCHGATE_LOG="$HOME/log"
        export PGPASSWORD="$(${NODE} -p 'decodeURIComponent(new URL(process.env.DIRECT_URL).password)')"
        ${suite.run}`;
      const { stdout, stderr } = await cli.run(
        'exec',
        '--ephemeral',
        '--role',
        'owner',
        '--',
        'sh',
        '-c',
        script,
      );
      expect(existsSync(results), `${stdout}\n${stderr}`).toBe(true);

      const outcomes = suite.read(readFileSync(results, 'utf8'));
      const known = documented(name, 3).map(([, test]) => test);
      const failed = outcomes.filter(({ failure }) => failure !== null);
      for (const { name: test, failure } of failed)
        if (!known.includes(test)) console.error(`${name}: ${test}\n${failure}`);
      expect(failed.map(({ name: test }) => test).filter((test) => !known.includes(test))).toEqual([]);
      // A listed case must exist, and no file may have lost its cases.
      expect(outcomes.map(({ name: test }) => test)).toEqual(expect.arrayContaining(known));
      const [, version, cases] = documented(name, 4)[0] ?? [];
      expect([suite.tag, outcomes.length]).toEqual([expect.stringContaining(`${version}`), Number(cases)]);
    },
  );
});
