import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { inFollowed } from '../../../agent/transfer/followed-session.ts';
import { requireFollowed } from '../../../agent/transfer/following.ts';
import { compareWithSource } from '../../../agent/transfer/schema-changes.ts';
import { connect as connectTo } from '../../support/database.ts';
import { eventually } from '../../support/eventually.ts';
import { killDumps } from '../../support/host/dump-processes.ts';
import { Follower } from '../../support/host/follower.ts';
import { asRoot } from '../../support/host/host.ts';
import { asClient, connect } from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import { EMPTY_SOURCE, expectSameCatalogs, FOLDER, NEXT_VALUES, PUBLIC_SCHEMAS } from './own-catalog.ts';

let follower: Follower;
beforeAll(async () => {
  follower = await Follower.start();
  // It reads past policies that are forced on its own tables.
  await follower.source.run('alter role app bypassrls');
});
afterAll(() => follower?.stop());

const owner = (sql: string) => asClient(follower.servers.host, 'direct', follower.main, 'owner', sql);

const CASES: [file: string, change: string, rows: string][] = [
  [
    'partitioned-keys.sql',
    "insert into event (at, code) select date '2025-12-20' + n, 'b' from generate_series(1, 30) n; update event set note = 'x' where id = 3; delete from event where id = 4",
    "select count(*)::int as n, md5(string_agg(t::text, '|' order by t::text)) as rows from event t",
  ],
  ['view-group.sql', 'insert into sale values (2, 1, 7)', 'select total from per_customer'],
  ['view-on-mview.sql', 'insert into sale values (2, 7)', 'select sum(amount) as n from sale'],
  [
    'two-parents.sql',
    "insert into thing (id, owner_id, note) values (8, 2, 'y')",
    'select count(*)::int as n from has_owner',
  ],
  ['forced-rls.sql', "insert into note values (3, 'a', 'z')", 'select count(*)::int as n from note'],
  ['domain-not-null.sql', "insert into item values (2, 'b')", 'select count(*)::int as n from item'],
];

/** Their rows come with the others of the night; here it is the catalog. */
const PUBLIC = PUBLIC_SCHEMAS.map((path): [string, string, string] => [path, 'select 1', 'select 1 as n']);

test.each(
  [...firstByDay(2, CASES), ...firstByDay(0, PUBLIC)].map((found) => [basename(found[0]), ...found] as const),
)('%s is followed, and cut over with the catalog of its source', async (name, file, change, rows) => {
  const { source } = follower;
  await follower.renew();
  await source.run(`${EMPTY_SOURCE}; set role app; ${readFileSync(resolve(FOLDER, file), 'utf8')}`);
  await follower.begin();
  await source.run(`set role app; ${change}`);
  // Policies hide its rows from the clients of the branch.
  const isHidden = name === 'forced-rls.sql';
  await eventually(async () => {
    if (isHidden) expect(await follower.status()).toMatchObject({ lag_bytes: 0 });
    else expect(await follower.here(rows)).toEqual(await source.run(rows));
  });
  expect(await follower.status()).toMatchObject({ state: 'following', problem: null });
  const { cut_over, findings } = await follower.run('follow.cutover', {
    ...follower.ids,
    job_id: randomUUID(),
    writes_refused: false,
  });
  expect([findings, cut_over?.rows]).toEqual([[], expect.any(Number)]);
  await source.run('begin read write; alter database shop reset default_transaction_read_only; commit');
  await expectSameCatalogs(
    await connectTo(source.url()),
    await connect(follower.servers.host, 'direct', follower.main, 'owner'),
  );
  for (const sql of [NEXT_VALUES, ...(isHidden ? [] : [rows])])
    expect(await owner(sql)).toEqual(await source.run(sql));
  if (name === 'partitioned-keys.sql') {
    const again = `insert into event (id, at, code) overriding system value values (5, '2025-12-06', 'c')`;
    expect(await owner(`${again} on conflict (id, at) do update set note = 'again' returning note`)).toEqual([
      { note: 'again' },
    ]);
    await expect(owner(again)).rejects.toMatchObject({ code: '23505' });
  }
  await follower.expectNothingLeft();
});

