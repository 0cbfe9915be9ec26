import { randomInt, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { NoCopyRoom } from '../../../agent/cloning/copy-room.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { inDatabase } from '../../../agent/postgres/connect.ts';
import { makeRoom } from '../../../agent/snapshots/make-room.ts';
import { Standing } from '../../../agent/snapshots/standing-snapshots.ts';
import { buildDatabaseName, snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  connect,
  identity,
  Project,
  startHostWithProject,
} from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';

const MAIN = 'db_standing_prod';
/** Beside a writer. */
const CREATIONS = IS_NIGHTLY ? 2_000 : 40;
/** What a branch is asked for. */
const CONTENT = `SELECT (SELECT coalesce(sum(id), 0) FROM item)::int AS items`;

let servers: TestHost;
let project: Project;
let main: Branch;
let now = 0;
let made = 0;
let standing: Standing;

beforeAll(async () => {
  ({ servers, project, main } = await startHostWithProject(
    MAIN,
    `CREATE TABLE item (id int PRIMARY KEY, note text); INSERT INTO item VALUES (1, 'one');
     CREATE TABLE other (id int); CREATE SEQUENCE numbers`,
  ));
  servers.host.cloneMethod = 'reflink';
});
afterAll(() => servers.stop());
beforeEach(async () => {
  if (standing) await standing.dropAll(servers.host);
  standing = new Standing(() => now);
  servers.host.standing = standing;
});

/** Lets so many milliseconds pass, in which the log is read. */
async function pass(ms: number): Promise<void> {
  for (const part of [0, ms]) {
    now += part;
    await standing.keep(servers.host);
  }
}

const snapshots = () => servers.query("SELECT FROM snapshot WHERE kind = 'standing'");

async function create(of = project, source = MAIN) {
  made += 1;
  return of.create(`${source}_br_${made}`, source);
}

/** Two creations of an unchanged `main`: the second one leaves a snapshot. */
async function stand(): Promise<void> {
  await project.drop(await create());
  await pass(31_000);
  await project.drop(await create());
  expect(standing.count).toBe(1);
}

const inBranch = <Row extends object>(branch: Branch, sql: string) =>
  asClient<Row>(servers.host, 'pooled', branch, 'owner', sql);

test('the second creation of an unchanged branch leaves a snapshot, and the next one ends no session', async () => {
  await stand();
  const client = await connect(servers.host, 'direct', main, 'read_only');
  const pid = async () => (await client.query('SELECT pg_backend_pid() AS pid')).rows[0]?.pid;
  const before = await pid();
  const branch = await create();
  expect(branch.clone).toMatchObject({ created: true, strategy: 'reflink', paused_ms: 0 });
  expect([await pid(), standing.taken]).toEqual([before, 1]);
  expect(await inBranch(branch, CONTENT)).toEqual([{ items: 1 }]);
  await inBranch(branch, "INSERT INTO item VALUES (5, 'five'); SELECT nextval('numbers')");
  await client.end();
  expect(await inBranch(main, CONTENT)).toEqual([{ items: 1 }]);
  await project.drop(branch);
});

test('a single creation leaves none, and neither do two of a branch that was just written to', async () => {
  await pass(31_000);
  await project.drop(await create());
  expect(await snapshots()).toEqual([]);
  await pass(3_000);
  await inBranch(main, "UPDATE item SET note = 'again' WHERE id = 1");
  await pass(0);
  await project.drop(await create());
  expect([await snapshots(), standing.count]).toEqual([[], 0]);
});

test('a disk that has no room for it has room for the branch', async () => {
  await project.drop(await create());
  await pass(31_000);
  const { copyRoom } = servers.host;
  copyRoom.during = () => Promise.reject(new NoCopyRoom(1, 'full'));
  await project.drop(await create());
  Reflect.deleteProperty(copyRoom, 'during');
  expect([await snapshots(), standing.count]).toEqual([[], 0]);
});

test('a snapshot needs none', async () => {
  const snapshot_id = randomUUID();
  const { branch_id, database } = main;
  await runOperation(servers.host, 'snapshot.take', {
    project_id: project.id,
    branch_id,
    source: database,
    snapshot_id,
    busy_wait: 9_000,
    unless_same_as: null,
  });
  const ofSnapshot = async () => {
    made += 1;
    await project.drop(await project.create(`${MAIN}_br_${made}`, snapshotDatabaseName(snapshot_id)));
  };
  await project.drop(await create());
  await ofSnapshot();
  await pass(31_000);
  await ofSnapshot();
  expect(await snapshots()).toEqual([]);
  await runOperation(servers.host, 'snapshot.drop', { project_id: project.id, snapshot_id });
});

test('the gateway does not know it: no inventory has it', async () => {
  await stand();
  const { snapshots: listed } = await runOperation(servers.host, 'host.inventory', {});
  expect(listed).toEqual([]);
});

/** Statements of the owner, and what shows them in a branch. */
const CHANGES: [string, string, string, unknown][] = [
  ['a row', 'INSERT INTO other VALUES (7)', 'SELECT sum(id)::int AS is FROM other', 7],
  [
    'a commit that is not flushed',
    'SET synchronous_commit = off; UPDATE other SET id = 8',
    'SELECT sum(id)::int AS is FROM other',
    8,
  ],
  ['the next value of a sequence', "SELECT nextval('numbers')", "SELECT nextval('numbers')::int AS is", 2],
  ['a removal of all rows', 'TRUNCATE other', 'SELECT count(*)::int AS is FROM other', 0],
  [
    'a column',
    'ALTER TABLE other ADD COLUMN more int DEFAULT 3',
    'SELECT count(more)::int AS is FROM other',
    0,
  ],
  [
    'a comment',
    "COMMENT ON TABLE other IS 'seen'",
    "SELECT obj_description('other'::regclass) AS is",
    'seen',
  ],
  ['a large object', "SELECT lo_from_bytea(4711, 'x')", 'SELECT length(lo_get(4711)) AS is', 1],
  ['a table', 'CREATE TABLE third AS SELECT 9 AS id', 'SELECT id AS is FROM third', 9],
  [
    'an unlogged table',
    'CREATE UNLOGGED TABLE fast AS SELECT 4 AS id',
    'SELECT count(*)::int AS is FROM fast',
    1,
  ],
];

describe('a branch has what was committed before', () => {
  test.each(firstByDay(4, CHANGES))('%s', async (_name, change, question, answer) => {
    await stand();
    await inBranch(main, change);
    const branch = await create();
    expect(await inBranch(branch, question)).toEqual([{ is: answer }]);
    await pass(0);
    expect([await snapshots(), standing.count]).toEqual([[], 0]);
    await project.drop(branch);
    await inBranch(main, 'DROP TABLE IF EXISTS fast');
  });

  test('and reading, a vacuum and a change of another branch are no change', async () => {
    const other = await create();
    await stand();
    await inBranch(main, 'SELECT count(*) FROM item');
    await asClient(servers.host, 'pooled', main, 'owner', 'VACUUM (FREEZE) item');
    await inBranch(other, "INSERT INTO item VALUES (6, 'six')");
    await pass(0);
    expect(standing.count).toBe(1);
    const branch = await create();
    expect(standing.taken).toBe(1);
    await Promise.all([project.drop(branch), project.drop(other)]);
  });
});

test('a branch with an unlogged table has none', async () => {
  await inBranch(main, 'CREATE UNLOGGED TABLE fast (id int)');
  await project.drop(await create());
  await pass(31_000);
  await project.drop(await create());
  expect(standing.count).toBe(0);
  await inBranch(main, 'DROP TABLE fast');
});

test('a branch that was reset meanwhile has another database', async () => {
  const branch = await create();
  const { branch_id, database } = branch;
  const again = () => create(project, database);
  await project.drop(await again());
  await pass(31_000);
  await project.drop(await again());
  expect(standing.count).toBe(1);
  await inBranch(main, 'INSERT INTO other VALUES (70)');
  const reset = { job_id: randomUUID(), project_id: project.id, branch_id, database };
  await runOperation(servers.host, 'reset.clone', { ...reset, source: MAIN, busy_wait: 9_000 });
  const snapshot_id = randomUUID();
  await runOperation(servers.host, 'reset.swap', { ...reset, snapshot_id });
  const next = await again();
  expect(await inBranch(next, 'SELECT count(*)::int AS is FROM other WHERE id = 70')).toEqual([{ is: 1 }]);
  await pass(0);
  expect(standing.count).toBe(0);
  await Promise.all([project.drop(next), project.drop(branch)]);
  await runOperation(servers.host, 'snapshot.drop', { project_id: project.id, snapshot_id });
});

test('a creation reads at most 2 MiB of the log, and clones beyond that', async () => {
  await stand();
  const write =
    'CREATE TABLE IF NOT EXISTS filler (t text); INSERT INTO filler SELECT repeat(md5(n::text), 50) FROM generate_series(1, 4000) AS n';
  await servers.query(write);
  const client = await connect(servers.host, 'direct', main, 'read_only');
  const lost = new Promise((resolve) => client.once('end', resolve));
  const branch = await create();
  // The session of the client was ended.
  await lost;
  expect(standing.taken).toBe(0);
  await servers.query('DROP TABLE filler');
  await project.drop(branch);
});

test('it goes with the agent that made it, with its project, unused, and before a clone is refused', async () => {
  await stand();
  await new Standing(() => now).keep(servers.host);
  expect(await snapshots()).toEqual([]);
  await project.drop(await create());
  expect([standing.taken, standing.count]).toEqual([0, 0]);
  await pass(61_000);
  await stand();
  expect(await makeRoom(servers.host, new NoCopyRoom(1, 'full'))).toBe(true);
  expect(await snapshots()).toEqual([]);
  await stand();
  await pass(600_001);
  expect(await snapshots()).toEqual([]);
  const other = new Project(servers.host);
  const source = 'db_standing_other';
  await other.create(source, null);
  await create(other, source);
  await pass(31_000);
  await create(other, source);
  expect(standing.count).toBe(1);
  await other.remove();
  expect(await snapshots()).toEqual([]);
  await pass(0);
  expect(standing.count).toBe(0);
});

/** Half a second each. */
const WRITER_TAKES = { timeout: 300_000 + CREATIONS * 1_000 };

test(
  'beside a writer with pauses, each branch has every commit that was acknowledged before its request',
  WRITER_TAKES,
  async () => {
    await inBranch(main, 'CREATE TABLE written (n int)');
    const faster = new Standing(() => performance.now() * 40);
    servers.host.standing = faster;
    const stop = new AbortController();
    let acknowledged = 0;
    let created = 0;
    const writing = (async () => {
      while (!stop.signal.aborted) {
        const mode = randomInt(2) === 0 ? 'off' : 'on';
        await inBranch(
          main,
          `SET synchronous_commit = ${mode}; INSERT INTO written VALUES (${acknowledged + 1})`,
        );
        acknowledged += 1;
        await sleep(randomInt(8) === 0 ? randomInt(600) : randomInt(4));
        // On a busy machine the pauses above are too short for a snapshot.
        while (created >= CREATIONS && faster.taken === 0 && !stop.signal.aborted) await sleep(10);
      }
    })();
    const keeping = (async () => {
      while (!stop.signal.aborted) {
        await faster.keep(servers.host);
        await sleep(10);
      }
    })();
    try {
      for (; created < CREATIONS || (faster.taken === 0 && created < 10 * CREATIONS); created += 1) {
        const branch = project.plan(`${MAIN}_br_written_${created}`);
        const before = acknowledged;
        await project.clone(branch, MAIN);
        const { rows } = await inDatabase(servers.settings, buildDatabaseName(branch.job_id), (session) =>
          session.query<{ count: number; last: number }>(
            'SELECT count(*)::int AS count, coalesce(max(n), 0) AS last FROM public.written',
          ),
        );
        const [{ count, last } = { count: 0, last: 0 }] = rows;
        expect(count).toBe(last);
        expect(last).toBeGreaterThanOrEqual(before);
        await runOperation(servers.host, 'branch.drop', { ...identity(branch), made_by: null });
        await sleep(randomInt(60));
      }
    } finally {
      stop.abort();
      const ends = await Promise.allSettled([writing, keeping]);
      expect(ends.filter(({ status }) => status === 'rejected')).toEqual([]);
    }
    await faster.dropAll(servers.host);
    expect(faster.taken).toBeGreaterThan(0);
    expect(faster.taken).toBeLessThan(created);
  },
);
