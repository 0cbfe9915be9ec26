import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { admitStandby } from '../../../agent/standby/membership.ts';
import { scramVerifier } from '../../../edge/crypto/scram.ts';
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

test('a tenant that grants something to the login of a standby holds up nothing', async () => {
  const { host } = servers;
  const branch = await new Project(host, HERE).create('db_granting_prod', null);
  const standbyId = randomUUID();
  const admit = async (generation: number) => {
    const verifier = await scramVerifier('a password of a standby, which it makes');
    return admitStandby(host, { standby_id: standbyId, db_host: '127.0.0.1', verifier, generation });
  };
  const stateOf = (login: string) =>
    servers.query(
      `SELECT rolcanlogin, (SELECT count(*)::int FROM standby) AS admitted,
         (SELECT count(*)::int FROM pg_replication_slots WHERE slot_name = $1) AS slots
       FROM pg_roles WHERE rolname = $1`,
      [login],
    );
  const { login } = await admit(10);
  const client = await connect(host, 'direct', branch, 'owner');
  await client.query(`create table given (id int); grant select on given to ${login}`);
  // Its lock on the role lasts as long as the transaction.
  await client.query(`begin; grant insert on given to ${login}`);
  await host.member.apply({ role: 'primary', generation: 11, closing: false, standby_id: null, lease_seconds: null });
  expect(await stateOf(login)).toEqual([{ rolcanlogin: false, admitted: 0, slots: 0 }]);
  await client.query('commit');
  await admit(12);
  expect(await stateOf(login)).toEqual([{ rolcanlogin: true, admitted: 1, slots: 1 }]);
  await client.query('drop table given');
  await host.member.apply({ role: 'primary', generation: 13, closing: false, standby_id: null, lease_seconds: null });
  expect(await stateOf(login)).toEqual([]);
  await client.end();
});
