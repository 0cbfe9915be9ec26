import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { removeLeftDumps } from '../../../agent/dump/pg-dump.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import type { CopyPhase } from '../../../agent/transfer/copy-progress.ts';
import { connect } from '../../support/database.ts';
import { eventually } from '../../support/eventually.ts';
import { asRoot, startHost, type TestHost } from '../../support/host/host.ts';
import {
  connect as asOwner,
  type Branch,
  identity,
  Project,
  toolOptions,
} from '../../support/host/host-project.ts';
import { firstByDay } from '../../support/nightly.ts';
import { type SourceServer, startSource } from '../../support/source-server.ts';
import { expectSameCatalogs } from './own-catalog.ts';

/** Copies of which a server or the agent is killed in each phase. The next call copies everything, and nothing is left. */

/** Code that takes its time where the copy is made, and nowhere else. */
const SCHEMA = `set role app;
  create function waits(n int) returns int language plpgsql immutable as $$ begin
    if pg_catalog.current_database() ~ '^bgload_' then perform pg_catalog.pg_sleep(0.7); end if; return n;
  end $$;
  create table small (n int primary key);
  create table checked (n int check (waits(n) > 0)); create table indexed (n int); create index on indexed (waits(n));
  create table many (id int primary key, note text, part numeric);
  create table sale (id int, at date, note text, primary key (id, at)) partition by range (at);
  create table sale_old partition of sale for values from (minvalue) to ('2026-01-01'); create index on sale (note);
  create materialized view counted as select count(*) as n from sale;
  insert into small values (1); insert into checked values (1); insert into indexed values (1);
  insert into many select n, repeat(md5(n::text), 4), n / 7.0 from generate_series(1, 60000) n;
  insert into sale select n, date '2025-01-01' + n from generate_series(1, 50) n;
  refresh materialized view counted; reset role; analyze`;
const DIGEST = ['small', 'checked', 'indexed', 'many', 'sale', 'counted']
  .map(
    (name) =>
      `select '${name}' as name, count(*)::int as rows, md5(string_agg(t::text, '|' order by t::text)) as digest from ${name} t`,
  )
  .join(' union all ');

let source: SourceServer;
let servers: TestHost;
let project: Project;
let made = 0;
beforeAll(async () => {
  source = await startSource('');
  servers = await startHost({ settings: { FOLLOW_PRIVATE_NETWORKS: '127.0.0.0/8' } });
  project = new Project(servers.host);
  await source.run(SCHEMA);
});
afterAll(async () => {
  await servers?.stop();
  await source?.stop();
});

/** A copy that has come to a phase and goes no further, or not soon. */
interface Hold {
  /** @param signal ends the search */
  held: (signal: AbortSignal) => Promise<unknown>;
  release: () => Promise<unknown>;
}

const isSeen = async (sql: string) => (await servers.query(sql)).length > 0;
const untilSeen = async (sql: string, signal: AbortSignal) => {
  while (!signal.aborted && !(await isSeen(sql))) await sleep(2);
};
/** A statement where the copy is made. */
const runs = (pattern: string): Hold => ({
  held: (signal) =>
    untilSeen(
      `select from pg_stat_activity where datname ~ '^bgload_' and state = 'active' and query ~* '${pattern}'`,
      signal,
    ),
  release: async () => {},
});

async function locked(session: pg.Client, table: string, mode: string, held: Hold['held']): Promise<Hold> {
  await session.query(`begin; lock table ${table} in ${mode} mode`);
  return { held, release: () => Promise.allSettled([session.query('commit'), session.end()]) };
}

const waitsAtSource = async (signal: AbortSignal) => {
  while (!signal.aborted && (await source.run('select from pg_locks where not granted')).length === 0)
    await sleep(2);
};
/** As the superuser, whose lock every other reader waits for. */
const atSource = async (table: string) =>
  locked(await connect(source.url()), table, 'access exclusive', waitsAtSource);
const waitsHere = (signal: AbortSignal) =>
  untilSeen(
    "select from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'branchgate-agent'",
    signal,
  );

