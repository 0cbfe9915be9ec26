import { afterAll, beforeAll, expect, test } from 'vitest';
import { loginName } from '../../../shared/branch/login.ts';
import { BOUNDS } from '../../../shared/protocol/bounds.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  connect,
  type HostWithProject,
  makeProject,
  removeProjects,
} from '../../support/host/host-project.ts';
import { Browser } from '../../support/host/host-rows.ts';

export function describeTables(servers: () => TestHost): void {
  let world: HostWithProject;
  let browser: Browser;
  beforeAll(async () => {
    world = await makeProject(
      servers(),
      'db_tables_prod',
      `create table author (author_id serial primary key, name text not null);
     create table line (b int, a int, note varchar(20), primary key (a, b));
     create view names as select name from author;
     create materialized view kept as select name from author;
     create table split (id int) partition by range (id);
     create schema "Größe. ""x"" --"; create table "Größe. ""x"" --"."select; drop table author" ("a.b" int);`,
    );
    browser = new Browser(world.servers.host, world.main);
  });
  afterAll(() => removeProjects(servers()));

  const namesOf = async (schema: string | null = null) =>
    (await browser.tables(schema)).tables.map((table) => `${table.schema}.${table.name}`);

  test('tables and views are listed with their columns and keys', async () => {
    const { tables, has_more } = await browser.tables('public');
    expect(has_more).toBe(false);
    expect(tables.map(({ name, kind }) => [name, kind])).toEqual([
      ['author', 'table'],
      ['kept', 'materialized_view'],
      ['line', 'table'],
      ['names', 'view'],
      ['split', 'partitioned_table'],
    ]);
    expect(tables[0]).toEqual({
      schema: 'public',
      name: 'author',
      kind: 'table',
      columns: [
        { name: 'author_id', type: 'integer', nullable: false, is_primary_key: true },
        { name: 'name', type: 'text', nullable: false, is_primary_key: false },
      ],
      primary_key: ['author_id'],
      estimated_rows: null,
      size_bytes: 16_384,
    });
    expect(tables[2]?.primary_key).toEqual(['a', 'b']);
    expect(tables[2]?.columns.map(({ type }) => type)).toEqual([
      'integer',
      'integer',
      'character varying(20)',
    ]);
  });

  test('without a schema, the tables of all schemas but the system’s are listed', async () => {
    expect(await namesOf()).toEqual([
      'Größe. "x" --.select; drop table author',
      'public.author',
      'public.kept',
      'public.line',
      'public.names',
      'public.split',
    ]);
    expect(await namesOf('Größe. "x" --')).toEqual(['Größe. "x" --.select; drop table author']);
    expect(await namesOf("public' or true --")).toEqual([]);
  });

  test('a table or column that the login may not read is treated as absent', async () => {
    const login = loginName(world.main.branch_id, 'read_write');
    await browser.owner(
      `create table secret (id int primary key); revoke all on secret from public;
     create table partly (id int primary key, open text, hidden text);
     create schema closed; create table closed.inside (id int);
     insert into partly values (1, 'open', 'hidden')`,
    );
    const [found] = await world.servers.query<{ rolname: string }>(
      "select rolname from pg_roles where rolname ~ '^g_.*_rw$' and pg_has_role($1, oid, 'member')",
      [login],
    );
    await browser.owner(
      `revoke all on secret, partly from ${found?.rolname}; revoke all on schema closed from ${found?.rolname};
     grant select (id, open) on partly to ${found?.rolname}`,
    );
    const { tables } = await browser.tables();
    expect(tables.map(({ name }) => name)).not.toContain('secret');
    expect(tables.map(({ name }) => name)).not.toContain('inside');
    expect(tables.find(({ name }) => name === 'partly')?.columns.map(({ name }) => name)).toEqual([
      'id',
      'open',
    ]);
    expect((await browser.page('partly')).rows).toEqual([{ id: 1, open: 'open' }]);
    for (const [name, schema] of [['secret'], ['inside', 'closed'], ['nothing'], ['x'.repeat(80)]] as const) {
      await expect(browser.page(name, 0, 1, schema)).rejects.toMatchObject({ code: 'TABLE_NOT_FOUND' });
    }
  });

  test('a table that a session has locked exclusively does not block the list', async () => {
    const owner = await connect(world.servers.host, 'direct', world.main, 'owner');
    await owner.query('begin; lock table author in access exclusive mode');
    const { tables } = await browser.tables('public');
    expect(tables.find(({ name }) => name === 'author')).toMatchObject({
      size_bytes: null,
      primary_key: ['author_id'],
    });
    expect(tables.find(({ name }) => name === 'line')).toMatchObject({ size_bytes: 8_192 });
    await owner.end();
  });

  test('a thousand tables are listed in parts, each of which fits into a message', async () => {
    const columns = [1, 2, 3, 4, 5, 6, 7, 8, 9].map(
      (n) => `"${`a column with a long name, number ${n}`.padEnd(63, '.')}" int`,
    );
    await browser.owner(
      `create schema many;
     do $$ begin for n in 1..1000 loop
       execute format('create table many.%I (${columns.join(', ')})', 'Table ' || lpad(n::text, 4, '0'));
     end loop; end $$`,
    );
    const seen: string[] = [];
    let parts = 0;
    for (let more = true; more; parts += 1) {
      const last = seen.at(-1);
      const part = await browser.tables('many', last === undefined ? null : { schema: 'many', name: last });
      expect(Buffer.byteLength(JSON.stringify(part))).toBeLessThan(BOUNDS.messageBytes);
      seen.push(...part.tables.map(({ name }) => name));
      more = part.has_more;
    }
    expect(seen).toEqual(Array.from({ length: 1_000 }, (_, n) => `Table ${String(n + 1).padStart(4, '0')}`));
    expect(parts).toBe(2);
  });
}
