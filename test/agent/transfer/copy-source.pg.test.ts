import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { GuardWatch } from '../../../agent/guard/watch-guards.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { inAgentLogin } from '../../../agent/postgres/login-session.ts';
import { loadDatabaseName, loadLoginName } from '../../../agent/transfer/load-database.ts';
import { groupName, queryLoginName } from '../../../shared/branch/login.ts';
import type { TableProgress } from '../../../shared/project/job.ts';
import type { MethodResult, Params } from '../../../shared/protocol/operations.ts';
import { connect as connectTo } from '../../support/database.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, identity, Project } from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import {
  NO_SLOW_TABLE,
  SOURCE_LOGIN,
  type SourceServer,
  slowTable,
  startSource,
} from '../../support/source-server.ts';

/** Twice as many as are compared with every value. */
const BOOKS = 20_000;

/** One of each kind that has to come in an order, or whose values have more than one form. */
const SHOP = `
  set role app;
  create schema "Own";
  create type mood as enum ('sad', 'happy');
  create domain "Own".email as text check (value like '%@%');
  create function "Own".tax(price numeric) returns numeric language sql immutable as 'select price * 0.2';
  create table author (id int generated always as identity primary key, name text not null unique, feels mood, "Own mail" "Own".email);
  create table book (id serial primary key, author_id int references author, price numeric(10, 2), tax numeric generated always as ("Own".tax(price)) stored,
    at timestamptz default now(), tags text[], about jsonb, cover bytea, spent interval, ratio float8);
  create table loan (id bigint primary key, book_id int not null references book, back int);
  alter table loan add foreign key (back) references author;
  create table sale (id int, at date, primary key (id, at)) partition by range (at);
  create table sale_old partition of sale for values from (minvalue) to ('2026-01-01');
  create table sale_new partition of sale default;
  create table visit (at timestamptz);
  create table "Own".child () inherits (visit);
  create table nothing ();
  create index on book using gin (tags);
  create table counted (n int);
  create view cheap as select id, price from book where price < 50;
  create materialized view sums as select author_id, sum(price) from book group by 1;
  alter table visit enable row level security;
  create policy everybody on visit using (true);
  create policy staff on visit to app using (true);
  create unlogged table cache (n int);
  create extension citext;
  create table tagged (tag citext unique);
  insert into author (name, feels, "Own mail") select 'author ' || n, 'happy', n || '@x.example' from generate_series(1, 300) n;
  insert into book (author_id, price, tags, about, cover, spent, ratio) select 1 + n % 300, n % 100, array['a', null, n::text], jsonb_build_object('n', n),
    decode(md5(n::text), 'hex'), make_interval(secs => n), 1.0 / n from generate_series(1, ${BOOKS}) n;
  insert into counted values (${BOOKS});
  create function count_it() returns trigger language plpgsql as $$ begin update counted set n = n + 1; return new; end $$;
  create trigger counts after insert on book for each row execute function count_it();
  insert into loan select n, n, 1 + n % 300 from generate_series(1, 500) n;
  insert into sale select n, date '2025-12-01' + n from generate_series(1, 60) n;
  insert into visit select now() from generate_series(1, 10);
  insert into "Own".child select now() from generate_series(1, 5);
  insert into nothing select from generate_series(1, 4);
  insert into cache values (1);
  insert into tagged values ('A'), ('b');
  refresh materialized view sums;
  select setval('book_id_seq', 70000);
  reset role;
  analyze`;

let source: SourceServer;
let servers: TestHost;
let project: Project;
/** For copies that are refused or undone. */
let empty: Branch;
beforeAll(async () => {
  // It has no logical replication, which a copy does not need.
  source = await startSource('');
  servers = await startHost({ settings: { FOLLOW_PRIVATE_NETWORKS: '127.0.0.0/8' } });
  project = new Project(servers.host);
  empty = await emptyBranch();
  await source.run(`alter role app noreplication; ${SHOP}`);
});
afterAll(async () => {
  await servers?.stop();
  await source?.stop();
});

type Copy = MethodResult<'transfer.copy'>;
type CopyParams = Params<'transfer.copy'>;
let made = 0;
const emptyBranch = async () => {
  made += 1;
  return project.create(`db_copy_${made}`, null);
};

