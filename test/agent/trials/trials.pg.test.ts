import { randomUUID } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { inDatabase } from '../../../agent/postgres/connect.ts';
import { dropLeftovers } from '../../../agent/snapshots/snapshot-databases.ts';
import { groupName } from '../../../shared/branch/login.ts';
import type { Params } from '../../../shared/protocol/operations.ts';
import type { TrialReport } from '../../../shared/protocol/trial-operations.ts';
import { catalogLines } from '../../support/catalog-lines.ts';
import { eventually } from '../../support/eventually.ts';
import {
  asClient,
  type Branch,
  connect,
  type HostWithProject,
  startHostWithProject,
  toolOptions,
} from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const MAIN = 'db_tried_prod';
const ROWS = 10_000;
const CONTENT = `
  create table item (id int primary key, name text not null, price numeric);
  insert into item select n, 'item ' || n, n from generate_series(1, ${ROWS}) n;
  create table author (id int primary key, name text);
  insert into author values (1, 'Ada'), (2, 'Grace'), (3, 'Edith');
  create table part (id int) partition by range (id);
  create table part_low partition of part for values from (0) to (10);
  create table part_high partition of part for values from (10) to (20);
  insert into part values (1), (2), (11);
  create view cheap as select name from item where price < 10`;

let stage: HostWithProject;
let main: Branch;
beforeAll(async () => {
  stage = await startHostWithProject(MAIN, CONTENT);
  ({ main } = stage);
});
afterAll(() => stage?.servers.stop());

const paramsOf = (sql: string, more: Partial<Params<'try.run'>> = {}): Params<'try.run'> => ({
  try_id: randomUUID(),
  project_id: main.project_id,
  branch_id: main.branch_id,
  source: main.database,
  busy_wait: 5_000,
  role: 'owner',
  sql,
  params: [],
  limits: { lock_ms: 1_000, table_bytes: 0 },
  wait: 25_000,
  ...more,
});

async function tryOut(sql: string, more: Partial<Params<'try.run'>> = {}): Promise<TrialReport> {
  const params = paramsOf(sql, more);
  let { report } = await runOperation(stage.servers.host, 'try.run', params);
  while (!report)
    ({ report } = await runOperation(stage.servers.host, 'try.read', {
      try_id: params.try_id,
      wait: 25_000,
    }));
  return report;
}

/** The branch by readers of this test: every object, and every row of every table. */
async function contentOf(branch: Branch): Promise<string[]> {
  const client = await connect(stage.servers.host, 'direct', branch, 'owner');
  try {
    const lines = await catalogLines(client, { rights: true, values: true });
    const { rows: tables } = await client.query<{ name: string }>(
      "select format('%I.%I', schemaname, tablename) as name from pg_tables where schemaname = 'public' order by 1",
    );
    for (const { name } of tables) {
      const { rows } = await client.query<{ digest: string }>(
        `select count(*) || md5(string_agg(t::text, ',' order by t::text)) as digest from ${name} as t`,
      );
      lines.push(`${name} ${rows[0]?.digest}`);
    }
    return lines;
  } finally {
    await client.end();
  }
}

/** Databases, roles, and folders of databases of the host. */
async function ofHost(): Promise<string[]> {
  const { query, settings } = stage.servers;
  const found = await query<{ name: string }>(
    'select datname as name from pg_database union all select rolname from pg_roles order by 1',
  );
  return [...found.map(({ name }) => name), ...readdirSync(join(settings.PGDATA_DIR, 'base')).toSorted()];
}

/** Runs `action`, after which `main` and the host have to be what they were. */
async function leavingNothing<T>(action: () => Promise<T>): Promise<T> {
  const before = { main: await contentOf(main), host: await ofHost() };
  const result = await action();
  expect(await contentOf(main)).toEqual(before.main);
  expect(await ofHost()).toEqual(before.host);
  return result;
}

const tableOf = ({ tables }: TrialReport, name: string) => tables.find((table) => table.name === name);
const NO_ROWS = { tables: [], has_more: false, compared: 0, not_compared: [] };

test('DROP TABLE: its rows, its lock, its schema, and main as it was', async () => {
  const report = await leavingNothing(() => tryOut('drop table author; select count(*) as n from item'));
  expect(report).toMatchObject({ outcome: 'succeeded', error: null, has_more: false, problems: [] });
  expect(report.results.map(({ command, rows }) => [command, rows])).toEqual([
    ['DROP', []],
    ['SELECT', [[String(ROWS)]]],
  ]);
  expect(report.rows?.tables).toMatchObject([{ name: 'author', inserted: 0, updated: 0, deleted: 3 }]);
  expect(report.schema?.changes).toEqual([{ kind: 'table', identity: 'public.author', change: 'dropped' }]);
  expect(tableOf(report, 'author')).toMatchObject({ dropped: true, rewritten: false });
  expect(tableOf(report, 'author')?.locks.map(({ mode }) => mode)).toContain('AccessExclusiveLock');
  expect(report.dangers).toEqual([{ kind: 'rows_lost', schema: 'public', name: 'author' }]);
  expect(report.total_ms).toBeGreaterThanOrEqual(report.statements_ms);
});

