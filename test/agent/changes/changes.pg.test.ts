import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { stepsOf } from '../../../agent/changes/plan.ts';
import { recordAlone, recordCommit } from '../../../agent/changes/record.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { pollUntil } from '../../../agent/process/loops.ts';
import type { AppliedChange, ChangeStep } from '../../../shared/protocol/change-operations.ts';
import type { MethodResult } from '../../../shared/protocol/operations.ts';
import { eventually } from '../../support/eventually.ts';
import { asClient, type Branch, connect, startHostWithProject } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { describeForecast } from './forecast.ts';
import { describeLint } from './lint.ts';
import { describeMatrix } from './matrix.ts';

const DATABASE = 'db_changed';
const CONTENT = `
  CREATE TABLE book (id int PRIMARY KEY, title text, price numeric);
  INSERT INTO book SELECT n, 'title ' || n, n FROM generate_series(1, 2000) AS n;
  CREATE TABLE author (id int PRIMARY KEY);
  CREATE SCHEMA app; CREATE TABLE app.item (id int)`;

let stage: Awaited<ReturnType<typeof startHostWithProject>>;
beforeAll(async () => {
  stage = await startHostWithProject(DATABASE, CONTENT);
});
afterAll(() => stage?.servers.stop());

const ofMain = ({ project_id, branch_id, database }: Branch) => ({ project_id, branch_id, database });
const host = () => stage.servers.host;
const owner = <R extends object = Record<string, unknown>>(sql: string) =>
  asClient<R>(host(), 'direct', stage.main, 'owner', sql);

type Plan = MethodResult<'change.plan'>;
type Rehearsed = MethodResult<'change.rehearse'>;

const plan = (sql: string) =>
  runOperation(host(), 'change.plan', { ...ofMain(stage.main), sql, branch: null });
const rehearse = ({ steps }: { steps: ChangeStep[] }) =>
  runOperation(host(), 'change.rehearse', {
    ...ofMain(stage.main),
    job_id: randomUUID(),
    source: stage.main.database,
    busy_wait: 5_000,
    steps,
  });

interface Options {
  change_id?: string;
  job_id?: string;
  done?: number;
  schema?: string;
  attempts?: number;
  lock_timeout_ms?: number;
  budget_ms?: number | null;
}

const apply = (
  { steps, schema }: Plan,
  rehearsed: Rehearsed,
  options: Options = {},
): Promise<AppliedChange> =>
  runOperation(host(), 'change.apply', {
    ...ofMain(stage.main),
    change_id: randomUUID(),
    job_id: randomUUID(),
    steps: steps.map((step, at) => ({
      ...step,
      is_bounded: (rehearsed.steps[at]?.locks.length ?? 0) > 0,
      schema: rehearsed.steps[at]?.schema ?? null,
    })),
    done: 0,
    schema,
    lock_timeout_ms: 200,
    attempts: 3,
    budget_ms: 5_000,
    ...options,
  });

const modesOf = (rehearsed: Rehearsed, at: number) =>
  rehearsed.steps[at]?.locks.map(({ name, mode }) => `${name} ${mode}`);

