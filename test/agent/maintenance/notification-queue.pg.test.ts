import { afterAll, beforeAll, expect, test } from 'vitest';
import { ServerWatch } from '../../../agent/maintenance/recover.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type Branch, connect, startHostWithProject } from '../../support/host/host-project.ts';

let servers: TestHost;
let main: Branch;

beforeAll(async () => {
  ({ servers, main } = await startHostWithProject('db_notify_prod', 'SELECT'));
});
afterAll(() => servers.stop());

/** About 60 MB of notifications in one transaction; the queue of a host holds 128 MB. */
const FLOOD = "SELECT count(pg_notify('flood', repeat('x', 7500) || n)) FROM generate_series(1, 8000) AS n";
const FULL = /too many notifications/;

test('NOTIFY works again after a login that filled the queue has gone', async () => {
  const listener = await connect(servers.host, 'direct', main, 'read_only');
  await listener.query('LISTEN flood');
  await listener.query('BEGIN');
  const flooder = await connect(servers.host, 'direct', main, 'read_only');
  const flood = async () => {
    for (let round = 0; round < 5; round++) await flooder.query(FLOOD);
  };
  await expect(flood()).rejects.toThrow(FULL);
  await listener.end();

  const client = await connect(servers.host, 'direct', main, 'read_write');
  await expect(client.query('NOTIFY other')).rejects.toThrow(FULL);
  await new ServerWatch(servers.host, () => {}).poll();
  await client.query('NOTIFY other');
  await Promise.all([flooder.end(), client.end()]);
});
