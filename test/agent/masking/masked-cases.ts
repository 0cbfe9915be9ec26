import type { MaskingRule } from '../../../shared/masking.ts';

/** Part of every value that must not be found in a masked database. No catalog has it. */
export const CANARY = 'Kanari';

const canary = (schema: string, n: number | string = 1) => `${CANARY}${schema}x${n}@canary.example`;

/** A schema with canaries in one kind of place. */
export interface MaskedCase {
  /** Its objects are in the schema of this name. */
  schema: string;
  sql: string;
  rules: MaskingRule[];
  /** Queries of the masked database, each with what it returns. */
  expect?: readonly (readonly [sql: string, value: unknown])[];
}

const rule = (schema: string, table: string, column: string, how: object = { with: 'hash' }): MaskingRule =>
  ({ table: `${schema}.${table}`, column, ...how }) as MaskingRule;

/** A case whose tables have canaries in columns that compression does not hide from a search of bytes. */
function made(
  schema: string,
  sql: (value: (n?: number | string) => string) => string,
  rules: (one: (table: string, column: string, how?: object) => MaskingRule) => MaskingRule[],
  expect: MaskedCase['expect'] = [],
): MaskedCase {
  return {
    schema,
    sql: sql((n) => canary(schema, n)).replaceAll('§', schema),
    rules: rules((table, column, how) => rule(schema, table, column, how)),
    expect: expect.map(([query, value]) => [query.replaceAll('§', schema), value] as const),
  };
}

const T = 'id int primary key, v text';
const ROWS = (value: string) => `insert into §.t select n, '${value}' || n from generate_series(1, 50) n;`;
const OF_T = (one: (table: string, column: string, how?: object) => MaskingRule) => [one('t', 'v')];