test('a change is planned, rehearsed and applied, and main has the schema of the rehearsed clone', async () => {
  const planned = await plan(`
    SET search_path = app, public;
    ALTER TABLE item ADD note text; -- of app, by the search path
    begin; ALTER TABLE book ADD stock int; UPDATE book SET stock = 1; commit;
    CREATE INDEX CONCURRENTLY by_price ON book (price);
    DELETE FROM book WHERE id = 7`);
  expect(planned.steps.map(({ statements, alone, sets }) => [statements.length, alone, sets])).toEqual([
    [1, false, true],
    [1, false, false],
    [2, false, false],
    [1, true, false],
    [1, false, false],
  ]);
  const rehearsed = await rehearse(planned);
  expect(rehearsed.error).toBeNull();
  expect(rehearsed.schema_before).toBe(planned.schema);
  expect(modesOf(rehearsed, 1)).toEqual(['item AccessExclusiveLock']);
  expect(modesOf(rehearsed, 2)).toEqual(['book AccessExclusiveLock']);
  // The locks of an index that is built concurrently, and of a deletion, block no writer.
  expect([modesOf(rehearsed, 3), modesOf(rehearsed, 4)]).toEqual([[], []]);
  expect(rehearsed.report.verdict).toBe('danger');
  expect(rehearsed.report.dangers).toEqual([{ kind: 'rows_lost', schema: 'public', name: 'book' }]);
  expect(rehearsed.report.changes.map(({ identity }) => identity).toSorted()).toEqual([
    'app.item.note',
    'public.book.stock',
    'public.by_price',
  ]);
  expect(await owner('SELECT count(*)::int AS n FROM book')).toEqual([{ n: 2000 }]);

  const applied = await apply(planned, rehearsed);
  expect(applied).toMatchObject({ reason: null, error: null, done: 5, schema: rehearsed.schema_after });
  expect(await owner('SELECT count(*)::int AS n, sum(stock)::int AS stock FROM book')).toEqual([
    { n: 1999, stock: 1999 },
  ]);
  // Everything that is made belongs to the owners of the project.
  const [made] = await owner<{ owner: string }>(
    "SELECT relowner::regrole::text AS owner FROM pg_class WHERE relname = 'by_price'",
  );
  expect(made?.owner).toMatch(/^g_[0-9a-f]{32}_owner$/);
  const left = await stage.servers.query("SELECT datname FROM pg_database WHERE datname LIKE 'bgchange%'");
  expect(left).toEqual([]);
});

describe('a reading of the schema while main is cloned', () => {
  const readSchema = () => runOperation(host(), 'change.schema', ofMain(stage.main));
  const selection = `FROM pg_stat_activity
    WHERE datname = '${DATABASE}' AND application_name = 'branchgate-difference'`;
  /** A dump of a schema that changed waits for the table, until the returned function is called. */
  async function locked() {
    await owner(`COMMENT ON TABLE book IS '${randomUUID()}'`);
    const session = await connect(host(), 'direct', stage.main, 'owner');
    await session.query('BEGIN; LOCK TABLE book');
    return () => session.end();
  }
  /** Ends sessions as a clone does, while the dump waits. */
  const end = async (matching = '') => {
    await eventually(async () =>
      expect(await stage.servers.query(`SELECT ${selection} AND wait_event_type = 'Lock'`)).toHaveLength(1),
    );
    return stage.servers.query(`SELECT pg_terminate_backend(pid, 1000) ${selection} ${matching}`);
  };

  test.each([
    ['all sessions', ''],
    ['the dump', "AND wait_event_type = 'Lock'"],
    ['the session of the snapshot', "AND wait_event_type <> 'Lock'"],
  ])('begins again after the end of %s', async (_, matching) => {
    const unlock = await locked();
    const reading = readSchema();
    reading.catch(() => {});
    expect((await end(matching)).length).toBeGreaterThan(0);
    await unlock();
    expect(await reading).toEqual(await readSchema());
  });

  test('is refused as busy when three attempts were ended', async () => {
    const unlock = await locked();
    const reading = expect(readSchema()).rejects.toMatchObject({ code: 'HOST_BUSY' });
    for (let attempt = 0; attempt < 3; attempt += 1) await end();
    await unlock();
    await reading;
  });
});