test('code of checks and generated columns that names objects without their schemas is named before it stops a change', async () => {
  const { source } = follower;
  await follower.renew();
  await source.run(`set role app; create function helper(t text) returns text language sql immutable as 'select lower(t)';
    create function lowered(t text) returns text language plpgsql immutable as 'begin return helper(t); end';
    create function is_lower(t text) returns boolean language plpgsql immutable as 'begin return helper(t) = t; end';
    create domain lower as text check (is_lower(value));
    create table page (id int primary key, title text, low text generated always as (lowered(title)) stored);
    create table word (id int primary key, word text check (is_lower(word)), other lower);
    insert into page values (1, 'A')`);
  const probe = async (use: 'follow' | 'import') => {
    const { branch_id, database, project_id } = follower.ids;
    const { findings } = await follower.run('transfer.probe', {
      project_id,
      source_url: source.url(),
      use,
      into: { branch_id, database },
      tables: null,
      publication: null,
      room_bytes: 2 ** 30,
    });
    return findings.flatMap(({ problem, object, message }) =>
      problem === 'schema' ? [[object, /which (\S+) uses/.exec(message)?.[1]]] : [],
    );
  };
  expect(await probe('import')).toEqual([]);
  expect((await probe('follow')).toSorted()).toEqual([
    ['public.is_lower(text)', 'public.lower'],
    ['public.is_lower(text)', 'public.word'],
    ['public.lowered(text)', 'public.page'],
  ]);
  await follower.begin();
  await source.run("set role app; insert into page values (2, 'B')");
  await eventually(async () =>
    expect(await follower.status()).toMatchObject({
      state: 'stopped',
      problem: { code: 'apply', message: expect.stringContaining('helper(text) does not exist') },
    }),
  );
  await follower.end();
});

test('a comparison whose dump is killed, of the source or of the branch, is made again, and leaves nothing', async () => {
  const { source, servers } = follower;
  await follower.renew();
  await follower.begin();
  await follower.stopWatch();
  const compare = async () =>
    compareWithSource(servers.host, await requireFollowed(servers.host.postgres, follower.main.branch_id));
  const lock = 'lock table public.account in access exclusive mode';
  const expectNothingLeft = () =>
    eventually(async () => {
      const dumping = "select from pg_stat_activity where application_name ~ '^branchgate-(?:dump|compar)'";
      expect([await source.run(dumping), await servers.query(dumping)]).toEqual([[], []]);
      expect(await servers.query('select from pg_roles where rolvaliduntil is not null')).toEqual([]);
      expect(asRoot(() => readdirSync(join(servers.settings.STATE_DIR, 'dumps')))).toEqual([]);
    });
  const there = await connectTo(source.url());
  await there.query(`begin; ${lock}`);
  const ofSource = compare();
  await killDumps(servers.settings);
  expect(await ofSource).toMatchObject({
    ok: false,
    failure: {
      problem: 'schema',
      message: expect.stringMatching(
        /^The schema of the source could not be read: pg_dump ended with SIGKILL/,
      ),
    },
  });
  await there.end();
  await expectNothingLeft();
  await inFollowed(servers.host, follower.ids, 'change', async (here) => {
    await here.query(`begin; ${lock}`);
    const ofBranch = compare();
    await eventually(async () =>
      expect(await servers.query("select from pg_stat_activity where wait_event_type = 'Lock'")).not.toEqual(
        [],
      ),
    );
    await killDumps(servers.settings);
    expect(await ofBranch).toMatchObject({
      ok: false,
      failure: { message: expect.stringContaining('pg_dump ended with SIGKILL') },
    });
    await here.query('rollback');
  });
  await expectNothingLeft();
  expect(await compare()).toMatchObject({ ok: true, value: { changes: { statements: [] } } });
  await source.run('set role app; create table added (id int primary key); insert into added values (1)');
  follower.startWatch();
  await eventually(async () => expect(await follower.here('select id from added')).toEqual([{ id: 1 }]));
  await follower.end();
});

const BASE = `set role app; create table shop (id int primary key, name text, kind varchar(9) check (kind in ('a', 'b')));
  create table visit (id int, at date, primary key (id, at)) partition by range (at); create table visit_old partition of visit for values from (minvalue) to ('2026-01-01');
  create type mood as enum ('good', 'bad'); create table felt (id int primary key, mood mood); create domain label as text; create sequence numbers; create view names as select name from shop;
  create function half(int) returns int language sql as 'select $1 / 2';
  create table note (id int primary key, text text); alter table note enable row level security; alter table note force row level security; create policy own on note using (true)`;

type Outcome = 'same' | 'addition' | 'more' | 'lost' | 'not modelled';

