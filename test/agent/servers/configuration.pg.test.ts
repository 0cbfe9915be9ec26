import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { Project } from '../../support/host/host-project.ts';

let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers.stop());

/** Sessions that are open in the branches' databases. */
const sessions = () =>
  servers.query("SELECT datname FROM pg_stat_activity WHERE datname ~ '^db_' AND state IS NOT NULL");

test('an unused branch does not occupy connections', async () => {
  await new Project(servers.host).create('db_idle_prod', null);
  expect(await sessions()).toHaveLength(1);
  await eventually(async () => expect(await sessions()).toEqual([]), 30);
});
