import { randomUUID } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { uptime } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { AgentSettings } from '../../../agent/process/settings.ts';
import { receive } from '../../../agent/standby/base-copy.ts';
import { admitStandby, Membership } from '../../../agent/standby/membership.ts';
import { leaseLeft, storeLease } from '../../../agent/standby/primary-lease.ts';
import { Replica } from '../../../agent/standby/replica.ts';
import { positionOf } from '../../../agent/standby/replication.ts';
import { moveMember, noteMember, readMember, standbyFiles } from '../../../agent/standby/stored-member.ts';
import { limitFinding } from '../../../agent/transfer/follow-places.ts';
import { PROMOTED } from '../../../agent/transfer/follow-status.ts';
import { scramVerifier } from '../../../edge/crypto/scram.ts';
import { eventually } from '../../support/eventually.ts';
import { targetOf } from '../../support/host/attempts.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { connect, Project } from '../../support/host/host-project.ts';
import { stalledLogin } from '../../support/host/stalled-login.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

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

test.runIf(IS_NIGHTLY)(
  'a tenant that grants something to the login of a standby holds up nothing',
  async () => {
    const { host } = servers;
    const branch = await new Project(host, HERE).create('db_granting_prod', null);
    const standbyId = randomUUID();
    const readmit = async (generation: number) => {
      const verifier = await scramVerifier(PASSWORD);
      return admitStandby(host, { standby_id: standbyId, db_host: '127.0.0.1', verifier, generation });
    };
    const stateOf = (login: string) =>
      servers.query(
        `SELECT rolcanlogin, (SELECT count(*)::int FROM standby) AS admitted,
         (SELECT count(*)::int FROM pg_replication_slots WHERE slot_name = $1) AS slots
       FROM pg_roles WHERE rolname = $1`,
        [login],
      );
    const { login } = await readmit(10);
    const client = await connect(host, 'direct', branch, 'owner');
    await client.query(`create table given (id int); grant select on given to ${login}`);
    // Its lock on the role lasts as long as the transaction.
    await client.query(`begin; grant insert on given to ${login}`);
    await host.member.apply({
      role: 'primary',
      generation: 11,
      closing: false,
      standby_id: null,
      lease_seconds: null,
    });
    expect(await stateOf(login)).toEqual([{ rolcanlogin: false, admitted: 0, slots: 0 }]);
    await client.query('commit');
    await readmit(12);
    expect(await stateOf(login)).toEqual([{ rolcanlogin: true, admitted: 1, slots: 1 }]);
    await client.query('drop table given');
    await host.member.apply({
      role: 'primary',
      generation: 13,
      closing: false,
      standby_id: null,
      lease_seconds: null,
    });
    expect(await stateOf(login)).toEqual([]);
    await client.end();
  },
);

test('the end of the WAL of a primary is a position that a standby reaches', async () => {
  const { member } = servers.host;
  // The next record begins behind the header of a page that has none yet.
  await servers.query('SELECT pg_switch_wal()');
  const { position } = await member.read();
  await eventually(async () => {
    const [end] = await servers.query<{ lsn: string }>('SELECT pg_current_wal_flush_lsn()::text AS lsn');
    expect(positionOf(end?.lsn ?? '')).toBeGreaterThanOrEqual(position ?? Number.POSITIVE_INFINITY);
  });
});

/** Settings of another host, which follows this one. */
function settingsOfStandby(name: string): AgentSettings {
  const STATE_DIR = join(servers.settings.STATE_DIR, name);
  const PGDATA_DIR = join(STATE_DIR, 'data');
  mkdirSync(PGDATA_DIR, { recursive: true });
  return { ...servers.settings, STATE_DIR, PGDATA_DIR };
}

const PASSWORD = 'a password of a standby, which it makes';

/** @returns how the standby reaches this host */
async function admit(settings: AgentSettings, generation: number) {
  const verifier = await scramVerifier(PASSWORD);
  const standby = { standby_id: randomUUID(), db_host: '127.0.0.1', verifier, generation };
  const { login } = await admitStandby(servers.host, standby);
  writeFileSync(standbyFiles(settings).password, `*:*:*:${login}:${PASSWORD}\n`, { mode: 0o600 });
  const authority = join(dirname(servers.layout.tls.certFile), 'ca.crt');
  const where = { db_host: '127.0.0.1', direct_port: servers.settings.POSTGRES_PORT };
  return { generation, ...where, ca_certificate: readFileSync(authority, 'utf8'), login };
}

test.runIf(IS_NIGHTLY)(
  'a copy during which more WAL was written than the primary keeps says what to do',
  async () => {
    const settings = settingsOfStandby('copying');
    const primary = await admit(settings, 20);
    expect((await receive(settings, primary)).files).toBeGreaterThan(500);
    const { settings: file } = standbyFiles(servers.settings);
    writeFileSync(file, "max_slot_wal_keep_size = '1MB'\n");
    await servers.query('SELECT pg_reload_conf()');
    for (let n = 0; n < 4; n += 1)
      await servers.query("SELECT pg_logical_emit_message(false, 'x', 'y'), pg_switch_wal()");
    await servers.query('CHECKPOINT');
    await expect(receive(settings, primary)).rejects.toThrow(/max_slot_wal_keep_size .* rejoin/);
    writeFileSync(file, '');
    await servers.query('SELECT pg_reload_conf()');
  },
);

