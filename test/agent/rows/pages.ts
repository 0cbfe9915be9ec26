import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { loginName } from '../../../shared/branch/login.ts';
import { CELL_BYTES_MAX } from '../../../shared/limits.ts';
import { BOUNDS } from '../../../shared/protocol/bounds.ts';
import type { Cell } from '../../../shared/protocol/tables.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type HostWithProject, makeProject, removeProjects } from '../../support/host/host-project.ts';
import { Browser, type Page } from '../../support/host/host-rows.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

export function describePages(servers: () => TestHost): void {
  let world: HostWithProject;
  let browser: Browser;
  beforeAll(async () => {
    world = await makeProject(
      servers(),
      'db_pages_prod',
      `create schema ext; grant usage on schema ext to public; create extension citext schema ext; create extension btree_gist; create table other (a int, b int);
     create type mood as enum ('zealous', 'angry'); create domain amount as numeric check (value >= 0);`,
    );
    browser = new Browser(world.servers.host, world.main);
  });
  afterAll(() => removeProjects(servers()));

  /** Enough rows for several marks. */
  const ROWS = 2_200;

  /** Tables with keys of one, two and three columns. */
  const KEYED: Record<string, { columns: string; key: string; row: string }> = {
    number: { columns: 'k int', key: 'k', row: 'n * 3' },
    text: { columns: 'k text', key: 'k', row: "md5(n::text) || case when n % 3 = 0 then 'É' else 'e' end" },
    'text of another collation': {
      columns: 'k text collate "und-x-icu"',
      key: 'k',
      row: 'chr(65 + n % 50) || n',
    },
    citext: { columns: 'k ext.citext', key: 'k', row: "case when n % 2 = 0 then 'A' else 'a' end || n" },
    bytea: { columns: 'k bytea', key: 'k', row: "decode(md5(n::text), 'hex')" },
    uuid: { columns: 'k uuid', key: 'k', row: 'md5(n::text)::uuid' },
    domain: { columns: 'k amount', key: 'k', row: 'n / 7.0' },
    double: { columns: 'k float8', key: 'k', row: 'sqrt(n)' },
    timestamp: {
      columns: 'k timestamptz',
      key: 'k',
      row: "timestamptz '2026-01-01' + n * interval '1 hour'",
    },
    array: { columns: 'k int[]', key: 'k', row: 'array[n % 10, n]' },
    composite: { columns: 'k other, m int', key: 'k, m', row: 'row(n % 7, n)::other, n' },
    two: { columns: 'm text, k int', key: 'k, m', row: "'m' || n % 9, n / 9" },
    three: {
      columns: 'a mood, b bigint, c varchar(9)',
      key: 'a, b, c',
      row: "case when n % 2 = 0 then 'angry'::mood else 'zealous' end, n % 40, 'c' || n",
    },
    'two kinds of operators': { columns: 'k ext.citext, m int', key: 'k, m', row: "'K' || n % 60, n" },
    'included columns': { columns: 'k int, m int', key: 'k) include (m', row: 'n, -n' },
  };

  const BY_DAY = ['citext', 'two'];
  const TRIED = Object.entries(KEYED).filter(([name]) => IS_NIGHTLY || BY_DAY.includes(name));

  describe.each(TRIED)('in the order of a key: %s', (about, { columns, key, row }) => {
    const name = `by ${about}`;
    const order = key.replace(') include (m', '');
    const read = async (offset: number, limit: number) => (await browser.page(name, offset, limit)).rows;
    const truth = async (offset: number, limit: number) =>
      (await browser.owner(`select v from "${name}" order by ${order} offset ${offset} limit ${limit}`)).map(
        ({ v }) => v,
      );
    const expectTruth = async (offset: number, limit = 7) =>
      expect((await read(offset, limit)).map(({ v }) => v)).toEqual(await truth(offset, limit));

    beforeAll(async () => {
      await browser.owner(
        `create table "${name}" (v int, ${columns}, primary key (${key}));
       insert into "${name}" select n, ${row} from generate_series(1, ${ROWS}) n; analyze "${name}"`,
      );
    });

    test('every page is correct, with and without marks', async () => {
      for (const offset of [2_195, 1_500, 1_499, 1_000, 0, 1, 2_198, 1_001, 999]) await expectTruth(offset);
    });

    test('marks are forgotten when rows are inserted or deleted', async () => {
      await browser.owner(
        `delete from "${name}" where v in (select v from "${name}" order by ${order} limit 120)`,
      );
      await expectTruth(2_001);
      await expectTruth(1_001);
    });
  });

  test('pages contain every row once, read forwards or backwards', async () => {
    const reach = async (offset: number) => (await browser.page('by two', offset)).rows.map(({ v }) => v);
    const offsets = Array.from({ length: Math.ceil((ROWS - 120) / 50) }, (_, n) => n * 50);
    const forwards: unknown[] = [];
    const backwards: unknown[] = [];
    for (const offset of offsets) forwards.push(...(await reach(offset)));
    for (const offset of offsets.toReversed()) backwards.unshift(...(await reach(offset)));
    expect(new Set(forwards).size).toBe(ROWS - 120);
    expect(forwards).toHaveLength(ROWS - 120);
    expect(backwards).toEqual(forwards);
  });

  test('marks are forgotten when a key changes', async () => {
    await browser.owner(
      `create table moved (id int primary key, note text) with (fillfactor = 50);
     insert into moved select n, '' from generate_series(1, 2500) n`,
    );
    const first = async (offset: number) => (await browser.page('moved', offset, 1)).rows[0]?.id;
    expect(await first(2_000)).toBe(2_001);
    await browser.owner("update moved set note = 'x' where id < 50");
    expect(await first(2_001)).toBe(2_002);
    await browser.owner('update moved set id = -1 where id = 2500');
    expect(await first(2_002)).toBe(2_002);
  });

  test('a jump records marks, from which the next one begins', async () => {
    await browser.owner(
      'create table jumped (id int primary key); insert into jumped select generate_series(1, 5500)',
    );
    const { marks } = world.servers.host.rows;
    const record = vi.spyOn(marks, 'record');
    const jump = async (offset: number) => {
      record.mockClear();
      expect((await browser.page('jumped', offset, 1)).rows).toEqual([{ id: offset + 1 }]);
      return record.mock.calls.map(([, , at]) => at);
    };
    expect(await jump(5_250)).toEqual([1_000, 2_000, 3_000, 4_000, 5_000]);
    expect(await jump(5_200)).toEqual([5_000]);
    expect(await jump(3_999)).toEqual([3_000]);
    record.mockRestore();
  });

  test('a key is compared as its own type compares', async () => {
    expect(await browser.delete('by citext', ['a2000', 'A2000'], ['k'])).toEqual({
      deleted: 1,
      missing: [1],
    });
  });

  test('the last page, and pages beyond it', async () => {
    await browser.owner(
      'create table few (id int primary key); insert into few select generate_series(1, 100)',
    );
    const about = async (offset: number, limit: number) => {
      const { rows, has_more } = await browser.page('few', offset, limit);
      return [rows.length, has_more];
    };
    expect(await about(0, 50)).toEqual([50, true]);
    expect(await about(50, 50)).toEqual([50, false]);
    expect(await about(51, 50)).toEqual([49, false]);
    expect(await about(99, 1)).toEqual([1, false]);
    expect(await about(98, 1)).toEqual([1, true]);
    expect(await about(100, 50)).toEqual([0, false]);
    expect(await about(Number.MAX_SAFE_INTEGER, 50)).toEqual([0, false]);
  });

  test('the estimate is reported as soon as PostgreSQL has one', async () => {
    await browser.owner(
      'create table guessed (id int primary key); insert into guessed select generate_series(1, 9)',
    );
    expect((await browser.page('guessed')).estimated_rows).toBeNull();
    await browser.owner('analyze guessed');
    expect((await browser.page('guessed')).estimated_rows).toBe(9);
  });

  describe('a change of the table between two pages of one session is seen', () => {
    const columnsOf = async (name: string) =>
      (await browser.page(name)).columns.map(({ name: column, type, nullable, is_primary_key }) =>
        [column, type, nullable && 'null', is_primary_key && 'key'].filter(Boolean).join(' '),
      );
    afterEach(() => browser.owner('drop table if exists changing'));

    test.each([
      ['add column added int', ['id integer key', 'word text null', 'added integer null']],
      ['drop column word', ['id integer key']],
      ['rename column word to renamed', ['id integer key', 'renamed text null']],
      ['alter column word type varchar(9)', ['id integer key', 'word character varying(9) null']],
      ['alter column word set not null', ['id integer key', 'word text']],
      ['drop constraint changing_pkey', ['id integer', 'word text null']],
      ['drop constraint changing_pkey, add unique (word)', ['id integer', 'word text null']],
      ["alter column word type mood using 'angry'", ['id integer key', 'word public.mood null']],
    ])('%s', async (change, columns) => {
      await browser.owner('create table changing (id int primary key, word text)');
      expect(await columnsOf('changing')).toEqual(['id integer key', 'word text null']);
      await browser.owner(`alter table changing ${change}`);
      expect(await columnsOf('changing')).toEqual(columns);
    });

    test('another table of the name', async () => {
      await browser.owner('create table changing (id int primary key, word text)');
      await columnsOf('changing');
      await browser.owner('drop table changing; create table changing (other int)');
      expect(await columnsOf('changing')).toEqual(['other integer null']);
      await browser.owner('drop table changing');
      await expect(browser.page('changing')).rejects.toMatchObject({ code: 'TABLE_NOT_FOUND' });
    });

    test('a type that is renamed', async () => {
      await browser.owner('create table changing (id int primary key, word mood)');
      await columnsOf('changing');
      await browser.owner('alter type mood rename to humour');
      expect(await columnsOf('changing')).toEqual(['id integer key', 'word public.humour null']);
      await browser.owner('alter type humour rename to mood');
    });

    test('rights that are taken away, of the table and of one column', async () => {
      await browser.owner(
        'create table changing (id int primary key, word text); insert into changing values (1)',
      );
      await columnsOf('changing');
      const login = `"${loginName(world.main.branch_id, 'read_write')}"`;
      const [{ role = '' } = {}] = await browser.owner(
        `select grantee::regrole::text as role from pg_class, aclexplode(relacl) where relname = 'changing'
         and privilege_type = 'SELECT' and pg_has_role(${login.replaceAll('"', "'")}, grantee, 'usage') limit 1`,
      );
      await browser.owner(`revoke select on changing from ${role}; grant select (id) on changing to ${role}`);
      expect(await columnsOf('changing')).toEqual(['id integer key']);
      await browser.owner(`revoke select (id) on changing from ${role}`);
      await expect(browser.page('changing')).rejects.toMatchObject({ code: 'TABLE_NOT_FOUND' });
    });
  });

  describe('without a primary key', () => {
    beforeAll(() =>
      browser.owner(
        `create table keyless (a int, b text); insert into keyless select n, 'b' from generate_series(1, 600) n;
       create table by_name (name text not null unique, n int unique, partly int not null);
       create unique index on by_name (partly) where partly > 0;
       insert into by_name values ('one', 1, 1), ('two', null, 2);
       create table booked (room int, during daterange, primary key (room, during without overlaps))`,
      ),
    );

    test('pages contain every row once', async () => {
      const pages: Page[] = [];
      for (let offset = 0; offset < 600; offset += 50) pages.push(await browser.page('keyless', offset));
      const seen = pages.flatMap(({ rows }) => rows.map(({ a }) => a));
      expect(new Set(seen).size).toBe(600);
      expect(pages.at(-1)?.has_more).toBe(false);
    });

    test.each([[['a']], [['a', 'b']], [['ctid']], [['nothing']], [['a', 'a']]])(
      'no row can be changed by %j',
      async (primary_key) => {
        const id = primary_key.map(() => 1);
        await expect(
          browser.update('keyless', { primary_key, id, column: 'b', value: 'c' }),
        ).rejects.toMatchObject({
          code: 'KEY_NOT_UNIQUE',
        });
        await expect(browser.delete('keyless', [id], primary_key)).rejects.toMatchObject({
          code: 'KEY_NOT_UNIQUE',
        });
      },
    );

    test('a key over ranges does not identify a row', async () => {
      const key = ['room', 'during'];
      await expect(browser.delete('booked', [[1, 'empty']], key)).rejects.toMatchObject({
        code: 'KEY_NOT_UNIQUE',
      });
    });

    test('one column is a key only if it is unique and not null', async () => {
      const change = { column: 'n', value: 7 };
      expect(await browser.update('by_name', { ...change, primary_key: ['name'], id: 'two' })).toMatchObject({
        n: 7,
      });
      for (const primary_key of [['n'], ['partly'], ['name', 'n']]) {
        const id = primary_key.map(() => 1);
        await expect(browser.update('by_name', { ...change, primary_key, id })).rejects.toMatchObject({
          code: 'KEY_NOT_UNIQUE',
        });
      }
      expect(await browser.delete('by_name', ['one'], ['name'])).toEqual({ deleted: 1, missing: [] });
    });
  });

  describe('partitioned tables, inheritance and views', () => {
    beforeAll(() =>
      browser.owner(
        `create table split (id int, part int, note text, primary key (id, part)) partition by list (part);
       create table split_1 partition of split for values in (1);
       create table split_2 partition of split for values in (2);
       insert into split select n, 1 + n % 2, 'n' || n from generate_series(1, 1500) n; analyze split;
       create table parent (id int primary key, note text); create table child () inherits (parent);
       insert into parent values (1, 'of the parent'); insert into child values (1, 'of the child');
       create view seen as select id, note from split; create materialized view kept as select id from split`,
      ),
    );

    test('a partitioned table is read and changed as one table', async () => {
      const { rows } = await browser.page('split', 1_234, 2);
      expect(rows.map(({ id }) => id)).toEqual([1235, 1236]);
      const key = { primary_key: ['part', 'id'], id: [2, 1235] };
      expect(await browser.update('split', { ...key, column: 'note', value: 'new' })).toMatchObject({
        note: 'new',
      });
      expect(await browser.update('split', { ...key, column: 'part', value: 1, expected: 2 })).toMatchObject({
        part: 1,
      });
      expect(await browser.delete('split', [[1, 1235]], ['part', 'id'])).toEqual({ deleted: 1, missing: [] });
      expect((await browser.page('split', 1_234, 1)).rows).toEqual([{ id: 1236, part: 1, note: 'n1236' }]);
    });

    test("a parent's key does not identify rows of its children", async () => {
      expect((await browser.page('parent')).rows).toEqual([{ id: 1, note: 'of the parent' }]);
      await browser.update('parent', { id: 1, column: 'note', value: 'new' });
      expect(await browser.delete('parent', [1])).toEqual({ deleted: 1, missing: [] });
      expect((await browser.page('child')).rows).toEqual([{ id: 1, note: 'of the child' }]);
    });

    test.each(['seen', 'kept'])('%s can be read, but not changed', async (name) => {
      expect((await browser.page(name, 0, 3)).rows).toHaveLength(3);
      await expect(browser.delete(name, [1])).rejects.toMatchObject({ code: 'KEY_NOT_UNIQUE' });
    });
  });

  describe('deleting', () => {
    test('reports ids that name no row, and counts an id that is given twice once', async () => {
      await browser.owner(
        'create table gone (id int primary key); insert into gone select generate_series(1, 9)',
      );
      expect(await browser.delete('gone', [1, 77, 2, 2, '3'])).toEqual({ deleted: 3, missing: [1, 3] });
      expect((await browser.page('gone')).rows).toHaveLength(6);
    });

    test('is all or nothing', async () => {
      await browser.owner(
        `create table held (id int primary key); insert into held values (1), (2), (3);
       create table holding (held int references held); insert into holding values (2)`,
      );
      await expect(browser.delete('held', [1, 2, 3])).rejects.toMatchObject({
        code: 'STATEMENT_REFUSED',
        sqlstate: '23503',
      });
      expect((await browser.page('held')).rows).toHaveLength(3);
    });

    test('an id has a value for each column of the key', async () => {
      await expect(browser.delete('by two', [[1]], ['k', 'm'])).rejects.toMatchObject({
        code: 'INVALID_CALL',
        path: 'changes.0.id',
      });
      await expect(browser.delete('gone', [[1, 2]])).rejects.toMatchObject({ code: 'INVALID_CALL' });
    });
  });

  describe('large cells', () => {
    const sizeOf = (page: unknown) => Buffer.byteLength(JSON.stringify(page));
    const cut = (cell: Cell | undefined) => (cell as { cut: string }).cut;

    beforeAll(() =>
      browser.owner(
        `create table large (id int primary key, plain text, bytes bytea, doc json, small text);
       insert into large select n, repeat('x', 5000000), decode(repeat('ab', 5000000), 'hex'),
         to_json(repeat('"', 100000)), 'small' from generate_series(1, 2) n;
       create table edges (id int primary key, cell text);
       insert into edges values (1, repeat('x', ${CELL_BYTES_MAX})), (2, repeat('x', ${CELL_BYTES_MAX} + 1)),
         (3, repeat('ü', 40000)), (4, repeat(U&'\\0001', 60000)), (5, repeat('🐘', 16384));
       create table heavy (id int primary key, cell text);
       insert into heavy select n, repeat('y', 200000) from generate_series(1, 51) n`,
      ),
    );

    test('are cut at 64 KiB, between characters, and bytes to valid base64', async () => {
      const { rows } = await browser.page('large', 0, 1);
      expect(cut(rows[0]?.plain)).toBe('x'.repeat(CELL_BYTES_MAX));
      expect(Buffer.from(cut(rows[0]?.bytes), 'base64')).toEqual(Buffer.alloc(49_152, 0xab));
      expect(cut(rows[0]?.doc)).toHaveLength(CELL_BYTES_MAX);
      expect(rows[0]?.small).toBe('small');
      const edges = (await browser.page('edges', 0, 3)).rows.map(({ cell }) => cell);
      expect(edges[0]).toBe('x'.repeat(CELL_BYTES_MAX));
      expect(cut(edges[1])).toBe('x'.repeat(CELL_BYTES_MAX));
      expect(cut(edges[2])).toBe('ü'.repeat(CELL_BYTES_MAX / 2));
      expect((await browser.page('edges', 4, 1)).rows[0]?.cell).toBe('🐘'.repeat(16_384));
    });

    test('are compared in full, so that a cut value cannot be written back by mistake', async () => {
      const [row] = (await browser.page('large', 0, 1)).rows;
      await expect(
        browser.update('large', { column: 'plain', id: 1, value: 'new', expected: cut(row?.plain) }),
      ).rejects.toMatchObject({ conflict: 'changed' });
      await browser.update('large', { column: 'plain', id: 2, value: 'z'.repeat(70_000) });
      expect(
        await browser.update('large', { column: 'plain', id: 2, value: 'new', expected: 'z'.repeat(70_000) }),
      ).toMatchObject({ plain: 'new' });
    });

    test('are cut further until all rows of a page fit into one message', async () => {
      const page = await browser.page('heavy');
      expect(page.rows).toHaveLength(50);
      expect(page.has_more).toBe(true);
      expect(sizeOf(page)).toBeLessThan(BOUNDS.messageBytes);
      expect(cut(page.rows[49]?.cell).length).toBeGreaterThan(4_000);
      expect(sizeOf(await browser.page('edges'))).toBeLessThan(BOUNDS.messageBytes);
    });

    test.runIf(IS_NIGHTLY)('as many rows of 1,600 columns are returned as fit into one message', async () => {
      const names = Array.from(
        { length: 1_599 },
        (_, n) => `"a column with a rather long name, number ${n}"`,
      );
      await browser.owner(
        `create table wide (id int primary key, ${names.map((name) => `${name} int default 1234567890`).join(', ')});
       insert into wide (id) select generate_series(1, 60)`,
      );
      const seen: Cell[] = [];
      for (let more = true; more; ) {
        const page = await browser.page('wide', seen.length);
        // As it is sent over the link: values without names.
        const sent = { ...page, rows: page.rows.map((row) => Object.values(row)) };
        expect(sizeOf(sent)).toBeLessThan(BOUNDS.messageBytes);
        expect(page.rows.length).toBeGreaterThan(0);
        seen.push(...page.rows.map(({ id }) => id ?? null));
        more = page.has_more;
      }
      expect(seen).toEqual(Array.from({ length: 60 }, (_, n) => n + 1));
    });
  });
}
