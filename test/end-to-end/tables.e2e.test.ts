import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { beforeAll, describe, expect, inject, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { FAILURES } from '../../shared/failures.ts';
import type { Api, ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { firstByDay, IS_NIGHTLY } from '../support/nightly.ts';
import { apiOf, ownerOf } from '../support/tenants.ts';

const SAMPLE = readFileSync(join(import.meta.dirname, '../support/sample.sql'), 'utf8');

interface TableList {
  tables: {
    schema: string;
    name: string;
    kind: string;
    primary_key: string[];
    columns: { name: string }[];
  }[];
}
interface RowPage {
  rows: Record<string, unknown>[];
  columns: { name: string; type: string }[];
  truncated: { row: number; column: string }[];
  has_more: boolean;
  [field: string]: unknown;
}

let api: Api;
let project: ProjectBody;
let ownerUrl: string;
const tables = () => `/api/v1/projects/${project.id}/branches/shop/tables`;
const rowsOf = (table: string, search = '') => `${tables()}/${encodeURIComponent(table)}/rows${search}`;
const page = async (table: string, search = '') => (await api.get<RowPage>(rowsOf(table, search))).body;
const update = (table: string, body: object, search = '') =>
  api.call('PATCH', rowsOf(table, search), { body });
const remove = (table: string, body: object, search = '') =>
  api.call('DELETE', rowsOf(table, search), { body });

beforeAll(async () => {
  api = await ownerOf('tables');
  project = await api.project('Tables');
  await api.branch(project.id, 'shop');
  ownerUrl = (await api.credentials(project.id, 'shop')).direct_url;
  await query(ownerUrl, SAMPLE);
});

describe('a shop', () => {
  test('lists its tables and views', async () => {
    const { status, body } = await api.get<TableList>(`${tables()}?schema=public`);
    expect(status).toBe(200);
    expect(body.tables.map(({ name, kind }) => `${name} ${kind}`)).toEqual([
      'author table',
      'book table',
      'cheap_book view',
      'sale table',
    ]);
    expect(body.tables[1]).toMatchObject({ primary_key: ['isbn'], schema: 'public' });
    expect((await api.get<TableList>(`${tables()}?schema=nowhere`)).body).toEqual({ tables: [] });
  });

  test('returns pages of a table, each row an object', async () => {
    const first = await page('book');
    expect(first).toMatchObject({
      table: 'book',
      schema: 'public',
      limit: 50,
      offset: 0,
      has_more: true,
      truncated: [],
    });
    expect(first.rows).toHaveLength(50);
    expect(first.rows[0]).toEqual({
      isbn: 'isbn-1',
      author_id: 2,
      title: 'Title 1',
      price: '1.00',
      binding: 'soft',
      tags: '{t1,ü}',
      cover: expect.stringMatching(/^[A-Za-z0-9+/]{22}==$/),
      added: '2026-01-01 01:00:00+00',
    });
    const last = await page('book', '?limit=30&offset=780');
    expect(last).toMatchObject({ limit: 30, offset: 780, has_more: false });
    expect(last.rows).toHaveLength(20);
    expect((await page('cheap_book', '?limit=1')).columns.map(({ name }) => name)).toEqual(['isbn', 'title']);
  });

  test('changes a cell, unless it differs from the expected value', async () => {
    const cell = { primary_key: 'isbn', id: 'isbn-7', column: 'price' };
    const changed = await update('book', { ...cell, value: '12.5', expected: '7.00' });
    expect(changed).toMatchObject({
      status: 200,
      body: { row: { isbn: 'isbn-7', price: '12.50' }, truncated: [] },
    });
    expect(await update('book', { ...cell, value: '13', expected: '7.00' })).toMatchObject({
      status: 409,
      body: { error: 'ROW_CHANGED' },
    });
    expect(await update('book', { ...cell, id: 'isbn-none', value: '13' })).toMatchObject({
      status: 404,
      body: { error: 'ROW_NOT_FOUND' },
    });
    expect(await query(ownerUrl, "select price from book where isbn = 'isbn-7'")).toEqual([
      { price: '12.50' },
    ]);
  });

  test('names the field of a column that does not exist', async () => {
    const cell = { primary_key: 'isbn', id: 'isbn-8', column: 'colour', value: 'red' };
    expect(await update('book', cell)).toMatchObject({
      status: 422,
      body: { error: 'VALIDATION_FAILED', details: [{ path: 'column' }] },
    });
  });

  test('names the fields of the request in which a change is invalid', async () => {
    const cell = { primary_key: 'isbn', id: 'isbn-8', column: 'price', value: '1' };
    const pathsOf = ({ body }: Awaited<ReturnType<typeof update>>) =>
      (body.details as { path: string }[]).map(({ path }) => path);
    expect(pathsOf(await update('book', { ...cell, column: 'colour', expected: '1' }))).toEqual(['column']);
    expect(pathsOf(await update('book', { ...cell, value: 0.1 }))).toEqual(['value']);
    expect(pathsOf(await update('book', { ...cell, expected: 0.1 }))).toEqual(['expected']);
    expect(pathsOf(await update('book', { ...cell, id: ['isbn-8', 1] }))).toEqual(['id']);
    expect(pathsOf(await remove('book', { primary_key: 'isbn', ids: ['none', ['a', 1]] }))).toEqual([
      'ids.1',
    ]);
    const change = {
      action: 'update',
      table: 'book',
      primary_key: 'isbn',
      id: 'isbn-8',
      values: { colour: 1 },
    };
    const path = `${tables().slice(0, -'tables'.length)}row-changes`;
    expect(pathsOf(await api.call('POST', path, { body: { changes: [change] } }))).toEqual([
      'changes.0.values',
    ]);
  });

  test("returns PostgreSQL's message for a refused statement, and never logs it", async () => {
    const negative = await update('book', { primary_key: 'isbn', id: 'isbn-8', column: 'price', value: -1 });
    expect(negative).toMatchObject({ status: 422, body: { error: 'STATEMENT_REFUSED', sqlstate: '23514' } });
    expect(negative.body.message).toMatch(/violates check constraint/);
    const secretValue = 'a secret value of the tenant';
    const refused = await update('book', {
      primary_key: 'isbn',
      id: 'isbn-8',
      column: 'author_id',
      value: secretValue,
    });
    expect(refused).toMatchObject({ status: 422, body: { sqlstate: '22P02' } });
    expect(refused.body.message).toContain(secretValue);
    const { logs } = devFolder(inject('stack').devDir);
    for (const name of globSync('{gateway,agent}.log', { cwd: logs }))
      expect(readFileSync(join(logs, name), 'utf8')).not.toContain(secretValue);
  });

  test('deletes rows together, or none if one of them is referenced', async () => {
    const sales = { primary_key: 'sale_id' };
    const refused = await remove('sale', { ...sales, ids: ['1', 2, '77777', 'isbn'] });
    expect(refused).toMatchObject({ status: 422, body: { error: 'STATEMENT_REFUSED', sqlstate: '22P02' } });
    expect(refused.body).not.toHaveProperty('change');
    const deleted = await remove('sale', { ...sales, ids: ['1', 2, '77777', 1] });
    expect(deleted).toMatchObject({ status: 200, body: { deleted: 2, missing: ['77777'] } });
    expect(await remove('author', { primary_key: 'author_id', ids: [1, 2] })).toMatchObject({
      status: 422,
      body: { sqlstate: '23503' },
    });
    expect((await page('author', '?limit=2')).rows).toHaveLength(2);
  });

  test('has an audit event for each change that was made, with keys and without values', async () => {
    const path = `/api/v1/audit-events?project_id=${project.id}`;
    const events = await Promise.all(
      ['row.changed', 'row.deleted'].map(async (name) => {
        const { body } = await api.get<{ audit_events: { metadata: object }[] }>(`${path}&name=${name}`);
        return body.audit_events.map(({ metadata }) => metadata);
      }),
    );
    expect(events).toEqual([
      [{ schema: 'public', table: 'book', column: 'price', primary_key: ['isbn'], ids: [['isbn-7']] }],
      [{ schema: 'public', table: 'sale', primary_key: ['sale_id'], ids: [['1'], [2], [1]] }],
    ]);
  });
});

describe('keys', () => {
  beforeAll(() =>
    query(
      ownerUrl,
      `create table line (order_id int, number int, note text, primary key (order_id, number));
       insert into line select n / 3, n % 3, 'n' || n from generate_series(0, 29) n;
       create table keyless (a int); insert into keyless values (1)`,
    ),
  );

  test('of several columns are arrays', async () => {
    const key = { primary_key: ['order_id', 'number'] };
    expect(await update('line', { ...key, id: [2, 1], column: 'note', value: null })).toMatchObject({
      body: { row: { order_id: 2, number: 1, note: null } },
    });
    expect(
      await remove('line', {
        ...key,
        ids: [
          [0, 0],
          [9, 9],
        ],
      }),
    ).toMatchObject({
      body: { deleted: 1, missing: [[9, 9]] },
    });
    expect(await update('line', { ...key, id: 2, column: 'note', value: 'x' })).toMatchObject({
      status: 422,
    });
  });

  test('are needed to change a row', async () => {
    expect((await page('keyless')).rows).toEqual([{ a: 1 }]);
    for (const response of [
      await update('keyless', { primary_key: 'a', id: 1, column: 'a', value: 2 }),
      await remove('keyless', { primary_key: 'a', ids: [1] }),
    ]) {
      expect(response).toMatchObject({
        status: 422,
        body: { error: 'VALIDATION_FAILED', details: [{ path: 'primary_key' }] },
      });
    }
  });
});

test.each(
  firstByDay(3, [
    '100% "sure"',
    'slash/and\\back',
    '?query=1&x#y',
    'with space',
    'Upper',
    'dot.ted',
    'Größe 数 🐘',
    '+',
  ]),
)('a table named %s is readable and writable', async (name) => {
  const quoted = `"${name.replaceAll('"', '""')}"`;
  await query(
    ownerUrl,
    `create schema if not exists "My schema"; create table "My schema".${quoted} (id int primary key, ${quoted} text);
    insert into "My schema".${quoted} values (1, 'one'), (2, 'two')`,
  );
  const search = '?schema=My%20schema';
  expect((await page(name, search)).rows).toEqual([
    { id: 1, [name]: 'one' },
    { id: 2, [name]: 'two' },
  ]);
  expect(await update(name, { primary_key: 'id', id: 1, column: name, value: 'new' }, search)).toMatchObject({
    body: { row: { id: 1, [name]: 'new' } },
  });
  expect(await remove(name, { primary_key: 'id', ids: [2] }, search)).toMatchObject({ body: { deleted: 1 } });
  expect((await api.get(rowsOf(name))).status).toBe(404);
});

describe('large data', () => {
  test('a cell of 5 MB is truncated and listed', async () => {
    await query(
      ownerUrl,
      `create table picture (id int primary key, name text, data bytea);
       insert into picture values (1, 'small', 'x'), (2, 'large', decode(repeat('00', 5000000), 'hex'))`,
    );
    const { rows, truncated } = await page('picture');
    expect(truncated).toEqual([{ row: 1, column: 'data' }]);
    expect(String(rows[1]?.data)).toBe('A'.repeat(65_536));
    const renamed = await update('picture', { primary_key: 'id', id: 2, column: 'name', value: 'huge' });
    expect(renamed.body).toMatchObject({ row: { name: 'huge' }, truncated: ['data'] });
  });

  test.runIf(IS_NIGHTLY)('50 rows of 1,600 columns fit into one response', async () => {
    const columns = Array.from(
      { length: 1_599 },
      (_, n) => `a_column_with_a_long_name_${n} int default 1234567890`,
    );
    await query(
      ownerUrl,
      `create table wide (id int primary key, ${columns.join(', ')}); insert into wide (id) select generate_series(1, 60)`,
    );
    const { rows, has_more, truncated } = await page('wide');
    expect(rows.map(({ id }) => id)).toEqual(Array.from({ length: 50 }, (_, n) => n + 1));
    expect([has_more, truncated]).toEqual([true, []]);
  });

  test.runIf(IS_NIGHTLY)('2,000 tables fit into one response', async () => {
    await query(ownerUrl, 'create schema many');
    // A transaction that makes all of them holds more locks than the host allows.
    for (let first = 1; first <= 2000; first += 500) {
      await query(
        ownerUrl,
        `do $$ begin for n in ${first}..${first + 499} loop
           execute format('create table many.table_%s (id int primary key, first_name text, last_name text, at date,
             street varchar(100), town varchar(100), country varchar(2), amount numeric(10, 2))', n);
         end loop; end $$`,
      );
    }
    const { body } = await api.get<TableList>(`${tables()}?schema=many`);
    expect(new Set(body.tables.map(({ name }) => name)).size).toBe(2_000);
    expect(body.tables).toHaveLength(2_000);
  });

  test('a value larger than a message is refused', async () => {
    const large = { primary_key: 'id', id: 1, column: 'name', value: '\u0001'.repeat(174_740) };
    expect((await update('picture', large)).status).toBe(422);
    const fits = await update('picture', { ...large, value: 'x'.repeat(1_000_000) });
    expect(fits.body).toMatchObject({ truncated: ['name'] });
  });
});

test('a table that another session has locked is not waited for, and nor does the query afterwards', async () => {
  await query(ownerUrl, 'create table locked (id int primary key)');
  const holder = await connect(ownerUrl);
  await holder.query('begin; lock table locked in access exclusive mode');
  expect(await api.get(rowsOf('locked'))).toMatchObject({
    status: 422,
    body: { error: 'TIME_LIMIT_REACHED' },
  });
  const { rows } = await holder.query(
    "select from pg_locks where relation = 'locked'::regclass and not granted",
  );
  expect(rows).toEqual([]);
  expect((await api.get<TableList>(tables())).status).toBe(200);
  await holder.end();
  expect((await api.get(rowsOf('locked'))).status).toBe(200);
});

test('values out of bounds are refused', async () => {
  const ids = Array.from({ length: 51 }, (_, n) => n);
  const key = { primary_key: 'author_id' };
  for (const response of await Promise.all([
    api.get(rowsOf('author', '?limit=51')),
    api.get(rowsOf('author', '?limit=0')),
    api.get(rowsOf('author', '?offset=-1')),
    api.get(rowsOf('author', '?colour=red')),
    api.get(`${tables()}?limit=1`),
    remove('author', { ...key, ids }),
    remove('author', { ...key, ids: [] }),
    remove('author', { ...key, ids: [null] }),
    update('author', { ...key, id: 1, column: 'nothing', value: 1 }),
    update('author', { ...key, id: 1, column: 'name' }),
    update('author', { ...key, id: 1, column: 'name', value: { a: 1 } }),
    update('author', { ...key, id: 1, column: 'name', value: '\ud800' }),
    update('author', { ...key, id: 1, column: 'name', value: 'x', colour: 'red' }),
  ])) {
    expect(response).toMatchObject({
      status: 422,
      body: { error: 'VALIDATION_FAILED', details: [expect.anything()] },
    });
  }
  expect((await api.get(rowsOf('nothing'))).status).toBe(404);
  expect((await page('author', '?limit=1&offset=40')).rows).toEqual([]);
});

test('a viewer reads and changes nothing', async () => {
  const viewer = await apiOf({ tenant: 'tables', role: 'viewer', email: 'owner@tables.example' });
  expect((await viewer.get(rowsOf('author', '?limit=1'))).status).toBe(200);
  const body = { primary_key: 'author_id', ids: [1] };
  expect(await viewer.call('DELETE', rowsOf('author'), { body })).toMatchObject({
    status: 403,
    body: { error: 'FORBIDDEN' },
  });
});

/** Checks in this state of the record. It is written again when a measurement has changed it meanwhile. */
const inState = (change: string, id: string, check: () => Promise<void>) =>
  eventually(async () => {
    setState(change, id);
    await check();
  });

/** Writes a state into the record, as the service would. */
function setState(change: string, id: string): void {
  const [file = ''] = globSync(join(devFolder(inject('stack').devDir).gatewayState, '**/d1/**/*.sqlite'));
  const d1 = new DatabaseSync(file, { timeout: 5000 });
  try {
    d1.prepare(`update ${change} where id = ?`).run(id);
  } finally {
    d1.close();
  }
}

test('rows of an inactive branch are not shown; those of a blocked project are not changed', async () => {
  const other = await api.project('Blocked');
  const path = `/api/v1/projects/${other.id}/branches/main/tables`;
  const body = { primary_key: 'id', ids: [1] };
  await inState("projects set storage_state = 'write_blocked'", other.id, async () => {
    const refused = await api.call('DELETE', `${path}/any/rows`, { body });
    expect(refused.status).toBe(409);
    expect(refused.body).toEqual({
      error: 'WRITE_BLOCKED',
      message: FAILURES.WRITE_BLOCKED.message,
      request_id: expect.any(String),
    });
    expect((await api.get(path)).status).toBe(200);
  });
  expect(FAILURES.WRITE_BLOCKED.message).toMatch(/quota/);
  await inState("projects set storage_state = 'closed'", other.id, async () =>
    expect(await api.get(path)).toMatchObject({ status: 409, body: { error: 'DATABASES_CLOSED' } }),
  );
  await inState("project_branches set status = 'expired'", other.main_branch.id, async () => {
    for (const of of [path, `${path}/any/rows`])
      expect(await api.get(of)).toMatchObject({ status: 409, body: { error: 'BRANCH_NOT_ACTIVE' } });
  });
});

test('more concurrent requests than a branch has slots get PROJECT_BUSY', async () => {
  await query(ownerUrl, 'create view slow as select pg_advisory_xact_lock_shared(1)::text as held');
  const holder = await connect(ownerUrl);
  await holder.query('select pg_advisory_lock(1)');
  const refused: string[] = [];
  const responses = Array.from({ length: 12 }, async () => {
    const { status, body } = await api.get(rowsOf('slow'));
    if (status === 429) refused.push(String(body.error));
    return status;
  });
  await eventually(async () => expect(refused).toEqual(Array(4).fill('PROJECT_BUSY')));
  await holder.end();
  expect((await Promise.all(responses)).filter((status) => status === 200)).toHaveLength(8);
});
