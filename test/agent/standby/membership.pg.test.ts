import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { targetOf } from '../../support/host/attempts.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { connect, Project } from '../../support/host/host-project.ts';
import { stalledLogin } from '../../support/host/stalled-login.ts';

const HERE = [{ branch_id: null, cidr: '127.0.0.1/32' }];

let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers.stop());

test('a primary that is closed has no session of a client, and no login that was admitted before', async () => {
  const { member } = servers.host;
  const branch = await new Project(servers.host, HERE).create('db_closing_prod', null);
  const client = await connect(servers.host, 'direct', branch, 'read_write');
  client.on('error', () => {});
  const stalled = await stalledLogin(targetOf(servers, 'direct', branch));
  const record = { role: 'primary' as const, standby_id: randomUUID(), lease_seconds: null };
  const closed = await member.apply({ ...record, generation: 1, closing: true });
  expect(closed.generation).toBe(1);
  expect(
    await servers.query(
      "SELECT usename, state FROM pg_stat_activity WHERE client_addr IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
    ),
  ).toEqual([]);
  await eventually(async () => expect(stalled.closed).toBe(true));
  await expect(client.query('select 1')).rejects.toThrow();
  await expect(connect(servers.host, 'direct', branch, 'read_write')).rejects.toThrow();
  await member.apply({ ...record, generation: 2, closing: false });
  const again = await connect(servers.host, 'direct', branch, 'read_write');
  expect((await again.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
  await again.end();
});