/** Places where a value is stored, or from which it could come back. */
export const CASES: readonly MaskedCase[] = [
  made('plain', (v) => `create table §.t (${T}); ${ROWS(v())}`, OF_T, [
    ['select count(distinct v)::int from §.t', 50],
  ]),
  made(
    'partitionkeys',
    (v) =>
      `create table §.t (id int, at date, v text, constraint §_key primary key (v, at)) partition by range (at);
       create table §.old partition of §.t for values from (minvalue) to ('2026-01-01');
       create table §.new partition of §.t for values from ('2026-01-01') to (maxvalue) partition by range (at);
       create table §.new_one partition of §.new for values from ('2026-01-01') to ('2026-01-15'); create table §.new_rest partition of §.new default;
       create unique index §_apart on §.t (lower(v), at, id); comment on index §.§_apart is 'apart';
       create function §.noted() returns trigger language plpgsql as 'begin return new; end';
       create trigger notes before insert on §.t for each row execute function §.noted(); alter table §.old disable trigger notes;
       insert into §.t select n, date '2025-12-01' + n, '${v()}' || n from generate_series(1, 60) n;`,
    OF_T,
    [
      ['select count(distinct v)::int from §.t', 60],
      [
        'with again as (insert into §.t select id, at, v from §.t on conflict (v, at) do update set id = §.t.id returning 1) select count(*)::int from again',
        60,
      ],
    ],
  ),
  made(
    'anycase',
    (v) =>
      `create collation §.anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
       create table §.t (id int primary key, v text collate §.anycase unique); ${ROWS(v())}`,
    OF_T,
    [['select count(distinct v)::int from §.t', 50]],
  ),
  made(
    'toast',
    (v) =>
      `create table §.t (${T}); alter table §.t alter v set storage external;
       insert into §.t select n, repeat('${v()}', 500) || n from generate_series(1, 5) n;`,
    OF_T,
    [['select min(length(v)) from §.t', canary('toast').length * 500 + 1]],
  ),
  made(
    'deadrows',
    (v) =>
      `create table §.t (${T}); ${ROWS(v())} update §.t set v = v || 'y'; delete from §.t where id > 40;`,
    OF_T,
  ),
  made(
    'unmasked',
    (v) => `create table §.t (${T}); ${ROWS(v())} update §.t set v = 'harmless';`,
    () => [],
  ),
  made(
    'dropped',
    (v) => `create table §.t (${T}); ${ROWS(v())} alter table §.t drop v;`,
    () => [],
  ),
  made(
    'emptied',
    (v) => `create table §.t (${T}); ${ROWS(v())} analyze §.t; delete from §.t;`,
    () => [],
  ),
  made(
    'indexes',
    (v) =>
      `create table §.t (${T}); ${ROWS(v())} create index on §.t (v); create index on §.t (lower(v)); create unique index named on §.t (upper(v)); comment on index §.named is 'kept';`,
    OF_T,
    [["select count(*)::int from pg_indexes where schemaname = '§'", 4]],
  ),
  made(
    'uniques',
    (v) =>
      `create table §.t (id int, v text unique, constraint pk primary key (id, v)); ${ROWS(v())} comment on constraint pk on §.t is 'kept';`,
    OF_T,
    [
      ['select count(distinct v)::int from §.t', 50],
      [
        "select obj_description(oid) from pg_constraint where conname = 'pk' and connamespace = '§'::regnamespace",
        'kept',
      ],
    ],
  ),
  made(
    'numbers',
    () =>
      'create table §.t (id int primary key, v int unique, w bigint); insert into §.t select n, n, n * 1000003 from generate_series(1, 1000) n;',
    (one) => [one('t', 'v'), one('t', 'w')],
    [
      ['select count(distinct v)::int from §.t', 1000],
      ['select count(*)::int from §.t where length(v::text) = length(id::text) and v <> id', 1000],
      ['select count(distinct w)::int from §.t', 1000],
    ],
  ),
  made(
    'stored',
    (v) => `create table §.t (${T}, g text generated always as (upper(v)) stored); ${ROWS(v())}`,
    OF_T,
    [['select count(*)::int from §.t where g = upper(v)', 50]],
  ),
  made(
    'virtual',
    (v) => `create table §.t (${T}, g text generated always as (upper(v)) virtual); ${ROWS(v())}`,
    OF_T,
  ),
  made(
    'matview',
    (v) =>
      `create table §.t (${T}); ${ROWS(v())} create materialized view §.m as select * from §.t; create materialized view §.n as select v from §.m; create index on §.n (v);`,
    OF_T,
    [['select count(*)::int from §.n join §.t using (v)', 50]],
  ),
  made(
    'unfilled',
    (v) =>
      `create table §.t (${T}); ${ROWS(v())} create materialized view §.m as select * from §.t with no data;`,
    OF_T,
    [["select relispopulated from pg_class where oid = '§.m'::regclass", false]],
  ),
  made(
    'statistics',
    (v) =>
      `create table §.t (${T}); ${ROWS(v())} insert into §.t select n, '${v('often')}' from generate_series(51, 500) n; analyze §.t;`,
    OF_T,
  ),
  made(
    'extended',
    (v) =>
      `create table §.t (${T}, w text); insert into §.t select n, '${v()}', '${v(2)}' from generate_series(1, 500) n; create statistics §.s (mcv) on v, w from §.t; create statistics §.e on lower(v) from §.t; alter statistics §.s set statistics 50; analyze §.t; comment on statistics §.s is 'kept';`,
    (one) => [one('t', 'v'), one('t', 'w')],
    [
      [
        "select stxstattarget from pg_statistic_ext where stxname = 's' and stxnamespace = '§'::regnamespace",
        50,
      ],
    ],
  ),
  made(
    'history',
    (v) =>
      `create table §.t (${T}); create table §.old (v text); create function §.keep() returns trigger language plpgsql as 'begin insert into §.old values (old.v); return new; end'; ${ROWS(v())} create trigger keep before update on §.t for each row execute function §.keep();`,
    OF_T,
    [
      ['select count(*)::int from §.old', 0],
      ["select tgenabled from pg_trigger where tgrelid = '§.t'::regclass", 'O'],
    ],
  ),
  made(
    'always',
    (v) =>
      `create table §.t (${T}); create function §.refuse() returns trigger language plpgsql as 'begin return null; end'; ${ROWS(v())} create trigger refuse before update on §.t for each row execute function §.refuse(); alter table §.t enable always trigger refuse;`,
    OF_T,
    [["select tgenabled from pg_trigger where tgrelid = '§.t'::regclass", 'A']],
  ),
  made(
    'instead',
    (v) => `create table §.t (${T}); ${ROWS(v())} create rule r as on update to §.t do instead nothing;`,
    OF_T,
    [["select ev_enabled from pg_rewrite where ev_class = '§.t'::regclass", 'O']],
  ),
  made(
    'policies',
    (v) =>
      `create table §.t (${T}); ${ROWS(v())} alter table §.t enable row level security; alter table §.t force row level security; create policy p on §.t using (id < 0);`,
    OF_T,
    [["select relforcerowsecurity from pg_class where oid = '§.t'::regclass", true]],
  ),
  made(
    'partitions',
    (v) =>
      `create table §.t (id int, v text, primary key (id)) partition by range (id); create table §.a partition of §.t for values from (0) to (25); create table §.b partition of §.t default; create index on §.t (v); ${ROWS(v())}`,
    OF_T,
    [['select count(distinct v)::int from §.a', 24]],
  ),
  made(
    'children',
    (v) =>
      `create table §.t (${T}); create table §.u (x int) inherits (§.t); ${ROWS(v())} insert into §.u values (100, '${v('child')}', 1);`,
    OF_T,
  ),
  made(
    'domains',
    (v) =>
      `create domain §.d as text check (value <> ''); create domain §.e as §.d; create table §.t (id int primary key, v §.e); ${ROWS(v())}`,
    OF_T,
  ),
  made(
    'arrays',
    (v) =>
      `create table §.t (id int primary key, v text[]); insert into §.t select n, array['${v()}' || n, null, 'b'] from generate_series(1, 5) n;`,
    OF_T,
    [['select count(*)::int from §.t where cardinality(v) = 3 and v[2] is null', 5]],
  ),
  made(
    'documents',
    (v) =>
      `create table §.t (id int primary key, v jsonb, w json); alter table §.t alter v set storage external; insert into §.t select n, jsonb_build_object('keep', 7, 'a', jsonb_build_object('b', '${v()}' || n), 'list', jsonb_build_array(jsonb_build_object('c', '${v(2)}'), jsonb_build_object('c', '${v(3)}'))), json_build_object('d', '${v(4)}') from generate_series(1, 5) n;`,
    (one) => [
      one('t', 'v', { with: 'json', args: { paths: ['$.a', '$.list[*].c'] } }),
      one('t', 'w', { with: 'json', args: { paths: ['$.d'] } }),
    ],
    [
      ["select (v ->> 'keep')::int from §.t limit 1", 7],
      ["select jsonb_array_length(v -> 'list') from §.t limit 1", 2],
    ],
  ),
  made(
    'largeobjects',
    (v) =>
      `create table §.t (id oid); insert into §.t select lo_from_bytea(0, convert_to('${v()}', 'UTF8'));`,
    () => [],
    [['select count(*)::int from pg_largeobject_metadata', 0]],
  ),
  made(
    'identity',
    () =>
      'create table §.t (id int generated always as identity primary key, v text); insert into §.t (v) select n::text from generate_series(1, 50) n;',
    (one) => [one('t', 'id')],
    [
      ["select attidentity from pg_attribute where attrelid = '§.t'::regclass and attname = 'id'", 'a'],
      ['select count(distinct id)::int from §.t', 50],
    ],
  ),
  made(
    'threetables',
    (v) =>
      `create table §.t (v text primary key); create table §.u (v text primary key references §.t on update cascade); create table §.w (v text references §.u deferrable initially deferred); insert into §.t select '${v()}' || n from generate_series(1, 20) n; insert into §.u select * from §.t; insert into §.w select * from §.t; insert into §.w select * from §.t;`,
    (one) => [one('u', 'v')],
    [
      ['select count(*)::int from §.t join §.u using (v) join §.w using (v)', 40],
      [
        "select count(*)::int from pg_constraint where contype = 'f' and connamespace = '§'::regnamespace and convalidated",
        2,
      ],
    ],
  ),
  made(
    'itself',
    (v) =>
      `create table §.t (id int primary key, v text unique, parent text references §.t (v)); insert into §.t select n, '${v()}' || n, '${v()}' || 1 from generate_series(1, 5) n;`,
    OF_T,
    [['select count(*)::int from §.t a join §.t b on a.parent = b.v', 5]],
  ),
  made(
    'views',
    (v) =>
      `create table §.t (${T}); ${ROWS(v())} create view §.w as select id, v from §.t group by id; create view §.x as select v from §.w;`,
    OF_T,
    [['select count(*)::int from §.x', 50]],
  ),
  made(
    'quoted',
    (v) =>
      `create table §."T ""1""" ("i d" int primary key, "Mail; --" text); insert into §."T ""1""" values (1, '${v()}');`,
    (one) => [one('T "1"', 'Mail; --')],
  ),
  made(
    'fixedlength',
    (v) =>
      `create table §.t (id int primary key, v varchar(60), w char(60)); insert into §.t values (1, '${v()}', '${v(2)}');`,
    (one) => [one('t', 'v', { with: 'email' }), one('t', 'w')],
  ),
  made(
    'bytes',
    (v) =>
      `create table §.t (id int primary key, v bytea, w uuid); insert into §.t values (1, convert_to('${v()}', 'UTF8'), '00000000-0000-4000-8000-000000000001');`,
    (one) => [one('t', 'v'), one('t', 'w')],
    [['select length(v) from §.t', canary('bytes').length]],
  ),
  made(
    'unicode',
    (v) =>
      `create table §.t (${T}); insert into §.t select n, 'äöü ${v()}' || n from generate_series(1, 5) n;`,
    OF_T,
  ),
  made('unlogged', (v) => `create unlogged table §.t (${T}); ${ROWS(v())}`, OF_T, [
    ['select count(distinct v)::int from §.t', 50],
  ]),
  made('exclusion', (v) => `create table §.t (${T}, exclude using hash (v with =)); ${ROWS(v())}`, OF_T),
  made(
    'filled',
    (v) =>
      `create table §.t (id int primary key); insert into §.t values (1); alter table §.t add v text default '${v()}'; alter table §.t alter v drop default;`,
    OF_T,
  ),
  made(
    'clustered',
    (v) =>
      `create table §.t (${T}) with (fillfactor = 50); create index c on §.t (v) include (id); cluster §.t using c; ${ROWS(v())}`,
    OF_T,
  ),
  made(
    'brin',
    (v) =>
      `create table §.t (${T}); ${ROWS(v())} create index on §.t using brin (v); create index on §.t using hash (v); create index on §.t using gin (to_tsvector('simple', v));`,
    OF_T,
  ),
  made(
    'composite',
    (v) =>
      `create type §.c as (a text); create table §.t (id int primary key, v §.c); insert into §.t values (1, row('${v()}'));`,
    (one) => [one('t', 'v', { with: 'null' })],
  ),
  made(
    'expressions',
    (v) =>
      `create function §.short(text) returns text language sql immutable as 'select left($1, 3)'; create table §.t (${T}, w text); insert into §.t values (1, '${v()}', '${v(2)}');`,
    (one) => [
      one('t', 'v', { with: 'expression', args: { sql: 'expressions.short(w) || id' } }),
      one('t', 'w', { with: 'text_redact' }),
    ],
    [
      ['select v from §.t', 'Kan1'],
      ['select w from §.t', canary('expressions', 2).replaceAll(/[a-z]/gi, 'x').replace('2', '0')],
    ],
  ),
];

