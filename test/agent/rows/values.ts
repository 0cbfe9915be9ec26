import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Scalar } from '../../../shared/protocol/tables.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type HostWithProject, makeProject, removeProjects } from '../../support/host/host-project.ts';
import { Browser } from '../../support/host/host-rows.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

/** Values of every built-in type that a column can have, unusual ones included. */
const BUILT_IN: Record<string, string[]> = {
  bool: ['true', 'false'],
  bytea: ["'\\x00ff10'", "''", String.raw`'\xe4f6fc'`],
  char: ["'x'", "''", String.raw`'\303'`],
  name: ["'a name'"],
  int8: ['9223372036854775807', '-1'],
  int2: ['-32768', '0'],
  int2vector: ["'1 2 3'"],
  int4: ['2147483647', '-2147483648'],
  regproc: ["'now'"],
  regprocedure: ["'left(text,int)'"],
  regoper: ["'|/'"],
  regoperator: ["'+(int,int)'"],
  regclass: ["'pg_class'", '\'strange."Kunden Ü"\''],
  regcollation: [`'"C"'`],
  regtype: ["'int4'", "'strange.mood'"],
  regrole: ["'pg_monitor'"],
  regnamespace: ["'strange'"],
  regconfig: ["'english'"],
  regdictionary: ["'simple'"],
  text: [`'with "quotes", ''single'', \\back and \nlines'`, "''", "'🐘'", "U&'\\FEFFmark'", "'null'"],
  oid: ['4294967295'],
  tid: ["'(7,3)'"],
  xid: ["'4294967295'"],
  cid: ["'7'"],
  xid8: ["'18446744073709551615'"],
  oidvector: ["'1 2'"],
  json: [`'{"n": 12345678901234567890.10, "a": [1, null], "a": 2}'`, "'null'", `'"text"'`],
  jsonb: [`'{"n": 12345678901234567890.10, "k": null}'`, "'null'", "'[]'"],
  jsonpath: ["'$.a[*] ? (@ > 2)'"],
  xml: [`'<a b="1">text</a>'`, "'no &lt; element'"],
  point: ["'(1.5,-2)'"],
  lseg: ["'[(0,0),(1,2)]'"],
  path: ["'((0,0),(1,2),(3,4))'", "'[(0,0),(1,2)]'"],
  box: ["'(2,2),(0,0)'"],
  polygon: ["'((0,0),(1,2),(3,4))'"],
  line: ["'{1,2,3}'"],
  circle: ["'<(1,2),3>'"],
  float4: ['0.1', "'NaN'", "'-Infinity'", '1e-30', "'-0'"],
  float8: ['0.1', '1e21', '1e15', "'Infinity'", "'NaN'", '5e-324', "'-0'", '9007199254740993'],
  money: ["'1234.56'", "'-0.01'"],
  macaddr: ["'08:00:2b:01:02:03'"],
  macaddr8: ["'08:00:2b:01:02:03:04:05'"],
  inet: ["'192.0.2.1/24'", "'2001:db8::1'"],
  cidr: ["'192.0.2.0/24'"],
  aclitem: ["'pg_monitor=r/pg_monitor'"],
  bpchar: ["'padded    '::char(10)", "'free '"],
  varchar: ["'some text'", "' '"],
  date: ["'2026-02-28'", "'infinity'", "'0044-03-15 BC'"],
  time: ["'23:59:59.999999'", "'24:00'"],
  timestamp: ["'2026-02-28 12:34:56.789'", "'-infinity'"],
  timestamptz: ["'2026-02-28 12:34:56.789+05:30'", "'4713-01-01 00:00 BC'"],
  interval: ["'1 year -2 mons 3 days -04:05:06.7'", "'infinity'"],
  timetz: ["'12:34:56+05:30'"],
  bit: ["'1'"],
  varbit: ["'10110'", "''"],
  numeric: ['123456789012345678901234567890.123456789', "'NaN'", "'-Infinity'", '1.10'],
  refcursor: ["'a cursor'"],
  uuid: ["'f47ac10b-58cc-4372-a567-0e02b2c3d479'"],
  tsvector: ["'fat:2,4A cat:3 ''it''''s'''"],
  tsquery: [`'fat & (rat | !cat:*B)'`],
  pg_lsn: ["'16/B374D848'"],
  pg_snapshot: ["'10:20:10,14,15'"],
  txid_snapshot: ["'10:20:10,14,15'"],
  int4range: ["'[1,7)'", "'empty'"],
  numrange: ["'(1.5,2.5]'", "'(,)'"],
  tsrange: [`'["2026-01-01 10:00","2026-01-01 11:00")'`],
  tstzrange: [`'["2026-01-01 10:00+01","infinity")'`],
  daterange: ["'[2026-01-01,2026-02-01)'"],
  int8range: ["'[1,9223372036854775807)'"],
  int4multirange: ["'{[1,3),[5,7)}'"],
  nummultirange: ["'{(1.5,2.5]}'"],
  tsmultirange: ["'{}'"],
  tstzmultirange: [`'{["2026-01-01 10:00+01",)}'`],
  datemultirange: ["'{[2026-01-01,2026-02-01)}'"],
  int8multirange: ["'{[1,2),[5,)}'"],
};