test('a statement that PostgreSQL refuses is found by the rehearsal; in main it fails there, and can continue', async () => {
  const planned = await plan(`
    CREATE TABLE shelf (id int);
    ALTER TABLE book ADD CONSTRAINT cheap CHECK (price < 100000);
    CREATE TABLE room (id int)`);
  const refused = await rehearse({ steps: [...stepsOf('CREATE TABLE shelf (id int); SELECT 1/0')] });
  expect(refused.error).toEqual({ statement: 2, sqlstate: '22012', message: 'division by zero' });
  expect(refused.steps).toHaveLength(1);

  const rehearsed = await rehearse(planned);
  await owner('INSERT INTO book VALUES (100001, $$dear$$, 100001)');
  const change_id = randomUUID();
  const failed = await apply(planned, rehearsed, { change_id });
  expect(failed).toMatchObject({ reason: 'refused', done: 1, error: { statement: 2, sqlstate: '23514' } });
  await owner('DELETE FROM book WHERE id = 100001');
  const continued = await apply(planned, rehearsed, { change_id, done: failed.done, schema: failed.schema });
  expect(continued).toMatchObject({ reason: null, done: 3, schema: rehearsed.schema_after });
  expect(continued.steps.map(({ step }) => step)).toEqual([2, 3]);
});

test('a plan from a branch says what main has got since the branch was made', async () => {
  await owner(`CREATE TABLE base_a (id int, gone int); CREATE TABLE base_b (id int); CREATE TYPE base_t AS ENUM ('one');
    CREATE FUNCTION base_f() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE VIEW base_v AS SELECT id FROM base_a`);
  const branch = await stage.project.create(`${DATABASE}_br_since`, DATABASE);
  const sql = 'SELECT 1';
  const since = async (of: Branch) =>
    (await runOperation(host(), 'change.plan', { ...ofMain(stage.main), sql, branch: of.database }))
      .main_changes;
  expect(await since(branch)).toEqual([]);
  await asClient(host(), 'direct', branch, 'owner', 'CREATE TABLE of_branch (id int); DROP FUNCTION base_f');
  // The server writes the same rows of the catalogs for other reasons.
  await owner('INSERT INTO base_a SELECT 1 FROM generate_series(1, 1000)');
  await owner('TRUNCATE base_b');
  await owner('VACUUM FULL base_a');
  await owner('ANALYZE base_a');
  expect(await since(branch)).toEqual([]);
  await owner(`ALTER TABLE base_a DROP gone, ADD note text; ALTER TABLE base_a ENABLE ROW LEVEL SECURITY; DROP TABLE base_b;
    CREATE TABLE base_c (id int); ALTER TYPE base_t ADD VALUE 'two';
    CREATE OR REPLACE FUNCTION base_f() RETURNS int LANGUAGE sql AS 'SELECT 2'`);
  const found = [
    ['table', 'public.base_a', 'changed'],
    ['table column', 'public.base_a.gone', 'dropped'],
    ['table column', 'public.base_a.note', 'added'],
    ['table', 'public.base_b', 'dropped'],
    ['table', 'public.base_c', 'added'],
    // The branch has dropped it.
    ['function', 'public.base_f()', 'added'],
    ['type', 'public.base_t', 'changed'],
  ].map(([kind, identity, change]) => ({ kind, identity, change }));
  expect(await since(branch)).toEqual(found);
  // Over a snapshot of the branch, or another branch, it is the same.
  const later = await stage.project.create(`${DATABASE}_br_later`, branch.database);
  expect(await since(later)).toEqual(found);
  const empty = await stage.project.create(`${DATABASE}_br_empty`, null);
  expect(await since(empty)).toBeNull();
  for (const made of [later, branch, empty]) await stage.project.drop(made);
  await owner('DROP VIEW base_v; DROP TABLE base_a, base_c; DROP TYPE base_t; DROP FUNCTION base_f');
});