const newCopy = (branch: Branch, more: Partial<CopyParams> = {}): CopyParams => ({
  ...identity(branch),
  job_id: randomUUID(),
  source_url: source.url(),
  tables: null,
  room_bytes: 2 ** 30,
  jobs: 2,
  busy_wait: 1_000,
  follow: null,
  ...more,
});

async function copy(params: CopyParams, onProgress?: Parameters<typeof runOperation>[3]): Promise<Copy> {
  const result = await runOperation(servers.host, 'transfer.copy', params, onProgress);
  expect(JSON.stringify(result)).not.toContain(SOURCE_LOGIN.password);
  return result;
}

const ofJob = ({ job_id, project_id, branch_id, database }: CopyParams) => ({
  job_id,
  project_id,
  branch_id,
  database,
  snapshot_id: randomUUID(),
});
const swap = (params: CopyParams) => runOperation(servers.host, 'reset.swap', ofJob(params));

/** Copies, and lets the copy take the place of the branch. */
async function copyInto(branch: Branch, more: Partial<CopyParams> = {}): Promise<Copy> {
  const params = newCopy(branch, more);
  const result = await copy(params);
  if (result.copied) await swap(params);
  return result;
}

const owner = (branch: Branch, sql: string) => asClient(servers.host, 'direct', branch, 'owner', sql);

const problems = ({ findings }: Copy) =>
  findings.filter(({ severity }) => severity === 'error').map(({ problem }) => problem);

/** Databases and logins of copies. */
const leftovers = () =>
  servers.query(
    `select datname::text as name from pg_database where datname ~ '^bg(?:load|job)_'
     union all select rolname from pg_roles where rolname ~ '_query$'
       and not exists (select from branch where replace(branch_id::text, '-', '') = substr(rolname, 3, 32))`,
  );
afterEach(async () => expect(await leftovers()).toEqual([]));

/** Everything that a catalog says about own objects, and every row. */
const TABLES = [
  'author',
  'book',
  'loan',
  'sale',
  'sale_old',
  'visit',
  '"Own".child',
  'nothing',
  'counted',
  'cheap',
  'sums',
  'cache',
  'tagged',
];
const DIGEST = `${TABLES.map(
  (table) =>
    `select '${table}' as name, count(*)::int as rows, md5(string_agg(t::text, '|' order by t::text)) as digest from ${table} t`,
).join(' union all ')} order by 1`;
const OBJECTS = `select * from (
  select 'index' as kind, indexdef as text from pg_indexes where schemaname in ('public', 'Own')
  union all select 'constraint', conname || ' ' || pg_get_constraintdef(c.oid) from pg_constraint c join pg_namespace n on n.oid = connamespace where nspname in ('public', 'Own')
  union all select 'trigger', pg_get_triggerdef(oid) from pg_trigger where not tgisinternal
  union all select 'policy', policyname from pg_policies where policyname <> 'staff'
  union all select 'view', definition from pg_views where schemaname = 'public'
  union all select 'sequence', sequencename || ' ' || coalesce(last_value, 0) from pg_sequences
  union all select 'security', relname from pg_class where relrowsecurity
  union all select 'extension', extname from pg_extension
  union all select 'persistence', relname::text || ' ' || relpersistence::text from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'
  union all select 'column', table_name || '.' || ordinal_position || column_name from information_schema.columns where table_schema in ('public', 'Own')
) as objects order by kind collate "C", text collate "C"`;

