import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { dumpSchema } from '../../../agent/dump/pg-dump.ts';
import { databasePrint } from '../../../agent/postgres/database-print.ts';
import { findTools } from '../../../dev/stack/postgres-tools.ts';
import { connect } from '../../support/database.ts';
import { firstByDay } from '../../support/nightly.ts';
import { SOURCE_LOGIN, type SourceServer, startSource } from '../../support/source-server.ts';
import { CATALOG_CASES } from '../difference/schema/catalog-cases.ts';
import { REPORTED_CASES, SCHEMA_CASES } from '../difference/schema/schema-cases.ts';

/** The server writes each statement with the name of its program. */
const LOGGED = `log_statement = 'all'
logging_collector = on
log_directory = 'log'
log_filename = 'statements'
log_line_prefix = 'by %a: '
`;

let source: SourceServer;
let folder: string;
let client: pg.Client;
beforeAll(async () => {
  source = await startSource(LOGGED);
  folder = mkdtempSync(join(tmpdir(), 'branchgate-print-'));
  client = await connect(source.url(), { application_name: 'print' });
});
afterAll(async () => {
  await client?.end();
  await source?.stop();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

const print = () => databasePrint(client, 'schema');

/** Objects of each kind, because pg_dump reads some catalogs only for an object of the kind. */
const KINDS = `
  create extension hstore; create extension postgres_fdw;
  create schema all_kinds; set search_path = all_kinds;
  create type mood as enum ('good'); create type span as range (subtype = int); create type pair as (a int, b int);
  create domain label as text not null check (value <> '');
  create function half(int) returns int language sql immutable as 'select $1 / 2';
  create procedure nothing() language sql as 'select 1';
  create aggregate total(int) (sfunc = int4pl, stype = int);
  create operator <~ (leftarg = int, rightarg = int, function = int4lt);
  create operator family family using btree;
  create operator class class for type int using btree family family as operator 1 <, function 1 btint4cmp(int, int);
  create cast (pair as text) with inout; create collation german (locale = 'C');
  create conversion own for 'LATIN1' to 'UTF8' from iso8859_1_to_utf8;
  create text search parser p (start = prsd_start, gettoken = prsd_nexttoken, end = prsd_end, lextypes = prsd_lextype);
  create text search template t (lexize = dsimple_lexize); create text search dictionary d (template = t);
  create text search configuration c (copy = english);
  create access method heap2 type table handler heap_tableam_handler;
  create server there foreign data wrapper postgres_fdw; create user mapping for public server there;
  create foreign table far (id int) server there;
  create sequence numbers; create table book (id int generated always as identity primary key, title label, mood mood default 'good', check (id > 0));
  create table part (id int, at date, primary key (id, at)) partition by range (at); create table part1 partition of part default;
  create index on part (at); create table child () inherits (book); create statistics related on id, mood from book;
  create view titles as select title from book; create materialized view moods as select mood from book;
  create rule ignored as on delete to book do instead nothing;
  create function touch() returns trigger language plpgsql as 'begin return new; end';
  create trigger touched before insert on book for each row execute function touch();
  alter table book enable row level security; create policy mine on book using (true);
  create function watch() returns event_trigger language plpgsql as 'begin end'; create event trigger watching on ddl_command_end execute function watch(); drop event trigger watching;
  create publication pub for table book; create publication pubs for tables in schema all_kinds;
  comment on table book is 'books'; grant select on book to public; grant select (title) on book to public;
  alter default privileges grant select on tables to public; select lo_create(0)`;

/** Catalogs that say nothing of a schema: they are of the whole server, or only a superuser's dump reads them. */
const OF_SERVER = new Set([
  ...['pg_roles', 'pg_authid', 'pg_auth_members', 'pg_database', 'pg_tablespace', 'pg_shdescription'],
  ...['pg_shseclabel', 'pg_seclabels', 'pg_db_role_setting', 'pg_settings', 'pg_parameter_acl'],
  ...['pg_subscription', 'pg_subscription_rel', 'pg_largeobject'],
]);

/** The catalogs that statements of a program name. */
async function catalogsOf(program: RegExp): Promise<Set<string>> {
  const [{ log } = { log: '' }] = await source.run<{ log: string }>(
    "select pg_read_file('log/statements') as log",
  );
  const names = await source.run<{ name: string }>(
    "select relname::text as name from pg_class where relnamespace = 'pg_catalog'::regnamespace and relkind in ('r', 'v')",
  );
  const texts = log.split(/^by (?=[^:\n]*: )/m).filter((entry) => program.test(entry));
  const named = new Set(texts.join('\n').match(/\bpg_[a-z_]+\b/g));
  return new Set(names.map(({ name }) => name).filter((name) => named.has(name)));
}

test('every catalog that pg_dump reads is in the print', async () => {
  await source.run(KINDS);
  const { user, database, password } = SOURCE_LOGIN;
  await source.run(`alter role ${user} superuser`);
  const variables = {
    PGHOST: '127.0.0.1',
    PGPORT: String(source.port),
    PGUSER: user,
    PGDATABASE: database,
    PGSSLMODE: 'require',
    PGAPPNAME: 'dump',
  };
  const entries = await dumpSchema(
    { STATE_DIR: folder, POSTGRES_BIN: findTools() },
    { variables, password },
    { within: 60_000, isWhole: true },
  );
  await source.run(`alter role ${user} nosuperuser`);
  expect(new Set(entries.map(({ kind }) => kind)).size).toBeGreaterThan(40);
  await print();
  const read = await catalogsOf(/^dump: /);
  const printed = await catalogsOf(/^print: /);
  expect(read.size).toBeGreaterThan(45);
  expect([...read].filter((name) => !printed.has(name) && !OF_SERVER.has(name))).toEqual([]);
  await source.run('drop publication pub; drop publication pubs; drop schema all_kinds cascade');
});

test('each change of a schema changes the print', async () => {
  await client.query('create schema cases');
  for (const { name, base, here, there } of firstByDay(CATALOG_CASES.length, [
    ...CATALOG_CASES,
    ...REPORTED_CASES,
    ...SCHEMA_CASES,
  ])) {
    const run = (sql = '') =>
      client.query(sql.replaceAll('%s', 'cases')).catch((error) => expect.fail(`${name}: ${error.message}`));
    await run(`create schema if not exists cases; set search_path = cases; ${base ?? ''}`);
    for (const change of [there, here].filter((sql) => sql !== undefined)) {
      const before = await print();
      await run(`begin; ${change}`);
      expect([name, await print()]).not.toEqual([name, before]);
      await run('rollback');
    }
    await run('drop schema cases cascade');
  }
});

test('what changes no schema leaves the print', async () => {
  await client.query('set search_path = public');
  await client.query(
    'create table plain (id serial primary key, note text); create materialized view plains as select * from plain',
  );
  const before = await print();
  for (const sql of [
    "insert into plain (note) select repeat('x', 1000) from generate_series(1, 100)",
    'analyze plain',
    'vacuum plain',
    'refresh materialized view plains',
    'truncate plain',
    'create temporary table passing (id serial primary key, note text unique)',
    'reindex table plain',
  ]) {
    await client.query(sql);
    expect([sql, await print()]).toEqual([sql, before]);
  }
});