test('a plan from a branch has what a migration tool has written there', async () => {
  await owner(`CREATE TABLE _prisma_migrations (id text PRIMARY KEY, checksum text, finished_at timestamptz);
    INSERT INTO _prisma_migrations VALUES ('a', 'first', '2026-05-01 12:00+00');
    CREATE SCHEMA drizzle; CREATE TABLE drizzle.__drizzle_migrations (id serial PRIMARY KEY, hash text, created_at bigint);
    INSERT INTO drizzle.__drizzle_migrations (hash, created_at) VALUES ('one', 1);
    CREATE TABLE schema_migrations (version bigint PRIMARY KEY, dirty boolean); INSERT INTO schema_migrations VALUES (1, false);
    CREATE TABLE migrations (id serial, animal text)`);
  const branch = await stage.project.create(`${DATABASE}_br_tool`, DATABASE);
  await asClient(
    host(),
    'direct',
    branch,
    'owner',
    `INSERT INTO _prisma_migrations VALUES ('b', 'it''s \\ "second"', NULL);
    INSERT INTO drizzle.__drizzle_migrations (hash, created_at) VALUES ('two', 2), ('three', 3);
    UPDATE schema_migrations SET version = 2; INSERT INTO migrations (animal) VALUES ('goose')`,
  );
  // Main has run something else meanwhile.
  await owner("INSERT INTO drizzle.__drizzle_migrations (hash, created_at) VALUES ('other', 9)");
  const planned = await runOperation(host(), 'change.plan', {
    ...ofMain(stage.main),
    sql: 'CREATE TABLE migrated (id int)',
    branch: branch.database,
  });
  const rehearsed = await rehearse(planned);
  expect(rehearsed.error).toBeNull();
  expect(await apply(planned, rehearsed)).toMatchObject({ reason: null, schema: rehearsed.schema_after });
  expect(
    await owner('SELECT id, checksum, finished_at IS NULL AS unfinished FROM _prisma_migrations ORDER BY id'),
  ).toEqual([
    { id: 'a', checksum: 'first', unfinished: false },
    { id: 'b', checksum: 'it\'s \\ "second"', unfinished: true },
  ]);
  // The next migration of the tool gets the next number.
  await owner("INSERT INTO drizzle.__drizzle_migrations (hash, created_at) VALUES ('four', 4)");
  expect(await owner('SELECT id, hash FROM drizzle.__drizzle_migrations ORDER BY id')).toEqual(
    ['one', 'other', 'two', 'three', 'four'].map((hash, at) => ({ id: at + 1, hash })),
  );
  expect(await owner('SELECT version::int FROM schema_migrations')).toEqual([{ version: 2 }]);
  expect(await owner('SELECT * FROM migrations')).toEqual([]);
  const again = await runOperation(host(), 'change.plan', {
    ...ofMain(stage.main),
    sql: 'SELECT 1',
    branch: branch.database,
  });
  expect(again.steps).toHaveLength(1);
  // Rows of any size would make a plan that nothing can store.
  for (const [bytes, reason] of [
    [300_000, /at most 262144 characters/],
    [5_000_000, /rows of public\._prisma_migrations are too large/],
  ] as const) {
    const logs = `INSERT INTO _prisma_migrations VALUES ('${bytes}', repeat('x', ${bytes}), NULL)`;
    await asClient(host(), 'direct', branch, 'owner', logs);
    const wanted = { ...ofMain(stage.main), sql: 'SELECT 1', branch: branch.database };
    await expect(runOperation(host(), 'change.plan', wanted)).rejects.toMatchObject({
      code: 'INVALID_CALL',
      message: expect.stringMatching(reason),
    });
  }
  await stage.project.drop(branch);
  await owner(
    'DROP TABLE migrated, _prisma_migrations, schema_migrations, migrations; DROP SCHEMA drizzle CASCADE',
  );
});

test('main with another schema than that of the plan is not changed', async () => {
  const planned = await plan('CREATE TABLE late (id int)');
  const rehearsed = await rehearse(planned);
  await owner('ALTER TABLE author ADD name text');
  expect(await apply(planned, rehearsed)).toMatchObject({ reason: 'stale', done: 0, steps: [] });
  expect(await owner("SELECT to_regclass('late') AS late")).toEqual([{ late: null }]);
});

