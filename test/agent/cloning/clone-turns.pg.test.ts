import { afterAll, beforeAll, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { connect, Project } from '../../support/host/host-project.ts';

/** More than the agent has sessions for operations. */
const CLONES = 20;

let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers.stop());

test('clones that wait for a busy source leave sessions for the operations of others', async () => {
  const { host } = servers;
  const project = new Project(host);
  const main = await project.create('db_turns_prod', null);
  const client = await connect(host, 'direct', main, 'owner');
  await client.query('BEGIN; CREATE TABLE held ()');
  let ended = 0;
  const clones = Array.from({ length: CLONES }, async (_, n) => {
    await project.clone(project.plan(`db_turns_prod_br_${n}`), main.database, 30_000);
    ended += 1;
  });
  await eventually(async () => expect(await servers.query('SELECT FROM branch')).toHaveLength(2));
  await runOperation(host, 'host.inventory', {});
  expect(ended).toBe(0);
  await client.query('ROLLBACK');
  await client.end();
  await Promise.all(clones);
});