/** Different values for each function; `w` has the same as `v`. */
const VALUES: readonly (readonly [
  how: { with: MaskingRule['with']; args?: object },
  type: string,
  value: string,
])[] = [
  [{ with: 'null' }, 'text', "'Value ' || n"],
  [{ with: 'constant', args: { value: 'same' } }, 'text', "'Value ' || n"],
  [{ with: 'hash' }, 'text', "left('Value-' || n || repeat('x', n), 40 - n % 7) || n"],
  [{ with: 'email' }, 'text', "'ada' || n || '@example.com'"],
  [{ with: 'name' }, 'text', "'Ada Number' || n"],
  [{ with: 'phone' }, 'text', "'+49 (30) ' || n + 100000"],
  [{ with: 'date_shift' }, 'date', "date '2020-01-01' + n"],
  [{ with: 'number_noise' }, 'int', '9800 + n'],
  [{ with: 'text_redact' }, 'text', "'Dear Ada, number ' || n + 100"],
  [{ with: 'json', args: { paths: ['$.a'] } }, 'jsonb', "jsonb_build_object('a', 'Value ' || n)"],
];

export const FUNCTION_TABLES = `create schema functions;
  create table functions.per (id int primary key, person int, v date);
  insert into functions.per select n, n % 5, date '2020-01-01' + n from generate_series(1, 50) n;
  ${VALUES.map(
    ([{ with: name }, type, value]) =>
      `create table functions.${name} (id int primary key, v ${type}, w ${type});
       insert into functions.${name} select n, ${value}, ${value} from generate_series(1, 300) n;`,
  ).join('\n')}`;