describe('a lock that another session holds', () => {
  test('nobody queues behind the change for longer than its timeout, and it gives up', async () => {
    const planned = await plan('ALTER TABLE author ADD born date');
    const rehearsed = await rehearse(planned);
    const holder = await connect(host(), 'direct', stage.main, 'owner');
    const reader = await connect(host(), 'direct', stage.main, 'owner');
    await holder.query('BEGIN; LOCK TABLE author IN ACCESS SHARE MODE');
    let isOver = false;
    const waits: number[] = [];
    const reading = (async () => {
      while (!isOver) {
        const began = performance.now();
        await reader.query('SELECT count(*) FROM author');
        waits.push(performance.now() - began);
      }
    })();
    const change_id = randomUUID();
    const stopped = await apply(planned, rehearsed, { change_id, lock_timeout_ms: 300, attempts: 4 });
    expect(stopped).toMatchObject({
      reason: 'lock_timeout',
      done: 0,
      error: { statement: 1, sqlstate: '55P03' },
    });
    expect(stopped.steps).toMatchObject([{ step: 1, attempts: 4 }]);
    await holder.query('COMMIT');
    const continued = await apply(planned, rehearsed, { change_id });
    isOver = true;
    await reading;
    expect(continued).toMatchObject({ reason: null, done: 1 });
    // Without the timeout, the reader would have waited for the holder.
    expect(Math.max(...waits)).toBeGreaterThan(200);
    // By day other files run on the same processors.
    expect(Math.max(...waits)).toBeLessThan(300 + (IS_NIGHTLY ? 200 : 5_000));
    await Promise.all([holder.end(), reader.end()]);
  });

  test('a statement over its budget is ended, and nothing of it stays', async () => {
    const planned = await plan('begin; ALTER TABLE author ADD died date; SELECT pg_sleep(30); commit');
    const short = planned.steps.map((step) => ({ ...step, statements: step.statements.slice(0, 1) }));
    const rehearsed = await rehearse({ steps: short });
    const stopped = await apply(planned, rehearsed, { budget_ms: 400 });
    expect(stopped).toMatchObject({ reason: 'over_budget', done: 0, error: { statement: 2 } });
    expect(await owner("SELECT count(*)::int AS n FROM pg_attribute WHERE attname = 'died'")).toEqual([
      { n: 0 },
    ]);
  });
});

