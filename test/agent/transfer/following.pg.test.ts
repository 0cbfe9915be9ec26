import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { disable } from '../../../agent/transfer/following.ts';
import { FollowWatch, readApplyError } from '../../../agent/transfer/watch-followed.ts';
import type { FollowReport } from '../../../shared/protocol/follow.ts';
import type { Method, MethodResult } from '../../../shared/protocol/operations.ts';
import { followName } from '../../../shared/protocol/transfer-operations.ts';
import { connect as connectTo } from '../../support/database.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, identity, Project } from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import { SOURCE_LOGIN, type SourceServer, startSource } from '../../support/source-server.ts';

/** Money moves between accounts, and each transfer is counted twice. One commit has a sum, and two equal counts. */
const BANK = `
  set role app;
  create table account (id int primary key, balance int not null);
  create table transfer (id bigint generated always as identity primary key, amount int not null);
  create table counter (id int primary key, n int not null);
  create table visit (at timestamptz);
  insert into account select n, 1000 from generate_series(1, 50) n;
  insert into counter values (1, 0);
  reset role`;
const TRANSFER = `begin;
  update account set balance = balance - 7 where id = (select 1 + (random() * 24)::int);
  update account set balance = balance + 7 where id = (select 26 + (random() * 24)::int);
  insert into transfer (amount) values (7);
  update counter set n = n + 1;
  commit`;
const STATE = `select (select sum(balance)::int from account) as sum, (select count(*)::int from transfer) as transfers,
  (select n from counter) as counted, (select max(id)::int from transfer) as last`;

/** Versions of sources. The first is that of the hosts. */
const SOURCES = firstByDay(1, [
  { version: '18', programs: undefined },
  { version: '15', programs: '/usr/lib/postgresql/15/bin' },
]);

