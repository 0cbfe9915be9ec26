import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { emptyDatabase } from '../../../agent/cloning/empty-database.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { showDatabases, withAdminConsole } from '../../../agent/pooler/admin-console.ts';
import { runAlone } from '../../../agent/postgres/locks.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  connect,
  type Project,
  startHostWithProject,
} from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';

/** 63 and 62 characters with hyphens, which the pooler's console does not accept. */
const LONGEST_UNPAUSABLE = [62, 61].map((length) => `${'db_live_prod_br_'.padEnd(length, '-x')}z`);

/** Of the busy `main`. */
const CROWD = IS_NIGHTLY ? { clients: 8, branches: 10 } : { clients: 4, branches: 3 };
/** Of a client between two transactions. */
const PAUSE_MS = IS_NIGHTLY ? 2 : 10;

/** Clones: the agent has 14 sessions for operations. */
const MORE_THAN_SESSIONS = 15;

let servers: TestHost;
let project: Project;
let main: Branch;

beforeAll(async () => {
  ({ servers, project, main } = await startHostWithProject(
    'db_live_prod',
    `CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);
     INSERT INTO account SELECT id, 0 FROM generate_series(1, 20000) id`,
  ));
});
afterAll(() => servers.stop());

const paused = async () =>
  (await withAdminConsole(servers.settings, showDatabases))
    .filter((entry) => entry.paused)
    .map(({ name }) => name);

/** Pooled clients that move money until `stop` is called. */
async function load(branch: Branch, clients: number) {
  const stop = new AbortController();
  const seen = { done: 0, failed: [] as string[] };
  const work = async () => {
    const client = await connect(servers.host, 'pooled', branch, 'read_write');
    while (!stop.signal.aborted) {
      const [from, to] = [1, 2].map(() => 1 + Math.floor(Math.random() * 20_000));
      try {
        await client.query('BEGIN');
        await client.query('UPDATE account SET balance = balance - 1 WHERE id = $1', [
          Math.min(from ?? 1, to ?? 1),
        ]);
        await client.query('UPDATE account SET balance = balance + 1 WHERE id = $1', [
          Math.max(from ?? 1, to ?? 1),
        ]);
        await client.query('COMMIT');
        seen.done += 1;
        await sleep(PAUSE_MS);
      } catch (error) {
        seen.failed.push(error instanceof Error ? error.message : String(error));
        // A lost client fails every query immediately, and would never yield to the test's time limit.
        break;
      }
    }
    await client.end().catch(() => {});
  };
  const working = Promise.all(Array.from({ length: clients }, work));
  await eventually(async () => expect(seen.done + seen.failed.length).toBeGreaterThan(10 * clients));
  return {
    seen,
    stop: async () => {
      stop.abort();
      await working;
    },
  };
}

const balance = async (branch: Branch) =>
  (
    await asClient<{ sum: number }>(
      servers.host,
      'direct',
      branch,
      'read_only',
      'SELECT sum(balance)::int AS sum FROM account',
    )
  )[0]?.sum;

test('branches of a busy main: no transaction fails, and every clone is consistent', async () => {
  const running = await load(main, CROWD.clients);
  const made: Branch[] = [];
  for (let n = 0; n < CROWD.branches; n += 1) {
    const branch = await project.create(`db_live_prod_br_n${n}`, 'db_live_prod');
    made.push(branch);
  }
  await running.stop();
  expect(running.seen.failed).toEqual([]);
  expect(running.seen.done).toBeGreaterThan(10 * CROWD.clients);
  for (const branch of made) expect(await balance(branch)).toBe(0);
  expect(await paused()).toEqual([]);
  await Promise.all(made.map((branch) => project.drop(branch)));
});

test('two busy sources are cloned at the same time', async () => {
  const other = await project.create('db_live_prod_br_other', 'db_live_prod');
  const loads = await Promise.all([load(main, 3), load(other, 3)]);
  const made = await Promise.all(
    firstByDay(2, [1, 2, 3, 4]).map((n) =>
      project.create(`db_live_prod_br_p${n}`, n % 2 === 0 ? main.database : other.database),
    ),
  );
  await Promise.all(loads.map((running) => running.stop()));
  expect(loads.flatMap(({ seen }) => seen.failed)).toEqual([]);
  expect(await paused()).toEqual([]);
  await Promise.all([other, ...made].map((branch) => project.drop(branch)));
});

