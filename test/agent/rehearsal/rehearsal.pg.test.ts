import { afterAll, beforeAll, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { pollUntil } from '../../../agent/process/loops.ts';
import { NO_SAMPLES } from '../../../agent/rehearsal/lock-record.ts';
import { LockSampler } from '../../../agent/rehearsal/sample-locks.ts';
import { beginRehearsal, readRunning, storeLocks } from '../../../agent/rehearsal/stored-rehearsals.ts';
import { watchIn } from '../../../agent/rehearsal/watched-tables.ts';
import { inBranch } from '../../../agent/rows/branch-session.ts';
import type { RehearsalReport } from '../../../shared/protocol/rehearsal-operations.ts';
import { asClient, type Branch, connect, startHostWithProject } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const DATABASE = 'db_rehearsed';
const CONTENT = `
  CREATE TABLE book AS SELECT n AS id, 'title ' || n AS title FROM generate_series(1, 2000) AS n;
  CREATE TABLE author (id int PRIMARY KEY); INSERT INTO author VALUES (1), (2), (3);
  CREATE TABLE shelf AS SELECT * FROM book; CREATE TABLE sealed (id int); INSERT INTO sealed VALUES (1);
  ALTER TABLE sealed ENABLE ROW LEVEL SECURITY;
  CREATE POLICY p ON sealed USING (pg_sleep(60) IS NULL)`;
const LIMITS = { lock_ms: 1_000, table_bytes: 50_000 };

let stage: Awaited<ReturnType<typeof startHostWithProject>>;
let stop = new AbortController();
let sampling: Promise<void>;

beforeAll(async () => {
  stage = await startHostWithProject(DATABASE, CONTENT);
  sampling = stage.servers.host.lockSampler.run(stop.signal);
});
afterAll(async () => {
  stop.abort();
  await sampling;
  await stage?.servers.stop();
});

const run = (branch: Branch, sql: string) =>
  asClient(stage.servers.host, 'direct', branch, 'owner', sql).then(() => {});

const begin = ({ branch_id, database }: Branch) =>
  runOperation(stage.servers.host, 'rehearsal.start', { branch_id, database, limits: LIMITS });
const finish = ({ branch_id, database }: Branch) =>
  runOperation(stage.servers.host, 'rehearsal.finish', { branch_id, database });
const rehearsals = () => stage.servers.query('SELECT branch_id FROM rehearsal');

/** The report about the statements, each in a transaction of its own. */
async function rehearse(name: string, ...statements: string[]): Promise<RehearsalReport> {
  const branch = await stage.project.create(`${DATABASE}_br_${name}`, DATABASE);
  expect(await begin(branch)).toMatchObject({ state: 'running', limits: LIMITS, report: null });
  for (const statement of statements) await run(branch, statement);
  const { rehearsal } = await finish(branch);
  // A repeated call changes nothing.
  expect(await finish(branch)).toEqual({ rehearsal });
  await stage.project.drop(branch);
  expect(rehearsal).toMatchObject({ state: 'finished', finished_at: expect.any(String) });
  return rehearsal?.report as RehearsalReport;
}

const dangersOf = ({ dangers }: RehearsalReport) => dangers.map(({ kind, name }) => `${kind} ${name}`);
const tableOf = ({ tables }: RehearsalReport, name: string) => tables.find((table) => table.name === name);

test('a rehearsal finds a rewrite, a lock of 2 s and lost rows; an index built concurrently is safe', async () => {
  const dangerous = await rehearse(
    'dangerous',
    'ALTER TABLE book ALTER id TYPE bigint',
    "INSERT INTO book VALUES (0, 'new')",
    'DELETE FROM author WHERE id = 2',
    'BEGIN; LOCK TABLE shelf IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(2); COMMIT',
  );
  const index = await rehearse('index', 'CREATE INDEX CONCURRENTLY by_title ON book (title)');
  expect(dangersOf(dangerous).toSorted()).toEqual(['lock shelf', 'rewrite book', 'rows_lost author']);
  expect(dangerous.schema.changes).toEqual([
    { kind: 'column', identity: 'public.book.id', change: 'changed', detail: 'type' },
  ]);
  expect(dangerous.wal).toMatchObject({ exact: true });
  expect(dangerous.wal.bytes).toBeGreaterThan(50_000);
  const held = tableOf(dangerous, 'shelf')?.locks.find(({ mode }) => mode === 'AccessExclusiveLock');
  expect(held?.longest_ms).toBeGreaterThanOrEqual(LIMITS.lock_ms);
  expect(tableOf(dangerous, 'author')).toMatchObject({
    rows_before: { count: 3, exact: true },
    rows_after: { count: 2, exact: true },
  });
  expect(tableOf(dangerous, 'book')?.rows_after).toEqual({ count: 2001, exact: true });
  // Counting would run the policy of the tenant.
  expect(tableOf(dangerous, 'sealed')).toBeUndefined();

  expect(index).toMatchObject({ verdict: 'safe', dangers: [] });
  expect(index.schema.changes).toEqual([{ kind: 'index', identity: 'public.by_title', change: 'added' }]);
  expect(await rehearsals()).toEqual([]);
});

test.runIf(IS_NIGHTLY)('a restarted agent continues, and reports what the one before has seen', async () => {
  const { host, query } = stage.servers;
  const branch = await stage.project.create(`${DATABASE}_br_restart`, DATABASE);
  await begin(branch);
  const migration = await connect(host, 'direct', branch, 'owner');
  await migration.query('BEGIN; CREATE TABLE later (id int); LOCK TABLE book IN ACCESS EXCLUSIVE MODE');
  const isStored = async () => {
    const [row] = await query<{ longest: number[] }>(
      'SELECT jsonb_path_query_array(locks, $$$.longest.*$$) AS longest FROM rehearsal',
    );
    return (row?.longest ?? []).some((ms) => ms >= 1_000);
  };
  expect(await pollUntil(isStored, { within: 60_000, every: 50 })).toBe(true);
  await migration.query('COMMIT');
  await migration.end();
  // A tenant could lock ever new tables, and fill the record.
  const [locked] = await query<{ keys: string[] }>(
    'SELECT array(SELECT jsonb_object_keys(locks -> $$longest$$)) AS keys FROM rehearsal',
  );
  const [book] = await asClient<{ key: string }>(
    host,
    'direct',
    branch,
    'owner',
    "SELECT 'book'::regclass::oid || ' AccessExclusiveLock' AS key",
  );
  expect(locked?.keys).toEqual([book?.key]);
  stop.abort();
  await sampling;
  host.lockSampler = new LockSampler(host.postgres, () => {});
  stop = new AbortController();
  sampling = host.lockSampler.run(stop.signal);
  await run(branch, 'ALTER TABLE author ADD note text');
  const { rehearsal } = await finish(branch);
  expect(rehearsal?.report?.dangers).toEqual([{ kind: 'lock', schema: 'public', name: 'book' }]);
  expect(rehearsal?.report?.schema.changes).toMatchObject([
    { kind: 'column', change: 'added' },
    { kind: 'table', change: 'added' },
  ]);
  await stage.project.drop(branch);
});

test('a rehearsal that begins again has no lock of the one before, and nothing is left if it is never finished', async () => {
  const { postgres } = stage.servers.host;
  const branch = await stage.project.create(`${DATABASE}_br_killed`, DATABASE);
  await begin(branch);
  const [before] = await readRunning(postgres);
  await begin(branch);
  // As an agent does that does not know of the new one yet.
  const seen = { ...NO_SAMPLES, samples: 1_000_000 };
  await storeLocks(postgres, branch.branch_id, before?.started_at ?? '', seen);
  const [after] = await readRunning(postgres);
  expect(after?.locks.samples).toBeLessThan(1_000);
  expect(after?.started_at).not.toBe(before?.started_at);
  expect(await rehearsals()).toEqual([{ branch_id: branch.branch_id }]);
  await stage.project.drop(branch);
  expect(await rehearsals()).toEqual([]);
  const { branch_id, database } = branch;
  expect(await runOperation(stage.servers.host, 'rehearsal.read', { branch_id, database })).toEqual({
    rehearsal: null,
  });
});

test('a table that has been counted is not locked any more', async () => {
  const { branch_id, database } = stage.main;
  const found = await inBranch(stage.servers.host, { branch_id, database }, 'query', async (session) => {
    const { tables } = await watchIn(session);
    const { rows } = await session.query(
      'SELECT relation FROM pg_locks WHERE pid = pg_backend_pid() AND relation >= 16384',
    );
    return { counted: tables.filter((table) => table.rows !== null).map(({ name }) => name), locked: rows };
  });
  expect(found).toEqual({ counted: expect.arrayContaining(['author', 'book']), locked: [] });
});

test('of rehearsals that begin together, a project gets no more than its number', async () => {
  const { host, query } = stage.servers;
  const others = await query<{ branch_id: string; database: string }>(
    `INSERT INTO branch (branch_id, project_id, job_id, database)
     SELECT gen_random_uuid(), '${stage.project.id}', gen_random_uuid(), 'db_parallel_' || n
     FROM generate_series(1, 6) AS n RETURNING branch_id, database`,
  );
  const nothing = { limits: LIMITS, tables: { tables: [], unwatched: 0 }, schema: '', bytes: null };
  // Rehearsals can be counted, but not stored, until all have begun.
  const session = await host.postgres.connect();
  await session.query('BEGIN; LOCK TABLE rehearsal IN SHARE MODE');
  const beginning = Promise.allSettled(
    others.map((branch) => beginRehearsal(host.sessions, { ...branch, ...nothing })),
  );
  const waiting =
    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
  const allWait = async () => (await query(waiting)).length >= others.length;
  expect(await pollUntil(allWait, { within: 60_000, every: 50 })).toBe(true);
  await session.query('COMMIT');
  session.release();
  const begun = await beginning;
  await query("DELETE FROM branch WHERE database LIKE 'db\\_parallel\\_%'");
  const reasons = begun.flatMap((result) => (result.status === 'rejected' ? [result.reason.code] : []));
  expect(reasons).toEqual(['PROJECT_BUSY', 'PROJECT_BUSY']);
});

test('no two projects take all places of a host', async () => {
  const { host, query } = stage.servers;
  const nothing = { limits: LIMITS, tables: { tables: [], unwatched: 0 }, schema: '', bytes: null };
  const branches = await query<{ project_id: string; branch_id: string; database: string }>(
    `WITH made AS MATERIALIZED (SELECT gen_random_uuid() AS project FROM generate_series(1, 6))
     INSERT INTO branch (branch_id, project_id, job_id, database)
     SELECT gen_random_uuid(), project, gen_random_uuid(), 'db_fair_' || row_number() OVER ()
     FROM made CROSS JOIN generate_series(1, 5) RETURNING project_id, branch_id, database`,
  );
  const byProject = [...Map.groupBy(branches, ({ project_id }) => project_id).values()];
  /** Of project `at`: how many of the attempts pass, or why the last one does not. */
  const begin = async (at: number, attempts: number) => {
    for (const branch of byProject[at]?.splice(0, attempts) ?? []) {
      const { branch_id, database } = branch;
      const refused = await beginRehearsal(host.sessions, { branch_id, database, ...nothing }).then(
        () => null,
        ({ code }) => code as string,
      );
      if (refused) return refused;
    }
    return attempts;
  };
  try {
    expect(await begin(0, 4)).toBe(4);
    expect(await begin(0, 1)).toBe('PROJECT_BUSY');
    expect(await begin(1, 1)).toBe(1);
    expect(await begin(1, 1)).toBe('PROJECT_BUSY');
    for (const project of [2, 3, 4]) expect(await begin(project, 1)).toBe(1);
    expect(await begin(5, 1)).toBe('HOST_BUSY');
  } finally {
    await query("DELETE FROM branch WHERE database LIKE 'db\\_fair\\_%'");
  }
});
