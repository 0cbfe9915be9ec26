import { beforeAll, describe, expect, inject, test } from 'vitest';
import { Api, type ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { apiOf, ownerOf } from '../support/tenants.ts';

interface AuditPage {
  audit_events: { name: string; metadata: Record<string, unknown> }[];
}

const TENANT = 'editing';
let api: Api;
let project: ProjectBody;
let ownerUrl: string;
const branch = (rest: string, ref = 'shop') => `/api/v1/projects/${project.id}/branches/${ref}${rest}`;

beforeAll(async () => {
  api = await ownerOf(TENANT);
  project = await api.project('Editing');
  await api.branch(project.id, 'shop');
  ownerUrl = (await api.credentials(project.id, 'shop')).direct_url;
  await query(
    ownerUrl,
    `create type mood as enum ('good', 'bad');
     create table author (id int primary key generated always as identity, name text not null);
     create table book (id int primary key, title text default 'untitled', author int references author, mood mood);
     insert into author (name) values ('Ada');
     insert into book select n, 'Book ' || n, 1, case when n % 2 = 0 then 'good' else 'bad' end::mood
       from generate_series(1, 60) n`,
  );
});

const change = (changes: object[], caller = api, ref?: string) =>
  caller.post(branch('/row-changes', ref), { changes });
const run = (body: object, caller = api, ref?: string) => caller.post(branch('/query', ref), body);
const events = async (name: string) => {
  const { body } = await api.get<AuditPage>(`/api/v1/audit-events?name=${name}&project_id=${project.id}`);
  return body.audit_events.map(({ metadata }) => metadata);
};
const rowsBy = async (search: Record<string, unknown>) => {
  const texts = Object.entries(search).map(([name, value]) => [name, JSON.stringify(value)]);
  const path = branch(`/tables/book/rows?${new URLSearchParams(Object.fromEntries(texts))}`);
  return api.get<{ rows: { id: number }[]; has_more: boolean }>(path);
};
const titleOf = async (id: number) =>
  (await query<{ title: string }>(ownerUrl, `select title from book where id = ${id}`))[0]?.title;

test('a table is described for its editor', async () => {
  const { status, body } = await api.get(branch('/tables/book'));
  expect([status, body]).toMatchObject([
    200,
    {
      keys: [['id']],
      foreign_keys: [{ columns: ['author'], referenced_table: 'author', referenced_columns: ['id'] }],
      indexes: [{ name: 'book_pkey', unique: true, primary: true, valid: true }],
      constraints: [
        { name: 'book_author_fkey', kind: 'foreign_key', validated: true },
        { name: 'book_id_not_null', kind: 'not_null' },
        { name: 'book_pkey', kind: 'primary_key', definition: 'PRIMARY KEY (id)' },
      ],
      columns: [{ name: 'id' }, { default: "'untitled'::text" }, {}, { enum_values: ['good', 'bad'] }],
    },
  ]);
  expect((await api.get(branch('/tables/nothing'))).status).toBe(404);
});

test('rows are selected, sorted and paged', async () => {
  const filter = [{ column: 'mood', operator: 'eq', value: 'good' }];
  const sort = [{ column: 'id', direction: 'desc' }];
  const { body } = await rowsBy({ filter, sort, limit: 2, offset: 1 });
  expect([body.rows.map(({ id }) => id), body.has_more]).toEqual([[58, 56], true]);
});

test.each([
  [{ filter: [{ column: 'mood', operator: 'like', value: 'x' }] }, 'filter.0.operator'],
  [{ filter: {} }, 'filter'],
  [{ sort: [{ column: 'id' }] }, 'sort.0.direction'],
  [{ sort: [{ column: 'nothing', direction: 'asc' }] }, 'sort.0.column'],
  [
    {
      filter: [
        { column: 'mood', operator: 'is_null' },
        { column: 'id', operator: 'eq' },
      ],
    },
    'filter.1.value',
  ],
])('rows with %j → 422', async (search, path) => {
  const { status, body } = await rowsBy(search);
  expect([status, body]).toMatchObject([422, { details: [{ path }] }]);
});

describe('several changes', () => {
  test('are made together, and audited without a value', async () => {
    const { status, body } = await change([
      { action: 'insert', table: 'author', values: { name: 'Secret Name' } },
      { action: 'insert', table: 'book', values: { id: 100, author: 2 } },
      {
        action: 'update',
        table: 'book',
        primary_key: 'id',
        id: 1,
        values: { title: 'Secret title', mood: null },
        expected: { title: 'Book 1' },
      },
      { action: 'delete', table: 'book', primary_key: 'id', id: 60 },
    ]);
    expect([status, body]).toEqual([
      200,
      {
        changes: [
          { row: { id: 2, name: 'Secret Name' }, truncated: [] },
          { row: { id: 100, title: 'untitled', author: 2, mood: null }, truncated: [] },
          { row: { id: 1, title: 'Secret title', author: 1, mood: null }, truncated: [] },
          { row: null, truncated: [] },
        ],
      },
    ]);
    const book = { schema: 'public', table: 'book', primary_key: ['id'] };
    expect(await events('rows.changed')).toEqual([
      {
        changes: [
          { ...book, action: 'insert', table: 'author', columns: ['name'], id: [2] },
          { ...book, action: 'insert', columns: ['id', 'author'], id: [100] },
          { ...book, action: 'update', columns: ['title', 'mood'], id: [1] },
          { ...book, action: 'delete', id: [60] },
        ],
      },
    ]);
  });

  test('of which one conflicts change nothing, and the conflict has the present row', async () => {
    await query(ownerUrl, "update book set title = 'Theirs' where id = 2");
    const before = (await events('rows.changed')).length;
    const of = { action: 'update', table: 'book', primary_key: 'id' };
    const { status, body } = await change([
      { ...of, id: 2, values: { title: 'Mine' }, expected: { title: 'Book 2' } },
      { ...of, id: 3, values: { title: 'Mine' } },
      { ...of, id: 999, values: { title: 'Mine' } },
    ]);
    expect([status, body]).toMatchObject([
      409,
      {
        error: 'CHANGES_CONFLICT',
        conflicts: [
          { change: 0, reason: 'changed', row: { id: 2, title: 'Theirs', author: 1, mood: 'good' } },
          { change: 2, reason: 'missing', row: null },
        ],
      },
    ]);
    expect(await titleOf(3)).toBe('Book 3');
    expect(await events('rows.changed')).toHaveLength(before);
  });

  test('that PostgreSQL refuses say which one it was', async () => {
    const { status, body } = await change([
      { action: 'delete', table: 'book', primary_key: 'id', id: 4 },
      { action: 'insert', table: 'book', values: { id: 5 } },
    ]);
    expect([status, body]).toMatchObject([422, { error: 'STATEMENT_REFUSED', sqlstate: '23505', change: 1 }]);
    expect(await titleOf(4)).toBe('Book 4');
  });

  test.each([
    [[]],
    [[{ action: 'update', table: 'book', primary_key: 'id', id: 1, values: {} }]],
    [[{ action: 'insert', table: 'book', values: { id: { a: 1 } } }]],
    [[{ action: 'upsert', table: 'book', values: {} }]],
    [Array.from({ length: 51 }, () => ({ action: 'insert', table: 'book', values: {} }))],
  ])('%j → 422', async (changes) => {
    expect((await change(changes)).status).toBe(422);
  });

  test('with an unknown column are refused under the field of their change', async () => {
    const values = { title: 'x' };
    expect(
      await change([
        { action: 'insert', table: 'book', values: { id: 200 } },
        { action: 'update', table: 'book', primary_key: 'id', id: 1, values, expected: { nothing: 1 } },
      ]),
    ).toMatchObject({ status: 422, body: { details: [{ path: 'changes.1.expected' }] } });
  });

  test('take the right to change rows', async () => {
    for (const caller of [{ role: 'viewer' }, { scope: 'read' as const }]) {
      const limited = await apiOf({ tenant: TENANT, ...caller });
      const { status } = await change([{ action: 'insert', table: 'book', values: { id: 300 } }], limited);
      expect(status).toBe(403);
    }
    const other = await ownerOf('editing-other');
    expect((await change([{ action: 'insert', table: 'book', values: {} }], other)).status).toBe(404);
  });
});

test('columns with the names of what all objects share are columns like others', async () => {
  await query(
    ownerUrl,
    `create table odd (id int primary key, constructor text, prototype text, "__proto__" text);
     insert into odd values (1, 'c', 'p', 'o'), (2, 'c', 'p', 'o')`,
  );
  const of = { action: 'update', table: 'odd', primary_key: 'id', id: 1 };
  for (const [name, old] of [
    ['constructor', 'c'],
    ['prototype', 'p'],
  ] as const) {
    const changed = await change([{ ...of, values: { [name]: 'new' }, expected: { [name]: old } }]);
    expect([name, changed.status]).toEqual([name, 200]);
  }
  const refused = await change([{ ...of, values: JSON.parse('{"__proto__":"new"}') }]);
  expect(refused).toMatchObject({ status: 422, body: { details: [{ path: 'changes.0.values.__proto__' }] } });
  const inserted = await change([{ action: 'insert', table: 'odd', values: { id: 3, constructor: 'x' } }]);
  expect(inserted.status).toBe(200);
  // The statement changes the column that the editor of rows refuses.
  const sql = `update odd set "__proto__" = 'new' where id = 1`;
  expect((await run({ sql, role: 'read_write' })).status).toBe(200);
  const filter = JSON.stringify([{ column: '__proto__', operator: 'eq', value: 'new' }]);
  const { body } = await api.get<{ rows: object[] }>(
    branch(`/tables/odd/rows?${new URLSearchParams({ filter })}`),
  );
  expect(body.rows.map((row) => Object.entries(row))).toEqual([
    [
      ['id', 1],
      ['constructor', 'new'],
      ['prototype', 'new'],
      ['__proto__', 'new'],
    ],
  ]);
  expect(await query(ownerUrl, 'select id, constructor, prototype from odd order by id')).toEqual([
    { id: 1, constructor: 'new', prototype: 'new' },
    { id: 2, constructor: 'c', prototype: 'p' },
    { id: 3, constructor: 'x', prototype: null },
  ]);
});

describe('a query', () => {
  const COUNT = { sql: 'select count(*)::int as n from book where id < $1', params: [10] };

  test('returns rows, and is audited without its text', async () => {
    const { status, body } = await run(COUNT);
    expect([status, body]).toEqual([
      200,
      {
        columns: [{ name: 'n', type: 'integer' }],
        rows: [[9]],
        has_more: false,
        truncated: [],
        command: 'SELECT',
        row_count: 1,
      },
    ]);
    expect((await events('query.executed'))[0]).toEqual({
      role: 'read_only',
      command: 'SELECT',
      row_count: 1,
    });
  });

  test('changes rows only as read_write, and only outside of main', async () => {
    const sql = "update book set title = 'Changed' where id = 7";
    expect(await run({ sql })).toMatchObject({ status: 422, body: { error: 'STATEMENT_REFUSED' } });
    expect(await titleOf(7)).toBe('Book 7');
    expect(await events('query.executed')).toContainEqual({
      role: 'read_only',
      failure: 'STATEMENT_REFUSED',
    });
    expect(await run({ sql, role: 'read_write' })).toMatchObject({
      status: 200,
      body: { command: 'UPDATE', row_count: 1, rows: [] },
    });
    expect(await titleOf(7)).toBe('Changed');
    const onMain = { sql: 'select 1', role: 'read_write' };
    expect(await run(onMain, api, 'main')).toMatchObject({
      status: 403,
      body: { error: 'BRANCH_PROTECTED' },
    });
    expect((await run({ sql: 'select 1' }, api, 'main')).status).toBe(200);
  });

  test('of several statements returns the result of each, and says which one failed', async () => {
    const sql = "update book set title = 'Twice' where id = 8; select title from book where id = 8";
    const { body } = await run({ sql, role: 'read_write' });
    expect(body).toMatchObject({
      command: 'SELECT',
      rows: [['Twice']],
      results: [{ command: 'UPDATE' }, { rows: [['Twice']] }],
    });
    expect(await events('query.executed')).toContainEqual({
      role: 'read_write',
      command: 'SELECT',
      row_count: 1,
      statements: 2,
      commands: ['UPDATE', 'SELECT'],
    });
    expect(await run({ sql: `${sql}; select 1 / 0`, role: 'read_write' })).toMatchObject({
      status: 422,
      body: { error: 'STATEMENT_REFUSED', sqlstate: '22012', statement: 3 },
    });
  });

  test('as the owner changes the schema, where its caller may read that password, and of main only its first objects', async () => {
    const sql = 'alter table book add column shelf text; alter table book drop column shelf';
    expect(await run({ sql, role: 'owner' })).toMatchObject({ status: 200, body: { command: 'ALTER' } });
    const first = { sql: 'create table first_table (id int)', role: 'owner' };
    const refused = { status: 403, body: { error: 'BRANCH_PROTECTED' } };
    const key = await api.post<{ key: string }>('/api/v1/api-keys', {
      name: 'machine',
      role: 'operator',
      scopes: ['read', 'write'],
      expires_in_days: 1,
      project_id: project.id,
    });
    expect(await run(first, new Api(inject('stack').url, key.body.key), 'main')).toMatchObject(refused);
    expect(await run(first, api, 'main')).toMatchObject({ status: 200, body: { command: 'CREATE' } });
    expect(await run({ sql: 'select 1', role: 'owner' }, api, 'main')).toMatchObject(refused);
    const reader = await apiOf({ tenant: TENANT, scope: 'read' });
    const viewer = await apiOf({ tenant: TENANT, role: 'viewer' });
    for (const caller of [reader, viewer])
      expect((await run({ sql, role: 'owner' }, caller)).status).toBeOneOf([403, 404]);
  });

  test.each([
    ['read_only', 'delete from book', 'read_write'],
    ['read_only', 'create table t (id int)', 'owner'],
    ['read_write', 'create table t (id int)', 'owner'],
    ['read_write', 'alter table book add column x int', 'owner'],
    ['read_only', 'select 1 / 0', undefined],
  ])('as %s, %j is refused with the role that it takes', async (role, sql, required) => {
    const { status, body } = await run({ sql, role });
    expect([status, body.required_role]).toEqual([422, required]);
    expect(typeof body.hint).toBe(required === undefined ? 'undefined' : 'string');
  });

  test('on main a refused change names no role, and says what to do', async () => {
    const { body } = await run({ sql: 'create table shelf (id int)' }, api, 'main');
    expect(body).toMatchObject({ hint: expect.stringContaining('branch') });
    expect(body.required_role).toBeUndefined();
  });

  test('as read_write takes the right to change rows', async () => {
    const reader = await apiOf({ tenant: TENANT, scope: 'read' });
    expect((await run(COUNT, reader)).status).toBe(200);
    const refused = await run({ ...COUNT, role: 'read_write' }, reader);
    expect([refused.status, refused.body]).toMatchObject([403, { error: 'FORBIDDEN' }]);
    expect((await run(COUNT, await ownerOf('editing-other'))).status).toBe(404);
  });

  test.each([
    [{ sql: 'select $1; select 2', params: [1] }, 422],
    [{ sql: 'select $1' }, 422],
    [{ sql: 'select 1', role: 'superuser' }, 422],
    [{ sql: 'select 1', params: [[1]] }, 422],
    [{}, 422],
  ])('%j → %i', async (body, status) => {
    expect((await run(body)).status).toBe(status);
  });
});