test('a failing statement is named, and changes nothing', async () => {
  const report = await leavingNothing(() =>
    tryOut("insert into author values (4, 'Alan'); select 1 / 0", { role: 'read_write' }),
  );
  expect(report).toMatchObject({
    outcome: 'failed',
    error: { sqlstate: '22012', statement: 1, message: 'division by zero' },
    results: [],
    rows: NO_ROWS,
    schema: { changes: [] },
    dangers: [],
  });
});

test.each<[string, Params<'try.run'>['role']]>([
  ['select pg_sleep(1000)', 'read_only'],
  ...(IS_NIGHTLY
    ? ([
        [
          'do $$ begin loop begin perform pg_sleep(100); exception when others then null; end; end loop; end $$',
          'owner',
        ],
      ] as [string, Params<'try.run'>['role']][])
    : []),
])('an endless statement ends: %s', async (sql, role) => {
  const report = await leavingNothing(() => tryOut(sql, { role }));
  expect(report).toMatchObject({ outcome: 'timed_out', results: [], rows: NO_ROWS });
});

test('10,000 changed rows are counted by table, as the rows of a real branch say', async () => {
  const sql = `update item set price = price + 1; delete from author where id = 2; insert into author values (9, 'New'), (10, 'Newer');
    update part set id = 12 where id = 1`;
  const report = await leavingNothing(() => tryOut(sql, { role: 'read_write' }));
  const counts = report.rows?.tables.map(({ name, inserted, updated, deleted }) => [
    name,
    inserted,
    updated,
    deleted,
  ]);
  expect(counts?.toSorted()).toEqual([
    ['author', 2, 0, 1],
    ['item', 0, ROWS, 0],
    ['part_high', 1, 0, 0],
    ['part_low', 0, 0, 1],
  ]);
  // A row that moves to another partition, and one of three that is deleted beside two new ones, are no loss.
  expect(report.dangers).toEqual([]);
  expect(report.schema?.changes).toEqual([]);
  const branch = await stage.project.create(`${MAIN}_br_real`, MAIN);
  const [counted] = await asClient<{ n: string }>(
    stage.servers.host,
    'direct',
    branch,
    'read_write',
    'with changed as (update item set price = price + 1 returning 1) select count(*) as n from changed',
  );
  await stage.project.drop(branch);
  expect(Number(counted?.n)).toBe(ROWS);
});

test('DDL as owner: what is rewritten, locked, added and changed', async () => {
  const sql =
    'alter table item alter id type bigint; alter table author add born date; create index by_name on item (name)';
  const report = await leavingNothing(() => tryOut(sql));
  expect(report.outcome).toBe('succeeded');
  expect(report.schema?.changes.map(({ identity, change }) => `${change} ${identity}`).toSorted()).toEqual([
    'added public.author.born',
    'added public.by_name',
    'changed public.item.id',
  ]);
  expect(report.schema?.schema_proven).toBe(true);
  expect(tableOf(report, 'item')).toMatchObject({ rewritten: true, dropped: false });
  expect(tableOf(report, 'author')).toMatchObject({ rewritten: false });
  expect(tableOf(report, 'author')?.locks.map(({ mode }) => mode)).toContain('AccessExclusiveLock');
  expect(report.dangers).toEqual([{ kind: 'rewrite', schema: 'public', name: 'item' }]);
  // The role that may not, and the text that rolls itself back.
  expect(await tryOut('create table t (id int)', { role: 'read_write' })).toMatchObject({
    outcome: 'failed',
    error: { sqlstate: '42501' },
  });
  expect(await tryOut('begin; delete from author; rollback')).toMatchObject({
    outcome: 'succeeded',
    rows: NO_ROWS,
  });
});

