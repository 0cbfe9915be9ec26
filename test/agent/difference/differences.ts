import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { recordOrigin } from '../../../agent/cloning/create-clone.ts';
import { orderedRows } from '../../../agent/difference/compare-rows.ts';
import { compare } from '../../../agent/difference/comparison.ts';
import { ComparisonProgress } from '../../../agent/difference/comparison-progress.ts';
import { countDifferences } from '../../../agent/difference/count-differences.ts';
import { inSnapshotOf, withSides } from '../../../agent/difference/sides.ts';
import { readCatalog } from '../../../agent/difference/tables.ts';
import {
  readWrittenBlocks,
  stretchesBetween,
  summarizedCheckpoint,
} from '../../../agent/difference/written-blocks.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { withLocks } from '../../../agent/postgres/locks.ts';
import { describeTable } from '../../../agent/rows/describe-table.ts';
import { separateSnapshots } from '../../../agent/snapshots/separate-snapshots.ts';
import { comparedDatabaseName, dropLeftovers } from '../../../agent/snapshots/snapshot-databases.ts';
import { loginName } from '../../../shared/branch/login.ts';
import { eventually } from '../../support/eventually.ts';
import type { ComparingHost } from '../../support/host/host-differences.ts';
import { asClient, type Branch, connect } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const WITHIN_MS = 60_000;
/** Of the table. */
const ROWS = 16_000;

