import { rmSync } from 'node:fs';
import { join } from 'node:path';
import type pg from 'pg';
import { test as base, expect, onTestFinished } from 'vitest';
import { GuardWatch } from '../../../agent/guard/watch-guards.ts';
import { Meter } from '../../../agent/measurement/meter.ts';
import { readOldestIds } from '../../../agent/postgres/oldest-ids.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, Project } from '../../support/host/host-project.ts';
import { setNextMember, setNextMultixact } from '../../support/host/next-ids.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const test = base.runIf(IS_NIGHTLY);

/** Multixacts before 2^31 at which PostgreSQL warns, and at which it refuses further ones. */
const WARNS = 40_000_000;
const REFUSES = 3_000_000;
/** Members of one file of `pg_multixact/members`, before whose last PostgreSQL refuses further ones. */
const MEMBERS_OF_FILE = 32 * 1_636;
/** What PostgreSQL has in memory, a burst of ten seconds, and what is taken until the sessions end. */
const MEMBERS_MAX = 1_000_000;
/** Of the attacker. Each multixact has one member more. */
const HOLDERS = 20;

const settings = { PROJECT_CONNECTIONS: 120, TRANSACTION_IDS_PER_SECOND: 500 };

interface Control {
  oldest: number;
  next: number;
  member: number;
}

async function readControl(servers: TestHost): Promise<Control> {
  const [row] = await servers.query<Control>(
    `select oldest_multi_xid::text::float8 as oldest, next_multixact_id::text::float8 as next,
            next_multi_offset::text::float8 as member from pg_control_checkpoint()`,
  );
  return row ?? expect.unreachable();
}

/** Restarts PostgreSQL after `change` of its files. */
async function restart(servers: TestHost, change: (dataDir: string) => void): Promise<void> {
  await servers.end('postgres', 'SIGINT');
  change(servers.settings.PGDATA_DIR);
  await servers.start('postgres');
  await eventually(() => servers.query('select 1'));
}

/** A host with a victim and an attacker, whose oldest multixact is kept by a table that no vacuum can read. */
async function startNearEnd() {
  const servers = await startHost();
  onTestFinished(() => servers.stop());
  const host = { ...servers.host, settings: { ...servers.settings, ...settings } };
  const project = new Project(host);
  const main = await project.create('db_multixacts_prod', null);
  const greedy = await new Project(host).create('db_greedy_prod', null);
  await asClient(
    ...([host, 'direct', main, 'owner'] as const),
    `create table parent (id int primary key); create table child (parent int references parent);
     insert into parent values (1)`,
  );
  await asClient(
    ...([host, 'direct', greedy, 'owner'] as const),
    'create table shared_row (id int primary key); insert into shared_row values (1)',
  );
  await servers.query('create table unreadable (n int)');
  await servers.query('insert into unreadable values (1)');
  const [file] = await servers.query<{ path: string }>("select pg_relation_filepath('unreadable') as path");
  // Two multixacts, so that the first one has a place among the members.
  for (const _ of [1, 2]) await refer(host, main);
  await restart(servers, (dataDir) => rmSync(join(dataDir, file?.path ?? expect.unreachable())));
  return { servers, host, project, main, greedy };
}

type Host = TestHost['host'];

/** Two transactions that insert rows for one other row, as an application does: the other one gets a multixact. */
async function refer(host: Host, branch: Branch): Promise<void> {
  const clients = await Promise.all([1, 2].map(() => connect(host, 'direct', branch, 'read_write')));
  try {
    for (const client of clients) await client.query('begin; insert into child values (1)');
    for (const client of clients) await client.query('commit');
  } finally {
    await Promise.all(clients.map((client) => client.end()));
  }
}