/** A phase without an entry does not compile. */
const HOLDS: Record<CopyPhase, () => Promise<Hold>> = {
  check: () => atSource('small'),
  clone: async () => locked(await servers.connect(), 'pg_authid', 'share', waitsHere),
  // It has no size that the check would read, and the dump locks it.
  schema: () => atSource('sale'),
  rows: async () => runs('^copy .*checked'),
  indexes: async () => runs('create index'),
  comparison: async () => runs('digest'),
  statistics: async () => runs('^analyze'),
  close: async () => {
    const session = await servers.connect();
    return {
      held: async (signal) => {
        await runs('^analyze').held(signal);
        await session.query('begin; lock table pg_database in share mode');
        await waitsHere(signal);
      },
      release: () => Promise.allSettled([session.query('commit'), session.end()]),
    };
  },
};

const VICTIMS = {
  agent: async (kill: () => void) => kill(),
  source: async () => {
    await source.end();
    await source.start();
  },
  postgres: async () => {
    await servers.end('postgres', 'SIGQUIT');
    await servers.start('postgres');
  },
} as const;

const CASES = (Object.keys(HOLDS) as CopyPhase[])
  .flatMap((phase) =>
    (Object.keys(VICTIMS) as (keyof typeof VICTIMS)[]).map((victim) => [victim, phase] as const),
  )
  // By day the first one.
  .toSorted(([, one], [, other]) => Number(other === 'rows') - Number(one === 'rows'));

async function expectNothingLeft(branch: Branch): Promise<void> {
  expect(await servers.query("select datname from pg_database where datname ~ '^bg(?:load|job)_'")).toEqual(
    [],
  );
  expect(
    await servers.query(
      `select rolname from pg_roles where rolname ~ '^u_.*_query$'
       and not exists (select from branch where replace(branch_id::text, '-', '') = substr(rolname, 3, 32))`,
    ),
  ).toEqual([]);
  const dumps = join(servers.settings.STATE_DIR, 'dumps');
  expect(asRoot(() => (existsSync(dumps) ? readdirSync(dumps) : []))).toEqual([]);
  await eventually(async () =>
    expect(await source.run("select from pg_stat_activity where usename = 'app'")).toEqual([]),
  );
  await project.drop(branch);
}

test.each(firstByDay(1, CASES))('the %s is killed in the phase %s of a copy', async (victim, phase) => {
  made += 1;
  const branch = await project.create(`db_killed_${made}`, null);
  const params = {
    ...identity(branch),
    job_id: randomUUID(),
    source_url: source.url(),
    tables: null,
    room_bytes: 2 ** 30,
    jobs: 2,
    busy_wait: 1_000,
    follow: null,
  };
  const over = new AbortController();
  const hold = await HOLDS[phase]();
  const tool = await servers.spawnTool('transfer', 'copy', ...toolOptions(params));
  const ended = once(tool, 'exit');
  try {
    await Promise.race([
      hold.held(over.signal),
      ended.then(([code]) => {
        throw new Error(`the copy ended before, with ${code}`);
      }),
    ]);
    await VICTIMS[victim](() => tool.kill('SIGKILL'));
  } finally {
    over.abort();
    await hold.release();
    // It has ended by itself, unless the phase does not need what was killed.
    await ended;
  }
  // An agent does it when it starts.
  await removeLeftDumps(servers.settings);
  const copied = await eventually(() => runOperation(servers.host, 'transfer.copy', params));
  expect(copied).toMatchObject({ copied: { rows: 60_053 }, findings: [] });
  const { job_id, project_id, branch_id, database } = params;
  await runOperation(servers.host, 'reset.swap', {
    job_id,
    project_id,
    branch_id,
    database,
    snapshot_id: randomUUID(),
  });
  const owner = await asOwner(servers.host, 'direct', branch, 'owner');
  expect((await owner.query(`${DIGEST} order by name`)).rows).toEqual(
    await source.run(`${DIGEST} order by name`),
  );
  await expectSameCatalogs(await connect(source.url()), owner);
  await expectNothingLeft(branch);
});