test('a copy has the schema, the rows of one snapshot and the next values of sequences', async () => {
  const branch = await emptyBranch();
  const params = newCopy(branch);
  const shares: number[] = [];
  const seen: TableProgress[] = [];
  const { copied, findings } = await copy(params, (done, details) => {
    shares.push(done);
    seen.push(...(details?.().tables ?? []));
  });
  expect(findings).toMatchObject([
    { problem: 'schema', severity: 'warning', message: expect.stringContaining('policy public.visit staff') },
  ]);
  expect(copied?.tables.find(({ table }) => table === 'book')).toEqual({
    schema: 'public',
    table: 'book',
    rows: BOOKS,
    compared: expect.toSatisfy((rows: number) => rows > 5_000 && rows < 15_000),
  });
  expect(copied?.rows).toBe(300 + BOOKS + 500 + 60 + 10 + 5 + 4 + 1 + 1 + 2);
  expect(copied?.size_bytes).toBeGreaterThan(2 ** 20);
  expect(shares).toEqual(shares.toSorted((a, b) => a - b));
  const ofBook = seen.filter(({ table }) => table === 'book');
  expect(new Set(ofBook.map(({ state }) => state))).toEqual(new Set(['copying', 'copied']));
  expect(ofBook.at(-1)).toEqual({
    schema: 'public',
    table: 'book',
    state: 'copied',
    rows: BOOKS,
    percent: 100,
  });
  // Until it is complete, `main` is as it was. A repeated call copies nothing again.
  expect(await owner(branch, "select relname from pg_class where relname = 'book'")).toEqual([]);
  expect(await copy({ ...params, source_url: source.url({ port: '1' }) })).toEqual({ copied, findings: [] });
  await swap(params);
  for (const sql of [DIGEST, OBJECTS]) {
    const [theirs, ours] = await Promise.all([source.run(sql), owner(branch, sql)]);
    expect(ours).toEqual(theirs);
  }
  // The trigger was made after the rows, and works; other logins may read and write.
  const inserted = 'insert into book (price) values (1) returning id';
  expect(await asClient(servers.host, 'pooled', branch, 'read_write', inserted)).toEqual([{ id: 70_001 }]);
  expect(await owner(branch, 'select n from counted')).toEqual([{ n: BOOKS + 1 }]);
  const owners =
    'select distinct relowner::regrole::text as owner from pg_class where relnamespace = $$public$$::regnamespace';
  expect(await owner(branch, owners)).toEqual([{ owner: expect.stringMatching(/^g_[0-9a-f]{32}_owner$/) }]);
});

test.runIf(IS_NIGHTLY)(
  'rows that are written meanwhile are in the copy of all tables, or of none',
  async () => {
    const branch = await emptyBranch();
    const writer = await connectTo(source.url());
    let isWriting = true;
    const writing = (async () => {
      for (let n = 1000; isWriting; n += 1)
        await writer.query(
          `begin; insert into loan values (${n}, 1); insert into sale values (${n}, '2027-01-01'); commit`,
        );
    })();
    await copyInto(branch, { tables: ['loan', 'sale'], jobs: 3 }).finally(() => {
      isWriting = false;
    });
    await writing;
    await writer.end();
    const [counts] = await owner(
      branch,
      `select (select count(*) from loan where id >= 1000) as loans, (select count(*) from sale where id >= 1000) as sales`,
    );
    expect(counts?.loans).toBe(counts?.sales);
    await source.run('delete from loan where id >= 1000; delete from sale where id >= 1000');
  },
);

test('named tables come with what they need, and without what needs others', async () => {
  const branch = await emptyBranch();
  const { copied } = await copyInto(branch, { tables: ['loan', 'author', 'sale_old'] });
  expect(copied?.tables.map(({ table }) => table).toSorted()).toEqual(['author', 'loan', 'sale_old']);
  const relations =
    "select relname as name from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'v', 'm') order by 1";
  expect(await owner(branch, relations)).toEqual(
    ['author', 'loan', 'sale', 'sale_old'].map((name) => ({ name })),
  );
  const keys =
    "select confrelid::regclass::text as references from pg_constraint where conrelid = 'loan'::regclass and contype = 'f'";
  expect(await owner(branch, keys)).toEqual([{ references: 'author' }]);
});

/** Runs `action` while the source is as `change` makes it. */
async function during<T>(change: string, undo: string, action: () => Promise<T>): Promise<T> {
  await source.run(change);
  try {
    return await action();
  } finally {
    await source.run(undo);
  }
}