describe('direct sessions of the source', () => {
  let branch: Branch;
  let number = 0;

  beforeEach(() => {
    number += 1;
    branch = project.plan(`db_live_prod_br_d${number}`);
  });

  test('one that has ended meanwhile does not cancel what began without it', async () => {
    const { postgres, sessions } = servers.host;
    await servers.query('CREATE DATABASE alone');
    const session = await sessions.connect();
    const statement = () =>
      session.query('BEGIN; ALTER DATABASE alone RENAME TO lonely; SELECT pg_sleep(0.5); ROLLBACK');
    await runAlone({ postgres, session }, 'alone', statement, async () => false).finally(() =>
      session.release(true),
    );
    await servers.query('DROP DATABASE alone');
  });

  test('an idle one is ended', async () => {
    const idle = await connect(servers.host, 'direct', main, 'owner');
    await sleep(150);
    expect(await project.clone(branch, main.database)).toMatchObject({ created: true });
    await expect(idle.query('SELECT 1')).rejects.toThrow();
    await project.drop(branch);
  });

  /** Sessions that cannot be ended. */
  const working = (count: number) =>
    Promise.all(
      Array.from({ length: count }, async () => {
        const client = await connect(servers.host, 'direct', main, 'owner');
        await client.query('BEGIN');
        return client;
      }),
    );
  const end = async (clients: readonly { end: () => Promise<void> }[]) => {
    await Promise.all(clients.map((client) => client.end()));
    await eventually(async () =>
      expect(await servers.query('SELECT FROM pg_stat_activity WHERE datname = $1', [main.database])).toEqual(
        [],
      ),
    );
  };
  const leaving = (wait: number) =>
    emptyDatabase(servers.host.postgres, main.database, { wait, crowds: true });

  test('more than eight are not waited for before the database is locked', async () => {
    await servers.query('SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1', [
      main.database,
    ]);
    const few = await working(8);
    expect(await leaving(300)).toBe(false);
    const more = await working(1);
    expect(await leaving(20_000)).toBe(true);
    await end([...few, ...more]);
  });

  test('nor are any, once one has logged in meanwhile', async () => {
    const before = await working(1);
    expect(await leaving(300)).toBe(false);
    const left = leaving(20_000);
    const after = await working(1);
    expect(await left).toBe(true);
    await end([...before, ...after]);
  });

  test('of a crowd that works and comes back do not hold up a clone', async () => {
    const stop = new AbortController();
    const work = async () => {
      while (!stop.signal.aborted) {
        const client = await connect(servers.host, 'direct', main, 'read_write');
        // The clone ends it.
        while (!stop.signal.aborted && (await client.query('SELECT 1').catch(() => null))) await sleep(20);
        await client.end().catch(() => {});
      }
    };
    const crowd = Array.from({ length: 16 }, () => work());
    await eventually(async () => {
      const rows = await servers.query('SELECT FROM pg_stat_activity WHERE datname = $1', [main.database]);
      expect(rows.length).toBeGreaterThan(8);
    });
    expect(await project.clone(branch, main.database)).toMatchObject({ created: true });
    stop.abort();
    await Promise.all(crowd);
    await project.drop(branch);
  });

  test('one in a transaction for longer than the wait leads to SOURCE_BUSY and is not ended', async () => {
    const busy = await connect(servers.host, 'direct', main, 'owner');
    await busy.query('BEGIN; UPDATE account SET balance = 7 WHERE id = 1');
    const running = await load({ ...main }, 2);
    // It does not wait for the end of the transaction, which is still open.
    await expect(project.clone(branch, main.database, 400)).rejects.toMatchObject({ code: 'SOURCE_BUSY' });
    expect(await paused()).toEqual([]);
    await busy.query('ROLLBACK');
    await busy.end();
    await running.stop();
    expect(running.seen.failed).toEqual([]);
    await project.drop(branch);
  });

  test('one that ends its transaction within the wait is waited for', async () => {
    const busy = await connect(servers.host, 'direct', main, 'owner');
    await busy.query('BEGIN; SELECT 1');
    const cloning = project.clone(branch, main.database);
    await sleep(300);
    await busy.query('COMMIT');
    await busy.end();
    expect(await cloning).toMatchObject({ created: true });
    await project.drop(branch);
  });
});

test.runIf(IS_NIGHTLY)(
  'clones that wait for a busy source leave sessions for the operations of others',
  async () => {
    const { host } = servers;
    const client = await connect(host, 'direct', main, 'owner');
    await client.query('BEGIN; CREATE TABLE held ()');
    let ended = 0;
    const waiting = Array.from({ length: MORE_THAN_SESSIONS }, (_, n) =>
      project.plan(`db_live_prod_br_waiting-${n}`),
    );
    const clones = waiting.map(async (branch) => {
      await project.clone(branch, main.database, 30_000);
      ended += 1;
    });
    await eventually(async () => expect(await servers.query('SELECT FROM branch')).toHaveLength(2));
    await runOperation(host, 'host.inventory', {});
    expect(ended).toBe(0);
    await client.query('ROLLBACK');
    await client.end();
    await Promise.all(clones);
    await Promise.all(waiting.map((branch) => project.drop(branch)));
  },
);

test.each(firstByDay(1, LONGEST_UNPAUSABLE))(
  '%s is cloned live although it cannot be paused',
  async (name) => {
    const source = await project.create(name, 'db_live_prod');
    const running = await load(source, 4);
    const clone = await project.create('db_live_prod_br_of-long', name);
    await running.stop();
    expect(running.seen.failed).toEqual([]);
    expect(clone.clone.created).toBe(true);
    expect(await balance(clone)).toBe(0);

    const busy = await connect(servers.host, 'direct', source, 'owner');
    await busy.query('BEGIN; SELECT 1');
    const refused = project.plan('db_live_prod_br_refused');
    await expect(project.clone(refused, name, 300)).rejects.toMatchObject({ code: 'SOURCE_BUSY' });
    await busy.query('COMMIT');
    await busy.end();
    await Promise.all([source, clone, refused].map((branch) => project.drop(branch)));
  },
);

test('a concurrent drop and clone of a source run in one order or the other', async () => {
  const source = await project.create('db_live_prod_br_brief', 'db_live_prod');
  const clone = project.plan('db_live_prod_br_of-brief');
  const [cloned] = await Promise.allSettled([project.clone(clone, source.database), project.drop(source)]);
  if (cloned.status === 'rejected') expect(cloned.reason).toMatchObject({ code: 'SOURCE_MISSING' });
  await project.drop(clone);
  expect(
    (await runOperation(servers.host, 'host.inventory', {})).branches.map(({ database }) => database),
  ).toEqual(['db_live_prod']);
});
