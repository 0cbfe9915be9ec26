import pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { inBranch } from '../../../agent/rows/branch-session.ts';
import { describeTable } from '../../../agent/rows/describe-table.ts';
import { PageMarks } from '../../../agent/rows/page-marks.ts';
import { type OrderedTable, orderedTable, seek } from '../../../agent/rows/seek.ts';
import { eventually } from '../../support/eventually.ts';
import { asClient, type Branch, startHostWithProject } from '../../support/host/host-project.ts';
import { Browser } from '../../support/host/host-rows.ts';

const ROWS = 60_000;
const BACKGROUND = 'branchgate-background';

let world: Awaited<ReturnType<typeof startHostWithProject>>;
let browser: Browser;
beforeAll(async () => {
  world = await startHostWithProject(
    'db_marks_prod',
    `create function holds_up(seconds float8) returns int immutable language plpgsql as $$ begin
       if current_setting('application_name') = '${BACKGROUND}' then perform pg_sleep(seconds); end if; return 1;
     end $$;
     create function clings() returns int immutable language plpgsql as $$ begin
       if current_setting('application_name') <> '${BACKGROUND}' then return 1; end if;
       perform set_config(name, '0', false) from unnest('{statement_timeout,transaction_timeout}'::text[]) as name;
       loop begin perform pg_sleep(60); exception when query_canceled or others then null; end; end loop;
     end $$;`,
  );
  browser = new Browser(world.servers.host, world.main);
});
afterAll(() => world.servers.stop());

afterEach(async () => {
  vi.restoreAllMocks();
  await eventually(async () => expect(await backgroundSessions()).toEqual([]));
});

const large = (name: string, more = '') =>
  browser.owner(
    `create table ${name} (id int primary key, note text);
     insert into ${name} select n, 'n' from generate_series(1, ${ROWS}) n; ${more}`,
  );

const rows = () => world.servers.host.rows;

const backgroundSessions = () =>
  world.servers.query('select pid from pg_stat_activity where application_name = $1', [BACKGROUND]);

const place = (table: string) => ({ ...world.main, schema: 'public', table });

/** The table as a session of its branch finds it. */
const look = (table: string) =>
  inBranch(world.servers.host, place(table), 'read', async (session) =>
    orderedTable(await describeTable(session, place(table)), place(table)),
  ) as Promise<OrderedTable>;

const isWalking = async (table: string) =>
  rows().walks.isWalking(world.main.branch_id, (await look(table)).name);

const walked = async (table: string) => {
  const { name } = await look(table);
  await eventually(async () => expect(rows().walks.isWalking(world.main.branch_id, name)).toBe(false));
};

const farthestMark = async (table: string) => {
  const { name, description } = await look(table);
  return rows().marks.before(name, description.state, ROWS)?.offset ?? null;
};

/** Counts the rows that sessions of readers pass over with a cursor. */
function passedOver() {
  const passed: number[] = [];
  const query = pg.Client.prototype.query as (this: pg.Client, ...given: unknown[]) => unknown;
  vi.spyOn(pg.Client.prototype, 'query').mockImplementation(function (this: pg.Client, ...given: unknown[]) {
    const text = (given[0] as { text?: string } | undefined)?.text ?? '';
    const { application_name } = (this as unknown as { connectionParameters: pg.ClientConfig })
      .connectionParameters;
    const [, count] = /^FETCH RELATIVE (\d+)/.exec(text) ?? [];
    if (count && application_name !== BACKGROUND) passed.push(Number(count));
    return Reflect.apply(query, this, given);
  } as never);
  return () => passed.reduce((sum, count) => sum + count, 0);
}

test('who has read one page of a large table finds any other without passing over the rows before it', async () => {
  // Never analyzed: what was loaded is known from the statistics alone.
  await large('fresh');
  await browser.page('fresh');
  await walked('fresh');
  expect(await farthestMark('fresh')).toBe(59_000);
  const passed = passedOver();
  for (const offset of [59_950, 30_500, 1_000]) {
    expect((await browser.page('fresh', offset, 1)).rows).toEqual([{ id: offset + 1, note: 'n' }]);
  }
  expect(passed()).toBeLessThan(2_000);
});

