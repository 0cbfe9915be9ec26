import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import type { MethodResult } from '../../../shared/protocol/operations.ts';
import { connect, query } from '../../support/database.ts';
import { eventually } from '../../support/eventually.ts';
import { killDumps } from '../../support/host/dump-processes.ts';
import { asRoot, startHost, type TestHost } from '../../support/host/host.ts';
import {
  asClient,
  connect as asOwner,
  type Branch,
  identity,
  Project,
} from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import { type SourceServer, startSource } from '../../support/source-server.ts';
import { CATALOG_CASES, REWRITTEN } from '../difference/schema/catalog-cases.ts';
import { REPORTED_CASES, SCHEMA_CASES } from '../difference/schema/schema-cases.ts';
import { EMPTY_SOURCE, expectSameCatalogs, FOLDER, NEXT_VALUES, PUBLIC_SCHEMAS } from './own-catalog.ts';

let source: SourceServer;
let servers: TestHost;
let project: Project;
let made = 0;
beforeAll(async () => {
  source = await startSource('');
  servers = await startHost({ settings: { FOLLOW_PRIVATE_NETWORKS: '127.0.0.0/8' } });
  project = new Project(servers.host);
  // The owner of tables with forced policies has to see all rows of them.
  await source.run('alter role app bypassrls');
});
afterAll(async () => {
  await servers?.stop();
  await source?.stop();
});
afterEach(async () =>
  expect(await servers.query("select datname from pg_database where datname ~ '^bg(?:load|job)_'")).toEqual(
    [],
  ),
);

type Copy = MethodResult<'transfer.copy'>;

/** Makes the database of a file at the source, statement by statement as its last one may fail. */
async function make(sql: string): Promise<void> {
  await source.run(EMPTY_SOURCE);
  const [before, concurrent] = sql.split(/^(?=create unique index concurrently)/m);
  await source.run(`set role app; ${before}`);
  const [index, ...after] = concurrent?.split(/(?<=;)\n/) ?? [];
  if (index === undefined) return;
  await source.run(index).catch(() => {});
  await source.run(`set role app; ${after.join('\n')}`);
}

const newBranch = async (): Promise<Branch> => {
  made += 1;
  return project.create(`db_schema_${made}`, null);
};

const probe = (branch: Branch, more: object = {}) =>
  runOperation(servers.host, 'transfer.probe', {
    project_id: project.id,
    source_url: source.url(),
    use: 'import',
    tables: null,
    publication: null,
    into: { branch_id: branch.branch_id, database: branch.database },
    room_bytes: 2 ** 30,
    ...more,
  });

async function copyInto(branch: Branch, more: object = {}): Promise<Copy> {
  const params = {
    ...identity(branch),
    job_id: randomUUID(),
    source_url: source.url(),
    tables: null,
    room_bytes: 2 ** 30,
    jobs: 2,
    busy_wait: 1_000,
    follow: null,
    ...more,
  };
  const result = await runOperation(servers.host, 'transfer.copy', params);
  const { job_id, project_id, branch_id, database } = params;
  if (result.copied)
    await runOperation(servers.host, 'reset.swap', {
      job_id,
      project_id,
      branch_id,
      database,
      snapshot_id: randomUUID(),
    });
  return result;
}

const owner = (branch: Branch, sql: string) => asClient(servers.host, 'direct', branch, 'owner', sql);

/** Warnings that are right, by file. */
const WARNED: Record<string, string> = { 'invalid-index.sql': 'public.visit_code' };