/** Takes multixacts until the attacker is ended. */
async function attack(servers: TestHost, host: Host, branch: Branch): Promise<void> {
  const events: { event: string; [field: string]: unknown }[] = [];
  const ending = new AbortController();
  const running = new GuardWatch(host, (event, fields) => events.push({ event, ...fields })).run(
    ending.signal,
  );
  const clients: pg.Client[] = [];
  try {
    while (clients.length <= HOLDERS) clients.push(await connect(host, 'direct', branch, 'read_write'));
    const ended = Promise.all(
      clients.map((client) => new Promise<void>((resolve) => client.once('end', resolve))),
    );
    const [looping, ...holders] = clients;
    for (const holder of holders) await holder.query('begin; select from shared_row for share');
    looping
      ?.query('do $$ begin loop perform from shared_row for share; commit; end loop; end $$')
      .catch(() => {});
    await ended;
    await eventually(async () =>
      expect(events).toContainEqual(
        expect.objectContaining({
          event: 'guard.blocked',
          branch_id: branch.branch_id,
          reason: 'transaction_ids',
          multixact_members: expect.any(Number),
        }),
      ),
    );
    expect(events.filter(({ event }) => event === 'guard.failed')).toEqual([]);
  } finally {
    ending.abort();
    await running;
  }
  await servers.query('checkpoint');
}

/** What an operator does. */
async function freeze(servers: TestHost): Promise<void> {
  await servers.query('drop table unreadable');
  await servers.query('alter system set autovacuum_naptime = 1');
  await servers.query('select pg_reload_conf()');
  await eventually(
    async () => expect((await readOldestIds(servers.host.postgres)).multixact).toBeLessThan(1e9),
    180,
  );
}

test('near the end of multixacts a tenant that burns them is blocked, and the host works, is refused, and works again', async () => {
  const { servers, host, project, main, greedy } = await startNearEnd();
  const { oldest } = await readControl(servers);
  const leave = (ids: number) =>
    restart(servers, (dataDir) => setNextMultixact(dataDir, oldest + 2 ** 31 - 1 - ids));
  const measured = async () => {
    const meter = new Meter(servers.settings, { stores: true });
    await meter.measure().finally(() => meter.close());
  };

  await leave(WARNS - 1_000);
  const before = await readControl(servers);
  await attack(servers, host, greedy);
  const taken = (await readControl(servers)).member - before.member;
  expect(taken).toBeGreaterThan(0);
  expect(taken).toBeLessThan(MEMBERS_MAX);
  await refer(host, main);
  await project.drop(await project.create('db_multixacts_prod_br_warned', main.database));
  expect((await servers.tool('doctor')).stdout).toMatch(/multixacts: 2,1\d\d million\) are not frozen/);

  await leave(REFUSES - 1);
  await expect(refer(host, main)).rejects.toMatchObject({
    code: '54000',
    message: expect.stringMatching(/not accepting commands that assign new MultiXactIds/),
  });
  // Whatever needs none: rows without rivals, branches, measurements.
  await asClient(host, 'direct', main, 'read_write', 'insert into child values (1)');
  await project.drop(await project.create('db_multixacts_prod_br_refused', main.database));
  await measured();

  await freeze(servers);
  await refer(host, main);
  expect((await servers.tool('doctor')).stdout).not.toMatch(/not frozen/);
}, 300_000);

test('near the end of their members a tenant that burns them is blocked before others are refused', async () => {
  const { servers, host, main, greedy } = await startNearEnd();
  await restart(servers, (dataDir) => setNextMember(dataDir, 2 ** 32 - MEMBERS_OF_FILE - 2 * MEMBERS_MAX));
  const before = await readControl(servers);
  await attack(servers, host, greedy);
  const taken = (await readControl(servers)).member - before.member;
  expect(taken).toBeGreaterThan(0);
  expect(taken).toBeLessThan(MEMBERS_MAX);
  await refer(host, main);

  // Nobody else takes what is left.
  await restart(servers, (dataDir) => setNextMember(dataDir, 2 ** 32 - MEMBERS_OF_FILE - 1));
  await expect(refer(host, main)).rejects.toMatchObject({ code: '54000' });
  await asClient(host, 'direct', main, 'read_write', 'insert into child values (1)');
  await freeze(servers);
  // Few multixacts have these members, so their age says nothing.
  await eventually(() => refer(host, main), 180);
}, 300_000);