test('it is done once for each state of the table', async () => {
  await large('once');
  const start = vi.spyOn(rows().walks, 'start');
  await browser.page('once');
  await walked('once');
  await browser.page('once', 100);
  await browser.page('once', 59_000);
  expect(start).toHaveBeenCalledTimes(1);
  await browser.owner('delete from once where id = 5');
  await browser.page('once');
  expect(start).toHaveBeenCalledTimes(2);
});

test('a page deep in a table that is being walked waits for the mark, and walks no second time', async () => {
  await large('slow', 'create index on slow ((id + holds_up(0.2)))');
  await browser.page('slow');
  const passed = passedOver();
  expect((await browser.page('slow', 59_950, 1)).rows).toEqual([{ id: 59_951, note: 'n' }]);
  expect(passed()).toBeLessThan(ROWS / 2);
});

test('a page that needs no mark waits for no walk', async () => {
  await large('near', 'create index on near ((id + holds_up(0.9)))');
  await browser.page('near');
  expect((await browser.page('near', 50, 1)).rows).toEqual([{ id: 51, note: 'n' }]);
  expect(await isWalking('near')).toBe(true);
});

test('a walk that is over before its end leaves the marks it has', async () => {
  await large('partly');
  const marks = new PageMarks();
  let asked = 0;
  const { name, description } = await look('partly');
  await inBranch(world.servers.host, place('partly'), 'background', async (session) => {
    const table = orderedTable(await describeTable(session, place('partly')), place('partly'));
    await seek(marks, session, table as OrderedTable, ROWS, () => ++asked > 4);
  });
  expect(marks.before(name, description.state, ROWS)?.offset).toBe(3_000);
});

test.each([
  ['a small table', 'create table small (id int primary key); insert into small values (1)', 'small'],
  [
    'a table without a key',
    `create table bare (id int); insert into bare select generate_series(1, ${ROWS})`,
    'bare',
  ],
  ['a view', `create view wide as select n as id from generate_series(1, ${ROWS}) n`, 'wide'],
  [
    'a partitioned table',
    `create table split (id int primary key) partition by range (id);
     create table split_1 partition of split for values from (0) to (100000);
     insert into split select generate_series(1, ${ROWS}); analyze split`,
    'split',
  ],
  [
    'a table with policies',
    `create table guarded (id int primary key); insert into guarded select generate_series(1, ${ROWS});
     alter table guarded enable row level security; create policy mine on guarded using (holds_up(60) = 1)`,
    'guarded',
  ],
])('%s is not walked', async (_about, sql, table) => {
  await browser.owner(sql);
  const start = vi.spyOn(rows().walks, 'start');
  expect((await browser.page(table, 0, 1)).rows).toHaveLength(1);
  expect(start).not.toHaveBeenCalled();
});

describe("a walk that the tenant's code holds up", () => {
  const hold = async (table: string) => {
    await large(table, `create index on ${table} ((id + clings()))`);
    await browser.page(table);
    await eventually(async () => expect(await backgroundSessions()).toHaveLength(1));
  };

  test('is ended by the server, and keeps no reader out', async () => {
    await hold('held');
    const pages = await Promise.all([0, 50, 100].map((offset) => browser.page('held', offset, 1)));
    expect(pages.map(({ rows: [row] }) => row?.id)).toEqual([1, 51, 101]);
    await eventually(async () => expect(await backgroundSessions()).toEqual([]));
    expect((await browser.page('held', 59_000, 1)).rows).toEqual([{ id: 59_001, note: 'n' }]);
  });

  test('is in no clone’s way', async () => {
    await hold('cloned');
    const branch: Branch = world.project.plan('db_marks_prod_br_copy');
    // Less than the walk would take.
    const [, clone] = await Promise.all([
      world.project.prepare(branch),
      world.project.clone(branch, world.main.database, 200),
    ]);
    expect(clone.created).toBe(true);
    await world.project.publish(branch);
    const [count] = await asClient(
      world.servers.host,
      'direct',
      branch,
      'read_only',
      'select count(*)::int as n from cloned',
    );
    expect(count).toEqual({ n: ROWS });
  });
});