describe('a copy is the catalog of its source', () => {
  /** One of each cause of a loss; the others by night. */
  const BY_DAY =
    /^(?:partitioned-keys|domain-not-null|view-group|mview-on-view-on-mview|sequences|forced-rls|lookup-plpgsql)\.sql$/;
  const schemas = readdirSync(FOLDER).filter((name) => IS_NIGHTLY || BY_DAY.test(name));
  const paths = [...schemas.map((name) => join(FOLDER, name)), ...firstByDay(0, PUBLIC_SCHEMAS)];
  test.each(paths.map((path) => [basename(path), path] as const))('%s', async (name, path) => {
    await make(readFileSync(path, 'utf8'));
    const branch = await newBranch();
    const { findings: probed } = await probe(branch);
    const { copied, findings } = await copyInto(branch);
    expect(copied).not.toBeNull();
    for (const found of [probed, findings])
      expect(found.map(({ message, severity }) => ({ message, severity }))).toEqual(
        WARNED[name] === undefined
          ? []
          : [{ severity: 'warning', message: expect.stringContaining(WARNED[name]) }],
      );
    await expectSameCatalogs(
      await connect(source.url()),
      await asOwner(servers.host, 'direct', branch, 'owner'),
      { except: WARNED[name] },
    );
    const [theirs, ours] = await Promise.all([source.run(NEXT_VALUES), owner(branch, NEXT_VALUES)]);
    expect(ours).toEqual(theirs);
  });
});

test('a copy has what each change of the tables of differences has made', async () => {
  await source.run(EMPTY_SOURCE);
  const cases = [...SCHEMA_CASES, ...REPORTED_CASES, ...CATALOG_CASES];
  const client = await connect(source.url());
  for (const [n, { name, base, here }] of cases.entries()) {
    await client.query(`create schema case_${n}_; set search_path = case_${n}_`);
    for (const sql of [base, here])
      await client
        .query((sql ?? '').replaceAll('%s', `case_${n}_`))
        .catch((error) => expect.fail(`${name}: ${error.message}`));
  }
  await client.end();
  const branch = await newBranch();
  const { findings } = await copyInto(branch);
  expect(findings).toEqual([]);
  const rewritten = cases.flatMap(({ name }, n) => (REWRITTEN.includes(name) ? [`case_${n}_\\.`] : []));
  // Publications are the server's.
  const except = new RegExp(`^. publi|${rewritten.join('|')}`);
  const ours = await asOwner(servers.host, 'direct', branch, 'owner');
  await expectSameCatalogs(await connect(source.url()), ours, { except });
});

test('code that runs with the rows finds its names as for the login of the source', async () => {
  await make(`create schema one; create schema two;
    create function one.helper() returns int language sql immutable as 'select 1';
    create function two.helper() returns int language sql immutable as 'select 2';
    create function public.found(int) returns int language plpgsql immutable as 'begin return helper(); end';
    create table public.item (id int primary key, n int generated always as (public.found(id)) stored)`);
  // PostgreSQL prefers the setting of the login to that of the database.
  await source.run(
    'alter role app set search_path = one, public; alter database shop set search_path = two, public',
  );
  try {
    await query(source.url(), 'insert into public.item values (1)');
    const branch = await newBranch();
    expect((await copyInto(branch)).findings).toEqual([]);
    expect(await owner(branch, 'select n from public.item')).toEqual([{ n: 1 }]);
  } finally {
    await source.run('alter role app reset search_path; alter database shop reset search_path');
  }
});

test('a unique key of a partitioned table holds after a copy', async () => {
  await make(readFileSync(join(FOLDER, 'partitioned-keys.sql'), 'utf8'));
  const branch = await newBranch();
  await copyInto(branch);
  const upsert = `insert into event (id, at, code) overriding system value values (1, '2025-12-02', 'b')
    on conflict (id, at) do update set note = 'again' returning note`;
  expect(await owner(branch, upsert)).toEqual([{ note: 'again' }]);
  await expect(
    owner(branch, "insert into event (id, at, code) overriding system value values (1, '2025-12-02', 'b')"),
  ).rejects.toMatchObject({ code: '23505' });
});

test('what PostgreSQL refuses here is named by the probe, and nothing is made', async () => {
  await make(`reset role; create extension citext; create function lib() returns int language internal immutable as 'pg_backend_pid';
    create collation missing (provider = libc, locale = 'C'); create type point2 as (x int, y int);
    create table fine (id int primary key); create operator class ops for type int4 using btree as operator 1 <, operator 2 <=, operator 3 =, operator 4 >=, operator 5 >, function 1 btint4cmp(int4, int4);
    create index fine_ops on fine (id ops); alter table fine owner to app; create materialized view stolen as select pg_read_file('postgresql.conf') as text with no data`);
  const branch = await newBranch();
  const { findings } = await probe(branch);
  expect(findings.filter(({ severity }) => severity === 'error').map(({ object }) => object)).toEqual([
    expect.stringContaining('function public.lib()'),
    'operator family public.ops',
    'index public.fine_ops',
  ]);
  expect((await copyInto(branch)).findings).toMatchObject([{ problem: 'schema', severity: 'error' }]);
  expect(await owner(branch, "select relname from pg_class where relname = 'fine'")).toEqual([]);
});