export const FUNCTION_RULES: readonly MaskingRule[] = [
  ...VALUES.flatMap(([how]) => ['v', 'w'].map((column) => rule('functions', how.with, column, how))),
];

export const PER_RULE = rule('functions', 'per', 'v', { with: 'date_shift', args: { per: 'person' } });

/** Columns that have little room for other values: of 300 how many differ, and how many are as long as they were. */
export const NARROW_COLUMNS = [
  [
    'addresses: the part before the domain stays as long as it is',
    'varchar(3)',
    "chr(n / 26 + 97) || '@' || chr(n % 26 + 97)",
    'email',
    { distinct: 300, alike: 300 },
  ],
  [
    'names',
    'varchar(3)',
    "(array['Ada', 'Ale', 'Zoe', 'Bo'])[n % 4 + 1]",
    'name',
    { distinct: null, alike: null },
  ],
  ['an initial', 'char(1)', 'chr(n % 26 + 65)', 'name', { distinct: null, alike: null }],
  ['bytes', 'bytea', "decode(lpad(to_hex(n), 4, '0'), 'hex')", 'hash', { distinct: 300, alike: 300 }],
  [
    'one byte',
    'bytea',
    "decode(lpad(to_hex(n % 256), 2, '0'), 'hex')",
    'hash',
    { distinct: 256, alike: 300 },
  ],
] as const;
