import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type FullQueryResults, neon, neonConfig } from '@neondatabase/serverless';
import type pg from 'pg';
import { beforeAll, describe, expect, inject, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import type { Api, Credentials, ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { percentile } from '../support/percentile.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';

let api: Api;
let project: ProjectBody;
let credentials: Credentials;
/** The URL of the branch's read-write login, which only a rule of `sql` admits. */
let url: string;

const credentialsOf = (branch: string) => api.credentials(project.id, branch);
/** The pooled URL of another login of a branch. */
const urlFor = async (branch: string, role: 'owner' | 'read_only') =>
  (await api.credentials(project.id, branch, `?role=${role}`)).database_url;

beforeAll(async () => {
  neonConfig.fetchEndpoint = `${inject('stack').url}/sql`;
  api = await ownerOf('sql-over-http');
  project = await api.project('SQL over HTTP');
  const path = `/api/v1/projects/${project.id}`;
  await api.post(`${path}/branches`, { branch_name: 'pr-1' }, { 'CF-Connecting-IP': '203.0.113.9' });
  await api.post(`${path}/network-rules`, { cidr: '127.0.0.1', via: 'sql' });
  credentials = await credentialsOf('pr-1');
  url = credentials.database_url;
});

interface Sent {
  url?: string | null;
  headers?: Record<string, string>;
  body?: unknown;
}

/** A request without a client. */
async function send({
  url: given = url,
  headers = {},
  body = { query: 'select 1 as one', params: [] },
}: Sent = {}) {
  const response = await fetch(`${inject('stack').url}/sql`, {
    method: 'POST',
    headers: {
      'Content-Type': 'text/plain',
      ...(given !== null && { 'Neon-Connection-String': given }),
      ...headers,
    },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  const text = await response.text();
  return {
    status: response.status,
    headers: response.headers,
    text,
    body: (text.startsWith('{') ? JSON.parse(text) : {}) as Record<string, unknown>,
  };
}

const run = (text: string, params: unknown[] = [], more: Sent = {}) =>
  send({ ...more, body: { query: text, params } });

/** The same branch with another password, database or login. */
function altered(change: (given: URL) => void): string {
  const other = new URL(url);
  change(other);
  return other.href;
}

describe('the unmodified client of Neon', () => {
  test('queries with values of every kind, as the login of its URL, while the ports stay closed', async () => {
    const sql = neon(`${url}&application_name=shop`);
    await neon(
      await urlFor('pr-1', 'owner'),
    )`create table item (id serial primary key, name text, tags text[], data jsonb, made timestamptz)`;
    const made = new Date('2026-11-29T08:00:00Z');
    const tags = ['a "quoted" one', 'ü{}'];
    const rows = await sql`insert into item (name, tags, data, made)
      values (${"O'Neil"}, ${tags}, ${{ deep: [1, null] }}, ${made}) returning *`;
    expect(rows).toEqual([{ id: 1, name: "O'Neil", tags, data: { deep: [1, null] }, made }]);
    const [session] =
      await sql`select current_user::text as login, current_setting('application_name') as name`;
    expect(session).toEqual({ login: new URL(url).username, name: 'shop' });
    const full = (await sql.query('select 1 as a, 2 as a', [], {
      arrayMode: true,
      fullResults: true,
    })) as FullQueryResults<true>;
    expect(full).toMatchObject({ command: 'SELECT', rowCount: 1, rows: [[1, 2]], rowAsArray: true });
    for (const port of [url, credentials.direct_url])
      await expect(query(port, 'select 1')).rejects.toMatchObject({
        code: expect.stringMatching(/28000|08P01/),
      });
  });

  test('runs a batch in one transaction with its options, or changes nothing', async () => {
    const sql = neon(url);
    await neon(await urlFor('pr-1', 'owner'))`create table entry (n int primary key)`;
    const failing = sql.transaction([sql`insert into entry values (1)`, sql`insert into entry values (1)`]);
    await expect(failing).rejects.toMatchObject({ code: '23505', constraint: 'entry_pkey', table: 'entry' });
    const [inserted, counted] = await sql.transaction([
      sql`insert into entry values (2)`,
      sql`select count(*)::int as n from entry`,
    ]);
    expect([inserted, counted]).toEqual([[], [{ n: 1 }]]);
    const [[options] = []] = await sql.transaction(
      [
        sql`select current_setting('transaction_isolation') as isolation, current_setting('transaction_read_only') as read_only`,
      ],
      { isolationLevel: 'Serializable', readOnly: true, deferrable: true },
    );
    expect(options).toEqual({ isolation: 'serializable', read_only: 'on' });
    const ended = sql.transaction([sql`insert into entry values (3)`, sql`rollback`, sql`select 1`]);
    await expect(ended).rejects.toMatchObject({ code: '25000' });
  });

  test('throws the error of PostgreSQL', async () => {
    await expect(neon(url)`select 1 / 0`).rejects.toMatchObject({
      name: 'NeonDbError',
      code: '22012',
      severity: 'ERROR',
      message: 'division by zero',
      file: 'int.c',
    });
  });
});

test('cells are JSON without the header for raw text, and rows objects without the one for arrays', async () => {
  const { status, body } = await run(
    `select true as yes, 7::int2 as small, 1.5::float8 as real, 'NaN'::float8 as nan, '{"a": [1]}'::jsonb as data, 9007199254740993::int8 as big, null as nothing`,
  );
  expect(status).toBe(200);
  expect(body.rows).toEqual([
    { yes: true, small: 7, real: 1.5, nan: 'NaN', data: { a: [1] }, big: '9007199254740993', nothing: null },
  ]);
  const raw = await run('select true as yes', [], { headers: { 'Neon-Raw-Text-Output': 'true' } });
  expect(raw.body).toMatchObject({ rows: [{ yes: 't' }], rowAsArray: false });
});

describe('who may', () => {
  test('an unknown database or login and a wrong password look alike', async () => {
    const nobody = `u_${'0'.repeat(32)}_rw`;
    const login = new URL(url).username;
    const cases: [string, string][] = [
      [altered((other) => (other.password = 'x'.repeat(32))), login],
      [altered((other) => (other.password = '')), login],
      [altered((other) => (other.pathname = '/db_unknown_prod')), login],
      [altered((other) => (other.username = nobody)), nobody],
      [altered((other) => (other.username = 'postgres')), 'postgres'],
    ];
    for (const [wrong, name] of cases) {
      const { status, body } = await send({ url: wrong });
      expect([status, body]).toEqual([
        400,
        { severity: 'FATAL', code: '28P01', message: `password authentication failed for user "${name}"` },
      ]);
    }
    for (const unreadable of ['', 'nonsense', 'https://postgres@x/y', null])
      expect(await send({ url: unreadable })).toMatchObject({ status: 400, body: { code: '08P01' } });
  });

  test('an address without a rule is refused after the right password only', async () => {
    const headers = { 'CF-Connecting-IP': '198.51.100.20' };
    expect(await send({ headers })).toMatchObject({ status: 400, body: { code: '28000' } });
    const wrong = altered((other) => (other.password = 'x'.repeat(32)));
    expect(await send({ headers, url: wrong })).toMatchObject({ status: 400, body: { code: '28P01' } });
  });

  test('wrong passwords of one address are limited, and close neither the ports nor other addresses', async () => {
    await api.branch(project.id, 'guessed');
    const guessed = await credentialsOf('guessed');
    const wrong = guessed.database_url.replace(/:[^:@]+@/, ':wrong-wrong-wrong-wrong@');
    const headers = { 'CF-Connecting-IP': '198.51.100.21' };
    const results = [];
    for (let n = 0; n <= 50; n += 1) results.push((await send({ url: wrong, headers })).status);
    expect(results).toEqual([...Array(50).fill(400), 429]);
    const right = await send({ url: guessed.database_url, headers });
    expect(right).toMatchObject({ status: 429, body: { error: 'RATE_LIMITED', code: '53300' } });
    expect(right.headers.get('Retry-After')).toMatch(/^\d+$/);
    expect(right.headers.get('X-RateLimit-Limit')).toBe('50');
    expect(await send({ url: guessed.database_url })).toMatchObject({ status: 200 });
    expect(await query(guessed.direct_url, 'select 1 as one')).toEqual([{ one: 1 }]);
  });

  test('a rotation ends the old password, and the new one works', async () => {
    await api.branch(project.id, 'rotated');
    const old = await credentialsOf('rotated');
    expect(await send({ url: old.database_url })).toMatchObject({ status: 200 });
    const path = `/api/v1/projects/${project.id}/branches/rotated/credentials/rotate`;
    expect((await api.post(path, {})).status).toBe(200);
    expect(await send({ url: old.database_url })).toMatchObject({ status: 400, body: { code: '28P01' } });
    const { database_url } = await credentialsOf('rotated');
    expect(await send({ url: database_url })).toMatchObject({ status: 200 });
  });

  test('the end of a rule ends the statement that its client runs', async () => {
    const branch = await api.branch(project.id, 'ended');
    const { database_url } = await credentialsOf('ended');
    const headers = { 'CF-Connecting-IP': '198.51.100.22' };
    const rules = `/api/v1/projects/${project.id}/network-rules`;
    const { body: rule } = await api.post(rules, { cidr: '198.51.100.22', branch_id: branch.id, via: 'sql' });
    const sleeping = run('select pg_sleep(25)', [], { url: database_url, headers });
    await eventually(async () => {
      const { body } = await run(
        "select count(*)::int as n from pg_stat_activity where query like '%pg_sleep(25)%' and pid <> pg_backend_pid()",
        [],
        { url: database_url },
      );
      expect(body.rows).toEqual([{ n: 1 }]);
    });
    expect((await api.delete(`${rules}/${rule.id}`)).status).toBe(204);
    expect(await sleeping).toMatchObject({ status: 400, body: { code: '28000' } });
  });
});

describe('with a token', () => {
  const bearer = async (options: Parameters<typeof tokenOf>[0]) => ({
    Authorization: `Bearer ${await tokenOf(options)}`,
  });
  const withoutPassword = (given: string) => given.replace(/:[^:@]+@/, '@');

  test('the password is not read: reads are undone, and writes take the rights of the query route', async () => {
    const headers = await bearer({ tenant: 'sql-over-http' });
    await run('create table kept (n int)', [], { url: await urlFor('pr-1', 'owner') });
    const reading = { headers, url: withoutPassword(await urlFor('pr-1', 'read_only')) };
    expect(await run('select 7 as n', [], reading)).toMatchObject({
      status: 200,
      body: { rows: [{ n: 7 }] },
    });
    expect(await run('insert into kept values (1)', [], reading)).toMatchObject({ body: { code: '25006' } });
    const writing = { headers, url: withoutPassword(await urlFor('pr-1', 'owner')) };
    expect(await run('insert into kept values (1)', [], writing)).toMatchObject({ status: 200 });
    const main = await credentialsOf('main');
    const ofMain = { headers, url: withoutPassword(main.database_url) };
    expect(await run('select 1', [], ofMain)).toMatchObject({ status: 400, body: { code: '42501' } });
    const reader = { headers, url: withoutPassword(await urlFor('main', 'read_only')) };
    expect(await run('select 1', [], reader)).toMatchObject({ status: 200 });
  });

  test.each([
    ['of another tenant', { tenant: 'sql-elsewhere' }, 'read_only', 400, '28P01'],
    ['of a viewer', { tenant: 'sql-over-http', role: 'viewer' }, 'read_only', 400, '28P01'],
    [
      'with the reading scope, for writing',
      { tenant: 'sql-over-http', scope: 'read' },
      'read_write',
      400,
      '42501',
    ],
    [
      'with the reading scope, as the owner',
      { tenant: 'sql-over-http', scope: 'read' },
      'owner',
      400,
      '42501',
    ],
    ['without a tenant', { tenant: null }, 'read_only', 403, undefined],
    ['that has expired', { tenant: 'sql-over-http', expiresIn: -60 }, 'read_only', 401, undefined],
  ] as const)('a token %s is refused', async (_, options, login, status, code) => {
    const headers = await bearer(options as Parameters<typeof tokenOf>[0]);
    // The right password in the URL changes nothing.
    const given = login === 'read_write' ? url : await urlFor('pr-1', login);
    const refused = await send({ headers, url: given });
    expect([refused.status, refused.body.code]).toEqual([status, code]);
  });

  test('a key for other branches, and a deleted one, are refused', async () => {
    const key = async (pattern: string) =>
      (
        await api.post<{ id: string; key: string }>('/api/v1/api-keys', {
          name: `of ${pattern}`,
          role: 'operator',
          scopes: ['read', 'write'],
          expires_in_days: 1,
          project_id: project.id,
          branch_pattern: pattern,
        })
      ).body;
    const reading = await urlFor('pr-1', 'read_only');
    const own = await key('pr-*');
    const other = await key('qa-*');
    const as = ({ key: text }: { key: string }) => ({ Authorization: `Bearer ${text}` });
    expect(await send({ url: reading, headers: as(own) })).toMatchObject({ status: 200 });
    expect(await send({ url: reading, headers: as(other) })).toMatchObject({ body: { code: '28P01' } });
    expect(
      await send({ url: reading, headers: { ...as(own), 'CF-Connecting-IP': '198.51.100.23' } }),
    ).toMatchObject({
      body: { code: '28000' },
    });
    await api.delete(`/api/v1/api-keys/${own.id}`);
    if (IS_NIGHTLY)
      await eventually(
        async () => expect(await send({ url: reading, headers: as(own) })).toMatchObject({ status: 401 }),
        30,
      );
  });
});

describe('bounds', () => {
  test('a reply of many parts arrives whole, and a larger one is refused as a whole', async () => {
    const cells = (count: number) =>
      `select n, repeat('ü"\\€', 1000) as text from generate_series(1, ${count}) as n`;
    const { status, body } = await run(cells(500));
    expect(status).toBe(200);
    const rows = body.rows as { n: number; text: string }[];
    expect(rows).toHaveLength(500);
    expect(rows.every(({ n, text }, at) => n === at + 1 && text === 'ü"\\€'.repeat(1000))).toBe(true);
    expect(await run(cells(5000))).toMatchObject({ status: 400, body: { code: '54000' } });
    expect(await run("select repeat('x', 30000000) as text")).toMatchObject({
      status: 400,
      body: { code: '54000' },
    });
    expect(await run("select repeat('x', 11000000) as text")).toMatchObject({
      status: 400,
      body: { code: '54000' },
    });
  });

  test('clients that leave in the middle of a reply take no room from the next ones', async () => {
    // Six replies fill the room of a tenant.
    for (let n = 0; n < 8; n += 1) {
      const left = new AbortController();
      const response = await eventually(async () => {
        const started = await fetch(`${inject('stack').url}/sql`, {
          method: 'POST',
          headers: { 'Neon-Connection-String': url },
          body: JSON.stringify({ query: "select repeat('x', 10000000) as text", params: [] }),
          signal: left.signal,
        });
        if (started.status !== 200) throw new Error(await started.text());
        return started;
      }, 15);
      await response.body?.getReader().read();
      left.abort();
    }
  });

  test('a request has at most 512 KiB', async () => {
    const text = (length: number) => `select length('${'x'.repeat(length)}')`;
    expect(await run(text(500_000))).toMatchObject({ status: 200, body: { rows: [{ length: 500_000 }] } });
    expect(await run(text(530_000))).toMatchObject({ status: 400, body: { code: '54000' } });
    expect(await send({ body: '{"query"' })).toMatchObject({ status: 400, body: { code: '08P01' } });
    expect(await send({ body: { query: 'select 1', params: [{}] } })).toMatchObject({ status: 400 });
    expect(await run('select 1; select 2')).toMatchObject({ status: 400, body: { code: '42601' } });
  });

  test('four requests of a branch run, and the next ones wait for two seconds', async () => {
    const sleeping = Array.from({ length: 4 }, () => run('select pg_sleep(6)'));
    await eventually(async () =>
      expect(await run('select 1')).toMatchObject({ status: 400, body: { code: '53300' } }),
    );
    for (const { status } of await Promise.all(sleeping)) expect(status).toBe(200);
    expect(await run('select 1')).toMatchObject({ status: 200 });
  });
});

test.runIf(IS_NIGHTLY)(
  'as many long statements as a host runs hold up no rotation of another tenant',
  async () => {
    const urls: string[] = [];
    for (const tenant of ['sql-busy-1', 'sql-busy-2', 'sql-busy-3']) {
      const own = await ownerOf(tenant);
      const { id } = await own.project('Busy');
      for (const branch of ['one', 'two']) {
        await own.branch(id, branch);
        urls.push((await own.credentials(id, branch)).database_url);
      }
    }
    await api.branch(project.id, 'meanwhile');
    const { database_url } = await credentialsOf('meanwhile');
    let ended = 0;
    const sleeping = urls.flatMap((busy) =>
      Array.from({ length: 4 }, () =>
        run('select pg_sleep(28)', [], { url: busy }).finally(() => {
          ended += 1;
        }),
      ),
    );
    await eventually(async () =>
      expect(await run('select 1', [], { url: urls.at(-1) ?? '' })).toMatchObject({
        body: { code: '53300' },
      }),
    );
    expect(await run('select 1', [], { url: database_url })).toMatchObject({ status: 200 });
    const path = `/api/v1/projects/${project.id}/branches/meanwhile/credentials/rotate`;
    const times: number[] = [];
    for (let n = 0; n < 5; n += 1) {
      const begun = performance.now();
      expect((await api.post(path, {})).status).toBe(200);
      times.push(performance.now() - begun);
    }
    console.info('rotations next to 24 statements, in milliseconds', times);
    // Sleeping statements take no processor time, so half of the rotations stay far below it on a busy machine too.
    expect(percentile(times, 0.5)).toBeLessThan(1_000);
    // Two of the 24 are only for tenants that have none.
    expect(ended).toBeLessThanOrEqual(2);
    const statuses = (await Promise.all(sleeping)).map(({ status }) => status);
    expect(statuses.filter((status) => status === 200)).toHaveLength(22);
  },
);

test('a minute of one login is one audit event with counts, and views of credentials are none', async () => {
  const { id } = await api.branch(project.id, 'audited');
  const { database_url } = await credentialsOf('audited');
  for (let n = 0; n < 3; n += 1)
    await run(n === 0 ? 'select no_such_column' : 'select 1', [], { url: database_url });
  type Events = { audit_events: { metadata: Record<string, number>; branch_id: string }[] };
  await eventually(async () => {
    const { body } = await api.get<Events>(`/api/v1/audit-events?name=sql.executed&project_id=${project.id}`);
    const counted = body.audit_events.filter(({ branch_id }) => branch_id === id);
    // A minute can end in between.
    expect([1, 2]).toContain(counted.length);
    const sum = (name: string) => counted.reduce((total, { metadata }) => total + (metadata[name] ?? 0), 0);
    expect([sum('requests'), sum('statements'), sum('refused')]).toEqual([3, 3, 1]);
    for (const { metadata } of counted)
      expect(metadata).toMatchObject({ role: 'read_write', by: 'password' });
  });
});

test('the log of the agent has the address of each client, and no log has its password', async () => {
  const address = '198.51.100.24';
  const { body: branch } = await api.get(`/api/v1/projects/${project.id}/branches/pr-1`);
  await api.post(`/api/v1/projects/${project.id}/network-rules`, { cidr: address, via: 'sql' });
  expect(await run('select 1', [], { headers: { 'CF-Connecting-IP': address } })).toMatchObject({
    status: 200,
  });
  await send({ headers: { 'CF-Connecting-IP': address }, body: '{"query"' });
  const { logs } = devFolder(inject('stack').devDir);
  const texts = () => readdirSync(logs).map((name) => readFileSync(join(logs, name), 'utf8'));
  await eventually(async () => {
    const lines = texts().flatMap((text) => text.split('\n').filter((line) => line.includes('"sql.run"')));
    const own = lines.filter((line) => line.includes(address)).map((line) => JSON.parse(line));
    expect(own).toEqual([
      expect.objectContaining({ address, branch_id: branch.id, role: 'read_write', outcome: 'done' }),
    ]);
  });
  for (const text of texts()) expect(text.includes(new URL(url).password)).toBe(false);
});

/** Values at the ends of the types, and what their text could be confused with. */
const VALUES = [
  ...['true', 'false', 'null', "'-32768'::int2", "'2147483647'::int4", "'-9223372036854775808'::int8"],
  ...["'NaN'::float4", "'-Infinity'::float8", "'1e-307'::float8", "'0.1'::float4", "'-0'::float8"],
  ...["'123456789012345678901234567890.123456789'::numeric", "'NaN'::numeric", "'Infinity'::numeric"],
  ...[
    "'92233720368547758.07'::money",
    "''::text",
    "' \t\r\n\\\" ünï 😀 '::text",
    "'x'::char(3)",
    '\'a\'::"char"',
  ],
  ...["'varchar'::varchar(10)", "'name'::name", "'\\x00ff7f'::bytea", "''::bytea", "'infinity'::date"],
  ...[
    "'4713-01-01 BC'::date",
    "'5874897-12-31'::date",
    "'24:00:00'::time",
    "'12:34:56.123456+15:59'::timetz",
  ],
  ...[
    "'294276-12-31 23:59:59.999999'::timestamp",
    "'-infinity'::timestamp",
    "'2026-03-29 02:30:00+01'::timestamptz",
  ],
  ...[
    "'1 year 2 mons -3 days 04:05:06.789'::interval",
    "'-178000000 years'::interval",
    '\'{"a": [1, null, "ü"]}\'::json',
  ],
  ...[
    '\'[1.0, 1e400, "\\u00fc"]\'::jsonb',
    "'null'::jsonb",
    "'$.a[*] ? (@ > 1)'::jsonpath",
    "'<a>&amp;</a>'::xml",
  ],
  ...["'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid", "'192.0.2.1/24'::inet", "'2001:db8::/32'::cidr"],
  ...[
    "'08:00:2b:01:02:03'::macaddr",
    "'08:00:2b:01:02:03:04:05'::macaddr8",
    "'10101'::bit(5)",
    "'1'::varbit",
  ],
  ...[
    "'(1,-2.5)'::point",
    "'{1,2,3}'::line",
    "'[(0,0),(1,1)]'::lseg",
    "'(1,1),(0,0)'::box",
    "'((0,0),(1,1))'::path",
  ],
  ...[
    "'((0,0),(1,1),(1,0))'::polygon",
    "'<(0,0),1>'::circle",
    "'fat:A & rat'::tsquery",
    "'a:1 b:2'::tsvector",
  ],
  ...[
    "'[1,5)'::int4range",
    "'empty'::int8range",
    "'(,2026-01-01)'::daterange",
    "'{[1,2),[3,4)}'::int4multirange",
  ],
  ...[
    "'{1,NULL,3}'::int4[]",
    '\'{{a,"b c"},{"\\"",NULL}}\'::text[][]',
    "'{}'::jsonb[]",
    "'[0:1]={1,2}'::int2[]",
  ],
  ...[
    "'16/B374D848'::pg_lsn",
    "'10:20:10,14,15'::pg_snapshot",
    "'pg_class'::regclass",
    "'1234'::oid",
    "row(1, 'a b', null)",
  ],
  ...["array[row(1, 'x')]", "'1 2 3'::int2vector", "'(0,1)'::tid", "'7'::xid8", "'{t,f}'::bool[]"],
];

/** Statements that fail, each with another SQLSTATE, and a row to fail with. */
const FAILING = [
  ...[
    'select 1 / 0',
    'select no_such',
    'select * from no_such',
    'selec 1',
    "select 'x'::int",
    'select no_such()',
  ],
  ...[
    'insert into failing values (1)',
    'insert into failing values (null)',
    'insert into failing values (-1)',
  ],
  ...[
    "select '2026-02-30'::date",
    'select 2147483647::int4 + 1',
    "select jsonb_path_query('{}', 'strict $.a')",
  ],
  ...[
    'delete from parent',
    'create table failing (n int)',
    'drop table no_such',
    "select '{'::json",
    'select array[1] @ 1',
  ],
  ...[
    "do $$ begin raise exception 'own' using errcode = 'BG001', hint = 'h', detail = 'd', column = 'c', datatype = 't'; end $$",
  ],
  ...['create extension no_such', "select set_config('no_such', 'x', false)", 'alter system set jit = off'],
  ...[
    "select decode('é', 'base64')",
    'set role postgres',
    'select pg_catalog.sqrt(-1)',
    'select ln(0::numeric)',
  ],
];

const byDay = <T>(all: readonly T[], few: number): readonly T[] => (IS_NIGHTLY ? all : all.slice(0, few));

test('values and errors equal those of a client over TCP', async () => {
  const branch = await api.branch(project.id, 'compared');
  expect(branch.status).toBe('active');
  const { direct_url } = await credentialsOf('compared');
  // The same session settings, so that only the ways differ.
  const tcp = await connect(direct_url);
  await tcp.query(`create table failing (n int primary key check (n > 0)); insert into failing values (1);
    create table parent (n int primary key); create table child (n int references parent); insert into parent values (1); insert into child values (1)`);
  const text = { getTypeParser: () => (value: unknown) => value };
  const headers = { 'Neon-Raw-Text-Output': 'true', 'Neon-Array-Mode': 'true' };
  for (const value of byDay(VALUES, 12)) {
    const { rows, fields } = await tcp.query({
      text: `select ${value} as value`,
      rowMode: 'array',
      types: text,
    });
    const { body } = await run(`select ${value} as value`, [], { url: direct_url, headers });
    expect([value, body.rows, body.fields]).toEqual([
      value,
      rows,
      fields.map(({ name, dataTypeID, tableID, columnID, dataTypeSize, dataTypeModifier }) => ({
        name,
        dataTypeID,
        tableID,
        columnID,
        dataTypeSize,
        dataTypeModifier,
        format: 'text',
      })),
    ]);
  }
  for (const statement of byDay(FAILING, 4)) {
    // Both by the extended protocol, which has other errors than the simple one.
    const extended = { text: statement, values: [], queryMode: 'extended' } as pg.QueryConfig;
    const failed = await tcp.query(extended).then(() => ({}), asRecord);
    const { status, body } = await run(statement, [], { url: direct_url });
    const { length: _, name: _name, ...fields } = failed as Record<string, unknown>;
    expect([statement, status, body]).toEqual([statement, 400, fields]);
  }
  await tcp.end();
});

/** The fields of an error that are set. */
const asRecord = (error: Error): Record<string, unknown> =>
  Object.fromEntries(
    Object.entries({ ...error, message: error.message }).filter(([, value]) => value !== undefined),
  );
