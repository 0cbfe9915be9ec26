import { afterAll, beforeAll, expect, test } from 'vitest';
import { withAdminConsole } from '../../../agent/pooler/admin-console.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { type Branch, connect, Project } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

let servers: TestHost;
let main: Branch;
beforeAll(async () => {
  servers = await startHost();
  main = await new Project(servers.host).create('db_shared_prod', null);
});
afterAll(() => servers.stop());

/** Sessions that are open in the branches' databases. */
const sessions = () =>
  servers.query("SELECT datname FROM pg_stat_activity WHERE datname ~ '^db_' AND state IS NOT NULL");

test.runIf(IS_NIGHTLY)('an unused branch does not occupy connections', async () => {
  await new Project(servers.host).create('db_idle_prod', null);
  expect((await sessions()).length).toBeGreaterThan(0);
  await eventually(async () => expect(await sessions()).toEqual([]));
});

test('PostgreSQL runs with the settings that protect tenants from each other', async () => {
  const rows = await servers.query<{ name: string; value: string }>(
    `SELECT name, current_setting(name) AS value FROM pg_settings WHERE name = ANY ($1)`,
    [
      [
        'authentication_timeout',
        'client_connection_check_interval',
        'log_rotation_size',
        'max_locks_per_transaction',
        'max_notify_queue_pages',
      ],
    ],
  );
  expect(Object.fromEntries(rows.map(({ name, value }) => [name, value]))).toEqual({
    authentication_timeout: '10s',
    client_connection_check_interval: '10s',
    log_rotation_size: '64MB',
    max_locks_per_transaction: '1024',
    max_notify_queue_pages: '16384',
  });
});

test.runIf(IS_NIGHTLY)('a statement ends when its client has gone', async () => {
  const client = await connect(servers.host, 'direct', main, 'read_only');
  const running = () =>
    servers.query("SELECT FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'");
  client.query('SELECT pg_sleep(600)').catch(() => {});
  await eventually(async () => expect(await running()).toHaveLength(1));
  client.connection.stream.destroy();
  await eventually(async () => expect(await running()).toEqual([]));
});

test('the pooler opens a bounded number of connections per login and database', async () => {
  const holder = await connect(servers.host, 'direct', main, 'read_only');
  await holder.query('SELECT pg_advisory_lock(1)');
  const clients = await Promise.all(
    Array.from({ length: 25 }, () => connect(servers.host, 'pooled', main, 'read_only')),
  );
  const queries = clients.map((client) => client.query('SELECT pg_advisory_xact_lock_shared(1)'));
  const open = async () =>
    (await servers.query("SELECT FROM pg_stat_activity WHERE usename ~ '_ro$' AND wait_event = 'advisory'"))
      .length;
  const waiting = async () =>
    (await withAdminConsole(servers.settings, (console) => console.query('SHOW POOLS'))).rows
      .filter(({ database }) => database === main.database)
      .reduce((sum, { cl_waiting }) => sum + Number(cl_waiting), 0);
  await eventually(async () => {
    expect(await waiting()).toBe(25 - servers.settings.BRANCH_POOL_SIZE);
    expect(await open()).toBe(servers.settings.BRANCH_POOL_SIZE);
  });
  await holder.end();
  await Promise.all(queries);
  await Promise.all(clients.map((client) => client.end()));
});