test.runIf(IS_NIGHTLY)(
  'commits that a primary has confirmed without a flush do not count as survived',
  async () => {
    const settings = settingsOfStandby('following');
    const primary = await admit(settings, 30);
    // It has replayed everything from the start.
    const replayed = { query: async () => ({ rows: [{ lsn: 'FFFFFFFF/0' }] }) };
    const replica = new Replica(settings, replayed as never);
    const running = replica.run(primary, AbortSignal.timeout(60_000));
    for (let n = 0; n < 4; n += 1) {
      await eventually(async () => expect(replica.lag().lag_seconds).toBeLessThan(0.2));
      const survived = await replica.survivedUntil();
      expect(survived?.getTime()).toBeLessThanOrEqual(Date.now() - 1_000);
      // Until there is another sample.
      await sleep(500);
    }
    replica.stop();
    await running;
  },
);

test('a promotion is repeated until its host serves, and nothing that followed continues', async () => {
  const settings = { ...settingsOfStandby('promoted'), PGDATA_DIR: servers.settings.PGDATA_DIR };
  const { postgres, rules } = servers.host;
  const branches = await Promise.all(
    ['one', 'two', 'three'].map((name) => new Project(servers.host, HERE).create(`db_${name}_prod`, null)),
  );
  const other = { code: 'schema', message: 'another problem', table: null, statement: null };
  const rows = [
    [other, 'now()', null],
    [null, 'NULL', null],
    [null, 'NULL', 'done'],
  ] as const;
  for (const [at, [problem, since, cutover]] of rows.entries())
    await servers.query(
      `INSERT INTO following (branch_id, project_id, database, slot, since, problem, cutover) VALUES ($1, $2, $3, 's', ${since}, $4, $5)`,
      [branches[at]?.branch_id, branches[at]?.project_id, branches[at]?.database, problem, cutover],
    );
  const files = standbyFiles(settings);
  for (const path of Object.values(files)) writeFileSync(path, '');
  await moveMember(settings, 'copy begun', { generation: 1 });
  await moveMember(settings, 'copy ended');
  const member = new Membership({ settings, postgres, rules, log: () => {} });
  let tries = 0;
  member.attach({
    settle: async () => true,
    fenced: () => {},
    serve: async () => {
      tries += 1;
      if (tries === 1) throw new Error('PostgreSQL is away');
    },
  });
  const record = {
    role: 'primary' as const,
    generation: 2,
    closing: false,
    standby_id: null,
    lease_seconds: null,
  };
  await expect(member.apply(record)).rejects.toThrow('PostgreSQL is away');
  expect(member.isPrimary).toBe(false);
  await member.apply(record);
  expect([tries, member.isPrimary, readMember(settings)?.role]).toEqual([2, true, 'primary']);
  expect([existsSync(files.password), existsSync(files.authority)]).toEqual([false, false]);
  const problems = await servers.query<{ problem: unknown }>(
    'SELECT problem FROM following ORDER BY database',
  );
  expect(problems.map(({ problem }) => problem)).toEqual([PROMOTED, null, PROMOTED]);
  await servers.query('DELETE FROM following');
});

test('a lease that a gate has begun is not given again, for longer', async () => {
  const { postgres, rules } = servers.host;
  const settings = settingsOfStandby('leased');
  const record = { role: 'primary' as const, generation: 1, closing: false, standby_id: randomUUID() };
  await moveMember(settings, 'primary', record);
  const member = new Membership({ settings, postgres, rules, log: () => {} });
  // By another process.
  await noteMember(settings, { lease_seconds: 60 });
  await storeLease(settings, uptime() + 10);
  await member.apply({ ...record, lease_seconds: 60 });
  expect(leaseLeft(settings)).toBeLessThanOrEqual(10);
});

test.runIf(IS_NIGHTLY)(
  'a host that was a standby says that PostgreSQL has to be restarted before anything follows',
  async () => {
    const { settings: file } = standbyFiles(servers.settings);
    writeFileSync(file, 'max_logical_replication_workers = 0\n');
    await servers.end('postgres', 'SIGINT');
    await servers.start('postgres');
    const [found] = await limitFinding(servers.host, randomUUID(), { takesTenantPlace: true });
    expect(found?.message).toMatch(/restarted once/);
    expect((await servers.tool('doctor')).stdout).toMatch(/because it was a standby.*restart PostgreSQL/);
    writeFileSync(file, '');
    await servers.end('postgres', 'SIGINT');
    await servers.start('postgres');
    expect(await limitFinding(servers.host, randomUUID(), { takesTenantPlace: true })).toEqual([]);
  },
);
