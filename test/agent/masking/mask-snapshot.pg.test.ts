import { randomBytes, randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { maskedDatabaseName, maskingRoleName } from '../../../agent/snapshots/snapshot-databases.ts';
import { ROOT } from '../../../dev/build/repository.ts';
import { snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import { queryLoginName } from '../../../shared/branch/login.ts';
import type { MaskingRule } from '../../../shared/masking.ts';
import { catalogLines, differentLines } from '../../support/catalog-lines.ts';
import { eventually } from '../../support/eventually.ts';
import { asRoot, type TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  BUSY_WAIT_MS,
  connect,
  type Project,
  startHostWithProject,
} from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import { expectSameCatalogs, PUBLIC_SCHEMAS } from '../transfer/own-catalog.ts';
import { CANARY, CASES, FUNCTION_RULES, FUNCTION_TABLES, NARROW_COLUMNS, PER_RULE } from './masked-cases.ts';

const MAIN = 'db_masked_prod';
const SMALL = 'db_small_prod';
const DOCUMENTATION = readFileSync(join(ROOT, 'docs/masking.md'), 'utf8');
const KEY = randomBytes(32).toString('base64');

let servers: TestHost;
let project: Project;
let main: Branch;
/** Without the tables of the cases, whose every file a snapshot copies and rewrites. */
let small: Branch;

beforeAll(async () => {
  const sql = [FUNCTION_TABLES, ...CASES.map(({ schema, sql }) => `create schema ${schema}; ${sql}`)].join(
    '\n',
  );
  ({ servers, project, main } = await startHostWithProject(MAIN, sql));
  small = await project.create(SMALL, null);
});
afterAll(() => servers?.stop());

const maskOf = (
  of: Branch,
  snapshot_id: string,
  rules: readonly MaskingRule[],
  unlisted = 'keep',
  key = KEY,
) =>
  runOperation(servers.host, 'snapshot.mask', {
    job_id: randomUUID(),
    project_id: project.id,
    branch_id: of.branch_id,
    source: of.database,
    snapshot_id,
    busy_wait: BUSY_WAIT_MS,
    masking: { rules, unlisted, key },
    keep_tables: [],
    unless_same_as: null,
  });
const mask = (snapshot_id: string, rules: readonly MaskingRule[], unlisted?: string) =>
  maskOf(main, snapshot_id, rules, unlisted);
const maskSmall = (snapshot_id: string, rules: readonly MaskingRule[], key?: string) =>
  maskOf(small, snapshot_id, rules, 'keep', key);
const empty = (snapshot_id: string, keep_tables: string[]) =>
  runOperation(servers.host, 'snapshot.mask', {
    job_id: randomUUID(),
    project_id: project.id,
    branch_id: main.branch_id,
    source: main.database,
    snapshot_id,
    busy_wait: BUSY_WAIT_MS,
    masking: null,
    keep_tables,
    unless_same_as: null,
  });
const inMain = (sql: string) => asClient(servers.host, 'direct', main, 'owner', sql);
const inSmall = (sql: string) => asClient(servers.host, 'direct', small, 'owner', sql);
const leftovers = () => servers.query("SELECT datname FROM pg_database WHERE datname ~ '^bgmask_'");
const rolesOf = (id: string) =>
  servers.query('SELECT FROM pg_roles WHERE rolname IN ($1, $2)', [queryLoginName(id), maskingRoleName(id)]);
let branches = 0;
const branchOf = (snapshotId: string) => {
  branches += 1;
  return project.create(`${MAIN}_br_m${branches}`, snapshotDatabaseName(snapshotId));
};
const in_ = async (branch: Branch, sql: string) => {
  const [row] = await asClient<Record<string, unknown>>(servers.host, 'direct', branch, 'owner', sql);
  return Object.values(row ?? {})[0];
};

/** The cells of the table in the documentation that a test can measure. */
const cellsOf = (name: string) =>
  (new RegExp(`^\\| \`${name}\` \\|(.*)\\|$`, 'm').exec(DOCUMENTATION)?.[1] ?? '')
    .split('|')
    .slice(1, 5)
    .map((cell) => cell.trim());

/** The files of a database in which the text occurs, also as an index over `lower` or `upper` has it. */
const filesWith = async (database: string, text: string) =>
  (await filesOf(database)).flatMap(({ name, content }) =>
    [text, text.toLowerCase(), text.toUpperCase()].some((form) => content.includes(form)) ? [name] : [],
  );

async function filesOf(database: string): Promise<{ name: string; content: Buffer }[]> {
  await servers.query('CHECKPOINT');
  const [found] = await servers.query<{ oid: string }>(
    'SELECT oid::text FROM pg_database WHERE datname = $1',
    [database],
  );
  const folder = join(servers.settings.PGDATA_DIR, 'base', found?.oid ?? '');
  const read = (name: string) => {
    try {
      return [{ name, content: readFileSync(join(folder, name)) }];
    } catch (error) {
      // PostgreSQL removes files meanwhile, for instance its cache of catalogs.
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw error;
    }
  };
  return asRoot(() => readdirSync(folder).flatMap(read));
}

describe('a masked snapshot', () => {
  const id = randomUUID();
  let branch: Branch;
  beforeAll(async () => {
    const rules = [PER_RULE, ...FUNCTION_RULES, ...CASES.flatMap(({ rules }) => rules)];
    expect(await mask(id, rules)).toMatchObject({ masked: true, problems: [] });
    branch = await branchOf(id);
  });

  test('has no canary in the bytes of its files, and the source has that of each schema', async () => {
    expect(CASES.length).toBeGreaterThanOrEqual(40);
    const files = await filesOf(MAIN);
    const hidden = CASES.filter(
      ({ schema }) => !files.some(({ content }) => content.includes(CANARY + schema)),
    );
    // The first two have numbers only, and a checkpoint leaves an unlogged table in memory.
    expect(hidden.map(({ schema }) => schema)).toEqual(['numbers', 'identity', 'unlogged']);
    expect(await filesWith(snapshotDatabaseName(id), CANARY)).toEqual([]);
    expect(await filesWith(branch.database, CANARY)).toEqual([]);
  });

  test('has no canary in what its owner reads, and the source has', async () => {
    const relations = `SELECT DISTINCT relation FROM (
      SELECT oid::regclass::text AS relation,
        CASE WHEN relkind <> 'm' OR relispopulated THEN query_to_xml('SELECT * FROM ' || oid::regclass, true, false, '')::text END AS text
      FROM pg_class WHERE relkind IN ('r', 'p', 'm', 'v') AND relnamespace::regnamespace::text !~ '^pg_|^information_schema$'
      UNION ALL SELECT 'pg_stats', stats::text FROM pg_stats AS stats
      UNION ALL SELECT 'pg_stats_ext', stats::text FROM pg_stats_ext AS stats
      UNION ALL SELECT 'pg_stats_ext_exprs', stats::text FROM pg_stats_ext_exprs AS stats
    ) AS found WHERE text ~* '${CANARY}' ORDER BY relation`;
    const read = async (of: Branch) =>
      (await asClient<{ relation: string }>(servers.host, 'direct', of, 'owner', relations)).map(
        ({ relation }) => relation,
      );
    const source = await read(main);
    expect(source.length).toBeGreaterThan(40);
    expect(source).toEqual(expect.arrayContaining(['pg_stats', 'pg_stats_ext', 'matview.n', 'views.x']));
    expect(await read(branch)).toEqual([]);
  });

  test.each(
    CASES.flatMap(({ schema, expect: queries = [] }) =>
      queries.map(([sql, value]) => [schema, sql, value] as const),
    ),
  )('of %s: %s', async (_schema, sql, value) => {
    expect(await in_(branch, sql)).toEqual(value);
  });

  test.each(FUNCTION_RULES.filter(({ column }) => column === 'v').map((rule) => rule.with))(
    'keeps of %s what the documentation says',
    async (name) => {
      const rows = `select id, v::text, w::text from functions.${name} order by id`;
      interface Row {
        v: string | null;
        w: string | null;
      }
      const before = await asClient<Row>(servers.host, 'direct', main, 'owner', rows);
      const after = await asClient<Row>(servers.host, 'direct', branch, 'owner', rows);
      const pairs = before.map(({ v }, n) => ({
        old: v ?? '',
        now: after[n]?.v ?? null,
        twin: after[n]?.w ?? null,
      }));
      expect(new Set(pairs.map(({ old }) => old)).size).toBe(pairs.length);
      const asNumber = name === 'number_noise' ? Number : String;
      const sorted = pairs.toSorted((one, two) => (asNumber(one.old) < asNumber(two.old) ? -1 : 1));
      const cell = (holds: boolean) => (holds ? 'yes' : 'no');
      expect(cellsOf(name)).toEqual([
        cell(pairs.every(({ old, now }) => now?.length === old.length)),
        cell(pairs.every(({ now, twin }) => now !== null && now === twin)),
        cell(new Set(pairs.map(({ now }) => now)).size === pairs.length),
        cell(
          sorted.every(({ now }, n) => n === 0 || asNumber(sorted[n - 1]?.now ?? '') < asNumber(now ?? '')),
        ),
      ]);
      if (!['number_noise'].includes(name)) expect(pairs.filter(({ old, now }) => old === now)).toEqual([]);
    },
  );

  test('moves the dates of one person alike', async () => {
    const moved =
      'select count(distinct (b.v - b.id))::int from functions.per b group by person order by person';
    const shifts = await asClient<{ count: number }>(servers.host, 'direct', branch, 'owner', moved);
    expect(shifts.map(({ count }) => count)).toEqual([1, 1, 1, 1, 1]);
    expect(await in_(branch, 'select count(distinct (v - id))::int from functions.per')).toBeGreaterThan(1);
  });

  test('is closed, and nothing of its making is left', async () => {
    expect(await leftovers()).toEqual([]);
    expect(await rolesOf(id)).toEqual([]);
    const closed = { ...main, database: snapshotDatabaseName(id) };
    await expect(connect(servers.host, 'direct', closed, 'owner')).rejects.toThrow();
    const members = await servers.query("SELECT FROM pg_auth_members WHERE roleid = 'pg_maintain'::regrole");
    expect(members).toEqual([]);
  });

  test('is made once', async () => {
    expect(await mask(id, [])).toMatchObject({ masked: true });
    expect(await filesWith(snapshotDatabaseName(id), CANARY)).toEqual([]);
  });

  test('has spares that are masked and closed, and no branch of it takes one of another snapshot', async () => {
    const full = randomUUID();
    await runOperation(servers.host, 'snapshot.take', {
      project_id: project.id,
      branch_id: main.branch_id,
      source: main.database,
      snapshot_id: full,
      busy_wait: BUSY_WAIT_MS,
      unless_same_as: null,
    });
    const want = (ids: readonly string[], spares: number) =>
      servers.query('UPDATE snapshot SET spares = $2 WHERE snapshot_id = ANY ($1)', [ids, spares]);
    const spares = () =>
      servers.query<{ datname: string; datallowconn: boolean }>(
        "SELECT datname, datallowconn FROM pg_database WHERE datname ~ '^bgspare_'",
      );
    const untilThereAre = (count: number) =>
      eventually(async () => {
        await servers.host.spares.keep(servers.host, new AbortController().signal);
        expect(await spares()).toHaveLength(count);
      });
    await want([id], 1);
    await untilThereAre(1);
    const [masked] = await spares();
    expect(masked?.datallowconn).toBe(false);
    expect(await filesWith(masked?.datname ?? '', CANARY)).toEqual([]);
    const { taken } = servers.host.spares;
    expect(await filesWith((await branchOf(id)).database, CANARY)).toEqual([]);
    expect(servers.host.spares.taken).toBe(taken + 1);

    await want([id], 0);
    await want([full], 1);
    await untilThereAre(1);
    expect(await filesWith((await branchOf(id)).database, CANARY)).toEqual([]);
    expect(servers.host.spares.taken).toBe(taken + 1);
    await runOperation(servers.host, 'snapshot.drop', { project_id: project.id, snapshot_id: full });
  });

  test('has the same objects as its source', async () => {
    const theirs = await connect(servers.host, 'direct', main, 'owner');
    const ours = await connect(servers.host, 'direct', branch, 'owner');
    const lines = [await catalogLines(theirs, { rights: true }), await catalogLines(ours, { rights: true })];
    await theirs.end();
    await ours.end();
    expect(lines[0]?.length).toBeGreaterThan(500);
    expect(differentLines(lines[0] ?? [], lines[1] ?? [])).toEqual([]);
  });

  test('keeps the keys of its partitions', async () => {
    const again = 'insert into partitionkeys.t select id, at, v from partitionkeys.t';
    expect(
      await in_(
        branch,
        `with again as (${again} on conflict (v, at) do nothing returning 1) select count(*)::int from again`,
      ),
    ).toBe(0);
    await expect(in_(branch, again)).rejects.toMatchObject({ code: '23505' });
  });
});

/** Rows of the schemas of public projects, by the name of the file. Each text is a value that nobody may see. */
const ROWS: Record<string, string> = {
  'code-forge.sql': `insert into groups (path) values ('c'); insert into repositories (group_id, name) values (1, 'c');
    insert into builds (partition_id, repository_id, token) values (100, 1, 'c'), (101, 1, 'c');
    insert into build_notes (build_id, partition_id, note) values (1, 100, 'c'); insert into product_events (namespace_id, name) values (1, 'c'), (2, 'c')`,
  'django-library.sql': `update auth_user set first_name = 'c', email = username || '@mail.example'; insert into auth_group (name) values ('c');
    insert into library_author (name, email) values ('c', 'x@mail.example'); insert into django_session values ('c', 'c', now())`,
  'rails-shop.sql': `update customers set encrypted_password = 'c', email = 'c' || id || '@mail.example'; update products set name = 'c' || id;
    insert into active_storage_blobs (key, filename, service_name, byte_size, created_at) values ('c', 'c', 'c', 1, now())`,
  'forum.sql': `insert into users (username, trust_level) values ('c', 1); insert into categories (name) values ('c');
    insert into topics (title, category_id, user_id, bumped_at) values ('c', 1, 1, now());
    insert into posts (topic_id, user_id, post_number, raw, cooked) values (1, 1, 1, 'c', 'c');
    insert into post_search_data values (1, null, 'c'); insert into scheduler_stats (name) values ('c')`,
  'map.sql': `insert into users (email, display_name) values ('c@c.example', 'c'); insert into changesets (user_id, created_at, closed_at) values (1, now(), now());
    insert into nodes (node_id, version, latitude, longitude, changeset_id, visible) values (1, 1, 1, 1, 1, true);
    insert into node_tags values (1, 1, 'c', 'c'); insert into diary_entries (user_id, title, body) values (1, 'c', 'c')`,
  'rest-service.sql': `insert into internal.accounts (email, pass, role, tenant) values ('c@c.example', 'p', 'r', 'c');
    insert into internal.articles (body) values ('c')`,
  'social-network.sql': `insert into accounts (id, username, domain, note) values (1, 'c', 'c', 'c'); insert into posts (account_id, text) values (1, 'c');
    insert into account_stats (account_id, followers_count) values (1, 5); refresh materialized view instances; refresh materialized view follow_recommendations`,
};

test.each(firstByDay(0, PUBLIC_SCHEMAS).map((path) => [basename(path), path] as const))(
  'the masked copy of a schema like %s has its catalog, and none of its texts',
  async (name, path) => {
    branches += 1;
    const of = await project.create(`db_public_${branches}_prod`, null);
    const owner = (sql: string) => asClient<MaskingRule>(servers.host, 'direct', of, 'owner', sql);
    await owner(readFileSync(path, 'utf8'));
    await owner((ROWS[name] ?? expect.unreachable()).replaceAll("'c", `'${CANARY}`));
    expect(await filesWith(of.database, CANARY)).not.toEqual([]);
    const rules = await owner(
      `select nspname || '.' || relname as table, attname::text as column, case attname when 'email' then 'email' else 'hash' end as with
       from pg_attribute join pg_class as c on c.oid = attrelid join pg_namespace as n on n.oid = relnamespace
       where relkind in ('r', 'p') and not relispartition and nspname !~ '^(pg_|information_schema)' and attnum > 0 and not attisdropped
         and attgenerated = '' and atttypid in ('text'::regtype, 'varchar'::regtype)
         and (atttypmod = -1 or atttypmod > 20) order by 1, 2`,
    );
    expect(rules.length).toBeGreaterThan(3);
    const id = randomUUID();
    expect(await maskOf(of, id, rules)).toMatchObject({ masked: true, problems: [] });
    expect(await filesWith(snapshotDatabaseName(id), CANARY)).toEqual([]);
    const masked = await project.create(`db_public_${branches}_prod_br_masked`, snapshotDatabaseName(id));
    await expectSameCatalogs(
      await connect(servers.host, 'direct', of, 'owner'),
      await connect(servers.host, 'direct', masked, 'owner'),
      { rights: true },
    );
  },
);

describe('a snapshot without rows', () => {
  const id = randomUUID();
  let branch: Branch;
  beforeAll(async () => {
    await inMain(`create table public.country (code text primary key, name text); insert into public.country values ('fr', 'France');
      create table public.town (id serial primary key, country text references public.country);
      insert into public.town (country) values ('fr')`);
    expect(await empty(id, ['country'])).toMatchObject({ masked: true, problems: [] });
    branch = await branchOf(id);
  });

  test('has no canary in the bytes of its files', async () => {
    expect(await filesWith(snapshotDatabaseName(id), CANARY)).toEqual([]);
  });

  test('has the rows of the kept tables only, and its sequences start again', async () => {
    const tables = await asClient<{ name: string; rows: number }>(
      ...([servers.host, 'direct', branch, 'owner'] as const),
      `SELECT oid::regclass::text AS name,
         (xpath('/row/count/text()', query_to_xml('SELECT count(*) FROM ' || oid::regclass, false, true, '')))[1]::text::int AS rows
       FROM pg_class WHERE relkind = 'r' AND relnamespace::regnamespace::text !~ '^pg_|^information_schema$'`,
    );
    expect(tables.length).toBeGreaterThan(40);
    expect(tables.filter(({ rows }) => rows > 0)).toEqual([{ name: 'country', rows: 1 }]);
    expect(await in_(branch, "insert into town (country) values ('fr') returning id")).toBe(1);
  });

  test('is not made if a kept table refers to another one, or does not exist', async () => {
    const refused = await empty(randomUUID(), ['town', 'gone']);
    expect(refused).toMatchObject({ masked: false, size_bytes: 0 });
    expect(refused.problems).toEqual([
      { table: 'public.gone', column: null, reason: 'there is no such table' },
      {
        table: 'public.country',
        column: null,
        reason: 'public.town is kept and refers to it by the foreign key town_country_fkey: keep both',
      },
    ]);
    expect(await leftovers()).toEqual([]);
  });
});

test('a policy that does not cover the branch makes nothing', async () => {
  await inMain(`create table person (id int primary key, email text, note text not null, phone int, ok bool);
    insert into person values (1, 'a@b.example', 'write to x@y.example', 1, true), (2, 'c@d.example', 'or to z@y.example', 2, true);
    create table visit (person int references person, day date)`);
  const id = randomUUID();
  const rules: MaskingRule[] = [
    { table: 'gone', column: 'x', with: 'null' },
    { table: 'person', column: 'gone', with: 'null' },
    { table: 'person', column: 'note', with: 'null' },
    { table: 'person', column: 'ok', with: 'hash' },
    { table: 'person', column: 'id', with: 'hash' },
    { table: 'visit', column: 'person', with: 'number_noise' },
    { table: 'visit', column: 'day', with: 'date_shift', args: { per: 'nobody' } },
  ];
  const result = await mask(id, rules);
  expect(result.masked).toBe(false);
  expect(result.problems.map(({ table, column }) => `${table} ${column}`)).toEqual([
    'public.gone null',
    'public.person gone',
    'public.visit person',
    'public.person note',
    'public.person ok',
    'public.visit day',
  ]);
  const covering: MaskingRule[] = CASES.flatMap((one) => one.rules);
  const strict = await mask(id, covering, 'refuse_likely_personal');
  const ofPerson = strict.problems.filter(({ table }) => table === 'public.person');
  expect(ofPerson).toEqual([
    { table: 'public.person', column: 'email', reason: 'its name says e-mail' },
    { table: 'public.person', column: 'phone', reason: 'its name says phone number' },
    { table: 'public.person', column: 'note', reason: 'its values look like e-mail addresses' },
  ]);
  expect(await leftovers()).toEqual([]);
  expect(await rolesOf(id)).toEqual([]);
  expect(await servers.query('SELECT FROM snapshot WHERE snapshot_id = $1', [id])).toEqual([]);
});

test('the same key masks alike, and another one differently', async () => {
  await inSmall(`create table alike (id int primary key, v text);
    insert into alike select n, 'value ' || n from generate_series(1, 50) n`);
  const rules: MaskingRule[] = [{ table: 'alike', column: 'v', with: 'hash' }];
  const one = randomUUID();
  const two = randomUUID();
  const three = randomUUID();
  await maskSmall(one, rules);
  await maskSmall(two, rules);
  await maskSmall(three, rules, randomBytes(32).toString('base64'));
  const digest = "select md5(string_agg(v, ' ' order by id)) from alike";
  const values = [];
  for (const id of [one, two, three]) values.push(await in_(await branchOf(id), digest));
  expect(values[0]).toBe(values[1]);
  expect(values[2]).not.toBe(values[0]);
});

/** Milliseconds after the beginning of a masking at which its sessions are killed. */
const KILLS = firstByDay(
  1,
  [300, 900, 0, 100, 200, 400, 500, 600, 700, 800, 1_000, 1_250, 1_500, 2_000, 3_000],
);

test.each(KILLS)(
  'killed after %i ms, it leaves nothing that a login can enter, and is finished',
  async (ms) => {
    const id = randomUUID();
    const call = mask(
      id,
      CASES.flatMap(({ rules }) => rules),
    ).catch(() => null);
    await new Promise((resolve) => setTimeout(resolve, ms));
    await servers.query(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'branchgate-masking'",
    );
    const result = await call;
    for (const database of [maskedDatabaseName(id), snapshotDatabaseName(id)])
      for (const role of ['owner', 'read_write', 'read_only'] as const)
        await expect(connect(servers.host, 'direct', { ...main, database }, role)).rejects.toThrow();
    if (result === null) expect([...(await leftovers()), ...(await rolesOf(id))]).toEqual([]);
    expect(
      await mask(
        id,
        CASES.flatMap(({ rules }) => rules),
      ),
    ).toMatchObject({ masked: true });
    expect(await filesWith(snapshotDatabaseName(id), CANARY)).toEqual([]);
  },
);

describe('values that PostgreSQL refuses name their column, and are not quoted', () => {
  const refusing = (sql: string) =>
    `create function ${sql.replaceAll('§', "returns text language plpgsql as 'begin")} end'`;
  beforeAll(() =>
    inSmall(`create table quoted (id int primary key, v text, w text); insert into quoted values (1, 'secret', 'b');
      ${refusing('raising(text) § raise unique_violation using message = $1;')};
      ${refusing('failing(text) § raise internal_error using message = $1;')};
      ${refusing('executing(text) § execute $1; return $1;')};
      ${refusing("naming(text) § execute format(''create temp table n as select 1 as i''); execute format(''alter table n add constraint %I check (i > 1)'', $1); return $1;")};
      ${refusing("limiting(text) § perform set_config(''statement_timeout'', ''1'', false); return $1;")}`),
  );

  test.each(
    firstByDay(2, [
      ['v::int::text', ' (SQLSTATE 22P02)'],
      ['raising(v)', ' (SQLSTATE 23505)'],
      ['executing(v)', ' (SQLSTATE 42601)'],
      ['naming(v)', ' (SQLSTATE 23514)'],
      ['v::regclass::text', ' (SQLSTATE 42P01)'],
      ['failing(v)', ' (SQLSTATE XX000)'],
      ["executing('select ' || v)", ' (SQLSTATE 42703)'],
      ['gone(v)', ': function gone(text) does not exist'],
    ]),
  )('%s', async (sql, why) => {
    const rule = { table: 'quoted', with: 'expression', args: { sql } } as const;
    const refused = 'PostgreSQL refuses the new values';
    expect(await maskSmall(randomUUID(), [{ ...rule, column: 'v' }])).toMatchObject({
      masked: false,
      problems: [{ table: 'public.quoted', column: 'v', reason: refused + why }],
    });
    const both = [
      { ...rule, column: 'v' },
      { ...rule, column: 'w' },
    ];
    expect((await maskSmall(randomUUID(), both)).problems).toEqual([
      { table: 'public.quoted', column: null, reason: `${refused} of v, w${why}` },
    ]);
  });

  test('also if a function of the tenant sets a time limit', async () => {
    const rule = { table: 'quoted', column: 'v', with: 'expression', args: { sql: 'limiting(v)' } } as const;
    await expect(maskSmall(randomUUID(), [rule])).rejects.toMatchObject({ code: 'STATEMENT_REFUSED' });
  });

  test('and everything is undone', async () => {
    await inSmall(
      "create table checked (id int primary key, v text check (v like '%@%')); insert into checked values (1, 'secret@x')",
    );
    const id = randomUUID();
    const { masked, problems } = await maskSmall(id, [
      { table: 'checked', column: 'v', with: 'constant', args: { value: 'none' } },
    ]);
    expect(masked).toBe(false);
    const reason = expect.stringContaining('violates check constraint "checked_v_check"');
    expect(problems).toEqual([{ table: 'public.checked', column: 'v', reason }]);
    expect(JSON.stringify(problems)).not.toContain('secret');
    expect(await leftovers()).toEqual([]);
    expect(await rolesOf(id)).toEqual([]);
    expect(await servers.query('SELECT FROM snapshot WHERE snapshot_id = $1', [id])).toEqual([]);
  });

  test('after the values too: a view that fails, and a key that they do not fulfil', async () => {
    await inSmall(`create table divided (id int primary key, v text); insert into divided values (1, '0'), (2, '1');
      create function public.inverse(text) returns int language sql as 'select 1 / (length($1) - 5)';
      create materialized view inverses as select public.inverse(v) from divided`);
    const constant = (value: string) =>
      maskSmall(randomUUID(), [{ table: 'divided', column: 'v', with: 'constant', args: { value } }]);
    await expect(constant('12345')).rejects.toMatchObject({ code: 'STATEMENT_REFUSED', sqlstate: '22012' });
    await inSmall('alter table divided add unique (v)');
    await expect(constant('1')).rejects.toThrow('could not create unique index "divided_v_key"');
    await inSmall('drop table divided cascade');
    expect(await leftovers()).toEqual([]);
  });
});

test('what a killed call has left is dropped, not masked again', async () => {
  const id = randomUUID();
  await servers.query(`CREATE DATABASE ${maskedDatabaseName(id)} TEMPLATE ${SMALL}`);
  await servers.query(`CREATE ROLE ${queryLoginName(id)} LOGIN; CREATE ROLE ${maskingRoleName(id)}`);
  expect(await maskSmall(id, [])).toMatchObject({ masked: true });
  expect(await leftovers()).toEqual([]);
});

describe('narrow columns', () => {
  let branch: Branch;
  const tableOf = (n: number) => `narrow_${n}`;
  beforeAll(async () => {
    const tables = NARROW_COLUMNS.map(
      ([, type, value], n) => `create table ${tableOf(n)} (id int primary key, v ${type});
        insert into ${tableOf(n)} select n, ${value} from generate_series(1, 300) n`,
    );
    await inSmall(tables.join(';'));
    const id = randomUUID();
    const rules = NARROW_COLUMNS.map(
      ([, , , how], n): MaskingRule => ({ table: tableOf(n), column: 'v', with: how }),
    );
    expect(await maskSmall(id, rules)).toMatchObject({ masked: true });
    branch = await branchOf(id);
  });

  test.each(NARROW_COLUMNS.map((column, n) => [column[0], n, column[4]] as const))(
    '%s',
    async (_name, n, { distinct, alike }) => {
      const rows = `select v::text from ${tableOf(n)} order by id`;
      const before = await asClient<{ v: string }>(servers.host, 'direct', small, 'owner', rows);
      const after = await asClient<{ v: string }>(servers.host, 'direct', branch, 'owner', rows);
      expect(after).toHaveLength(300);
      expect(after.filter(({ v }, row) => v === before[row]?.v)).toEqual([]);
      if (distinct !== null) expect(new Set(after.map(({ v }) => v)).size).toBe(distinct);
      if (alike !== null)
        expect(after.filter(({ v }, row) => v.length === before[row]?.v.length).length).toBe(alike);
    },
  );

  test('what has nothing to replace stays', async () => {
    await inSmall(`create table hollow (id int primary key, v text, w bytea, x bytea[], y text[]);
      insert into hollow values (1, e'\\n', '', array[''::bytea], '{}'), (2, '--', null, '{}', array['']), (3, '', '', null, array['-', null])`);
    const id = randomUUID();
    const rules = ['v', 'w', 'x', 'y'].map(
      (column): MaskingRule => ({ table: 'hollow', column, with: 'hash' }),
    );
    expect(await maskSmall(id, rules)).toMatchObject({ masked: true });
    const all = 'select json_agg(hollow order by id)::text from hollow';
    expect(await in_(await branchOf(id), all)).toEqual(await in_(small, all));
  });

  test('a value that would stay makes nothing, and its column is named', async () => {
    await inSmall(`create table tight (id int primary key, v varchar(6), w varchar(20));
      insert into tight values (1, '_@x.io', 'a@b.io'), (2, 'a@x.io', null)`);
    const id = randomUUID();
    const rule = { table: 'tight', with: 'email' } as const;
    const { masked, problems } = await maskSmall(id, [
      { ...rule, column: 'v' },
      { ...rule, column: 'w' },
    ]);
    expect(masked).toBe(false);
    expect(problems).toEqual([
      {
        table: 'public.tight',
        column: 'v',
        reason:
          '1 of its values stay as they are: email finds no other one for them, so use another function',
      },
    ]);
    expect(await leftovers()).toEqual([]);
    expect(await rolesOf(id)).toEqual([]);
    const tooShort = await maskSmall(id, [{ ...rule, column: 'w', args: { domain: 'example.com' } }]);
    expect(tooShort.problems).toEqual([
      {
        table: 'public.tight',
        column: 'w',
        reason: expect.stringMatching(
          /^character varying\(20\) is too short for addresses at example\.com, which need 24/,
        ),
      },
    ]);
  });
});

test('a function in an index gets no part of the key', async () => {
  const replacement = `returns text language plpgsql as $$ begin insert into spying.seen values (encode($2, 'hex')); return $1 || 'x'; end $$`;
  await inSmall(`create schema spying; create table spying.seen (v text); create table spying.tried (v text);
    create function spying.sha256(bytea) returns bytea language plpgsql as 'begin insert into spying.seen values (encode($1, ''hex'')); return pg_catalog.sha256($1); end';
    create function spying.replace() returns void language plpgsql as $f$
    declare home text; role text; how text; begin
      select min(pronamespace::regnamespace::text) from pg_proc where proname = 'branchgate_permute' into home;
      for role in select rolname from pg_roles where pg_has_role(rolname, 'usage') or rolname ~ '_mask$' loop
        foreach how in array array['value text, inner_block bytea, outer_block bytea, kind text, most numeric', 'text, bytea, bytea, unknown, unknown'] loop
          begin
            execute format('set local role %I', role);
            execute format('create or replace function %s.branchgate_permute(%s) ${replacement.replaceAll("'", "''")}', home, how);
            execute 'set local role none';
            insert into spying.seen values (home);
          exception when others then
            insert into spying.tried values (sqlstate);
          end;
        end loop;
      end loop;
    end $f$;
    create function spying.note(text) returns text immutable language plpgsql as 'begin perform spying.replace(), set_config(''search_path'', ''spying, pg_catalog, public'', false); return $1; end';
    create table spying.t (id int primary key, v text, w text, x json);
    insert into spying.t select n, 'short' || n, repeat('long', 9) || n, '{"a": "b"}' from generate_series(1, 5) n;
    create index on spying.t (spying.note(v)); delete from spying.tried`);
  const id = randomUUID();
  const rules: MaskingRule[] = [
    { table: 'spying.t', column: 'v', with: 'hash' },
    { table: 'spying.t', column: 'w', with: 'hash' },
    { table: 'spying.t', column: 'x', with: 'json', args: { paths: ['$.a'] } },
  ];
  expect(await maskSmall(id, rules)).toMatchObject({ masked: true });
  const branch = await branchOf(id);
  expect(await in_(branch, 'select count(*)::int from spying.seen')).toBe(0);
  expect(await in_(branch, "select string_agg(distinct v, ' ') from spying.tried")).toBe('42501');
  expect(
    await in_(branch, "select count(*)::int from pg_namespace where nspname = 'branchgate_masking'"),
  ).toBe(0);
});

const PARALLEL = IS_NIGHTLY ? 1_000 : 6;
/** As long as all attempts of a busy machine take. */
const HELD_SECONDS = IS_NIGHTLY ? 60 : 2;

test('no login of a tenant enters the clone while it is masked', async () => {
  const id = randomUUID();
  await inSmall('create table slow (id int primary key, v text); insert into slow values (1, $$a$$)');
  const waiting: MaskingRule = {
    table: 'slow',
    column: 'v',
    with: 'expression',
    args: { sql: `pg_sleep(${HELD_SECONDS})::text || 'x'` },
  };
  const masking = maskSmall(id, [waiting]);
  await eventually(async () => {
    const sleeping = "SELECT FROM pg_stat_activity WHERE datname = $1 AND wait_event = 'PgSleep'";
    expect(await servers.query(sleeping, [maskedDatabaseName(id)])).toHaveLength(1);
  });
  const clone = { ...small, database: maskedDatabaseName(id) };
  const ways = (['owner', 'read_write', 'read_only'] as const).flatMap((role) =>
    (['direct', 'pooled'] as const).map((port) => ({ role, port })),
  );
  const attempts = Array.from({ length: PARALLEL }, (_, n) => ways[n % ways.length]).flatMap((way) =>
    way ? [connect(servers.host, way.port, clone, way.role)] : [],
  );
  const outcomes = await Promise.allSettled(attempts);
  expect(outcomes.filter(({ status }) => status === 'rejected')).toHaveLength(PARALLEL);
  expect(await masking).toMatchObject({ masked: true });
}, 180_000);
