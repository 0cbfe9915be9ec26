import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runOperation } from '../../agent/operations/handlers.ts';
import { loginName } from '../../shared/branch/login.ts';
import { query } from '../support/database.ts';
import { Follower } from '../support/host/follower.ts';
import { asClient } from '../support/host/host-project.ts';
import { SOURCE_LOGIN } from '../support/source-server.ts';
import type { Report } from './report.ts';
import { addSample, medianRatio, runInterleaved, type Series, timed } from './rounds.ts';

const ROUNDS = 3;
const TABLES = 4;
const ROWS = 250_000;
const SCHEMA_TABLES = 1_000;

const METHOD = `A PostgreSQL 18 server as the source and a host without its gateway, both on this machine. **Rows:** \`transfer.copy\` of ${TABLES} tables \
with ${ROWS / 1000} thousand rows each, by two jobs, with its check, keys, comparison and statistics, against the same by hand: \`pg_dump | psql\`, and \`pg_dump\` and \
\`pg_restore\` of a directory with two jobs, each followed by \`ANALYZE\`. **Schema:** the phases \`schema\` and \`indexes\` of a \`transfer.copy\` of ${SCHEMA_TABLES} empty \
tables with a serial key, three indexes, a check and a foreign key each, against \`pg_dump --schema-only | psql\`. All interleaved in one run, ${ROUNDS} rounds after a first one that is discarded.`;

const FILLED = Array.from(
  { length: TABLES },
  (_, n) => `create table copied_${n} (id int primary key, text text, amount numeric);
    insert into copied_${n} select n, repeat(md5(n::text), 2), n * 1.5 from generate_series(1, ${ROWS}) n`,
).join(';');

/** A schema has as many objects as a large application. Each table is committed, because the locks of all do not fit into the lock table. */
const LARGE = `do $$ begin for n in 0..${SCHEMA_TABLES - 1} loop
  execute format('create table t_%s (id bigserial primary key, parent_id bigint, name text not null default '''', kind smallint check (kind > 0), made_at timestamptz default now())', n);
  execute format('create index on t_%s (parent_id)', n); execute format('create unique index on t_%s (name, id)', n);
  execute format('create index on t_%s (made_at) where kind = 1', n);
  execute format('alter table t_%s add foreign key (parent_id) references t_%s on delete cascade', n, n / 2);
  commit;
end loop; end $$`;

const CLEAR = `do $$ declare name text; begin
  for name in select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' loop
    execute format('drop table %I cascade', name);
    commit;
  end loop; end $$`;

const EMPTY = 'drop schema public cascade; create schema public authorization app';
/** Without a warning about each catalog. */
const ANALYZE = `--command 'set client_min_messages = error' --command analyze`;

/** Measures copies of a source against PostgreSQL's own programs. */
export async function measureCopies(): Promise<Report> {
  const follower = await Follower.start();
  await follower.stopWatch();
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-copies-'));
  try {
    await follower.renew();
    const { source, servers, main } = follower;
    const { user, password, database } = SOURCE_LOGIN;
    const owner = loginName(main.branch_id, 'owner');
    const address = (port: number, name: string, db: string) =>
      `host=127.0.0.1 port=${port} user=${name} dbname=${db} sslmode=require`;
    const from = address(source.port, user, database);
    const to = address(servers.settings.POSTGRES_PORT, owner, main.database);
    // Bash takes the real user, so its files are root's if this process began as root.
    const run = (script: string) => {
      execFileSync('bash', ['-ec', `set -o pipefail; ${script}`], {
        cwd: folder,
        env: {
          PATH: `${servers.settings.POSTGRES_BIN}:${process.env.PATH}`,
          HOME: folder,
          FROM: from,
          TO: to,
          THEIRS: password,
          OURS: main.passwords.owner,
        },
        stdio: ['ignore', 'ignore', 'inherit'],
      });
    };
    const dump = 'PGPASSWORD="$THEIRS" pg_dump --no-owner --no-privileges --dbname "$FROM"';
    const psql = 'PGPASSWORD="$OURS" psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --dbname "$TO"';
    const byHand = (script: string) => async () => {
      const ms = await timed(async () => run(script));
      await asClient(servers.host, 'direct', main, 'owner', CLEAR);
      run('rm -rf dump');
      return ms;
    };
    const imported = (rowCount: number, phases: Series, of?: readonly string[]) => async () => {
      const params = follower.copyParams({ follow: null, jobs: 2 });
      const found: Record<string, number> = {};
      const log = (event: string, fields: Record<string, unknown> = {}) => {
        if (event === 'copy.ended') Object.assign(found, fields.ms);
      };
      const ms = await timed(async () => {
        const { copied, findings } = await runOperation({ ...servers.host, log }, 'transfer.copy', params);
        assert.equal(copied?.rows, rowCount, JSON.stringify(findings));
      });
      for (const [phase, took] of Object.entries(found)) addSample(phases, phase, took);
      const { job_id, project_id, branch_id } = params;
      await follower.run('reset.cancel', { job_id, project_id, branch_id, snapshot_id: randomUUID() });
      return of ? of.reduce((sum, phase) => sum + (found[phase] ?? Number.NaN), 0) : ms;
    };
    const phases: Series = {};
    await source.run(`${EMPTY}; set role app; ${FILLED}; analyze`);
    const rows = await runInterleaved(
      ROUNDS,
      {
        'pg_dump to psql': byHand(`${dump} | ${psql}; ${psql} ${ANALYZE}`),
        'pg_dump and pg_restore, two jobs': byHand(
          `${dump} --format directory --jobs 2 --file dump; PGPASSWORD="$OURS" pg_restore --no-owner --no-privileges --exit-on-error --jobs 2 --dbname "$TO" dump; ${psql} ${ANALYZE}`,
        ),
        'import, two jobs': imported(TABLES * ROWS, phases),
      },
      phases,
    );
    const schemaPhases: Series = {};
    await source.run(EMPTY);
    await query(source.url(), LARGE);
    const schemas = await runInterleaved(
      ROUNDS,
      {
        'pg_dump --schema-only to psql': byHand(`${dump} --schema-only | ${psql}`),
        'schema and indexes of the import': imported(0, schemaPhases, ['schema', 'indexes']),
      },
      schemaPhases,
    );
    await follower.project.drop(main);
    return {
      title: 'Copies of a source',
      method: METHOD,
      goals: [
        {
          name: 'an import with two jobs ÷ pg_dump to psql',
          measured: medianRatio(rows['import, two jobs'], rows['pg_dump to psql']),
          limit: 0.8,
          unit: '×',
        },
        {
          name: 'an import with two jobs ÷ pg_dump and pg_restore with two jobs',
          measured: medianRatio(rows['import, two jobs'], rows['pg_dump and pg_restore, two jobs']),
          limit: null,
          unit: '×',
        },
        {
          name: 'the schema of an import ÷ pg_dump --schema-only to psql',
          measured: medianRatio(
            schemas['schema and indexes of the import'],
            schemas['pg_dump --schema-only to psql'],
          ),
          limit: 1.2,
          unit: '×',
        },
      ],
      times: {
        Rows: rows,
        'Phases of the import with two jobs': phases,
        [`Schema of ${SCHEMA_TABLES} tables`]: schemas,
        'Phases of the import of the schema': schemaPhases,
      },
    };
  } finally {
    await follower.stop();
    rmSync(folder, { recursive: true, force: true });
  }
}
