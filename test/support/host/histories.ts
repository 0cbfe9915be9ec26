import { Random } from '../../simulation/random.ts';

/**
 * The life of one table: how it is made, and what then happens to it on both sides, before and after a
 * restart.
 */
export interface History {
  table: string;
  /** SQL of the columns that identify a row; null without a key. */
  key: string | null;
  create: string[];
  branch: [string[], string[]];
  other: [string[], string[]];
}

type Shape = (table: string) => { create: string; key: string | null };

const COLUMNS = "n int not null default 0, note text default 'default', big text";
const keyed = (table: string, options = '') =>
  `create table ${table} (id int primary key, ${COLUMNS}) ${options}`;

const SHAPES: readonly Shape[] = [
  (table) => ({ create: keyed(table), key: 'id' }),
  (table) => ({ create: keyed(table, 'with (fillfactor = 60)'), key: 'id' }),
  (table) => ({ create: `${keyed(table)}; alter table ${table} alter big set storage external`, key: 'id' }),
  (table) => ({ create: `create table ${table} (id int, ${COLUMNS}, primary key (n, id))`, key: 'n, id' }),
  (table) => ({ create: `create table ${table} (id int, ${COLUMNS})`, key: null }),
  (table) => ({ create: keyed(table).replace('create', 'create unlogged'), key: 'id' }),
  (table) => ({
    create: `${keyed(table, 'partition by range (id)')};
      create table ${table}_a partition of ${table} for values from (0) to (60);
      create table ${table}_b partition of ${table} default`,
    key: 'id',
  }),
  (table) => ({ create: `create table ${table} (id int unique not null, ${COLUMNS})`, key: 'id' }),
];

type Step = (table: string, random: Random) => string[];

/** Without `n`, which belongs to a key. */
const some = (random: Random) => `id % ${2 + random.int(0, 29)} = ${random.int(0, 3)}`;
const big = (random: Random) =>
  `repeat(md5((id * ${1 + random.int(0, 2)})::text), ${random.pick([1, 90, 300])})`;

const insert: Step = (table, random) => {
  const from = 200 + random.int(0, 99_999);
  return [
    `insert into ${table} (id, n, note) select i, i, 'new' from generate_series(${from}, ${from + random.int(0, 39)}) i on conflict do nothing`,
  ];
};
const update: Step = (table, random) => [
  `update ${table} set note = '${random.pick(['a', 'b', 'ä,"', ''])}' where ${some(random)}`,
];

const STEPS: readonly Step[] = [
  insert,
  update,
  update,
  (table, random) => [`update ${table} set note = null where ${some(random)}`],
  (table, random) => [`update ${table} set big = ${big(random)} where ${some(random)}`],
  (table, random) => [`delete from ${table} where ${some(random)}`],
  (table, random) => {
    const where = some(random);
    return [
      `update ${table} set note = coalesce(note, '') || 'x' where ${where}`,
      `update ${table} set note = left(note, -1) where ${where}`,
    ];
  },
  (table, random) => ['begin', ...update(table, random), ...insert(table, random), 'rollback'],
  (table, random) => [
    'begin',
    'savepoint s',
    ...update(table, random),
    'rollback to s',
    ...insert(table, random),
    'commit',
  ],
  (table) => [`delete from ${table} where id > 100`, `vacuum ${table}`],
  (table) => [`vacuum ${table}`],
  (table) => [`vacuum (freeze) ${table}`],
  (table) => [`select count(*) from ${table} where id > 0`],
];

/** They make another file, so they are rare. */
const REWRITES: readonly Step[] = [
  (table) => [`vacuum full ${table}`],
  (table, random) => [`truncate ${table}`, ...insert(table, random)],
  (table, random) => [
    `alter table ${table} add if not exists more text default '${random.pick(['m', 'n'])}'`,
  ],
  (table) => [`alter table ${table} drop if exists more`],
];

function steps(table: string, random: Random): string[] {
  const count = random.int(0, 4);
  return Array.from({ length: count }, () =>
    (random.int(0, 11) === 0 ? random.pick(REWRITES) : random.pick(STEPS))(table, random),
  ).flat();
}

export function historyOf(seed: number): History {
  const random = new Random(`history ${seed}`);
  const table = `history_${seed}`;
  const { create, key } = random.pick(SHAPES)(table);
  const rows = 1 + random.int(0, 179);
  const fill = `insert into ${table} (id, n, note, big)
    select id, id, 'old', ${big(random)} from generate_series(1, ${rows}) id`;
  const isUntouched = random.int(0, 5) === 0;
  const half = () => (isUntouched ? [`vacuum ${table}`] : steps(table, random));
  return {
    table,
    key,
    create: [create, fill, ...(random.int(0, 1) === 0 ? [] : [`delete from ${table} where ${some(random)}`])],
    branch: [half(), half()],
    other: random.int(0, 1) === 0 ? [[], []] : [half(), half()],
  };
}