describe('a copy reaches nothing of its source', () => {
  test('logins of the copy are its own: a new password, an ended session and a dropped right stay there', async () => {
    const working = await connect(stage.servers.host, 'pooled', main, 'read_write');
    for (const sql of [
      "alter role current_user password 'other'; alter role current_user set search_path = 'nowhere'",
      'select pg_terminate_backend(pid) from pg_stat_activity where datname <> current_database()',
      'drop owned by current_user',
    ])
      await leavingNothing(() => tryOut(sql, { role: 'read_write' }));
    expect((await working.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
    await working.end();
    await asClient(stage.servers.host, 'pooled', main, 'read_write', 'select 1');
  });

  test('a copy has no user mapping; one that cannot be removed refuses the trial', async () => {
    const asOperator = (sql: string) =>
      inDatabase(stage.servers.settings, main.database, async (session) => (await session.query(sql)).rows);
    const owners = groupName(main.project_id, 'owner');
    await asOperator(`create foreign data wrapper elsewhere;
      create server own foreign data wrapper elsewhere; alter server own owner to ${owners};
      create user mapping for public server own options (password 'secret')`);
    const count = "select count(*)::int as n from pg_user_mappings where srvname = 'own'";
    for (const role of ['read_only', 'read_write', 'owner'] as const)
      expect((await tryOut(count, { role })).results[0]?.rows).toEqual([[0]]);
    expect(await asOperator(count)).toEqual([{ n: 1 }]);
    await asOperator(
      'create server other foreign data wrapper elsewhere; create user mapping for public server other',
    );
    expect(await tryOut('select 1')).toMatchObject({ outcome: 'failed', error: { sqlstate: '42501' } });
    await asOperator('drop foreign data wrapper elsewhere cascade');
  });

  test('no client reaches it, and a project has two at a time', async () => {
    const { host, query } = stage.servers;
    const slow = () => tryOut('select pg_sleep(3)', { role: 'read_write' });
    const both = [slow(), slow()];
    const names = await eventually(async () => {
      const rows = await query<{ datname: string }>(
        "select datname from pg_stat_activity where datname ~ '^bgtry_' and state = 'active'",
      );
      expect(rows).toHaveLength(2);
      return rows.map(({ datname }) => datname);
    });
    for (const database of names)
      for (const role of ['owner', 'read_write', 'read_only'] as const)
        await expect(connect(host, 'direct', { ...main, database }, role)).rejects.toThrow();
    await expect(slow()).rejects.toMatchObject({ code: 'PROJECT_BUSY' });
    // What still runs is no leftover.
    await dropLeftovers(host);
    for (const report of await Promise.all(both)) expect(report.outcome).toBe('succeeded');
  });
});

test('a text that is no trial is refused before anything is copied', async () => {
  await expect(tryOut('begin; commit; select 1')).rejects.toMatchObject({ code: 'STATEMENT_REFUSED' });
  await expect(tryOut('select 1; select 2', { params: ['1'] })).rejects.toMatchObject({
    code: 'INVALID_CALL',
  });
  expect(await runOperation(stage.servers.host, 'try.read', { try_id: randomUUID(), wait: 0 })).toEqual({
    known: false,
    report: null,
  });
});

test('a report has at most 512 KiB, and says what is missing', async () => {
  const many = `do $$ begin for n in 1..1500 loop execute format('create table %s (id int)', 't' || n || repeat('x', 50)); end loop; end $$`;
  const report = await tryOut(`${many}; select repeat('y', 1000) from generate_series(1, 1000)`);
  expect(Buffer.byteLength(JSON.stringify(report))).toBeLessThan(512 * 1024);
  expect(report).toMatchObject({ outcome: 'succeeded', has_more: true });
});

/** What the host shows at each step of a trial. */
const STEPS: Record<string, string> = {
  'the state before is copied': "select from pg_database where datname ~ '^bgdiff_'",
  'the copy is made': "select from pg_database where datname ~ '^bgtry_'",
  'the copy is open': "select from pg_database where datname ~ '^bgtry_' and datconnlimit > 0",
  'the statements run': "select from pg_stat_activity where datname ~ '^bgtry_' and query ~ 'pg_sleep'",
  'rows are compared':
    "select from pg_stat_activity where application_name = 'branchgate-difference' and datname ~ '^bgtry_'",
  'the schema is proven': "select from pg_database where datname ~ '^bgproof_'",
};

describe.runIf(IS_NIGHTLY)('killed at every step, it leaves nothing', () => {
  test.each(Object.entries(STEPS))('%s', async (_, shows) => {
    const { host, query, spawnTool } = stage.servers;
    const before = { main: await contentOf(main), host: await ofHost() };
    const sql =
      'alter table item alter id type bigint; update author set name = name || 1; select pg_sleep(0.5)';
    const child = await spawnTool('try', 'run', ...toolOptions(paramsOf(sql)));
    let isSeen = false;
    while (!isSeen && child.exitCode === null) {
      isSeen = (await query(shows)).length > 0;
      await sleep(2);
    }
    child.kill('SIGKILL');
    expect(isSeen).toBe(true);
    await eventually(async () => {
      await dropLeftovers(host);
      await runOperation(host, 'host.inventory', {});
      expect(await ofHost()).toEqual(before.host);
      // The login of a comparison of schemas has a lease of two minutes.
    }, 240);
    expect(await contentOf(main)).toEqual(before.main);
  });
});