test.runIf(IS_NIGHTLY)('a copy that fails leaves nothing, and can be repeated', async () => {
  const branch = await emptyBranch();
  // Text of any form is a value of this type at the source, and the check is made with the copy only.
  const broken = `create table broken (n int); insert into broken values (-1);
    alter table broken add check (n > 0) not valid; alter table broken owner to app;
    update pg_constraint set convalidated = true where conrelid = 'broken'::regclass`;
  await during(broken, 'drop table broken', async () => {
    const { copied, findings } = await copyInto(branch);
    expect(copied).toBeNull();
    expect(findings).toMatchObject([
      { problem: expect.stringMatching(/^(?:rows|schema)$/), severity: 'error' },
    ]);
    expect(JSON.stringify(findings)).toContain('23514');
  });
  expect((await copyInto(branch)).copied?.rows).toBeGreaterThan(BOOKS);
});

test('what a schema of the source runs here has the rights of the owner of a branch, and no more', async () => {
  const stolen = `create materialized view stolen as select pg_read_file('postgresql.conf') as text; alter materialized view stolen owner to app`;
  await during(stolen, 'drop materialized view stolen', async () => {
    expect((await copyInto(empty)).findings).toMatchObject([
      { problem: 'schema', message: expect.stringContaining('permission denied for function pg_read_file') },
    ]);
  });
});

test.runIf(IS_NIGHTLY)(
  'a copy that grows past the quota is stopped, whatever the source has said',
  async () => {
    // It has no rows at the source. It grows by a megabyte each 20 ms, so that it is stopped long before its end.
    const growing = `create materialized view growing as select repeat(md5(n::text), 58) as text
      from generate_series(1, 7000) n, generate_series(1, 500 + length(pg_sleep(0.02 + 0 * n)::text)) m with no data;
    alter materialized view growing owner to app; update pg_class set relispopulated = true where relname = 'growing'`;
    await during(growing, 'drop materialized view growing', async () => {
      const refused = await copyInto(empty, { room_bytes: 64 * 2 ** 20 });
      expect(refused).toMatchObject({
        copied: null,
        findings: [{ problem: 'size', message: expect.stringContaining('storage quota') }],
      });
    });
  },
);

test('a copy is cancelled in the middle of a statement', async () => {
  const params = newCopy(empty, { tables: ['slowly'] });
  const cancel = () =>
    runOperation(servers.host, 'transfer.cancel', { job_id: params.job_id, project_id: params.project_id });
  expect(await cancel()).toEqual({ stopped: false });
  await during(slowTable(), NO_SLOW_TABLE, async () => {
    const copying = copy(params);
    const waiting = `select from pg_stat_activity where datname = '${loadDatabaseName(params.job_id)}' and wait_event = 'PgSleep'`;
    await eventually(async () => expect(await servers.query(waiting)).toHaveLength(1));
    await expect(copy(newCopy(await emptyBranch()))).rejects.toMatchObject({ code: 'PROJECT_BUSY' });
    expect(await cancel()).toEqual({ stopped: true });
    expect(await copying).toMatchObject({ copied: null, findings: [{ message: 'The copy was cancelled.' }] });
    await eventually(async () =>
      expect(await source.run("select from pg_stat_activity where usename = 'app'")).toEqual([]),
    );
  });
});

test.runIf(IS_NIGHTLY)(
  'a copy takes longer than a transaction of a client may, which the watchdog ends meanwhile',
  async () => {
    const settings = { ...servers.settings, TRANSACTION_SECONDS: 1 };
    const stop = new AbortController();
    const guarding = new GuardWatch({ ...servers.host, settings }, () => {}).run(stop.signal);
    try {
      const client = await connect(servers.host, 'direct', await emptyBranch(), 'owner');
      await client.query('begin; select txid_current()');
      await during(slowTable(5), NO_SLOW_TABLE, async () => {
        const began = performance.now();
        const [{ copied }] = await Promise.all([
          copyInto(await emptyBranch()),
          eventually(async () => expect(client.query('select')).rejects.toThrow()),
        ]);
        expect(copied?.rows).toBeGreaterThan(BOOKS);
        expect(performance.now() - began).toBeGreaterThan(5_000);
      });
      await client.end().catch(() => {});
    } finally {
      stop.abort();
      await guarding;
    }
  },
);