/** Changes of a source, and what becomes of each of them here. */
const CHANGES: [change: string, outcome: Outcome][] = [
  [
    'insert into shop values (1); analyze; grant select on shop to public; create temporary table t (id int)',
    'same',
  ],
  ['create table author (id int primary key, shop_id int references shop, mood mood)', 'addition'],
  ["create table visit_new partition of visit for values from ('2026-01-01') to (maxvalue)", 'addition'],
  ['alter table shop add note text', 'addition'],
  [
    "alter table shop add note text not null default 'none', add mood mood default 'good', add n int default -1",
    'addition',
  ],
  ['create index on shop (name); create unique index on visit (at, id)', 'addition'],
  [
    "create type size as enum ('s'); create domain plain as int; create schema more; create sequence more.n",
    'addition',
  ],
  ["comment on table shop is 'all'; comment on column shop.name is 'a'", 'addition'],
  ["alter type mood add value 'fair' before 'bad'", 'addition'],
  ['alter table note no force row level security', 'same'],
  ['create function third(int) returns int language sql as $$select $1 / 3$$', 'more'],
  ['create or replace function half(int) returns int language sql as $$select $1 / 4$$', 'more'],
  ['create or replace view names as select name, id from shop', 'more'],
  ["alter table shop add check (name <> '')", 'more'],
  ['alter table shop add unique (name)', 'more'],
  ['alter table shop alter name set not null', 'more'],
  ["alter table shop alter name set default 'x'", 'more'],
  ['alter table shop drop name cascade', 'more'],
  ['drop table visit_old', 'more'],
  ['drop sequence numbers', 'more'],
  ['alter table visit detach partition visit_old', 'more'],
  ['create policy mine on shop using (true)', 'more'],
  ['alter domain label set not null', 'more'],
  ["alter type mood rename value 'bad' to 'poor'", 'more'],
  ['alter table shop alter column id type bigint', 'more'],
  [
    'create trigger t before update on shop for each row execute function suppress_redundant_updates_trigger()',
    'more',
  ],
  ['alter table shop add at timestamptz default clock_timestamp()', 'lost'],
  ['alter table shop add n int generated always as identity', 'lost'],
  ['alter table shop rename name to title', 'lost'],
  ['alter table shop add n int not null', 'lost'],
  ['drop view names; alter table shop alter name type int using 1', 'lost'],
  ["alter type mood rename to old; create type mood as enum ('bad', 'good')", 'not modelled'],
];

/** By day, two changes of each outcome. */
const firstOfEach = (changes: typeof CHANGES) =>
  [...Map.groupBy(changes, ([, outcome]) => outcome).values()].flatMap((ofOutcome) => ofOutcome.slice(0, 2));

test('each change at the source is an addition, more than that, or named as none that can be made here', async () => {
  const { source } = follower;
  await follower.renew();
  const rebuild = () =>
    source.run(
      `drop schema if exists more cascade; drop schema public cascade; create schema public authorization app; ${BASE}`,
    );
  await rebuild();
  await follower.begin();
  await follower.stopWatch();
  const { host } = follower.servers;
  const followedNow = () => requireFollowed(host.postgres, follower.main.branch_id);
  const compare = async (print: string | null) => {
    const compared = await compareWithSource(host, await followedNow(), print);
    if (!compared.ok) throw new Error(compared.failure.message);
    return compared.value;
  };
  const outcomeOf = async (): Promise<[Outcome, string[]]> => {
    const { changes } = await compare(null);
    if (!changes) throw new Error('nothing was compared');
    const { statements, unmodelled, lost, areAdditions, left } = changes;
    if (unmodelled.length > 0) return ['not modelled', unmodelled];
    if (lost.length > 0) return ['lost', statements];
    if (left.length === 0) return ['same', statements];
    return [areAdditions ? 'addition' : 'more', statements];
  };
  // The check of varchar has another text here, as has its table, and policies are not forced.
  expect(await outcomeOf()).toEqual(['same', []]);
  expect(await followedNow()).toMatchObject({
    known: [expect.any(String), expect.any(String)],
    forced: [['public', 'note']],
  });
  const { print } = await compare(null);
  expect((await compare(print)).changes).toBeNull();
  for (const [change, outcome] of IS_NIGHTLY ? CHANGES : firstOfEach(CHANGES)) {
    await source.run(`set role app; set search_path = public; ${change}`);
    const [found, details] = await outcomeOf();
    expect([change, found, details]).toEqual([change, outcome, details]);
    // Policies that are forced at the end are no difference until then.
    expect((await followedNow()).forced).toEqual(change.includes('no force') ? [] : [['public', 'note']]);
    await rebuild();
  }
  expect(await outcomeOf()).toEqual(['same', []]);
});
