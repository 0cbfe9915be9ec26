import { test as base, expect, onTestFinished } from 'vitest';
import { GuardWatch } from '../../../agent/guard/watch-guards.ts';
import { Meter } from '../../../agent/measurement/meter.ts';
import { readOldestIds } from '../../../agent/postgres/oldest-ids.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, Project } from '../../support/host/host-project.ts';
import { Browser } from '../../support/host/host-rows.ts';
import { setNextTransactionId } from '../../support/host/next-ids.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const test = base.runIf(IS_NIGHTLY);

/** Ids before 2^31 at which PostgreSQL warns, and at which it refuses them. */
const WARNS = 40_000_000;
const REFUSES = 3_000_000;
const REFUSED = {
  code: 'POSTGRES_UNAVAILABLE',
  message: /not accepting commands that assign new transaction IDs/,
};
const refusal = { code: REFUSED.code, message: expect.stringMatching(REFUSED.message) };

/** Restarts PostgreSQL with that many ids until the end. A slot that nobody reads keeps the oldest one. */
async function leave(servers: TestHost, ids: number): Promise<void> {
  const [row] = await servers.query<{ oldest: number }>(
    'select oldest_xid::text::float8 as oldest from pg_control_checkpoint()',
  );
  await servers.end('postgres', 'SIGINT');
  setNextTransactionId(servers.settings.PGDATA_DIR, (row?.oldest ?? 0) + 2 ** 31 - 1 - ids);
  await servers.start('postgres');
  await eventually(() => servers.query('select 1'));
}

function watch(servers: TestHost) {
  const events: { event: string; [field: string]: unknown }[] = [];
  const ending = new AbortController();
  const log = (event: string, fields?: Record<string, unknown>) => events.push({ event, ...fields });
  const running = new GuardWatch(servers.host, log).run(ending.signal);
  return {
    events,
    stop: async () => {
      ending.abort();
      await running;
    },
  };
}

const takeLocks = 'select pg_advisory_lock(n) from generate_series(1, 30000) n';

async function expectGreedyEnded(servers: TestHost, branch: Branch): Promise<void> {
  const watching = watch(servers);
  try {
    const client = await connect(servers.host, 'direct', branch, 'read_only');
    const ended = new Promise((resolve) => client.once('end', resolve));
    client.query(takeLocks).catch(() => {});
    await ended;
    expect(watching.events).toContainEqual(expect.objectContaining({ event: 'guard.ended', guard: 'locks' }));
    expect(watching.events.filter(({ event }) => event === 'guard.failed')).toEqual([]);
  } finally {
    await watching.stop();
  }
}

test('a host near the end of its transaction ids works, then says so, and works again when rows are frozen', async () => {
  const servers = await startHost();
  onTestFinished(() => servers.stop());
  const { host, query } = servers;
  const project = new Project(host);
  const main = await project.create('db_ids_prod', null);
  const greedy = await new Project(host).create('db_greedy_prod', null);
  const greedier = await new Project(host).create('db_greedier_prod', null);
  await asClient(
    host,
    'direct',
    main,
    'owner',
    'create table t (id int primary key); insert into t values (1)',
  );
  const kept = await project.create('db_ids_prod_br_kept', main.database);
  expect((await servers.tool('doctor')).stdout).not.toMatch(/not frozen/);
  await query("select pg_create_logical_replication_slot('unread', 'pgoutput')");
  const isRead = async () =>
    expect(await asClient(host, 'direct', main, 'read_only', 'select id from t')).toEqual([{ id: 1 }]);
  const measured = async (stores = true) => {
    const meter = new Meter(servers.settings, { stores });
    await meter.measure().finally(() => meter.close());
  };

  await leave(servers, WARNS - 1_000);
  await isRead();
  await project.drop(await project.create('db_ids_prod_br_warned', main.database));
  await measured();
  await expectGreedyEnded(servers, greedy);
  expect((await readOldestIds(host.postgres)).transaction).toBeGreaterThan(2 ** 31 - WARNS);
  expect((await servers.tool('doctor')).stdout).toMatch(/2,1\d\d million transaction ids ago .* not frozen/);

  await leave(servers, REFUSES - 1_000);
  await isRead();
  expect(await new Browser(host, main).tables()).toMatchObject({ tables: [{ name: 't' }] });
  const planned = project.plan('db_ids_prod_br_refused');
  await expect(project.prepare(planned)).rejects.toMatchObject(refusal);
  await expect(project.clone(planned, main.database)).rejects.toMatchObject(refusal);
  await expect(project.drop(kept)).rejects.toMatchObject(refusal);
  await expect(measured()).rejects.toThrow(REFUSED.message);
  await measured(false);
  await expectGreedyEnded(servers, greedier);
  expect((await servers.tool('doctor')).stdout).toMatch(/2,1\d\d million transaction ids ago .* not frozen/);
  expect(await query("select from pg_database where datname ~ 'refused|^bgjob'")).toEqual([]);
  await isRead();

  // What the operator does.
  await query("select pg_drop_replication_slot('unread')");
  await query('alter system set autovacuum_naptime = 1');
  await query('select pg_reload_conf()');
  await eventually(
    async () => expect((await readOldestIds(host.postgres)).transaction).toBeLessThan(1e9),
    120,
  );
  await project.prepare(planned);
  await project.clone(planned, main.database);
  await project.finalize(planned);
  await project.prove(planned);
  await project.drop(kept);
  await measured();
  expect((await servers.tool('doctor')).stdout).not.toMatch(/not frozen/);
}, 300_000);