test.runIf(IS_NIGHTLY)('limits of the source that are shorter than a copy do not end it', async () => {
  const limits = [
    ...['statement_timeout', 'transaction_timeout', 'idle_session_timeout', 'lock_timeout'],
    'idle_in_transaction_session_timeout',
  ];
  const short = limits.map((name) => `alter role app set ${name} = '2s'`).join(';');
  await during(`${short}; ${slowTable(5)}`, `alter role app reset all; ${NO_SLOW_TABLE}`, async () => {
    const began = performance.now();
    expect((await copyInto(await emptyBranch())).copied?.rows).toBeGreaterThan(BOOKS);
    expect(performance.now() - began).toBeGreaterThan(5_000);
  });
});

test.each(firstByDay(1, ['author', 'counted']))(
  'a copy in which rows of %s differ is refused',
  async (table) => {
    const params = newCopy(empty, { tables: [table, 'slowly'] });
    const change = { author: "name = name || '!'", counted: 'n = n + 1' }[table];
    await during(slowTable(5), NO_SLOW_TABLE, async () => {
      const copying = copy(params);
      // Once its rows are there, and while those of the slow table are still checked.
      await eventually(async () => {
        const login = loadLoginName(params.job_id);
        const database = loadDatabaseName(params.job_id);
        await servers.query(`ALTER DATABASE ${database} CONNECTION LIMIT 10`);
        const changed = await inAgentLogin(
          servers.settings,
          { login, database },
          (session) => session.query(`UPDATE public.${table} SET ${change}`),
          [`role=${groupName(params.project_id, 'owner')}`],
        );
        expect(changed.rowCount).toBeGreaterThan(0);
      });
      expect(await copying).toMatchObject({
        copied: null,
        findings: [{ problem: 'rows', object: `"public"."${table}"` }],
      });
    });
  },
);

test('what a killed agent has left is removed by the next call', async () => {
  const branch = await emptyBranch();
  const tables = ['author'];
  const params = newCopy(branch, { tables });
  const database = loadDatabaseName(params.job_id);
  const login = queryLoginName(params.job_id);
  await servers.query(`create database "${database}"`);
  await servers.query(`create role "${login}" login; grant connect on database "${database}" to "${login}"`);
  expect((await copy(params)).copied?.rows).toBe(300);
  await swap(params);
  expect(await owner(branch, 'select count(*)::int as n from author')).toEqual([{ n: 300 }]);
});

test('a job that is undone removes a copy that is complete', async () => {
  const undone = newCopy(empty, { tables: ['author'] });
  expect((await copy(undone)).copied).not.toBeNull();
  const { database: _database, ...cancelled } = ofJob(undone);
  expect(await runOperation(servers.host, 'reset.cancel', cancelled)).toEqual({ dropped: true, left: null });
});

test('a branch that is not empty is left as it is', async () => {
  const branch = await emptyBranch();
  await owner(branch, "create function mine() returns int language sql as 'select 1'");
  expect(problems(await copyInto(branch))).toEqual(['not_empty']);
  const { branch_id, database } = branch;
  const probe = await runOperation(servers.host, 'transfer.probe', {
    project_id: project.id,
    source_url: source.url(),
    use: 'import',
    into: { branch_id, database },
    tables: null,
    publication: null,
    room_bytes: 2 ** 30,
  });
  expect(probe.findings).toMatchObject([{ problem: 'not_empty' }]);
  expect(await owner(branch, 'select mine() as n')).toEqual([{ n: 1 }]);
});

test('what cannot be copied is refused before anything is made', async () => {
  await during('create table hidden (id int)', 'drop table hidden', async () => {
    expect(await copyInto(empty, { room_bytes: 1000 })).toMatchObject({
      copied: null,
      findings: [{ problem: 'size' }, { problem: 'rights', object: 'public.hidden' }],
    });
  });
  expect(problems(await copyInto(empty, { source_url: source.url({ password: 'wrong' }) }))).toEqual([
    'login',
  ]);
  expect(problems(await copyInto(empty, { tables: ['nope'] }))).toEqual(['tables']);
  await expect(copyInto({ ...empty, database: 'db_other' })).rejects.toMatchObject({
    code: 'SOURCE_MISSING',
  });
});
