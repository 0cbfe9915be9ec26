import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { pause, reconnectServers, resume } from '../../../agent/pooler/pause.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { type Branch, connect, Project } from '../../support/host/host-project.ts';

/** Longer than a refusal takes, shorter than a pause waits for a login. */
const HELD_MS = 200;

let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers.stop());

let branch: Branch;
beforeAll(async () => {
  branch = await new Project(servers.host).create('db_paused_prod', null);
});

/** Blocks logins to PostgreSQL. @returns a function that releases them */
async function holdLogins(): Promise<() => Promise<unknown>> {
  const session = await servers.connect();
  await session.query('begin; lock table pg_database in access exclusive mode');
  return () => session.query('commit').finally(() => session.end());
}

test('a pause cuts off no login, which would disconnect the next client', async () => {
  const { settings } = servers.host;
  const open = () => connect(servers.host, 'pooled', branch, 'read_write');
  const [early, late] = await Promise.all([open(), open()]);
  await reconnectServers(settings, branch.database);
  let release = await holdLogins();
  const first = early.query('select 1');
  await sleep(HELD_MS / 4);
  await Promise.all([
    pause(settings, branch.database),
    sleep(HELD_MS).then(async () => {
      await release();
      await sleep(HELD_MS);
      release = await holdLogins();
    }),
  ]);
  await resume(settings, branch.database);
  const second = late.query('select 2');
  const refused = await Promise.race([second.then(() => null, String), sleep(HELD_MS)]);
  await release();
  expect(refused).toBe(undefined);
  expect([(await first).rowCount, (await second).rowCount]).toEqual([1, 1]);
  await Promise.all([early.end(), late.end()]);
});