test.runIf(IS_NIGHTLY)(
  'a schema that takes too long here is a warning, and nothing is left of its trial',
  async () => {
    await make(`create function waits(n int) returns int language plpgsql immutable as $$ begin
      if pg_catalog.current_database() ~ '^bgload_' then perform pg_catalog.pg_sleep(60); end if; return n; end $$;
    create table held (id int primary key); create index on held ((id + waits(1)))`);
    const { findings } = await probe(await newBranch());
    expect(findings).toMatchObject([
      { severity: 'warning', message: expect.stringContaining('could not be tried here') },
    ]);
  },
);

test('an extension that nothing needs is left out of a copy, with the views that use it', async () => {
  await make(`reset role; create extension citext; create extension pageinspect;
    create table item (id int primary key, name citext); insert into item values (1, 'One');
    create view pages as select * from heap_page_items(get_raw_page('item', 0)); create view of_pages as select lp from pages;
    alter table item owner to app; alter view pages owner to app; alter view of_pages owner to app`);
  const branch = await newBranch();
  for (const found of [await probe(branch), await copyInto(branch)])
    expect(found.findings).toContainEqual(
      expect.objectContaining({ problem: 'extension', severity: 'warning', object: 'pageinspect' }),
    );
  expect(await owner(branch, "select name::text from item where name = 'ONE'")).toEqual([{ name: 'One' }]);
  expect(await owner(branch, "select from pg_class where relname in ('pages', 'of_pages')")).toEqual([]);
});

test('code of an index that names objects without their schemas is named with what mends it', async () => {
  await make(`create table rate (id int primary key); create function helper(t text) returns text language sql immutable as 'select lower(t)';
    create function slug(t text) returns text language plpgsql immutable as 'begin return helper(t); end';
    create table page (id int primary key, title text); set search_path = public; create index page_slug on page ((title || id::text))`);
  const branch = await newBranch();
  expect((await probe(branch)).findings).toEqual([]);
  await source.run(
    `alter function slug(text) set search_path = public; create index page_slugs on page (slug(title)); alter function slug(text) reset search_path`,
  );
  const { findings } = await probe(branch);
  const named = findings.filter(({ severity }) => severity === 'warning');
  expect(named).toMatchObject([
    {
      object: 'public.slug(text)',
      statement: expect.stringMatching(
        /^ALTER FUNCTION public\.slug\(t text\) SET search_path = .*public, pg_temp$/,
      ),
    },
  ]);
  await source.run(
    `drop index page_slugs; set role app; set search_path = public; create view slugs as select slug(title) from page;
     create view of_slugs as select * from slugs; create materialized view kept as select * from of_slugs`,
  );
  expect((await probe(branch)).findings).toMatchObject([
    { severity: 'warning', object: 'public.slug(text)', message: expect.stringContaining('public.kept') },
  ]);
});

/** Runs `action` while another session of the source holds a lock that every reader of the table waits for. */
async function whileLocked(table: string, action: () => Promise<void>): Promise<void> {
  const holder = await connect(source.url());
  try {
    await holder.query(`begin; lock table ${table} in access exclusive mode`);
    await action();
  } finally {
    await holder.end();
  }
}

const LOCKED = {
  copied: null,
  findings: [{ problem: 'connection', severity: 'error', message: expect.stringContaining('locked') }],
};

