import { beforeAll, describe, expect, test } from 'vitest';
import type { ComparingHost, Counts } from '../../support/host/host-differences.ts';
import type { Branch } from '../../support/host/host-project.ts';

interface Trap {
  /** What is in `main` before the branch is made. */
  before: string;
  /** What happens on the branch. */
  change: string;
  /** What happens on `main` meanwhile. */
  meanwhile?: string;
  expected: Counts;
  /** The tables whose blocks say nothing. */
  full?: string[];
}

const ROWS = 'select n, n::text from generate_series(1, 300) n';

const TRAPS: Record<string, Trap> = {
  'rows that are inserted, changed and deleted': {
    before: `create table plain (id int primary key, note text); insert into plain ${ROWS}`,
    change: `update plain set note = 'x' where id in (3, 250); delete from plain where id = 7;
      insert into plain values (1000, 'new')`,
    expected: { plain: '1/2/1' },
  },
  'changes that were taken back': {
    before: `create table taken_back (id int primary key, note text); insert into taken_back ${ROWS}`,
    change: `update taken_back set note = 'x'; update taken_back set note = id::text`,
    expected: {},
  },
  'values outside of the row (TOAST)': {
    before: `create table toasted (id int primary key, note text, big text);
      alter table toasted alter big set storage external;
      insert into toasted select n, '', repeat(md5(n::text), 200) from generate_series(1, 20) n`,
    change: `update toasted set big = overlay(big placing 'x' from 3000) where id = 4;
      update toasted set note = 'x' where id = 5; update toasted set big = big || '' where id = 6`,
    expected: { toasted: '0/2/0' },
  },
  'partitions, and a row that moves to another one': {
    before: `create table part (id int primary key, note text) partition by range (id);
      create table part_low partition of part for values from (0) to (100);
      create table part_high partition of part for values from (100) to (1000);
      insert into part ${ROWS}`,
    change: 'update part set id = 500 where id = 50; delete from part where id = 250',
    expected: { part_low: '0/0/1', part_high: '1/0/1' },
  },
  'a key of several columns': {
    before: `create table composite (a text, b int, note text, primary key (b, a));
      insert into composite select n % 3 || 'ä,"()', n, '' from generate_series(1, 100) n`,
    change: `update composite set note = 'x' where b = 9; update composite set a = 'other' where b = 10`,
    expected: { composite: '1/1/1' },
  },
  'no key, and equal rows': {
    before: `create table keyless (note text); insert into keyless select 'same' from generate_series(1, 100)`,
    change: `delete from keyless where ctid = '(0,5)'; insert into keyless values ('same'), ('same'), (null)`,
    expected: { keyless: '2/0/0' },
  },
  'a unique column with nulls, whose constraint is not validated': {
    before: `create table unvalidated (id int unique); insert into unvalidated values (null), (1), (2);
      alter table unvalidated add constraint filled not null id not valid`,
    change: 'insert into unvalidated values (3); delete from unvalidated where id = 1',
    expected: { unvalidated: '1/0/1' },
  },
  'HOT updates and their pruning': {
    before: `create table hot (id int primary key, n int) with (fillfactor = 50);
      insert into hot select n, 0 from generate_series(1, 200) n`,
    change: `update hot set n = n + 1 where id <= 20; update hot set n = n + 1 where id <= 20; vacuum hot`,
    expected: { hot: '0/20/0' },
  },
  'freezing and vacuum, which change no row': {
    before: `create table frozen (id int primary key, note text); insert into frozen ${ROWS};
      delete from frozen where id > 200`,
    change: 'vacuum (freeze) frozen',
    expected: {},
  },
  'VACUUM FULL, which changes no row': {
    before: `create table rewritten (id int primary key, note text); insert into rewritten ${ROWS};
      delete from rewritten where id < 100`,
    change: `vacuum full rewritten; update rewritten set note = 'x' where id = 150`,
    expected: { rewritten: '0/1/0' },
    full: ['rewritten'],
  },
  TRUNCATE: {
    before: `create table truncated (id int primary key, note text); insert into truncated ${ROWS}`,
    change: `truncate truncated; insert into truncated values (1, '1'), (2, 'x')`,
    expected: { truncated: '0/1/298' },
    full: ['truncated'],
  },
  'blocks that vacuum cut off, and that grew again': {
    before: `create table cut (id int primary key, note text); insert into cut ${ROWS};
      insert into cut select n, repeat('x', 200) from generate_series(301, 600) n`,
    change: `delete from cut where id > 300; vacuum cut;
      insert into cut select n, repeat('x', 200) from generate_series(301, 400) n`,
    expected: { cut: '0/0/200' },
  },
  'an unlogged table': {
    before: `create unlogged table unlogged (id int primary key, note text); insert into unlogged ${ROWS}`,
    change: `update unlogged set note = 'x' where id = 9`,
    expected: { unlogged: '0/1/0' },
    full: ['unlogged'],
  },
  'a column that is added without a rewrite': {
    before: `create table widened (id int primary key, note text); insert into widened ${ROWS}`,
    change: `alter table widened add more text default 'more'; update widened set note = 'x' where id = 5`,
    expected: { widened: '0/1/0' },
  },
  'a column that both sides add, with another value in the same rows': {
    before: `create table defaulted (id int primary key); insert into defaulted select generate_series(1, 50);
      create table defaulted_alike (id int primary key); insert into defaulted_alike select generate_series(1, 50)`,
    change: `alter table defaulted add c int default 1; alter table defaulted_alike add c int default 1;
      insert into defaulted_alike values (51)`,
    meanwhile: 'alter table defaulted add c int default 2; alter table defaulted_alike add c int default 1',
    expected: { defaulted: '0/50/0', defaulted_alike: '1/0/0' },
    full: ['defaulted'],
  },
  'a column that is dropped, and one whose type changes without a rewrite': {
    before: `create table retyped (id int primary key, gone text, n int);
      insert into retyped select n, '', -n from generate_series(1, 50) n`,
    change: 'alter table retyped drop gone, alter n type oid',
    // The text of every value is another one, in blocks that were not written.
    expected: { retyped: '0/50/0' },
    full: ['retyped'],
  },
  'a label of an enum that is renamed': {
    before: `create type mood as enum ('good', 'bad'); create table labelled (id int primary key, mood mood);
      insert into labelled select n, 'good' from generate_series(1, 30) n; insert into labelled values (100, 'bad')`,
    change: `alter type mood rename value 'bad' to 'sad'`,
    expected: { labelled: '0/1/0' },
    full: ['labelled'],
  },
  'a type whose text depends on the catalog': {
    before: `create table referred (id int); create table named (id int primary key, what regclass);
      insert into named values (1, 'referred'), (2, 'named')`,
    change: 'alter table referred rename to referred_2',
    expected: { named: '0/1/0' },
    full: ['named'],
  },
  'changes on both sides': {
    before: `create table both_sides (id int primary key, note text); insert into both_sides ${ROWS}`,
    change: `update both_sides set note = 'x' where id in (1, 2); insert into both_sides values (1000, 'branch')`,
    meanwhile: `update both_sides set note = 'x' where id in (2, 3); insert into both_sides values (1000, 'main')`,
    expected: { both_sides: '0/3/0' },
  },
  'a table that only one side has': {
    before: `create table only_before (id int primary key, note text); insert into only_before ${ROWS}`,
    change: `drop table only_before; create table only_after (note text); insert into only_after values ('a'), ('b')`,
    expected: { only_before: '0/0/300', only_after: '2/0/0' },
    full: ['only_before', 'only_after'],
  },
  'values that compare as equal, and are not the same': {
    before: `create table subtle (id int primary key, n numeric, f float8, j json);
      insert into subtle values (1, 1.0, 0, '{"a":1}'), (2, null, 1, null), (3, 1, 1, '1')`,
    change: `update subtle set n = 1.00, f = '-0', j = '{"a": 1}' where id = 1; update subtle set n = 1 where id = 3`,
    expected: { subtle: '0/1/0' },
  },
  'a virtual column, whose expression changes': {
    before: `create table computed (id int primary key, twice int generated always as (id * 2) virtual);
      insert into computed select n from generate_series(1, 20) n`,
    change: 'alter table computed alter twice set expression as (id * 3)',
    expected: {},
  },
};