export function describeDifferences(open: () => Promise<ComparingHost>): void {
  let host: ComparingHost;
  let main: Branch;

  beforeAll(async () => {
    host = await open();
    main = host.main;
    await host.run(
      main,
      `create table item (id int primary key, note text);
     insert into item select n, 'old' from generate_series(1, ${ROWS}) n; analyze item`,
    );
  });

  const change = (branch: Branch, id: number) =>
    host.run(branch, `update item set note = note || 'x' where id = ${id}`);

  /** The counts of `item` by every method that reads blocks, which have to be the same. */
  async function countsOf(branch: Branch, against: Branch | { snapshot_id: string }) {
    const found = [];
    for (const method of host.methods.slice(0, -1))
      found.push((await host.compareBy(method, branch, against)).counts);
    for (const counts of found) expect(counts).toEqual(found[0]);
    return found[0]?.item ?? 'same';
  }

  describe('the blocks that are read', () => {
    let branch: Branch;
    beforeAll(async () => {
      branch = await host.branch(main);
      await change(branch, 9_000);
    });

    test('are few after few changes', async () => {
      for (const method of host.methods.slice(0, -1)) {
        const blocks = await withSides(
          host.servers.host,
          host.sides(branch, main),
          WITHIN_MS,
          (sides, session) =>
            compare(
              host.servers.host,
              session,
              sides,
              { within: WITHIN_MS, methods: [method] },
              async (comparison) => comparison.pairs.flatMap((pair) => comparison.blocksOf(pair) ?? []),
            ),
        );
        const count = blocks.reduce((sum, [from, to]) => sum + to - from, 0);
        // The block of the old row and that of the new one.
        expect([method, count]).toEqual([method, expect.toSatisfy((n: number) => n >= 1 && n <= 4)]);
      }
      expect((await host.diff(branch, main)).method).toBe('wal_summary');
    });

    test('are joined when they are too many', async () => {
      for (const id of [1, 3_000, 6_000, 9_500]) await change(branch, id);
      const { postgres } = host.servers.host;
      const oidOf = async ({ database }: Branch) =>
        (await host.servers.query(`select oid::text from pg_database where datname = '${database}'`))[0]?.oid;
      const [file] = await host.run(main, `select relfilenode::text from pg_class where relname = 'item'`);
      const end = (await summarizedCheckpoint(postgres)) ?? '';
      const stretches = await stretchesBetween(postgres, `${await oidOf(branch)}`, `${await oidOf(main)}`);
      const relations = [`${file?.relfilenode}`];
      const read = async (most: number) =>
        (await readWrittenBlocks(postgres, stretches ?? [], relations, end, most))?.get(relations[0] ?? '') ??
        [];
      const all = await read(1_000);
      const few = await read(3);
      expect(all.length).toBeGreaterThanOrEqual(4);
      expect(few.length).toBeLessThanOrEqual(3);
      for (const [from, to] of all) expect(few.some(([low, high]) => low <= from && to <= high)).toBe(true);
    });

    test('of a catalog that is too large are not looked for', async () => {
      const { host: agent } = host.servers;
      const side = { branch_id: main.branch_id, database: main.database };
      const options = { within: 10_000, firstRows: false };
      await expect(
        inSnapshotOf(agent, side, options, (session) => readCatalog(session, 100)),
      ).rejects.toMatchObject({ code: 'STATEMENT_REFUSED', sqlstate: '54000' });
    });

    test('are read alone', async () => {
      const { host: agent } = host.servers;
      const plan = await withSides(agent, host.sides(branch, main), WITHIN_MS, (sides, session) =>
        compare(agent, session, sides, { within: WITHIN_MS }, async ({ after }) => {
          const description = await describeTable(after, { schema: 'public', table: 'item' });
          const matching = { key: ['id'], columns: ['id', 'note'] };
          const { text, values } = orderedRows(description, 'ONLY public.item', matching, [[3, 5]], null);
          const { rows } = await after.query<{ 'QUERY PLAN': string }>(`EXPLAIN ${text}`, values);
          return rows.map((row) => row['QUERY PLAN']).join('\n');
        }),
      );
      expect(plan).toContain('Tid Range Scan on item');
      expect(plan).not.toContain('Seq Scan');
    });
  });

  describe('what a branch comes from', () => {
    test('a branch of a branch whose parent is deleted', async () => {
      const middle = await host.branch(main);
      await change(middle, 1);
      const last = await host.branch(middle);
      await change(middle, 2);
      await change(last, 3);
      await change(main, 4);
      expect(await countsOf(last, middle)).toBe('0/2/0');
      await host.project.drop(middle);
      expect(await countsOf(last, main)).toBe('0/3/0');
      expect((await host.diff(last, main)).method).toBe('wal_summary');
    });

    test.runIf(IS_NIGHTLY)('two branches of one, and their snapshots', async () => {
      const first = await host.branch(main);
      await change(main, 5);
      const second = await host.branch(main);
      await change(first, 6);
      const snapshot = await host.snapshot(first);
      await change(first, 7);
      expect(await countsOf(first, second)).toBe('0/3/0');
      expect(await countsOf(first, snapshot)).toBe('0/1/0');
      expect(await countsOf(second, snapshot)).toBe('0/2/0');
    });

    test('a branch of an independent snapshot', async () => {
      const snapshot = await host.snapshot(main);
      await separateSnapshots(host.servers.host);
      const branch = await host.branch(snapshot);
      await change(branch, 8);
      await change(main, 9);
      expect(await countsOf(branch, main)).toBe('0/2/0');
      expect(await countsOf(branch, snapshot)).toBe('0/1/0');
      expect((await host.diff(branch, main)).method).toBe('wal_summary');
    });

    test('a crash and a restart in between', async () => {
      await host.run(main, 'create unlogged table lost (id int primary key); insert into lost values (1)');
      const branch = await host.branch(main);
      await change(branch, 10);
      await host.servers.end('postgres', 'SIGKILL');
      await host.servers.start('postgres');
      await change(branch, 11);
      await host.run(branch, 'insert into lost values (2)');
      expect(await countsOf(branch, main)).toBe('0/2/0');
      const { rows } = await host.diff(branch, main);
      // The crash has emptied the unlogged table on both sides.
      expect(rows?.tables).toContainEqual({
        schema: 'public',
        name: 'lost',
        method: 'full',
        inserted: 1,
        updated: 0,
        deleted: 0,
      });
      await host.run(main, 'drop table lost');
    });

    test('a database whose origin is not recorded', async () => {
      const branch = await host.branch(main);
      await change(branch, 12);
      await host.servers.query('DELETE FROM database_origin');
      // Its source has another oid than the database of this name.
      const [other] = await host.servers.query<{ oid: string }>(
        `select oid::text from pg_database where datname = '${branch.database}'`,
      );
      const origin = { name: main.database, source: `${other?.oid}`, source_lsn: '0/1' };
      await recordOrigin(host.servers.host.postgres, branch.database, origin, true);
      expect(await host.servers.query('SELECT FROM database_origin')).toEqual([]);
      const { method, rows } = await host.diff(branch, main);
      expect(method).toBe(host.methods.at(1));
      expect(rows?.tables).toMatchObject([{ name: 'item', inserted: 0, updated: 1, deleted: 0 }]);
    });
  });

  describe('changed rows', () => {
    test('come in pages in the order of the key, before and after', async () => {
      const branch = await host.branch(main);
      await host.run(
        branch,
        `update item set note = 'new' where id in (100, 20); delete from item where id = 3000;
       insert into item values (-5, null), (30000, 'added')`,
      );
      const first = await host.page(branch, main, { table: 'item', limit: 3 });
      expect(first).toMatchObject({ method: 'wal_summary', key: ['id'] });
      expect(first.rows).toEqual([
        { before: null, after: [-5, null] },
        { before: [20, 'old'], after: [20, 'new'] },
        { before: [100, 'old'], after: [100, 'new'] },
      ]);
      const second = await host.page(branch, main, { table: 'item', limit: 3, after: first.next });
      expect(second.rows).toEqual([
        { before: [3000, 'old'], after: null },
        { before: null, after: [30000, 'added'] },
      ]);
      expect(second.next).toBeNull();
    });

    test('have large values cut, and long keys in full', async () => {
      const branch = await host.branch(main);
      const key = (letter: string) => `repeat('k', 300) || '${letter}'`;
      await host.run(
        branch,
        `create table large (id text primary key, body text);
       insert into large select repeat('k', 300) || n, repeat('ä', 100000) from generate_series(1, 9) n`,
      );
      const copy = await host.branch(branch);
      await host.run(copy, `update large set body = body || '!'; delete from large where id = ${key('3')}`);
      const seen: unknown[] = [];
      let after: string[] | null = null;
      do {
        const page = await host.page(copy, branch, { table: 'large', limit: 4, after });
        seen.push(...page.rows.map((row) => [String(row.before?.[0]).slice(300), row.after !== null]));
        for (const { before } of page.rows)
          expect(before?.[1]).toEqual({ cut: expect.stringMatching(/^ä+$/) });
        after = page.next;
      } while (after);
      expect(seen.toSorted()).toEqual([...'123456789'].map((letter) => [letter, letter !== '3']));
    });

    test('need a key and a table', async () => {
      const branch = await host.branch(main);
      await host.run(branch, 'create table keyless (n int); insert into keyless values (1)');
      await expect(host.page(branch, main, { table: 'keyless' })).rejects.toMatchObject({
        code: 'KEY_NOT_UNIQUE',
        path: 'table',
      });
      await expect(host.page(branch, main, { table: 'none' })).rejects.toMatchObject({
        code: 'TABLE_NOT_FOUND',
      });
      await expect(host.page(branch, main, { table: 'item', after: ['1', '2'] })).rejects.toMatchObject({
        code: 'INVALID_CALL',
        path: 'after',
      });
    });
  });

  describe('a hostile tenant', () => {
    test('runs no code, hides no row and stops no other table', async () => {
      await host.run(
        main,
        `create schema evil;
       create table evil.seen (what text); grant all on schema evil to public; grant all on evil.seen to public;
       create function public.sha256(bytea) returns bytea language sql as $$ select '\\x00'::bytea $$;
       create function public.same(tid, tid) returns boolean language sql as $$ select false $$;
       create operator public.>= (leftarg = tid, rightarg = tid, function = public.same);
       create type public.mood as enum ('good', 'bad');
       create function public.lie(public.mood) returns text language sql as $$ select 'same' $$;
       create cast (public.mood as text) with function public.lie(public.mood) as implicit;
       create function public.trap(text) returns boolean language plpgsql as $$
         begin insert into evil.seen values ('check'); return true; end $$;
       create domain public.trapped as text check (public.trap(value));
       create table public."we""ird; --" ("i""d" int primary key, mood public.mood, t public.trapped);
       insert into "we""ird; --" values (1, 'good', 'a'), (2, 'good', 'b');
       create table fails (id int primary key, zero int generated always as (1 / (id - 1)) virtual);
       insert into fails values (1);
       create table guarded (id int primary key); insert into guarded values (1);
       create policy trapped on guarded using (public.trap('x')); alter table guarded enable row level security;
       create table hidden (id int primary key); revoke all on hidden from public;
       truncate evil.seen`,
      );
      const [group] = await host.run(
        main,
        `select rolname from pg_roles where rolname ~ '^g_.*_ro$' and pg_has_role('${loginName(main.branch_id, 'read_only')}', oid, 'usage')`,
      );
      await host.run(main, `revoke all on hidden from "${group?.rolname}"`);
      for (const setting of ["search_path = 'evil'", "row_security = 'on'", "DateStyle = 'German'"])
        await asClient(
          host.servers.host,
          'direct',
          main,
          'read_only',
          `alter role current_user set ${setting}`,
        );
      const branch = await host.branch(main);
      await host.run(
        branch,
        `update "we""ird; --" set mood = 'bad' where "i""d" = 2; insert into fails values (5)`,
      );
      await host.run(
        branch,
        'insert into guarded values (2); insert into hidden values (1); truncate evil.seen',
      );
      await host.run(main, 'truncate evil.seen');
      const locker = await connect(host.servers.host, 'direct', branch, 'owner');
      await locker.query('begin; lock table item');
      const { rows } = await host.diff(branch, main);
      await locker.end();
      expect(
        Object.fromEntries(
          rows?.tables.map(({ name, updated, inserted }) => [name, [inserted, updated]]) ?? [],
        ),
      ).toEqual({
        'we"ird; --': [0, 1],
        fails: [1, 0],
      });
      expect(rows?.not_compared).toEqual([
        { schema: 'public', name: 'guarded', reason: 'row_security' },
        { schema: 'public', name: 'hidden', reason: 'not_readable' },
      ]);
      for (const side of [main, branch]) expect(await host.run(side, 'select * from evil.seen')).toEqual([]);
    });

    test.runIf(IS_NIGHTLY)('with a lock on a changed table delays the others only shortly', async () => {
      const branch = await host.branch(main);
      await change(branch, 13);
      await host.run(branch, 'create table other (id int); insert into other values (1)');
      const locker = await connect(host.servers.host, 'direct', branch, 'owner');
      await locker.query('begin; lock table item');
      const { rows } = await host.diff(branch, main);
      await locker.end();
      expect(rows).toMatchObject({
        tables: [{ name: 'other', inserted: 1 }],
        not_compared: expect.arrayContaining([{ schema: 'public', name: 'item', reason: 'locked' }]),
      });
    });

    test('does not reach what is not of the project', async () => {
      const branch = await host.branch(main);
      const of = (sides: object) =>
        runOperation(host.servers.host, 'branch.diff', {
          ...host.sides(branch, main),
          job_id: null,
          rows: true,
          schema: false,
          within: WITHIN_MS,
          ...sides,
        });
      const refused = { code: 'SOURCE_MISSING' };
      await expect(of({ project_id: randomUUID() })).rejects.toMatchObject(refused);
      await expect(of({ against: { snapshot_id: randomUUID() } })).rejects.toMatchObject(refused);
      await expect(
        of({ against: { branch_id: branch.branch_id, database: main.database } }),
      ).rejects.toMatchObject(refused);
    });
  });

  describe('a comparison under way', () => {
    /** With one changed row. */
    let changed: Branch;
    beforeAll(async () => {
      changed = await host.branch(main);
      await change(changed, 16);
    });

    /** Runs `meanwhile` while both snapshots are open. */
    const during = (branch: Branch, meanwhile: () => Promise<unknown>) =>
      withSides(host.servers.host, host.sides(branch, main), WITHIN_MS, (sides, session) =>
        compare(host.servers.host, session, sides, { within: WITHIN_MS }, async (comparison) => {
          await meanwhile();
          const pair = comparison.pairs.find(({ name }) => name === 'item');
          if (!pair) throw new Error('no such table');
          const { differences } = await comparison.open(pair);
          let count = 0;
          for await (const _ of differences) count += 1;
          return count;
        }),
      );

    test('keeps no lock of a table that was compared', async () => {
      const [locks] = await withSides(
        host.servers.host,
        host.sides(changed, main),
        WITHIN_MS,
        (sides, session) =>
          compare(host.servers.host, session, sides, { within: WITHIN_MS }, async (comparison) => {
            const { tables } = await countDifferences(comparison);
            expect(tables).toMatchObject([{ name: 'item', updated: 1 }]);
            const { rows } = await comparison.after.query(
              "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'public.item'::regclass",
            );
            return rows;
          }),
      );
      expect(locks).toEqual({ count: '0' });
    });

    test('ends for a clone, and can be repeated', async () => {
      await expect(during(changed, () => host.branch(changed))).rejects.toMatchObject({
        code: expect.stringMatching(/^(HOST_BUSY|POSTGRES_UNAVAILABLE)$/),
      });
      expect((await host.diff(changed, main)).complete).toBe(true);
    });

    test('begins again when the table is truncated', async () => {
      const branch = await host.branch(main);
      await change(branch, 14);
      let isFirst = true;
      const truncate = async () => {
        if (isFirst) await host.run(branch, 'truncate item');
        isFirst = false;
      };
      expect(await during(branch, truncate)).toBe(ROWS);
    });

    test('runs no code of a view that takes the place of the table', async () => {
      const branch = await host.branch(main);
      await host.run(
        branch,
        `create function public.code() returns int immutable language plpgsql as $$
         begin raise exception 'code of the tenant'; end $$`,
      );
      let isFirst = true;
      const replace = async () => {
        if (isFirst)
          await host.run(
            branch,
            `alter table item rename to item_2;
           create view item as select public.code() as id, note, ctid from item_2`,
          );
        isFirst = false;
      };
      // It begins again, and finds that the branch has no such table.
      expect(await during(branch, replace)).toBe(ROWS);
    });

    test('excludes a second one of the project', async () => {
      const second = () => expect(host.diff(changed, main)).rejects.toMatchObject({ code: 'PROJECT_BUSY' });
      expect(await during(changed, second)).toBe(1);
    });

    test('that is long leaves a place for a short one', async () => {
      const { host: agent } = host.servers;
      const locks = ['difference:0', 'difference:1'] as const;
      const sides = host.sides(main, main);
      await withLocks(agent.sessions, locks, async () => {
        expect(await withSides(agent, sides, 10_000, async () => 'short')).toBe('short');
        await expect(withSides(agent, sides, WITHIN_MS, async () => 'long')).rejects.toMatchObject({
          code: 'HOST_BUSY',
        });
      });
    });

    test('waits for the lock of a snapshot for as long as it has time', async () => {
      const snapshot = await host.snapshot(main);
      const { host: agent } = host.servers;
      await withLocks(agent.sessions, [`clone:${snapshot.snapshot_id}`], async () => {
        await expect(withSides(agent, host.sides(main, snapshot), 200, async () => 0)).rejects.toMatchObject({
          code: 'TIME_LIMIT_REACHED',
        });
      });
    });

    test('reports its progress', async () => {
      const { host: agent } = host.servers;
      const reported: number[] = [];
      const { tables } = await withSides(agent, host.sides(changed, main), WITHIN_MS, (sides, session) =>
        compare(agent, session, sides, { within: WITHIN_MS, methods: ['full'] }, (comparison) => {
          const progress = new ComparisonProgress(comparison, (done) => reported.push(done));
          const { PGDATA_DIR } = agent.settings;
          return progress.during(PGDATA_DIR, () => countDifferences(comparison, progress));
        }),
      );
      expect(tables).toMatchObject([{ name: 'item', updated: 1 }]);
      expect(reported.length).toBeGreaterThanOrEqual(10);
      expect(reported).toEqual(reported.toSorted((a, b) => a - b));
      expect(reported[0]).toBeLessThan(0.5);
      expect(reported.at(-1)).toBeGreaterThan(0.9);
    });

    test.runIf(IS_NIGHTLY)(
      'by a snapshot, of which the clone takes too long, is given up and leaves nothing',
      async () => {
        const { snapshot_id } = await host.snapshot(main);
        const branch = await host.branch(main);
        const session = await host.servers.host.postgres.connect();
        // CREATE DATABASE waits for it.
        await session.query('BEGIN; LOCK TABLE pg_database IN EXCLUSIVE MODE');
        const given = { ...host.sides(branch, { snapshot_id }), job_id: null, rows: true, schema: false };
        const comparing = runOperation(host.servers.host, 'branch.diff', { ...given, within: 1_000 });
        // The agent has stopped waiting for the clone and drops it. Only the clone has locked its source.
        const dropping = `select from pg_locks as waiting where not granted and relation = 'pg_database'::regclass
          and not exists (select from pg_locks as held where held.pid = waiting.pid and held.mode = 'ShareLock')`;
        await eventually(async () => expect(await host.servers.query(dropping)).toHaveLength(1));
        await session.query('ROLLBACK');
        session.release();
        expect(await comparing).toMatchObject({ complete: false });
        expect(
          await host.servers.query("select datname from pg_database where datname ~ '^bgdiff_'"),
        ).toEqual([]);
      },
    );

    test.runIf(IS_NIGHTLY)('that takes too long is given up', async () => {
      const locker = await connect(host.servers.host, 'direct', changed, 'owner');
      await locker.query('begin; lock table item');
      const given = { ...host.sides(changed, main), job_id: null, rows: true, schema: false, within: 1_000 };
      expect(await runOperation(host.servers.host, 'branch.diff', given)).toEqual({
        complete: false,
        method: null,
        rows: null,
        schema: null,
      });
      await locker.end();
    });

    test('leaves nothing, also when the agent was killed', async () => {
      const databases = () =>
        host.servers.query("select datname from pg_database where datname ~ '^bgdiff_'");
      expect(await databases()).toEqual([]);
      await host.servers.query(`create database ${comparedDatabaseName(randomUUID())}`);
      await dropLeftovers(host.servers.host);
      expect(await databases()).toEqual([]);
      // A session that was closed is there for a moment longer.
      await eventually(async () =>
        expect(
          await host.servers.query(
            "select pid from pg_stat_activity where application_name = 'branchgate-difference'",
          ),
        ).toEqual([]),
      );
    });
  });
}