test('a copy whose dump is killed, or finds a table locked, leaves nothing here and no session there', async () => {
  // Only pg_dump locks a partitioned table: it has no size that the agent would read.
  await make('create table held (id int primary key) partition by range (id)');
  const branch = await newBranch();
  await whileLocked('held', async () => {
    const copying = copyInto(branch);
    await killDumps(servers.settings);
    expect(await copying).toMatchObject({
      copied: null,
      findings: [{ severity: 'error', message: expect.stringContaining('SIGKILL') }],
    });
    expect(await copyInto(branch)).toMatchObject(LOCKED);
  });
  await eventually(async () =>
    expect(
      await source.run("select from pg_stat_activity where application_name ~ '^branchgate-dump'"),
    ).toEqual([]),
  );
  expect(asRoot(() => readdirSync(join(servers.settings.STATE_DIR, 'dumps')))).toEqual([]);
  expect((await copyInto(branch)).copied).not.toBeNull();
});

test('a table that is locked at the source is waited for two seconds, by a probe and by a copy', async () => {
  await make('create table held (id int primary key)');
  const branch = await newBranch();
  await whileLocked('held', async () => {
    for (const read of [() => copyInto(branch), () => probe(branch)]) {
      const waited: number[] = [];
      const watching = setInterval(async () => {
        const [{ ms } = { ms: 0 }] = await source.run<{ ms: number }>(
          'select coalesce(max(extract(epoch from clock_timestamp() - waitstart) * 1000), 0)::float8 as ms from pg_locks where not granted',
        );
        waited.push(ms);
      }, 50);
      const found = await read();
      clearInterval(watching);
      expect(found.findings).toMatchObject(LOCKED.findings);
      expect(Math.max(...waited)).toBeGreaterThan(0);
      expect(Math.max(...waited)).toBeLessThan(2_500);
    }
  });
});

test('chosen tables are copied from a source that hides the others', async () => {
  await make(`create table open (id int primary key); create table other (id int primary key); create view both_of as select open.id from open join other using (id);
    reset role; create schema app; create table app.secret (id int references public.open)`);
  const branch = await newBranch();
  expect((await probe(branch)).findings).toMatchObject([
    { problem: 'rights', object: expect.stringMatching(/secret/) },
  ]);
  const { copied, findings } = await copyInto(branch, { tables: ['open'] });
  expect(copied?.tables.map(({ table }) => table)).toEqual(['open']);
  expect(findings).toMatchObject([
    { severity: 'warning', message: expect.stringContaining('view public.both_of') },
  ]);
});

test('refused rights are named with the statements that grant them, and no more', async () => {
  await make(`reset role; create schema "Their own"; create table "Their own"."Big table" (id serial primary key, n int); create sequence "Their own"."A ""counter""";
    create table sold (id int, at date) partition by range (at); create table sold_all partition of sold default partition by list (id); create table sold_one partition of sold_all default;
    create table waiting (at date) partition by range (at); create view "Their own".sums as select sum(n) from "Their own"."Big table";
    create function "Their own".one() returns int language sql as 'select 1'; grant select on sold_one to app;
    insert into "Their own"."Big table" (n) values (7); insert into sold values (1, '2026-01-01')`);
  const branch = await newBranch();
  const refusals = async (more: object = {}) =>
    (await probe(branch, more)).findings.filter(({ severity }) => severity === 'error');
  const of = (object: string) => ({
    problem: 'rights',
    object,
    message: `The login has no right SELECT on ${object}. Grant it, or leave it alone with exclude_schemas or exclude_tables.`,
  });
  const refused = await refusals();
  const THEIRS = ['"Their own"."A ""counter"""', '"Their own"."Big table"', '"Their own"."Big table_id_seq"'];
  const PARENTS = ['public.sold', 'public.sold_all'];
  const objects = [...THEIRS, ...PARENTS, 'public.waiting'];
  expect(refused.toSorted((a, b) => ((a.object ?? '') < (b.object ?? '') ? -1 : 1))).toMatchObject(
    objects.map(of),
  );
  // Tables that are chosen need their parents, and those that are left alone need no right.
  expect(
    (await refusals({ tables: ['sold'], exclude_schemas: ['Their own'] })).map(({ object }) => object),
  ).toEqual(PARENTS);
  expect(await refusals({ exclude_schemas: ['Their own'], exclude_tables: ['sold', 'waiting'] })).toEqual([]);
  for (const { statement } of refused) await source.run(statement ?? '');
  expect(await refusals()).toEqual([]);
  const rights = await source.run(`select distinct privilege_type as name from pg_class,
    lateral aclexplode(relacl) where grantee = 'app'::regrole and relowner <> grantee
    union select privilege_type from pg_namespace, lateral aclexplode(nspacl) where nspname = 'Their own' and grantee = 'app'::regrole order by 1`);
  expect(rights).toEqual([{ name: 'SELECT' }, { name: 'USAGE' }]);
  expect((await copyInto(branch)).copied).toMatchObject({ rows: 2 });
  expect(await owner(branch, 'select sum::int as n from "Their own".sums')).toEqual([{ n: 7 }]);
});