describe.each(SOURCES)('a source of version $version', ({ programs }) => {
  let source: SourceServer;
  let servers: TestHost;
  let project: Project;
  let main: Branch;
  let watch: FollowWatch;
  let reports: FollowReport[];
  let stopWatch: AbortController;
  let watching: Promise<void>;
  beforeAll(async () => {
    source = await startSource(undefined, programs);
    servers = await startHost({ settings: { FOLLOW_PRIVATE_NETWORKS: '127.0.0.0/8' } });
    startWatch();
  });
  afterAll(async () => {
    stopWatch?.abort();
    await watching;
    await servers?.stop();
    await source?.stop();
  });

  function startWatch() {
    reports = [];
    stopWatch = new AbortController();
    watch = new FollowWatch(servers.host, (report) => reports.push(report), 2_000);
    watching = watch.run(stopWatch.signal);
  }

  const ids = () => {
    const { project_id, branch_id, database } = main;
    return { project_id, branch_id, database };
  };
  const follow = () => ({ slot: followName(project.id), publication: null });
  async function run<M extends Method>(method: M, params: object): Promise<MethodResult<M>> {
    const result = await runOperation(servers.host, method, params);
    expect(JSON.stringify(result)).not.toContain(SOURCE_LOGIN.password);
    return result;
  }
  const copy = (more: object = {}) => {
    const params = { ...identity(main), job_id: randomUUID(), source_url: source.url(), tables: null };
    return { ...params, room_bytes: 2 ** 30, jobs: 2, busy_wait: 1_000, follow: follow(), ...more };
  };
  const here = (sql: string) => asClient(servers.host, 'direct', main, 'read_only', sql);
  const status = () => run('follow.status', ids());
  const atSource = () =>
    source.run(
      `select slot_name::text as name from pg_replication_slots union all select pubname from pg_publication order by 1`,
    );

  let made = 0;
  /** Copies, while the source is written to, and follows. */
  async function beginFollowing(more: object = {}): Promise<void> {
    const params = copy(more);
    const { copied, findings } = await run('transfer.copy', params);
    expect(copied, JSON.stringify(findings)).not.toBeNull();
    await run('reset.swap', { ...identity(main), job_id: params.job_id, snapshot_id: randomUUID() });
    await run('follow.start', { ...ids(), source_url: source.url(), ...follow(), tables: null });
  }

  /** Runs `action` while two clients of the application make transfers. */
  async function underLoad<T>(action: () => Promise<T>): Promise<T> {
    let isOver = false;
    const clients = [1, 2].map(async () => {
      while (!isOver) {
        // One whose session was ended connects again.
        const client = await connectTo(source.url()).catch(() => null);
        try {
          while (client && !isOver) await client.query(TRANSFER);
        } catch {
        } finally {
          await client?.end().catch(() => {});
        }
      }
    });
    try {
      return await action();
    } finally {
      isOver = true;
      await Promise.all(clients);
    }
  }

  async function untilLevel(): Promise<void> {
    await eventually(async () => expect(await here(STATE)).toEqual(await source.run(STATE)));
  }

  beforeEach(async () => {
    made += 1;
    project = new Project(servers.host);
    main = await project.create(`db_follow_${made}`, null);
    await source.run(`drop schema public cascade; create schema public authorization app; ${BANK}`);
  });

  async function stop() {
    const stopped = await run('follow.stop', { ...ids(), source_url: null, ...follow() });
    expect(stopped).toEqual({ dropped_at_source: true, message: null });
    expect(await atSource()).toEqual([]);
    await project.drop(main);
    expect(
      await servers.query(
        `select subname::text as name from pg_subscription union all select rolname from pg_roles where rolname = 'u_${project.id.replaceAll('-', '')}_query'`,
      ),
    ).toEqual([]);
  }

  test('main has every change of the source once, and its clients can only read', async () => {
    await underLoad(() => beginFollowing());
    await untilLevel();
    expect(await status()).toMatchObject({
      state: 'following',
      problem: null,
      slot_bytes: expect.any(Number),
    });
    await eventually(async () => expect(await status()).toMatchObject({ lag_bytes: 0, lag_seconds: 0 }));
    expect((await status()).tables.map(({ table, state }) => [table, state]).toSorted()).toEqual(
      ['account', 'counter', 'transfer', 'visit'].map((table) => [table, 'following']),
    );
    for (const role of ['owner', 'read_write', 'read_only'] as const) {
      const client = await connect(servers.host, 'direct', main, role);
      try {
        expect((await client.query('select n from counter')).rows).toHaveLength(1);
        await client.query('set default_transaction_read_only = off');
        for (const sql of [
          'insert into account values (99, 1)',
          'update counter set n = 0',
          'create table mine (n int)',
          'create temporary table mine (n int)',
          `set role "g_${project.id.replaceAll('-', '')}_owner"`,
          `alter subscription "${followName(project.id)}" disable`,
          "create subscription mine connection 'host=127.0.0.1' publication mine with (connect = false)",
        ])
          await expect(client.query(sql)).rejects.toThrow(/permission denied|must be owner/);
      } finally {
        await client.end();
      }
    }
    // The clients of the source can change rows of a table that names no rows in the log.
    await source.run('insert into visit values (now()); update visit set at = now()');
    const logs = join(servers.settings.PGDATA_DIR, 'log');
    for (const name of readdirSync(logs))
      expect(readFileSync(join(logs, name), 'utf8')).not.toContain(SOURCE_LOGIN.password.slice(0, 6));
    await stop();
  });

  test('each branch of main is the source at one commit, and has its next values', async () => {
    await beginFollowing();
    await underLoad(async () => {
      for (let n = 0; n < (IS_NIGHTLY ? 200 : 10); n += 1) {
        const branch = await project.create(`db_follow_${made}_br_${n}`, main.database);
        const read = (sql: string) => asClient(servers.host, 'direct', branch, 'owner', sql);
        const [state] = await read(STATE);
        expect(state).toMatchObject({ sum: 50_000, transfers: state?.counted });
        const [next] = await read('insert into transfer (amount) values (1) returning id::int');
        expect(next?.id).toBeGreaterThan(Number(state?.last ?? 0));
        // What a subscription has left in the catalog keeps no table, and goes with it.
        await read('drop table account, transfer, counter, visit');
        expect(await read('select from pg_subscription_rel')).toEqual([]);
        await project.drop(branch);
      }
    });
    await untilLevel();
    await stop();
  });

  test('the source is restarted, and an agent is killed between the two steps of a clone: it continues', async () => {
    await beginFollowing();
    for (let n = 0; n < 5; n += 1) await source.run(TRANSFER);
    await untilLevel();
    await source.end();
    // Sequences are taken from the largest keys meanwhile.
    const branch = await project.create(`db_follow_${made}_br_away`, main.database);
    const inserted = 'insert into transfer (amount) values (1) returning id::int';
    expect(await asClient(servers.host, 'direct', branch, 'owner', inserted)).toEqual([{ id: 6 }]);
    await source.start();
    await project.drop(branch);
    await underLoad(async () => {
      const [followed] = await servers.query<{ project_id: string; database: string }>(
        'select project_id, database from following',
      );
      if (followed) await disable(servers.host, followed);
    });
    await untilLevel();
    await stop();
  });

  test('what is added at the source is added, and another change stops with the statements', async () => {
    await beginFollowing();
    await source.run(
      `set role app; alter table account add column note text default 'none'; insert into account values (100, 0, 'new');
       create table book (id int primary key, title text not null); insert into book values (1, 'one')`,
    );
    await eventually(async () =>
      expect(await here('select note from account where id = 100')).toEqual([{ note: 'new' }]),
    );
    // Nothing fails for a table that is not here: the comparison finds it.
    await eventually(async () => expect(await here('select title from book')).toEqual([{ title: 'one' }]));
    await source.run(`insert into book values (2, 'two'); update book set title = 'uno' where id = 1`);
    await eventually(async () =>
      expect(await here('select title from book order by id')).toEqual([{ title: 'uno' }, { title: 'two' }]),
    );
    await eventually(async () =>
      expect(
        reports
          .at(-1)
          ?.additions.map(({ statement }) => statement)
          .join(),
      ).toMatch(/note.*book/s),
    );
    // A value that does not fit here.
    await source.run(
      `alter table account alter column balance type text; update account set balance = 'much' where id = 1`,
    );
    await eventually(async () =>
      expect(await status()).toMatchObject({
        state: 'stopped',
        problem: { code: 'schema', statement: expect.stringContaining('balance') },
      }),
    );
    await eventually(async () =>
      expect(reports.at(-1)).toMatchObject({ state: 'stopped', problem: { code: 'schema' } }),
    );
    expect(JSON.stringify(reports)).not.toContain('much');
    await stop();
  });

  test('without room the branch grows no more, until there is some and it is resumed', async () => {
    await beginFollowing();
    const block = (since: string) =>
      servers.query(`update project set write_blocked_since = ${since} where project_id = '${project.id}'`);
    const stopped = { state: 'stopped', problem: { code: 'quota' } };
    await block('clock_timestamp()');
    await eventually(async () => expect(await status()).toMatchObject(stopped));
    await source.run('set role app; insert into counter values (7, 0)');
    expect(await run('follow.resume', ids())).toMatchObject(stopped);
    expect(await here('select id from counter where id = 7')).toEqual([]);
    await block('null');
    expect(await run('follow.resume', ids())).toMatchObject({ state: 'following', problem: null });
    await eventually(async () =>
      expect(await here('select id from counter where id = 7')).toEqual([{ id: 7 }]),
    );
    await stop();
  });

  test('a cut-over under load loses nothing, and can be called off before', async () => {
    await beginFollowing();
    const cutover = { ...ids(), job_id: randomUUID(), writes_refused: false };
    expect(await run('follow.cancel_cutover', ids())).toEqual({ cancelled: false });
    // It waits for changes that are not applied, which no watch lets continue.
    stopWatch.abort();
    await watching;
    await disable(servers.host, ids());
    await source.run(TRANSFER);
    const waiting = run('follow.cutover', cutover);
    await eventually(async () =>
      expect(await servers.query('select cutover from following where refused_at is not null')).toEqual([
        { cutover: 'refusing' },
      ]),
    );
    await eventually(async () =>
      expect(await source.run('show default_transaction_read_only')).toEqual([
        { default_transaction_read_only: 'on' },
      ]),
    );
    expect(await run('follow.cancel_cutover', ids())).toEqual({ cancelled: true });
    startWatch();
    expect(await waiting).toMatchObject({
      cut_over: null,
      findings: [{ message: 'The cut-over was called off.' }],
    });
    await source.run(TRANSFER);
    await untilLevel();
    const result = await underLoad(async () => {
      await eventually(async () =>
        expect(Number((await here('select n from counter'))[0]?.n)).toBeGreaterThan(20),
      );
      return run('follow.cutover', cutover);
    });
    expect(result.findings).toEqual([]);
    expect(result.cut_over).toMatchObject({ dropped_at_source: true, message: null, sequences: 1 });
    expect(await run('follow.cutover', cutover)).toEqual(result);
    expect(await here(STATE)).toEqual(await source.run(STATE));
    const [next] = await asClient(
      servers.host,
      'pooled',
      main,
      'read_write',
      'insert into transfer (amount) values (1) returning id::int',
    );
    const [last] = await source.run('select last_value::int as last from transfer_id_seq');
    expect(next?.id).toBe(Number(last?.last) + 1);
    await asClient(servers.host, 'direct', main, 'owner', 'create table mine (n int)');
    await expect(source.run('set role app; insert into counter values (2, 0)')).rejects.toThrow(/read-only/);
    expect(await atSource()).toEqual([]);
    expect(await status()).toMatchObject({ state: 'absent' });
    expect(await servers.query('select from restored_login')).toEqual([]);
    await source.run('begin read write; alter database shop reset default_transaction_read_only; commit');
    await project.drop(main);
  });
});

test('an error of a worker is about a change only if it names the transaction', () => {
  const line = {
    ...{ dbname: 'db_a', backend_type: 'logical replication apply worker', error_severity: 'ERROR' },
    ...{ state_code: '22P02', message: 'invalid input syntax for type integer: "secret"' },
    context:
      'processing remote data for replication origin "pg_16400" during message type "UPDATE" for replication target relation "public.account" in transaction 745, finished at 0/1552F60',
  };
  expect(readApplyError(JSON.stringify(line))).toEqual({
    ...{ database: 'db_a', sqlstate: '22P02', table: 'public.account', message: 'SQLSTATE 22P02' },
  });
  const away = { ...line, state_code: '08006', message: 'could not receive data from WAL stream' };
  expect(readApplyError(JSON.stringify(away))).toBeNull();
  expect(readApplyError(JSON.stringify({ ...line, context: undefined }))).toBeNull();
});