/** Types that a tenant made, and arrays. */
const OWN: Record<string, string[]> = {
  'int[]': ["'{1,NULL,3}'", "'{}'", "'[2:3]={7,8}'"],
  'text[]': [`'{"a,b","c\\"d",NULL,"NULL",""}'`],
  'bytea[]': [`'{"\\\\x00ff"}'`],
  'strange.mood': [`'so "so"'`],
  'strange.mood[]': [`'{good,"so \\"so\\""}'`],
  'strange.pair': ['ROW(1, \'a "b", c\')', 'ROW(NULL, NULL)'],
  'strange.pair[]': [`ARRAY[ROW(1, 'x')::strange.pair, NULL]`],
  'strange.even': ['4'],
  'strange.even_small': ['2'],
  'strange.data': ["'\\x0102'"],
  'strange."Kunden Ü"': ["ROW('dot.ted')"],
  'strange.floats': ["'[1.5,2.5)'"],
  'numeric(8,2)': ['12.30'],
  'varchar(5)': ["'abcde'"],
  'char(5)': ["'ab'"],
  'bit(3)': ["'101'"],
  'interval day to second(2)': ["'1 day 02:03:04.56'"],
  'timestamptz(0)': ["'2026-01-01'"],
};

const SETUP = `
  create schema strange;
  create type strange.mood as enum ('good', 'so "so"');
  create type strange.pair as (a int, b text);
  create table strange."Kunden Ü" ("a.b" text);
  create domain strange.even as int check (value % 2 = 0);
  create domain strange.even_small as strange.even check (value < 100);
  create domain strange.data as bytea;
  create type strange.floats as range (subtype = float8);
`;

/** Types of which a column cannot be given a value. */
const WITHOUT_INPUT = [
  'gtsvector',
  'pg_brin_bloom_summary',
  'pg_brin_minmax_multi_summary',
  'pg_dependencies',
  'pg_mcv_list',
  'pg_ndistinct',
  'pg_node_tree',
];

const quoted = (type: string) => (type === 'char' ? '"char"' : type);
const COLUMNS = [
  ...Object.entries(BUILT_IN).map(([type, values]) => ({ type: quoted(type), values })),
  ...Object.entries(OWN).map(([type, values]) => ({ type, values })),
].map((column, place) => ({ ...column, table: `of_type_${place}` }));