test('what is left alone is neither locked nor read, and what depends on it is named', async () => {
  await make(`create table book (id int primary key, title text); insert into book values (1, 'one');
    reset role; create schema auth; create table auth.users (id int primary key); create function auth.uid() returns int language sql as 'select 1'; create extension citext schema auth;
    create schema app authorization app; grant usage on schema auth to app; grant references, select on auth.users to app; set role app;
    create table app.note (id int primary key, author_id int references auth.users); create view app.authors as select id from auth.users;
    create table app.signed (id int primary key, by int default auth.uid()); create table public.log (at date) partition by range (at); create table public.log_1 partition of public.log default;
    reset role; revoke all on schema auth from app; revoke all on auth.users from app`);
  const branch = await newBranch();
  const { findings: refused } = await probe(branch);
  expect(refused.filter(({ severity }) => severity === 'error')).toMatchObject([
    { problem: 'rights', object: 'auth.users' },
  ]);
  const unknown = await probe(branch, { exclude_schemas: ['nope'], exclude_tables: ['nix'] });
  expect(unknown.findings.map(({ path }) => path)).toEqual(
    expect.arrayContaining(['exclude_schemas.0', 'exclude_tables.0']),
  );
  const alone = { exclude_schemas: ['auth'], exclude_tables: ['log'] };
  const left = /view app\.authors.*|table app\.signed.*/;
  for (const read of [() => probe(branch, alone), () => copyInto(branch, alone)])
    expect((await read()).findings).toMatchObject([
      { severity: 'warning', problem: 'schema', message: expect.stringMatching(left) },
    ]);
  expect(
    await owner(
      branch,
      "select relname as name from pg_class where relkind in ('r', 'p', 'v') and relnamespace::regnamespace::text in ('public', 'app', 'auth') order by 1",
    ),
  ).toEqual([{ name: 'book' }, { name: 'note' }]);
  const only = await newBranch();
  expect((await copyInto(only, { schemas: ['public'] })).copied?.tables.map(({ table }) => table)).toEqual(
    expect.arrayContaining(['book', 'log_1']),
  );
});

describe('a database', () => {
  test.each([
    ['LATIN1', "locale 'C'"],
    ['WIN1252', "locale 'C'"],
    ['UTF8', "locale_provider icu icu_locale 'de-DE' locale 'C'"],
  ])('of %s with %s is copied', async (encoding, locale) => {
    const name = `in_${encoding.toLowerCase()}`;
    await source.run('drop schema public cascade; create schema public authorization app');
    await source.run(`create database ${name} owner app template template0 encoding '${encoding}' ${locale}`);
    const url = source.url().replace(/shop$/, name);
    const { Client } = (await import('pg')).default;
    const client = new Client({ connectionString: url.replace('?', ''), ssl: { rejectUnauthorized: false } });
    await client.connect();
    await client.query(`create table straße (größe text primary key, n int); comment on table straße is 'für ñ'; create type "é" as enum ('ü');
      insert into straße select 'Größe ' || n || ' ß', n from generate_series(1, 200) n`);
    await client.end();
    const branch = await newBranch();
    const { copied, findings } = await copyInto(branch, { source_url: url });
    expect(findings).toEqual([]);
    expect(copied?.tables).toMatchObject([{ table: 'straße', rows: 200, compared: 200 }]);
    expect(await owner(branch, 'select größe from straße where n = 7')).toEqual([{ größe: 'Größe 7 ß' }]);
    expect(await owner(branch, "select obj_description('straße'::regclass) as text")).toEqual([
      { text: 'für ñ' },
    ]);
  });
});
