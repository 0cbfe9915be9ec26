import { randomBytes, randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { HOST_LOCKS, withHostLock, withLocks } from '../../../agent/postgres/locks.ts';
import { agentMetrics } from '../../support/agent-metrics.ts';
import { eventually } from '../../support/eventually.ts';
import { Follower } from '../../support/host/follower.ts';
import { asClient, type Branch, BUSY_WAIT_MS, connect, Project } from '../../support/host/host-project.ts';
import { slowTable } from '../../support/source-server.ts';
import { SteadyClient } from '../../support/steady-client.ts';

let follower: Follower;
beforeAll(async () => {
  follower = await Follower.start();
  await follower.renew();
  await follower.source.run(slowTable());
});
afterAll(() => follower?.stop());

const asOwner = (branch: Branch, sql: string) =>
  asClient(follower.servers.host, 'direct', branch, 'owner', sql);

/** Long work of another tenant that is in its middle, and the names that its locks may have. */
interface LongWork {
  names: string[];
  end: () => Promise<void>;
}

async function startMasking(): Promise<LongWork> {
  const { host, query } = follower.servers;
  const project = new Project(host);
  const main = await project.create('db_long_masking', null);
  await asOwner(main, "create table slow (id int primary key, v text); insert into slow values (1, 'a')");
  const snapshot_id = randomUUID();
  const with_ = { with: 'expression' as const, args: { sql: "pg_sleep(600)::text || 'x'" } };
  const masking = runOperation(host, 'snapshot.mask', {
    job_id: randomUUID(),
    project_id: project.id,
    branch_id: main.branch_id,
    source: main.database,
    snapshot_id,
    busy_wait: BUSY_WAIT_MS,
    keep_tables: [],
    unless_same_as: null,
    masking: {
      rules: [{ table: 'slow', column: 'v', ...with_ }],
      unlisted: 'keep',
      key: randomBytes(32).toString('base64'),
    },
  }).catch((error) => error);
  const sleeping = "FROM pg_stat_activity WHERE datname ~ '^bgmask_' AND wait_event = 'PgSleep'";
  await eventually(async () => expect(await query(`SELECT ${sleeping}`)).toHaveLength(1));
  return {
    names: [`clone:${snapshot_id}`],
    end: async () => {
      await query(`SELECT pg_terminate_backend(pid) ${sleeping}`);
      await masking;
    },
  };
}

async function startImport(): Promise<LongWork> {
  const { host, query } = follower.servers;
  const importing = await follower.neighbour();
  const params = importing.copyParams({ follow: null, tables: ['slowly'] });
  const copying = importing.run('transfer.copy', params).catch((error) => error);
  const sleeping = "SELECT FROM pg_stat_activity WHERE datname ~ '^bgload_' AND wait_event = 'PgSleep'";
  await eventually(async () => expect(await query(sleeping)).toHaveLength(1));
  const { job_id, project_id, branch_id } = params;
  return {
    names: [`clone:${branch_id}`, `clone:${job_id}`],
    end: async () => {
      await runOperation(host, 'transfer.cancel', { job_id, project_id });
      await copying;
    },
  };
}

async function startComparison(): Promise<LongWork> {
  const { host, query } = follower.servers;
  const project = new Project(host);
  const main = await project.create('db_long_diff', null);
  await asOwner(main, 'create table item (id int primary key)');
  const branch = await project.create('db_long_diff_br_a', main.database);
  const locker = await connect(host, 'direct', branch, 'owner');
  await locker.query('begin; lock table item');
  const side = ({ branch_id, database }: Branch) => ({ branch_id, database });
  const comparing = runOperation(host, 'branch.diff', {
    project_id: project.id,
    ...side(branch),
    against: side(main),
    job_id: null,
    rows: true,
    schema: true,
    within: 600_000,
  }).catch((error) => error);
  const waiting =
    "SELECT FROM pg_stat_activity WHERE application_name = 'branchgate-difference' AND wait_event_type = 'Lock'";
  await eventually(async () => expect(await query(waiting)).not.toEqual([]));
  return {
    names: [project.id, '0', '1', '2'].map((of) => `difference:${of}`),
    end: async () => {
      await locker.end();
      await comparing;
    },
  };
}

describe('a masking, an import and a comparison that run', () => {
  const long: LongWork[] = [];
  let client: pg.Client;
  let victim: SteadyClient;
  beforeAll(async () => {
    const { host } = follower.servers;
    const neighbour = await new Project(host).create('db_victim_prod', null);
    await asOwner(neighbour, 'create table work (n int)');
    client = await connect(host, 'direct', neighbour, 'read_write');
    victim = await SteadyClient.start(() => client.query('insert into work values (1)'));
    for (const start of [startMasking, startImport, startComparison]) long.push(await start());
  });
  afterAll(async () => {
    await Promise.all(long.map(({ end }) => end()));
    await victim?.end();
    await client?.end();
  });

  test('hold locks of their own projects, and none of the host', async () => {
    const held = () =>
      follower.servers.query<{ key: string }>(
        `SELECT (classid::bigint << 32 | objid::bigint)::text AS key FROM pg_locks
         WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = 'branchgate')
           AND (classid::bigint << 32 | objid::bigint) <> ALL (SELECT hashtextextended(name, 0) FROM unnest($1::text[]) AS name)`,
        [long.flatMap(({ names }) => names)],
      );
    // A loop of the agent can hold one for a moment.
    await eventually(async () => expect(await held()).toEqual([]));
  });

  test('let other tenants create, delete, follow and reconcile', async () => {
    const { host } = follower.servers;
    const tables = ['account', 'transfer', 'counter', 'visit'];
    const other = await follower.neighbour();
    const branch = await other.project.create('db_other_br_a', other.main.database);
    expect(await other.project.drop(branch)).toEqual({ dropped: true });
    await other.copy(other.copyParams({ source_url: follower.source.url(), tables }));
    await other.run('follow.start', { ...other.startParams(follower.source.url()), tables });
    expect(await runOperation(host, 'host.inventory', {})).toMatchObject({ projects: expect.any(Array) });
    expect(await other.run('follow.stop', { ...other.ids, source_url: null, ...other.follow })).toMatchObject(
      { dropped_at_source: true },
    );
    await other.project.remove();
    victim.expectUndisturbed();
  });
});

describe('a lock of the host', () => {
  test('is released when the work under it fails, and how long it was held is a metric', async () => {
    const { host } = follower.servers;
    const failing = (session: Parameters<typeof withHostLock>[0]) =>
      withHostLock(session, 'roles', async () => {
        throw new Error('failed');
      });
    await withLocks(host.sessions, [], async (session) => {
      await expect(failing(session)).rejects.toThrow('failed');
      const other = await follower.servers.connect();
      onTestFinished(() => other.end());
      const taken = await other.query(
        "SELECT pg_try_advisory_lock(hashtextextended('roles', 0)) AS taken, pg_advisory_unlock_all()",
      );
      expect(taken.rows).toMatchObject([{ taken: true }]);
    });
    expect(await agentMetrics().registry.metrics()).toMatch(
      /^branchgate_host_lock_held_seconds_count\{lock="roles"\} [1-9]/m,
    );
  });

  test('is held for its bound at most', async () => {
    const { host, query } = follower.servers;
    const { hold } = HOST_LOCKS.roles;
    HOST_LOCKS.roles.hold = 0.2;
    onTestFinished(() => {
      HOST_LOCKS.roles.hold = hold;
    });
    const forever = withLocks(host.sessions, [], (session) =>
      withHostLock(session, 'roles', async () => {
        for (;;) await session.query('SELECT pg_sleep(0.05)');
      }),
    );
    await expect(forever).rejects.toMatchObject({ code: 'HOST_BUSY' });
    const held =
      "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = (hashtextextended('roles', 0) & x'ffffffff'::bigint)::oid";
    await eventually(async () => expect(await query(held)).toEqual([]));
  });
});
