import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { groupName, loginName, queryLoginName } from '../../../shared/branch/login.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  connect,
  type HostWithProject,
  makeProject,
  removeProjects,
} from '../../support/host/host-project.ts';
import { Browser } from '../../support/host/host-rows.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

export function describeQueries(servers: () => TestHost): void {
  let world: HostWithProject;
  let browser: Browser;
  beforeAll(async () => {
    world = await makeProject(
      servers(),
      'db_queries_prod',
      `create schema own; create type own.mood as enum ('good');
     create table note (id int primary key, title text); insert into note values (1, 'One'), (2, 'Two');
     create function writes() returns int language plpgsql as
       $$ begin insert into note values (99, 'written'); return 1; end $$;
     create function writes_as_owner() returns int language plpgsql security definer as
       $$ begin insert into note values (99, 'written'); return 1; end $$;`,
    );
    browser = new Browser(world.servers.host, world.main);
  });
  afterAll(() => removeProjects(servers()));

  const notes = async () => (await browser.owner('select id from note order by id')).map(({ id }) => id);

  test('a query returns columns with types, and values as the table browser shows them', async () => {
    const result = await browser.query(
      `select $1::int as n, $2::bigint as n, 1.50::numeric, true as yes, '\\x0001'::bytea as bytes, null::text as nothing,
       'NaN'::float8 as nan, '2026-01-31 12:00Z'::timestamptz as at, '{"a": 1}'::jsonb as j, 'good'::own.mood as mood,
       'abc'::varchar(5) as short`,
      [7, '9007199254740993'],
    );
    expect(result).toEqual({
      columns: [
        { name: 'n', type: 'integer' },
        { name: 'n', type: 'bigint' },
        { name: 'numeric', type: 'numeric' },
        { name: 'yes', type: 'boolean' },
        { name: 'bytes', type: 'bytea' },
        { name: 'nothing', type: 'text' },
        { name: 'nan', type: 'double precision' },
        { name: 'at', type: 'timestamp with time zone' },
        { name: 'j', type: 'jsonb' },
        { name: 'mood', type: 'own.mood' },
        { name: 'short', type: 'character varying(5)' },
      ],
      rows: [
        [
          7,
          '9007199254740993',
          '1.50',
          true,
          'AAE=',
          null,
          'NaN',
          '2026-01-31 12:00:00+00',
          '{"a": 1}',
          'good',
          'abc',
        ],
      ],
      has_more: false,
      command: 'SELECT',
      row_count: 1,
    });
  });

  test.each([
    ['show server_version_num', 1],
    ['explain select * from note', 1],
    ['values (1), (2)', 2],
    ['', 0],
    ['-- nothing', 0],
    ['select', 1],
  ])('the statement %j has %i rows at least', async (sql, rows) => {
    expect((await browser.query(sql)).rows.length).toBeGreaterThanOrEqual(rows);
  });

  test.each([0, 1, 99, 100, 101, 200, 1000])('a read of %i rows counts them', async (rows) => {
    const found = await browser.query('select from generate_series(1, $1::int)', [rows]);
    expect([found.row_count, found.rows.length, found.has_more]).toEqual([rows, rows, false]);
  });

  test('a statement that changes something says how many rows', async () => {
    const inserted = await browser.query(
      'insert into note values ($1, $2) returning title',
      [3, 'Three'],
      'read_write',
    );
    expect(inserted).toMatchObject({ rows: [['Three']], command: 'INSERT', row_count: 1 });
    const deleted = await browser.query('delete from note where id = $1', [3], 'read_write');
    expect(deleted).toMatchObject({ columns: [], rows: [], command: 'DELETE', row_count: 1 });
    expect(
      await browser.query('create table made (id int)', [], 'read_write').catch(({ sqlstate }) => sqlstate),
    ).toBe('42501');
  });

  describe('a read-only query changes nothing', () => {
    test.each([
      ['insert into note values (99)', /^(25006|42501)$/],
      ['with made as (insert into note values (99) returning id) select * from made', /^(25006|42501)$/],
      ['select writes()', /^(25006|42501)$/],
      ['select writes_as_owner()', /^25006$/],
      ['select 1; insert into note values (99)', /^(25006|42501)$/],
      ['commit; insert into note values (99)', /^25000$/],
      ['set transaction read write; select writes_as_owner()', /^25001$/],
      ['set transaction_read_only = off; select writes_as_owner()', /^25001$/],
      ['set session characteristics as transaction read write; select writes_as_owner()', /^25006$/],
      ['/* - */ COMMIT AND CHAIN; set transaction read write; select writes_as_owner()', /^25000$/],
      ['rollback and chain; set transaction read write; select writes_as_owner()', /^25000$/],
      ['savepoint a; set transaction read write; rollback to a; select writes_as_owner()', /^25000$/],
      ['begin; set transaction read write; select writes_as_owner(); commit', /^25001$/],
      ['begin read write; select writes_as_owner()', /^25000$/],
      ['prepare p as select writes_as_owner(); execute p', /^25006$/],
      // The text is split by another rule than the server's then, which may only refuse more.
      [
        "set standard_conforming_strings = off; select 'a\\'; commit; set transaction read write; select '",
        /./,
      ],
      ['create temp table t (id int)', /^25006$/],
      ["select nextval(pg_catalog.pg_get_serial_sequence('note', 'id'))", /./],
      [
        'do $$ begin set transaction read write; insert into note values (99); end $$',
        /^(25001|25006|42501)$/,
      ],
      ["select set_config('transaction_read_only', 'off', false)", /^25001$/],
      ['copy note from stdin', /./],
      ["copy note to program 'id'", /^42501$/],
      ['set role pg_monitor', /./],
      ['lock table note in exclusive mode', /^(25006|42501)$/],
    ])('%s', async (sql, sqlstate) => {
      const outcome = await browser.query(sql).then(
        () => 'done',
        (error) => error.sqlstate ?? error.code,
      );
      if (!sql.includes('nextval')) expect(outcome).toMatch(sqlstate);
      expect(await notes()).toEqual([1, 2]);
    });

    test('not even by several queries', async () => {
      for (const sql of [
        'set default_transaction_read_only = off',
        'commit',
        'rollback',
        'set session characteristics as transaction read write',
      ])
        await browser.query(sql).catch(() => {});
      await expect(browser.query('select writes()')).rejects.toMatchObject({ code: 'STATEMENT_REFUSED' });
      expect(await notes()).toEqual([1, 2]);
    });

    test('and does not notify the listeners of applications', async () => {
      const listener = await connect(world.servers.host, 'direct', world.main, 'read_only');
      const heard: string[] = [];
      listener.on('notification', ({ payload }) => heard.push(payload ?? ''));
      await listener.query('listen orders');
      await browser.query("notify orders, 'forged'");
      await browser.query("select pg_notify('orders', 'forged')");
      await listener.query("notify orders, 'real'");
      expect(heard).toEqual(['real']);
      await listener.end();
    });

    test("and neither ends the sessions of an application's read-only login nor reads their statements", async () => {
      const application = await connect(world.servers.host, 'direct', world.main, 'read_only');
      const { rows } = await application.query("select pg_backend_pid() as pid, 'secret'");
      const pid = String(rows[0]?.pid);
      for (const end of ['pg_terminate_backend', 'pg_cancel_backend'])
        await expect(browser.query(`select ${end}(${pid})`)).rejects.toMatchObject({ sqlstate: '42501' });
      expect((await browser.query(`select query from pg_stat_activity where pid = ${pid}`)).rows).toEqual([
        ['<insufficient privilege>'],
      ]);
      await application.query('select 1');
      await application.end();
    });

    test('and runs as the query login, which is no superuser', async () => {
      const { rows } = await browser.query(
        "select current_user, session_user, current_setting('is_superuser')",
      );
      const login = queryLoginName(world.main.branch_id);
      expect(rows).toEqual([[login, login, 'off']]);
    });
  });

  describe('several statements', () => {
    test.each([
      'select 1; select 2;',
      "select 'a;b', e'\\';', $$;$$, $x$ $$;$$ $x$, U&'\\0061;'; select \"a;b\" from (select 1 as \"a;b\") t",
      'select 1 -- ;\n; /* ; /* ; */ ; */ select 2; -- end',
      ';; select 1 ;; select a$b$ from (select 1 as a$b$) t',
      'create or replace function pg_temp.f() returns int begin atomic select 1; select case when true then 2 end; end; select pg_temp.f()',
      'create rule r as on insert to note do also (select 1; select 2); drop rule r on note',
      'create temp table t (begin int); select begin from t; do $$ begin perform 1; end $$',
      'select 1 as "end"; select 1 as begin_; select case when true then 1 end',
    ])('%j is split as PostgreSQL does it', async (sql) => {
      const owner = await connect(world.servers.host, 'direct', world.main, 'owner');
      const parsed = (await owner.query(`begin; ${sql}`)) as unknown as {
        command: string;
        rows: unknown[];
      }[];
      await owner.query('rollback');
      await owner.end();
      const { results } = await browser.script(`${sql}; rollback`, 'owner');
      expect(results.map(({ command, row_count }) => [command, row_count])).toEqual(
        parsed.slice(1).map(({ command, rows }) => [command, command === 'SELECT' ? rows.length : null]),
      );
    });

    test('are one transaction, of which each has its result', async () => {
      const sql = "begin; insert into note values (5, 'Five'); select count(*)::int as n from note; commit";
      const { results } = await browser.script(sql, 'read_write');
      expect(results).toMatchObject([
        { command: 'INSERT', row_count: 1, rows: [] },
        { command: 'SELECT', row_count: 1, rows: [[3]], columns: [{ name: 'n', type: 'integer' }] },
      ]);
      expect(await notes()).toEqual([1, 2, 5]);
      await expect(
        browser.script('delete from note where id = 5; select 1; select 1 / 0; select 2', 'read_write'),
      ).rejects.toMatchObject({ code: 'STATEMENT_REFUSED', sqlstate: '22012', statement: 2 });
      await browser.script('begin; delete from note where id = 5; rollback', 'read_write');
      expect(await notes()).toEqual([1, 2, 5]);
      await browser.query('delete from note where id = 5', [], 'read_write');
    });

    test('share a message, and a result that is cut does not end those after it', async () => {
      const { results } = await browser.script(
        "select generate_series(1, 100000000), repeat('x', 1000); select 1 as n; select 2 as n",
      );
      expect(results.map(({ has_more, rows }) => [has_more, rows.length > 0])).toEqual([
        [true, true],
        [false, true],
        [false, true],
      ]);
      expect(Buffer.byteLength(JSON.stringify(results))).toBeLessThan(1_048_576);
      const wide = Array.from({ length: 40 }, (_, n) => `repeat('x', 60000) as c${n}`).join(', ');
      const many = await browser.script(Array.from({ length: 5 }, () => `select ${wide}`).join(';'));
      expect(Buffer.byteLength(JSON.stringify(many))).toBeLessThan(1_048_576);
    });

    test('take no parameters, and are a hundred at most', async () => {
      await expect(browser.script('select $1; select 2', 'read_only', [1])).rejects.toMatchObject({
        code: 'INVALID_CALL',
        path: 'params',
      });
      await expect(browser.script('select 1;'.repeat(101))).rejects.toMatchObject({ path: 'sql' });
      expect((await browser.script('select 1;'.repeat(100))).results).toHaveLength(100);
    });
  });

  describe('as the owner', () => {
    test('the schema is changed by the group of the project, which owns what is made', async () => {
      const { results } = await browser.script(
        'create table made (id int primary key); insert into made values (1); alter table made add column at date; select current_user::text, session_user::text',
        'owner',
      );
      expect(results.at(-1)?.rows).toEqual([
        [groupName(world.main.project_id, 'owner'), loginName(world.main.branch_id, 'owner')],
      ]);
      expect(
        await world.servers.query('select rolname from pg_roles where rolname = $1 and not rolsuper', [
          groupName(world.main.project_id, 'owner'),
        ]),
      ).toHaveLength(1);
      // The other logins may use it.
      expect((await browser.query('select id from made')).rows).toEqual([[1]]);
      expect((await browser.query('delete from made', [], 'read_write')).row_count).toBe(1);
      await browser.script('drop table made', 'owner');
    });

    test.each([
      ['become the platform', 'set role branchgate', '42501'],
      ['become the platform for good', 'set session authorization branchgate', '42501'],
      ['become a superuser', 'alter role current_user superuser', '42501'],
      ['read files', "select pg_read_file('PG_VERSION')", '42501'],
      ['read verifiers', 'select rolpassword from pg_authid', '42501'],
      ['run programs', "copy note to program 'id'", '42501'],
      ['make a role', 'create role r', '42501'],
      ['vacuum in a transaction', 'vacuum', '25001'],
    ])('a client cannot %s', async (_about, sql, sqlstate) => {
      await expect(browser.script(sql, 'owner')).rejects.toMatchObject({
        code: 'STATEMENT_REFUSED',
        sqlstate,
      });
    });

    test('nothing of a session stays for the next one', async () => {
      await browser.script(
        'set statement_timeout = 0; set search_path = pg_catalog; create temp table left_over (n int); select pg_advisory_lock(7); listen orders; prepare p as select 1',
        'owner',
      );
      const { results } = await browser.script(
        "show statement_timeout; show search_path; select to_regclass('pg_temp.left_over')::text; select count(*)::int from pg_prepared_statements",
        'owner',
      );
      expect(results.map(({ rows }) => rows[0]?.[0])).toEqual(['30s', '"$user", public, pg_temp', null, 0]);
      const left = "select pid from pg_stat_activity where application_name = 'branchgate-rows'";
      await eventually(async () => expect(await world.servers.query(left)).toEqual([]));
    });
  });

  test('a host whose files admit the agent to the logins of an earlier release only reads by the read-only login', async () => {
    const { servers, main } = world;
    const files = ['pg_hba.conf', 'pg_ident.conf'].map((name) => join(servers.settings.PGDATA_DIR, name));
    const present = files.map((file) => readFileSync(file, 'utf8'));
    const reload = () => servers.query('SELECT pg_reload_conf()');
    const whoReads = async () => (await browser.query('select session_user::text')).rows;
    for (const [n, file] of files.entries())
      writeFileSync(file, (present[n] ?? '').replaceAll('(owner|rw|ro|query)', '(owner|rw|ro)'));
    try {
      await reload();
      await eventually(async () =>
        expect(await whoReads()).toEqual([[loginName(main.branch_id, 'read_only')]]),
      );
      await expect(browser.query('insert into note values (99)')).rejects.toMatchObject({
        sqlstate: expect.stringMatching(/^(25006|42501)$/),
      });
    } finally {
      for (const [n, file] of files.entries()) writeFileSync(file, present[n] ?? '');
      await reload();
    }
    await eventually(async () => expect(await whoReads()).toEqual([[queryLoginName(main.branch_id)]]));
  });

  describe('bounds', () => {
    test('more rows than fit are left out, and the statement ends early', async () => {
      const { rows, has_more, row_count, columns } = await browser.query(
        "select generate_series(1, 100000000), repeat('x', 1000)",
      );
      expect([has_more, row_count, columns.map(({ type }) => type)]).toEqual([
        true,
        null,
        ['integer', 'text'],
      ]);
      expect(rows.length).toBeGreaterThan(900);
      expect(Buffer.byteLength(JSON.stringify(rows))).toBeLessThan(1_048_576);
      expect(rows[0]?.[0]).toBe(1);
    });

    test('of a change, too, which is made completely', async () => {
      await browser.owner('create table many (n int); grant all on many to public');
      const result = await browser.query(
        "insert into many select n from generate_series(1, 3000) n returning n, repeat('x', 1000)",
        [],
        'read_write',
      );
      expect([result.has_more, result.row_count, result.rows.length < 3000]).toEqual([true, 3000, true]);
      expect(await browser.owner('select count(*)::int as n from many')).toEqual([{ n: 3000 }]);
    });

    test('large cells are cut, and a row of many large cells still comes', async () => {
      const one = await browser.query("select repeat('é', 100000)");
      const [[cell] = []] = one.rows;
      expect(Buffer.byteLength((cell as { cut: string }).cut)).toBe(65_536);
      const wide = Array.from({ length: 40 }, (_, n) => `repeat('x', 60000) as c${n}`).join(', ');
      const { rows, has_more } = await browser.query(`select ${wide}`);
      expect([rows.length, has_more]).toEqual([1, false]);
      expect(rows[0]?.every((value) => (value as { cut: string }).cut.length === 16_384)).toBe(true);
    });

    test('a value beyond all bounds is refused', async () => {
      await expect(browser.query("select repeat('x', 40000000)")).rejects.toMatchObject({
        sqlstate: '54000',
      });
    });

    test('a slow statement ends after 5 s, and a stubborn one after 7 s', async () => {
      const stubborn = `do $$ begin perform set_config('statement_timeout', '0', false);
      loop begin perform pg_sleep(600); exception when query_canceled then null; end; end loop; end $$`;
      const outcomes = await Promise.all(
        ['select pg_sleep(600)', stubborn].map((sql) => browser.query(sql).catch(({ code }) => code)),
      );
      expect(outcomes).toEqual(['TIME_LIMIT_REACHED', 'TIME_LIMIT_REACHED']);
      const sessions =
        "select pid from pg_stat_activity where application_name = 'branchgate-rows' and state <> 'idle'";
      await eventually(async () => expect(await world.servers.query(sessions)).toEqual([]));
    });

    test.runIf(IS_NIGHTLY)(
      'a change ends after 30 s, and a stubborn one after 32 s',
      async () => {
        const stubborn = `do $$ begin perform set_config('statement_timeout', '0', false);
      loop begin perform pg_sleep(600); exception when query_canceled then null; end; end loop; end $$`;
        const began = performance.now();
        const outcomes = await Promise.all([
          browser
            .script('insert into note values (98); select pg_sleep(600)', 'read_write')
            .catch(({ code }) => code),
          browser.script(`insert into note values (97); ${stubborn}`, 'owner').catch(({ code }) => code),
        ]);
        expect(outcomes).toEqual(['TIME_LIMIT_REACHED', 'TIME_LIMIT_REACHED']);
        expect(performance.now() - began).toBeGreaterThan(30_000);
        expect(await notes()).toEqual([1, 2]);
        const sessions = "select pid from pg_stat_activity where application_name = 'branchgate-rows'";
        await eventually(async () => expect(await world.servers.query(sessions)).toEqual([]));
      },
      60_000,
    );

    test.each([[2 ** 60], [1e300]])('the parameter %d has lost digits', async (value) => {
      await expect(browser.query('select $1::numeric', [value])).rejects.toMatchObject({
        code: 'INVALID_CALL',
        path: 'params.0',
      });
    });
  });
}
