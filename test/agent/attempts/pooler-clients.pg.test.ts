import { once } from 'node:events';
import { createConnection, type Socket } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { SPARE_POOLER_CLIENTS } from '../../../agent/servers/configuration.ts';
import { eventually } from '../../support/eventually.ts';
import { attempt, connectFrom, HERE, OUTSIDE, targetOf } from '../../support/host/attempts.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { type Branch, Project } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const CLIENTS = 200;

let servers: TestHost;
let project: Project;
let main: Branch;
let branch: Branch;

beforeAll(async () => {
  servers = await startHost();
  project = new Project(servers.host);
  main = await project.create('db_clients_prod', null);
  branch = await project.create('db_clients_prod_br_one', main.database);
});
afterAll(() => servers.stop());

/** Sockets from an address that no rule admits. They send nothing. */
async function openSilent(count: number): Promise<Socket[]> {
  const sockets = Array.from({ length: count }, () =>
    createConnection({ host: HERE, port: servers.settings.POOLER_PORT, localAddress: OUTSIDE }),
  );
  for (const socket of sockets) socket.on('error', () => {});
  await Promise.all(sockets.map((socket) => once(socket, 'connect')));
  return sockets;
}

test.runIf(IS_NIGHTLY)(
  '200 clients of all branches together are served, also next to silent sockets; a full pooler gives an error',
  async () => {
    const silent = await openSilent(210);
    const clients = [];
    while (clients.length < CLIENTS) {
      const target = targetOf(servers, 'pooled', clients.length % 2 === 0 ? main : branch);
      clients.push(await connectFrom(HERE, target));
    }
    const results = await Promise.all(clients.map((client) => client.query('SELECT 1 AS one')));
    expect(results.every(({ rows }) => rows[0].one === 1)).toBe(true);
    // Silent sockets are ended after 15 seconds, so clients take the rest.
    for (const socket of silent) socket.destroy();
    await eventually(async () => {
      while (clients.length < CLIENTS + SPARE_POOLER_CLIENTS)
        clients.push(await connectFrom(HERE, targetOf(servers, 'pooled', main)));
    });
    for (const each of [main, branch]) expect(await attempt(targetOf(servers, 'pooled', each))).toBe('full');
    expect(await attempt(targetOf(servers, 'direct', main)), 'the direct port has its own limit').toBe('in');
    // The agent's own operations need none of the slots.
    const made = await project.create('db_clients_prod_br_two', main.database);
    expect(await attempt(targetOf(servers, 'pooled', made))).toBe('full');
    await expectUnproved(made);

    await clients.pop()?.end();
    await eventually(async () => expect(await attempt(targetOf(servers, 'pooled', main))).toBe('in'));
    await Promise.all(clients.map((client) => client.end()));
  },
);

/** While the pooler is full, a proof fails if either server does not know the branch. */
async function expectUnproved(made: Branch) {
  const unmade = project.plan('db_clients_prod_br_unmade');
  await project.prepare(unmade);
  await servers.query('DELETE FROM branch WHERE branch_id = $1', [made.branch_id]);
  await servers.host.rules.sync();
  await Promise.all([
    expect(project.prove(unmade)).rejects.toMatchObject({ code: 'PROOF_FAILED' }),
    expect(project.prove(made)).rejects.toMatchObject({
      code: 'PROOF_FAILED',
      message: expect.stringContaining('does not serve'),
    }),
  ]);
}
