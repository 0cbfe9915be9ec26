import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { groupName, loginName } from '../../../shared/branch/login.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  connect,
  type HostWithProject,
  makeProject,
  type Project,
  removeProjects,
} from '../../support/host/host-project.ts';
import { Browser } from '../../support/host/host-rows.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';

export function describeHostileTenants(servers: () => TestHost): void {
  let world: HostWithProject;
  let browser: Browser;
  let login: string;
  let neighbour: Browser;

  beforeAll(async () => {
    world = await makeProject(servers(), 'db_hostile_prod', 'create table seen (what text)');
    browser = new Browser(world.servers.host, world.main);
    login = loginName(world.main.branch_id, 'read_write');
    const other: Branch = await (world.project as Project).create(
      'db_hostile_prod_br_other',
      world.main.database,
    );
    neighbour = new Browser(world.servers.host, other);
    await neighbour.owner('create table calm (id int primary key); insert into calm values (1)');
  });
  afterAll(() => removeProjects(servers()));

  /** Rows that the tenant's code has written. */
  const seen = async () => (await browser.owner('select what from seen')).map(({ what }) => what as string);

  const sessions = () =>
    world.servers.query<{ pid: number; waiting: boolean }>(
      `select pid, exists (select from pg_locks where pg_locks.pid = activity.pid and not granted) as waiting
     from pg_stat_activity as activity where application_name = 'branchgate-rows' and state <> 'idle'`,
    );

  afterEach(async () => {
    await eventually(async () => expect(await sessions()).toEqual([]));
    await browser.owner('truncate seen');
  });

  /** A table `name` of three rows whose trigger runs `body` at each change. */
  const withTrigger = (name: string, body: string) =>
    browser.owner(
      `create table ${name} (id int primary key, note text);
     insert into ${name} select n, 'old' from generate_series(1, 3) n;
     create function ${name}_trigger() returns trigger language plpgsql as $$ begin ${body} end $$;
     create trigger hostile before update or delete on ${name} for each row execute function ${name}_trigger();`,
    );
  const change = { column: 'note', id: 1, value: 'new' };

  describe('rights', () => {
    test.each<[string, (project: string) => string]>([
      ['reset role', () => 'reset role'],
      ['reset session authorization', () => 'reset session authorization'],
      ['become the owner', (project) => `set role ${groupName(project, 'owner')}`],
      ['become the platform', () => 'set role branchgate'],
      ['become the platform for good', () => 'set session authorization branchgate'],
      ['become superuser', () => 'alter role current_user superuser'],
      ['read the verifiers', () => 'perform rolpassword from pg_authid'],
      ['read files', () => "perform pg_read_file('PG_VERSION')"],
    ])('a trigger that tries to %s gains no right', async (about, attempt) => {
      const table = about.replaceAll(' ', '_');
      await withTrigger(
        table,
        `begin ${attempt(world.main.project_id)}; exception when others then insert into seen values (sqlstate); end;
       insert into seen values (current_user || '/' || session_user || '/' || current_setting('is_superuser'));
       return new;`,
      );
      await browser.update(table, change);
      const [user, ...refusals] = (await seen()).toReversed();
      expect(user).toBe(`${login}/${login}/off`);
      for (const refusal of refusals) expect(refusal).toMatch(/^42501$|^42704$|^0LP01$/);
    });

    test('reading changes nothing, whatever function a view calls', async () => {
      await browser.owner(
        `create function leaves_a_trace() returns int language plpgsql as
         $$ begin insert into seen values ('read'); return 1; end $$;
       create function lifts_the_limit() returns int language plpgsql as
         $$ begin set transaction read write; insert into seen values ('read'); return 1; end $$;
       create view traced as select leaves_a_trace() as n; create view lifted as select lifts_the_limit() as n`,
      );
      await expect(browser.page('traced')).rejects.toMatchObject({
        code: 'STATEMENT_REFUSED',
        sqlstate: '25006',
      });
      await expect(browser.page('lifted')).rejects.toMatchObject({ code: 'STATEMENT_REFUSED' });
      expect(await seen()).toEqual([]);
    });

    test('a policy hides rows from changes as well as from reading', async () => {
      await browser.owner(
        `create table guarded (id int primary key, note text); insert into guarded values (1, 'mine'), (2, 'hidden');
       alter table guarded enable row level security;
       create policy visible on guarded using (note <> 'hidden');`,
      );
      expect((await browser.page('guarded')).rows).toEqual([{ id: 1, note: 'mine' }]);
      await expect(browser.update('guarded', { ...change, id: 2 })).rejects.toMatchObject({
        conflict: 'missing',
      });
      expect(await browser.delete('guarded', [1, 2])).toEqual({ deleted: 1, missing: [1] });
      await asClient(
        world.servers.host,
        'direct',
        world.main,
        'read_write',
        `alter role ${login} set row_security = off`,
      );
      expect((await browser.page('guarded')).rows).toEqual([]);
    });
  });

  describe('names', () => {
    test("a tenant's functions, operators and casts never replace PostgreSQL's", async () => {
      const functions = [
        'left(text, int)',
        'format(text, text)',
        'to_json(text)',
        'octet_length(text)',
        'length(text)',
        'count(int)',
        'has_table_privilege(oid, text)',
        'pg_backend_pid()',
      ];
      const shadows = functions.map(
        (signature) =>
          `create function ${signature} returns text language plpgsql as
         $$ begin insert into public.seen values ('${signature}'); return 'shadow'; end $$;`,
      );
      await browser.owner(
        `create type odd as (a int); create table shadowed (id int primary key, note text, odd odd);
       insert into shadowed values (1, 'one', row(1)), (2, 'two', row(2)), (3, 'three', row(3));
       create function never(int, int) returns bool language plpgsql as
         $$ begin insert into public.seen values ('='); return true; end $$;
       create function shown(odd) returns text language plpgsql as
         $$ begin insert into public.seen values ('cast'); return 'shadow'; end $$;
       create operator public.= (leftarg = int, rightarg = int, function = never);
       create operator public.>= (leftarg = int, rightarg = int, function = never);
       create cast (odd as text) with function shown(odd) as implicit;
       ${shadows.join('')}
       create table public.pg_class (id int primary key); insert into public.pg_class values (7);`,
      );
      await asClient(
        world.servers.host,
        'direct',
        world.main,
        'read_write',
        `alter role ${login} set search_path = public, pg_catalog`,
      );
      await browser.tables();
      expect((await browser.page('shadowed', 1, 1)).rows).toEqual([{ id: 2, note: 'two', odd: '(2)' }]);
      expect((await browser.page('pg_class')).rows).toEqual([{ id: 7 }]);
      const changed = { column: 'odd', value: '(9)', expected: '(2)' };
      expect(await browser.update('shadowed', { ...changed, id: 2 })).toEqual({
        id: 2,
        note: 'two',
        odd: '(9)',
      });
      expect(await browser.delete('shadowed', [3])).toEqual({ deleted: 1, missing: [] });
      expect(await seen()).toEqual([]);
      expect((await browser.page('shadowed')).rows.map(({ id }) => id)).toEqual([1, 2]);
    });

    test('a trigger that changes the search path and settings affects its own row only', async () => {
      await browser.owner(
        `create schema evil; create function evil.never(int, int) returns bool language sql as 'select true';
       create operator evil.= (leftarg = int, rightarg = int, function = evil.never)`,
      );
      await withTrigger(
        'mover',
        `perform set_config('search_path', 'evil, pg_catalog', false); perform set_config('DateStyle', 'German', false);
       return old;`,
      );
      expect(await browser.delete('mover', [1, 77, 2])).toEqual({ deleted: 2, missing: [1] });
      expect((await browser.page('mover')).rows).toEqual([{ id: 3, note: 'old' }]);
    });

    test('names that look like SQL are treated as names', async () => {
      const table = '"; drop table seen; -- Ünï.cödé';
      const column = `x" = 'y', "id`;
      const quote = (name: string) => `"${name.replaceAll('"', '""')}"`;
      await browser.owner(
        `create schema "My ""Schema"""; create table "My ""Schema""".${quote(table)}
         (${quote(column)} int primary key, "$1" text, "__proto__" text, "UPPER" text, "数" text, "a.b" text);
       insert into "My ""Schema""".${quote(table)} values (1, 'a', 'b', 'c', 'd', 'e')`,
      );
      const schema = 'My "Schema"';
      expect((await browser.page(table, 0, 5, schema)).rows.map((row) => Object.entries(row))).toEqual([
        [
          [column, 1],
          ['$1', 'a'],
          ['__proto__', 'b'],
          ['UPPER', 'c'],
          ['数', 'd'],
          ['a.b', 'e'],
        ],
      ]);
      const key = { primary_key: [column], id: 1 };
      for (const name of ['$1', '__proto__', 'UPPER', '数', 'a.b']) {
        const row = await browser.update(
          table,
          { ...key, column: name, value: `'; drop table seen; --` },
          schema,
        );
        expect(Object.entries(row)).toContainEqual([name, `'; drop table seen; --`]);
      }
      await expect(
        browser.update(table, { ...key, column: '"UPPER"', value: 'x' }, schema),
      ).rejects.toMatchObject({ code: 'COLUMN_NOT_FOUND' });
      expect(await browser.delete(table, [1], [column], schema)).toEqual({ deleted: 1, missing: [] });
      expect(await seen()).toEqual([]);
    });

    test('settings of the login do not change how values are shown', async () => {
      await asClient(
        world.servers.host,
        'direct',
        world.main,
        'read_write',
        `alter role ${login} set DateStyle = 'German'; alter role ${login} set IntervalStyle = 'iso_8601';
       alter role ${login} set TimeZone = 'Asia/Tokyo'; alter role ${login} set bytea_output = 'escape';
       alter role ${login} set extra_float_digits = -15; alter role ${login} set quote_all_identifiers = on;
       alter role ${login} set statement_timeout = 1`,
      );
      await browser.owner(
        `create table shown (id int primary key, at timestamptz, during interval, bytes bytea[], f float8);
       insert into shown values (1, '2026-01-31 12:00Z', '1 day 02:00', array['\\x00'::bytea], 0.1)`,
      );
      const { rows, columns } = await browser.page('shown');
      expect(rows).toEqual([
        { id: 1, at: '2026-01-31 12:00:00+00', during: '1 day 02:00:00', bytes: '{"\\\\x00"}', f: 0.1 },
      ]);
      expect(columns[0]?.type).toBe('integer');
    });
  });

  describe('time', () => {
    test.runIf(IS_NIGHTLY)('a lock that another session never releases', async () => {
      await browser.owner(
        'create table locked (id int primary key, note text); insert into locked values (1)',
      );
      const holder = await connect(world.servers.host, 'direct', world.main, 'owner');
      await holder.query('begin; lock table locked in access exclusive mode');
      for (const work of [
        () => browser.page('locked'),
        () => browser.update('locked', change),
        () => browser.delete('locked', [1]),
      ]) {
        await expect(work()).rejects.toMatchObject({ code: 'TIME_LIMIT_REACHED' });
        expect((await sessions()).filter(({ waiting }) => waiting)).toEqual([]);
      }
      await holder.end();
      expect((await browser.page('locked')).rows).toHaveLength(1);
    });

    test.runIf(IS_NIGHTLY)('a view that sleeps, and a domain that sleeps', async () => {
      await browser.owner(
        `create view asleep as select pg_sleep(600)::text as slept;
       create function slow(int) returns bool language plpgsql as $$ begin perform pg_sleep(600); return true; end $$;
       create table patient (id int primary key, note text); insert into patient values (1);
       create domain lazy as int check (value is null or slow(value)); alter table patient add column lazy lazy`,
      );
      await expect(browser.page('asleep')).rejects.toMatchObject({ code: 'TIME_LIMIT_REACHED' });
      await expect(browser.update('patient', { column: 'lazy', id: 1, value: 1 })).rejects.toMatchObject({
        code: 'TIME_LIMIT_REACHED',
      });
    });

    test.runIf(IS_NIGHTLY)(
      'a trigger that lifts the limits and catches their errors is ended, and its locks are released',
      async () => {
        await withTrigger(
          'stubborn',
          `perform set_config(name, '0', false) from pg_settings where name in
         ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout',
          'client_connection_check_interval');
       loop begin perform pg_sleep(600); exception when query_canceled then null; end; end loop;`,
        );
        await expect(browser.update('stubborn', change)).rejects.toMatchObject({
          code: 'TIME_LIMIT_REACHED',
        });
        await eventually(async () => expect(await sessions()).toEqual([]));
        await browser.owner('begin; lock table stubborn in access exclusive mode nowait; commit');
        await browser.owner('drop table stubborn');
      },
    );

    test.runIf(IS_NIGHTLY)(
      'operations that hang in one branch are limited and leave slots to the others',
      async () => {
        const hanging = Array.from({ length: 12 }, () =>
          browser.page('asleep').catch(({ code }) => code as string),
        );
        await eventually(async () => expect(await sessions()).toHaveLength(4));
        expect((await neighbour.page('calm')).rows).toEqual([{ id: 1 }]);
        const codes = await Promise.all(hanging);
        expect(codes.filter((code) => code === 'TIME_LIMIT_REACHED')).toHaveLength(4);
        expect(codes.filter((code) => code === 'PROJECT_BUSY')).toHaveLength(8);
        expect((await browser.page('patient')).rows).toHaveLength(1);
      },
    );
  });

  describe('errors', () => {
    test.each(firstByDay(3, ['57P01', '53100', '08006', '55006', '28000', '3D000', 'XX000']))(
      'a trigger that raises %s is no failure of the host',
      async (state) => {
        await withTrigger(
          `raises_${state}`,
          `raise exception 'raised by the tenant' using errcode = '${state}';`,
        );
        await expect(browser.update(`raises_${state.toLowerCase()}`, change)).rejects.toMatchObject({
          code: 'STATEMENT_REFUSED',
          sqlstate: state,
          message: 'raised by the tenant',
        });
      },
    );

    test('a trigger that ends its own session, or floods it, affects no other branch', async () => {
      await withTrigger(
        'suicidal',
        'perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(1); return new;',
      );
      await expect(browser.update('suicidal', change)).rejects.toMatchObject({
        code: 'POSTGRES_UNAVAILABLE',
      });
      await withTrigger(
        'talkative',
        `set client_min_messages = notice;
       for n in 1..20000 loop raise notice '%', repeat('x', 10000); perform pg_notify('all', n::text); end loop;
       return new;`,
      );
      await expect(browser.update('talkative', change)).rejects.toMatchObject({ sqlstate: '54000' });
      await withTrigger(
        'deaf',
        `set client_connection_check_interval = 0; set statement_timeout = 0; set transaction_timeout = 0;
       set client_min_messages = notice;
       for n in 1..20 loop raise notice '%', repeat('x', 1000000); end loop;
       loop begin perform pg_sleep(600); exception when others then null; end; end loop;`,
      );
      await expect(browser.update('deaf', change)).rejects.toMatchObject({ sqlstate: '54000' });
      await eventually(async () => expect(await sessions()).toEqual([]));
      await withTrigger('loud', "raise exception '%', repeat('x', 17000000);");
      await expect(browser.update('loud', change)).rejects.toMatchObject({ sqlstate: '54000' });
      expect((await neighbour.page('calm')).rows).toEqual([{ id: 1 }]);
    });

    test('a change that a trigger suppresses is reported as refused', async () => {
      await withTrigger('keeper', 'return null;');
      await expect(browser.update('keeper', change)).rejects.toMatchObject({
        code: 'STATEMENT_REFUSED',
        sqlstate: '09000',
      });
      await expect(browser.update('keeper', { ...change, expected: 'other' })).rejects.toMatchObject({
        conflict: 'changed',
      });
      expect(await browser.delete('keeper', [1])).toEqual({ deleted: 0, missing: [0] });
    });

    test('a trigger that fails at the end of the transaction fails the change', async () => {
      await browser.owner(
        `create table late (id int primary key, note text); insert into late values (1, 'old');
       create function refuses() returns trigger language plpgsql as
         $$ begin raise exception 'too late' using errcode = 'P0042'; end $$;
       create constraint trigger refuses after update or delete on late deferrable initially deferred
         for each row execute function refuses()`,
      );
      const refusal = { code: 'STATEMENT_REFUSED', sqlstate: 'P0042' };
      await expect(browser.update('late', change)).rejects.toMatchObject(refusal);
      await expect(browser.delete('late', [1])).rejects.toMatchObject(refusal);
      expect((await browser.page('late')).rows).toEqual([{ id: 1, note: 'old' }]);
    });
  });

  test('the table browser leaves no session that would delay a clone', async () => {
    await browser.page('late');
    const { clone } = await (world.project as Project).create('db_hostile_prod_br_copy', world.main.database);
    expect(clone.created).toBe(true);
  });
}