describe('after a kill', () => {
  /** The record of a call that was killed while a step was under way. */
  async function killed(planned: Plan, done: number): Promise<{ change_id: string; job_id: string }> {
    const ids = { change_id: randomUUID(), job_id: randomUUID() };
    await stage.servers.query(
      'INSERT INTO applied_change (change_id, job_id, branch_id, done) VALUES ($1, $2, $3, $4)',
      [ids.change_id, ids.job_id, stage.main.branch_id, done],
    );
    expect(planned.steps.length).toBeGreaterThan(done);
    return ids;
  }

  test('PostgreSQL says whether the transaction of a step was committed', async () => {
    const planned = await plan('CREATE TABLE once (id int); INSERT INTO once VALUES (1)');
    const rehearsed = await rehearse(planned);
    const session = await connect(host(), 'direct', stage.main, 'owner');
    const xidOf = async (end: 'COMMIT' | 'ROLLBACK', sql: string) => {
      await session.query(`BEGIN; ${sql}`);
      const { rows } = await session.query<{ xid: string }>('SELECT pg_current_xact_id()::text AS xid');
      await session.query(end);
      return rows[0]?.xid ?? '';
    };
    const ids = await killed(planned, 0);
    await recordCommit(host().postgres, ids.change_id, await xidOf('ROLLBACK', 'CREATE TABLE once (id int)'));
    expect(await apply(planned, rehearsed, ids)).toMatchObject({ reason: null, done: 2 });
    const again = await killed(planned, 1);
    await recordCommit(
      host().postgres,
      again.change_id,
      await xidOf('COMMIT', 'INSERT INTO once VALUES (2)'),
    );
    const resumed = await apply(planned, rehearsed, again);
    expect(resumed).toMatchObject({ reason: null, done: 2, steps: [] });
    expect(await owner('SELECT id FROM once ORDER BY id')).toEqual([{ id: 1 }, { id: 2 }]);
    await session.end();
  });

  test('an index that was left invalid is dropped, and built again; one that is complete is kept', async () => {
    const planned = await plan('CREATE UNIQUE INDEX CONCURRENTLY by_title ON book (title)');
    const rehearsed = await rehearse(planned);
    const ids = await killed(planned, 0);
    await recordAlone(host().postgres, ids.change_id, { schema: planned.schema, invalid: [] });
    await owner("INSERT INTO book VALUES (9001, 'twice'), (9002, 'twice')");
    await expect(owner('CREATE UNIQUE INDEX CONCURRENTLY by_title ON book (title)')).rejects.toThrow(
      'could not create',
    );
    await owner('DELETE FROM book WHERE id > 9000');
    expect(await apply(planned, rehearsed, ids)).toMatchObject({
      reason: null,
      done: 1,
      schema: rehearsed.schema_after,
    });
    expect(await owner("SELECT indisvalid FROM pg_index WHERE indexrelid = 'by_title'::regclass")).toEqual([
      { indisvalid: true },
    ]);

    const complete = await killed(planned, 0);
    await recordAlone(host().postgres, complete.change_id, { schema: planned.schema, invalid: [] });
    expect(await apply(planned, rehearsed, complete)).toMatchObject({ reason: null, done: 1, steps: [] });
  });

  test.runIf(IS_NIGHTLY)('between any two steps, each step is applied once', async () => {
    const texts = [
      'CREATE TABLE counted (id int)',
      'INSERT INTO counted VALUES (1)',
      'begin; INSERT INTO counted VALUES (2); INSERT INTO counted VALUES (3); commit',
      'CREATE INDEX CONCURRENTLY by_id ON counted (id)',
      'INSERT INTO counted VALUES (4)',
      'DROP INDEX CONCURRENTLY by_id',
    ];
    for (let at = 0; at <= texts.length; at += 1) {
      const planned = await plan(texts.join(';'));
      const rehearsed = await rehearse(planned);
      const ids = { change_id: randomUUID(), job_id: randomUUID() };
      if (at > 0)
        expect(await apply({ ...planned, steps: planned.steps.slice(0, at) }, rehearsed, ids)).toMatchObject({
          done: at,
        });
      const resumed = await apply(planned, rehearsed, ids);
      expect(resumed).toMatchObject({ reason: null, done: texts.length, schema: rehearsed.schema_after });
      expect(resumed.steps).toHaveLength(texts.length - at);
      expect(await owner('SELECT id FROM counted ORDER BY id')).toEqual([1, 2, 3, 4].map((id) => ({ id })));
      await owner('DROP TABLE counted');
    }
  });

  test('a call that the gateway has abandoned ends, and says how far it is', async () => {
    const planned = await plan(
      'CREATE TABLE first (id int); SELECT pg_sleep(60); CREATE TABLE second (id int)',
    );
    const rehearsed = await rehearse({ steps: planned.steps.slice(0, 1) });
    const ids = { change_id: randomUUID(), job_id: randomUUID() };
    const applying = apply(planned, rehearsed, ids);
    const sleeps = () =>
      stage.servers.query(
        "SELECT FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND application_name = 'branchgate-change'",
      );
    expect(await pollUntil(async () => (await sleeps()).length > 0, { within: 60_000, every: 50 })).toBe(
      true,
    );
    const settled = await runOperation(host(), 'change.settle', { ...ofMain(stage.main), ...ids, done: 0 });
    expect(settled.done).toBe(1);
    expect(await applying).toMatchObject({ reason: 'interrupted', done: 1, schema: settled.schema });
  });
});

describeForecast(() => stage);
describeLint(() => stage);
describeMatrix(() => stage);
