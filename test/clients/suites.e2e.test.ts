import { rmSync } from 'node:fs';
import { afterAll, beforeAll, describe, inject, test } from 'vitest';
import { CommandLine } from '../support/command-line.ts';
import { install as installDebian } from '../support/debian.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';
import { drizzleOverTcp } from './drizzle.ts';
import {
  type Edit,
  expectDocumented,
  MOCHA,
  NODE,
  RESULTS,
  readGo,
  readLines,
  readMocha,
  readVitest,
  SUITE_WITHIN_MS,
  type Suite,
} from './suite.ts';

const TENANT = 'suites';

const SUITES: Record<string, Suite> = {
  drizzle: drizzleOverTcp,
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
      ...['rimraf', 'sinon', 'sinon-chai', 'source-map-support', 'tedious', 'toxiproxy-node-client'],
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
  sequelize: {
    repository: 'sequelize/sequelize',
    tag: 'v6.37.8',
    commit: 'cb7f99ad05de56137672ab95586359ff6ceba004',
    folders: ['src', 'test'],
    root: '.',
    needs: [
      ...[
        'chai',
        'chai-as-promised',
        'chai-datetime',
        'cls-hooked',
        'delay',
        'esbuild',
        'fs-jetpack',
        'js-combinatorics',
        'mocha',
        'module-alias',
        'node-hook',
      ],
      ...[
        'p-map',
        'p-props',
        'p-settle',
        'p-timeout',
        'pg',
        'pg-hstore',
        'sinon',
        'sinon-chai',
        'source-map-support',
        'tedious',
      ],
    ],
    edits: [
      [
        'test/config/config.js',
        'minifyAliases: env.SEQ_PG_MINIFY_ALIASES',
        'minifyAliases: env.SEQ_PG_MINIFY_ALIASES, dialectOptions: { ssl: { rejectUnauthorized: true } }',
      ],
    ],
    compiled: [{ from: 'src', to: 'lib', format: 'cjs' }],
    run: `cp -rn src/. lib
      for name in btree_gist citext hstore; do psql -Xqc "create extension $name"; done
      export SEQ_HOST="$PGHOST" SEQ_PORT="$PGPORT" SEQ_DB="$PGDATABASE" SEQ_USER="$PGUSER" SEQ_PW="$PGPASSWORD"
      DIALECT=postgres SEQ_TEST_CLEANUP_TIMEOUT=100000 ${NODE} node_modules/mocha/bin/mocha --exit --reporter json \\
        --require ./test/registerEsbuild --timeout 100000 $(find test/integration -name '*.test.[tj]s' | sort) >${RESULTS}`,
    // Its mocha writes no file, and cases print before the results.
    read: (text) => readMocha(text.slice(text.lastIndexOf('{\n  "stats"'))),
  },
  asyncpg: {
    repository: 'MagicStack/asyncpg',
    tag: 'v0.27.0',
    commit: '925cfe15be00776cb9b1a7d76bca74e0b5b2f4f1',
    folders: ['tests'],
    root: '.',
    needs: [],
    edits: [
      // It names the database of a server of its own.
      ...['adversity', 'cache_invalidation', 'connect', 'listeners', 'pool'].map(
        (name): Edit => [
          `tests/test_${name}.py`,
          "database='postgres'",
          "database=__import__('os').environ['PGDATABASE']",
        ],
      ),
      // It gives a login, and the end of a session, 100 to 300 ms.
      ...[
        ['POOL_NOMINAL_TIMEOUT = 0.1', 'POOL_NOMINAL_TIMEOUT = 5'],
        [
          'acquire(timeout=0.1)\n        await pool.release',
          'acquire(timeout=5)\n        await pool.release',
        ],
        ['sleep(0.3)\n\n            self.assertIs(', 'sleep(3)\n\n            self.assertIs('],
      ].map(([text = '', replacement = '']): Edit => ['tests/test_pool.py', text, replacement]),
    ],
    compiled: [],
    // The client itself is Debian's package.
    run: `/usr/bin/python3 - >${RESULTS} 2>"$BRANCHGATE_LOG" <<'PYTHON'
import traceback, unittest
from tests import suite

class Lines(unittest.TestResult):
    failed = False
    def startTest(self, test):
        super().startTest(test)
        self.failed = False
    def fails(self, test, error):
        self.failed = True
        print(''.join(traceback.format_exception(*error)))
    def addFailure(self, test, error):
        self.fails(test, error)
    def addError(self, test, error):
        self.fails(test, error)
        # A class that could not be prepared has no cases.
        if not isinstance(test, unittest.TestCase): print(f"\\nnot ok {str(test).replace(' ', '-')}")
    def addSubTest(self, test, part, error):
        if error: self.fails(test, error)
    def addSkip(self, test, reason):
        self.skipped.append((test, reason))
    def stopTest(self, test):
        super().stopTest(test)
        if not any(each is test for each, _ in self.skipped):
            print(f"\\n{'not ok' if self.failed else 'ok'} {test.id()}", flush=True)

suite().run(Lines())
PYTHON`,
    read: readLines,
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
  'lib/pq': {
    repository: 'lib/pq',
    tag: 'v1.10.9',
    commit: '2a217b94f5ccd3de31aec4152a541b9ff64bed05',
    folders: ['auth', 'certs', 'hstore', 'oid', 'scram'],
    root: '.',
    needs: [],
    edits: [],
    compiled: [],
    run: `GOPATH="$HOME/go" GOCACHE="$HOME/go-cache" GOFLAGS=-mod=mod go test -v . ./hstore >${RESULTS} 2>&1`,
    read: readGo,
  },
  pgTAP: {
    repository: 'theory/pgtap',
    tag: 'v1.3.4',
    commit: '968eb53a33114e83042b3bdb0c664b5b80cf8bdf',
    folders: ['sql', 'test'],
    root: '.',
    needs: [],
    edits: [],
    compiled: [],
    // Each file is a script in a schema of the branch. A file passes if it prints what the project expects of it.
    run: `sed -e 's/__OS__/linux/g' -e 's/__VERSION__/1.3/g' -e 's,MODULE_PATHNAME,$libdir/pgtap,g' sql/pgtap.sql.in >sql/pgtap.sql
      psql -Xq -v ON_ERROR_STOP=1 -f sql/pgtap.sql >"$BRANCHGATE_LOG" 2>&1 || cat "$BRANCHGATE_LOG" >&2
      for file in test/sql/*.sql; do name=$(basename "$file" .sql)
        psql -Xq -f "$file" >"$HOME/$name.out" 2>&1
        if sed 1d "test/expected/$name.out" | diff -w - "$HOME/$name.out" >"$BRANCHGATE_LOG"; then echo "ok $name"
        else head -40 "$BRANCHGATE_LOG"; printf '\nnot ok %s\n' "$name"; fi
      done >${RESULTS}`,
    read: readLines,
  },
};

/** Downloads a hundred megabytes, and runs for minutes. */
describe.runIf(IS_NIGHTLY)('the test suites of clients', () => {
  let cli: CommandLine;
  beforeAll(async () => {
    const api = await ownerOf(TENANT);
    const project = await api.project('Suites');
    const settings = { BRANCHGATE_URL: inject('stack').url, BRANCHGATE_PROJECT: project.id };
    installDebian('go', 'golang-go');
    installDebian('/usr/lib/python3/dist-packages/asyncpg/__init__.py', 'python3-asyncpg');
    cli = await CommandLine.open({ ...settings, BRANCHGATE_TOKEN: await tokenOf({ tenant: TENANT }) });
  });
  afterAll(() => rmSync(cli.folder, { recursive: true, force: true }));

  test.each(Object.entries(SUITES))(
    '%s fails on a branch where docs/clients.md says so, and nowhere else',
    { timeout: SUITE_WITHIN_MS },
    (name, suite) =>
      expectDocumented(name, suite, (script) =>
        cli.run('exec', '--ephemeral', '--role', 'owner', '--', 'sh', '-c', script),
      ),
  );
});