export function describeValues(servers: () => TestHost): void {
  let world: HostWithProject;
  let browser: Browser;

  beforeAll(async () => {
    world = await makeProject(servers(), 'db_values_prod', SETUP);
    browser = new Browser(world.servers.host, world.main);
    await browser.owner(
      COLUMNS.map(({ table, type, values }) => {
        const rows = values.map((value, id) => `(${id}, ${value})`).join(', ');
        return `create table ${table} (id int primary key, value ${type}); insert into ${table} values ${rows};`;
      }).join(''),
    );
    await browser.owner(`
    create table made (id int generated always as identity primary key, price int not null default 1,
      double int generated always as (price * 2) stored, virtual int generated always as (price * 3) virtual,
      small varchar(3), even strange.even, mood strange.mood, price_exact numeric(6, 2), data bytea, n bigint,
      approx float8, flag bool);
    insert into made (price) values (10), (20);
  `);
  });
  afterAll(() => removeProjects(servers()));

  test('the lists above contain every built-in type', async () => {
    const rows = await browser.owner(
      `select typname from pg_type where typnamespace = 'pg_catalog'::regnamespace and typtype in ('b', 'r', 'm')
       and typcategory <> 'A' and typname not like '\\_%' order by 1`,
    );
    const known = [...Object.keys(BUILT_IN), ...WITHOUT_INPUT];
    expect(rows.map(({ typname }) => typname).filter((name) => !known.includes(name))).toEqual([]);
  });

  test.each(IS_NIGHTLY ? COLUMNS : COLUMNS.filter((_, n) => n % 8 === 0))(
    '$type: a value that was read can be written back and is the same',
    async ({ table, values }) => {
      const content = () => browser.owner(`select t::text from ${table} t order by id`);
      const before = await content();
      const { rows } = await browser.page(table);
      expect(rows).toHaveLength(values.length);
      for (const row of rows) {
        // Through JSON, as a client receives and sends it.
        const { id, value } = JSON.parse(JSON.stringify(row)) as { id: number; value: Scalar };
        expect(value).not.toBeNull();
        const change = { column: 'value', id };
        expect(await browser.update(table, { ...change, value: null, expected: value })).toEqual({
          id,
          value: null,
        });
        expect(await browser.update(table, { ...change, value, expected: null })).toStrictEqual(row);
      }
      expect(await content()).toEqual(before);
    },
  );

  test.each<[string, unknown]>([
    ['int4', 2147483647],
    ['int8', '9223372036854775807'],
    ['numeric', '123456789012345678901234567890.123456789'],
    ['float8', 0.1],
    ['float4', 'NaN'],
    ['bool', false],
    ['bytea', 'AP8Q'],
    ['strange.data', 'AQI='],
    ['strange.even', 4],
    ['jsonb', '{"k": null, "n": 12345678901234567890.10}'],
    ['timestamptz', '2026-02-28 07:04:56.789+00'],
    ['regclass', 'strange."Kunden Ü"'],
    ['strange.mood[]', '{good,"so \\"so\\""}'],
  ])('a value of %s is represented as %j', async (wanted, form) => {
    const { rows } = await browser.page(COLUMNS.find(({ type }) => type === wanted)?.table ?? '');
    expect(rows.map(({ value }) => value)).toContainEqual(form);
  });

  test('columns have the names of their types, with the schema of a tenant’s type', async () => {
    const { columns } = await browser.page('made');
    expect(columns).toContainEqual({
      name: 'mood',
      type: 'strange.mood',
      nullable: true,
      is_primary_key: false,
    });
    expect(columns).toContainEqual({ name: 'id', type: 'integer', nullable: false, is_primary_key: true });
    expect(columns).toContainEqual({
      name: 'price_exact',
      type: 'numeric(6,2)',
      nullable: true,
      is_primary_key: false,
    });
  });

  describe('a value that PostgreSQL refuses is refused with its message', () => {
    test.each<[string, string, Scalar | null, string, RegExp]>([
      ['a generated column', 'double', 3, '428C9', /DEFAULT/],
      ['a virtual column', 'virtual', 3, '428C9', /DEFAULT/],
      ['an identity column', 'id', 7, '428C9', /DEFAULT/],
      ['null in a column that is not null', 'price', null, '23502', /null value/],
      ['a text that is too long', 'small', 'abcd', '22001', /too long/],
      ['a value its domain refuses', 'even', 3, '23514', /check constraint/],
      ['a text that is not in the enum', 'mood', 'bad', '22P02', /enum/],
      ['a number that is too large', 'price_exact', '12345.67', '22003', /overflow/],
      ['a text that is not a number', 'price', 'ten', '22P02', /integer/],
      ['a text that is not base64', 'data', '%%', '22023', /base64/],
      ['a character that PostgreSQL cannot store', 'small', '\0', '22021', /0x00/],
    ])('%s', async (_, column, value, sqlstate, message) => {
      const before = await browser.page('made');
      await expect(browser.update('made', { column, id: 1, value })).rejects.toMatchObject({
        code: 'STATEMENT_REFUSED',
        sqlstate,
        message: expect.stringMatching(message),
      });
      expect((await browser.page('made')).rows).toEqual(before.rows);
    });

    test('a number that lost digits in JSON is refused', async () => {
      for (const [column, value] of [
        ['n', 2 ** 60],
        ['price_exact', 0.1],
      ] as const) {
        await expect(browser.update('made', { column, id: 1, value })).rejects.toMatchObject({
          code: 'INVALID_CALL',
          path: 'changes.0.values.0.value',
        });
        const change = { column, id: 1, value: '1', expected: value };
        await expect(browser.update('made', change)).rejects.toMatchObject({
          path: 'changes.0.expected.0.value',
        });
      }
      expect(await browser.update('made', { column: 'n', id: 1, value: 2 ** 53 - 1 })).toMatchObject({
        n: '9007199254740991',
      });
      expect(await browser.update('made', { column: 'approx', id: 1, value: 2 ** 60 })).toMatchObject({
        approx: 2 ** 60,
      });
    });

    test('a column that does not exist is refused', async () => {
      await expect(browser.update('made', { column: 'nothing', id: 1, value: 1 })).rejects.toMatchObject({
        code: 'COLUMN_NOT_FOUND',
        path: 'changes.0.values.0.column',
        message: 'the table has no column "nothing"',
      });
    });
  });

  test('the whole changed row is returned, with its generated columns', async () => {
    expect(await browser.update('made', { column: 'price', id: 2, value: 21, expected: 20 })).toMatchObject({
      id: 2,
      price: 21,
      double: 42,
      virtual: 63,
    });
  });

  test('`expected` is compared as a value, also null, and a difference changes nothing', async () => {
    const flag = (value: Scalar | null, expected: Scalar | null) =>
      browser.update('made', { column: 'flag', id: 2, value, expected });
    await expect(flag(true, false)).rejects.toMatchObject({ conflict: 'changed' });
    expect(await flag(true, null)).toMatchObject({ flag: true });
    await expect(flag(false, null)).rejects.toMatchObject({ conflict: 'changed' });
    expect(await flag(null, true)).toMatchObject({ flag: null });
    await browser.update('made', { column: 'approx', id: 2, value: 1e15 });
    expect(await browser.update('made', { column: 'approx', id: 2, value: 2, expected: 1e15 })).toMatchObject(
      {
        approx: 2,
      },
    );
    await expect(
      browser.update('made', { column: 'approx', id: 777, value: 2, expected: 1 }),
    ).rejects.toMatchObject({ conflict: 'missing' });
  });
}