export function describeTraps(open: () => Promise<ComparingHost>): void {
  let host: ComparingHost;
  let branch: Branch;
  const all = Object.values(TRAPS);

  beforeAll(async () => {
    host = await open();
    await host.run(host.main, all.map(({ before }) => before).join(';'));
    branch = await host.branch(host.main);
    const separately = (sql: string) => sql.split(';').filter((statement) => statement.trim());
    await host.runEach(
      branch,
      all.flatMap(({ change }) => separately(change)),
    );
    await host.runEach(
      host.main,
      all.flatMap(({ meanwhile = '' }) => separately(meanwhile)),
    );
  });

  describe.each(['wal_summary', 'extents', 'full'] as const)('by %s', (method) => {
    let found: Awaited<ReturnType<ComparingHost['compareBy']>> | null = null;
    beforeAll(async () => {
      found = host.methods.includes(method) ? await host.compareBy(method, branch, host.main) : null;
    });

    test.each(Object.entries(TRAPS))('%s', (_, { before, expected, full = [] }) => {
      if (!found) return;
      const tables = [...before.matchAll(/table (\w+) /g)].map(([, name = '']) => name);
      const names = [...tables, ...Object.keys(expected)];
      const own = Object.fromEntries(Object.entries(found.counts).filter(([name]) => names.includes(name)));
      expect(own).toEqual(expected);
      for (const name of Object.keys(expected))
        expect([name, found.methods[name]]).toEqual([name, full.includes(name) ? 'full' : method]);
    });

    test('nothing else differs', () => {
      if (!found) return;
      expect(Object.keys(found.counts).toSorted()).toEqual(
        all.flatMap(({ expected }) => Object.keys(expected)).toSorted(),
      );
    });
  });
}
