import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { CloneTurns } from '../../../agent/cloning/clone-turns.ts';
import { NoCopyRoom } from '../../../agent/cloning/copy-room.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { HostError } from '../../../agent/process/host-error.ts';
import { makeRoom, runRoomLoop } from '../../../agent/snapshots/make-room.ts';
import { runSpareLoop, Spares, UnusedSpares } from '../../../agent/snapshots/spares.ts';
import { buildDatabaseName, snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  BUSY_WAIT_MS,
  connect,
  Project,
  startHostWithProject,
} from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const MAIN = 'db_spare_prod';

let servers: TestHost;
let project: Project;
let main: Branch;
let stop = new AbortController();
let loop: Promise<void> = Promise.resolve();
/** A snapshot of its own for each test, with the row 1. */
let snapshot: string;
let made = 0;

beforeAll(async () => {
  ({ servers, project, main } = await startHostWithProject(
    MAIN,
    'CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1)',
  ));
  // The loop needs the reflinks only for its price.
  servers.host.cloneMethod = 'reflink';
  run();
});
afterAll(async () => {
  await end();
  await servers.stop();
});
beforeEach(async () => {
  snapshot = randomUUID();
  await runOperation(servers.host, 'snapshot.take', {
    project_id: project.id,
    branch_id: main.branch_id,
    source: main.database,
    snapshot_id: snapshot,
    busy_wait: BUSY_WAIT_MS,
    unless_same_as: null,
  });
});

function run() {
  stop = new AbortController();
  loop = runSpareLoop(servers.host, stop.signal);
}

async function end() {
  stop.abort();
  await loop;
}

const create = () => {
  made += 1;
  return project.create(`${MAIN}_br_${made}`, snapshotDatabaseName(snapshot));
};
const idsIn = (branch: Branch) =>
  asClient<{ id: number }>(servers.host, 'pooled', branch, 'read_only', 'SELECT id FROM item');
/** The oldest first. */
const spareDatabases = () =>
  servers.query<{ oid: string; datallowconn: boolean }>(
    "SELECT oid::text, datallowconn FROM pg_database WHERE datname ~ '^bgspare_' ORDER BY pg_database.oid",
  );
/** The logins of spares. No branch of this file has the id of a spare. */
const spareLogins = () =>
  servers.query<{ rolname: string }>(
    `SELECT rolname FROM pg_roles
     WHERE rolname ~ '^u_' AND NOT EXISTS (SELECT FROM branch WHERE replace(branch_id::text, '-', '') = substr(rolname, 3, 32))`,
  );
const oidOf = async ({ database }: Branch) =>
  (
    await servers.query<{ oid: string }>('SELECT oid::text FROM pg_database WHERE datname = $1', [database])
  )[0]?.oid;
/** A spare is there before it has had its session, and can be taken afterwards. */
const untilThereAre = (count: number) =>
  eventually(async () =>
    expect([(await spareDatabases()).length, servers.host.spares.count]).toEqual([count, count]),
  );

let revision = 100;
/** Numbers as the gateway sends them with the access. */
const want = (of_snapshots: Record<string, number>, of_project: number | null = null) => {
  revision += 1;
  return runOperation(servers.host, 'access.apply', {
    project_id: project.id,
    access: {
      revision,
      rules: [{ branch_id: null, cidr: '127.0.0.1/32' }],
      spares: { of_project, of_snapshots },
    },
  });
};
const state = (project_id = project.id) => runOperation(servers.host, 'spares.read', { project_id });
const dropSnapshot = () =>
  runOperation(servers.host, 'snapshot.drop', { project_id: project.id, snapshot_id: snapshot });

describe('a branch of a snapshot', () => {
  test('makes the next one take a spare, which has the content and accepts nobody before', async () => {
    const first = await create();
    await untilThereAre(1);
    const [spare] = await spareDatabases();
    expect(spare?.datallowconn).toBe(false);
    const taken = servers.host.spares.taken;
    const second = await create();
    expect(servers.host.spares.taken).toBe(taken + 1);
    expect(await oidOf(second)).toBe(spare?.oid);
    expect([first, second].map(({ clone }) => clone.created_by)).toEqual(['clone', 'spare']);
    expect(second.clone).toMatchObject({ created: true, paused_ms: 0 });
    expect(await idsIn(second)).toEqual([{ id: 1 }]);
    await asClient(servers.host, 'pooled', second, 'read_write', 'INSERT INTO item VALUES (2)');
    expect(await idsIn(first)).toEqual([{ id: 1 }]);
    // As many as were taken in the last minute.
    await untilThereAre(2);
    expect(await runOperation(servers.host, 'host.describe', {})).toMatchObject({ spares: 2 });
    const { branches, snapshots } = await runOperation(servers.host, 'host.inventory', {});
    expect([branches.length, snapshots?.length]).toEqual([3, 1]);
    await dropSnapshot();
    expect(await spareDatabases()).toEqual([]);
  });

  test('takes a spare that had a session before, whose login is gone and which nobody may connect to', async () => {
    await want({ [snapshot]: 1 });
    await untilThereAre(1);
    await eventually(async () => {
      const rows = await servers.query<{ sessions: number; closed: boolean; rights: string }>(
        `SELECT sessions::int, NOT datallowconn AND datconnlimit = 0 AS closed, datacl::text AS rights
         FROM pg_stat_database JOIN pg_database USING (datname) WHERE datname ~ '^bgspare_'`,
      );
      // Only the platform's own rights are left.
      expect(rows).toEqual([{ sessions: 1, closed: true, rights: '{branchgate=CTc/branchgate}' }]);
    });
    expect(await spareLogins()).toEqual([]);
    await dropSnapshot();
  });

  test('is a clone, where another process has dropped the spare', async () => {
    await want({ [snapshot]: 1 });
    await untilThereAre(1);
    await end();
    const [{ datname } = { datname: '' }] = await servers.query<{ datname: string }>(
      "SELECT datname FROM pg_database WHERE datname ~ '^bgspare_'",
    );
    await servers.query(`DROP DATABASE ${datname}`);
    const taken = servers.host.spares.taken;
    expect(await idsIn(await create())).toEqual([{ id: 1 }]);
    expect(servers.host.spares.taken).toBe(taken);
    run();
    await dropSnapshot();
  });

  test('that a crash left between the rename and the opening is adopted', async () => {
    await want({ [snapshot]: 1 });
    await untilThereAre(1);
    const identity = { job_id: randomUUID(), project_id: project.id };
    const branch = { branch_id: randomUUID(), database: `${MAIN}_br_killed`, build_id: randomUUID() };
    const clone = () =>
      runOperation(servers.host, 'branch.clone', {
        ...identity,
        branches: [branch],
        source: snapshotDatabaseName(snapshot),
        busy_wait: BUSY_WAIT_MS,
      });
    const taken = servers.host.spares.taken;
    expect(await clone()).toMatchObject({ created: true });
    expect(servers.host.spares.taken).toBe(taken + 1);
    expect(await clone()).toMatchObject({ created: false });
    const built = await servers.query('SELECT FROM pg_database WHERE datname = $1', [
      buildDatabaseName(branch.build_id),
    ]);
    expect(built).toHaveLength(1);
    await runOperation(servers.host, 'branch.drop', { ...identity, ...dropped(branch), made_by: null });
    await dropSnapshot();
  });
});

describe('a batch', () => {
  /** Clones the snapshot for three branches of one call, and drops what is made. @returns how many took a spare */
  async function cloneThree() {
    const identity = { job_id: randomUUID(), project_id: project.id };
    const branches = [1, 2, 3].map((n) => ({
      branch_id: randomUUID(),
      database: `${MAIN}_br_three_${n}`,
      build_id: randomUUID(),
    }));
    const taken = servers.host.spares.taken;
    await runOperation(servers.host, 'branch.clone', {
      ...identity,
      branches,
      source: snapshotDatabaseName(snapshot),
      busy_wait: BUSY_WAIT_MS,
    });
    const built = await servers.query('SELECT FROM pg_database WHERE datname = ANY ($1)', [
      branches.map(({ build_id }) => buildDatabaseName(build_id)),
    ]);
    expect(built).toHaveLength(3);
    for (const branch of branches)
      await runOperation(servers.host, 'branch.drop', {
        ...identity,
        ...dropped(branch),
        made_by: null,
      });
    return servers.host.spares.taken - taken;
  }

  test.runIf(IS_NIGHTLY)('takes as many spares as there are, and clones for the others', async () => {
    await want({ [snapshot]: 2 });
    await untilThereAre(2);
    await end();
    expect(await cloneThree()).toBe(2);
    expect(await cloneThree()).toBe(0);
    run();
    await dropSnapshot();
  });

  test.runIf(IS_NIGHTLY)('takes the others where another process has dropped one of its spares', async () => {
    await want({ [snapshot]: 3 });
    await untilThereAre(3);
    await end();
    const spares = await servers.query<{ datname: string }>(
      "SELECT datname FROM pg_database WHERE datname ~ '^bgspare_' ORDER BY oid",
    );
    await servers.query(`DROP DATABASE ${spares[2]?.datname}`);
    expect(await cloneThree()).toBe(2);
    run();
    await dropSnapshot();
  });
});

const dropped = ({ branch_id, database }: { branch_id: string; database: string }) => ({
  branch_id,
  database,
});

describe('the number of spares', () => {
  test.runIf(IS_NIGHTLY)(
    'is that of the snapshot, of the project once the snapshot is used, or automatic',
    async () => {
      await want({ [snapshot]: 3 });
      await untilThereAre(3);
      await want({ [snapshot]: 0 });
      await untilThereAre(0);
      await create();
      await want({ [snapshot]: 0 }, 2);
      await untilThereAre(0);
      await want({}, 2);
      await untilThereAre(2);
      await want({});
      await create();
      await untilThereAre(2);
      await dropSnapshot();
    },
  );

  test.runIf(IS_NIGHTLY)(
    'that a project asks for is 32 after 16 others are deleted, and until then it waits for the making',
    async () => {
      for (let n = 0; n < 16; n += 1) {
        const other = new Project(servers.host);
        const { database, branch_id } = await other.create(`db_deleted_${n}`, null);
        const taken = randomUUID();
        await runOperation(servers.host, 'snapshot.take', {
          project_id: other.id,
          branch_id,
          source: database,
          snapshot_id: taken,
          busy_wait: BUSY_WAIT_MS,
          unless_same_as: null,
        });
        revision += 1;
        await runOperation(servers.host, 'access.apply', {
          project_id: other.id,
          access: {
            revision,
            tenant: project.id,
            rules: [],
            spares: { of_project: null, of_snapshots: { [taken]: 2 } },
          },
        });
        await eventually(async () => expect(await state(other.id)).toMatchObject({ ready: 2 }));
        await other.remove();
      }
      await want({}, 32);
      expect(await state()).toEqual({ wanted: 32, ready: 0, waiting_for: 'use' });
      await create();
      // The proof of the branch has just worked.
      expect(await state()).toMatchObject({
        wanted: 32,
        waiting_for: expect.stringMatching(/^(making|clients)$/),
      });
      await eventually(async () =>
        expect(await state()).toEqual({ wanted: 32, ready: 32, waiting_for: null }),
      );
      await want({});
      await dropSnapshot();
    },
  );

  test.runIf(IS_NIGHTLY)('is at most 32 in a project, the newest snapshots first', async () => {
    const spares = new Spares();
    const older = snapshot;
    await servers.query(
      "UPDATE snapshot SET taken_at = taken_at - interval '1 hour' WHERE snapshot_id = $1",
      [older],
    );
    snapshot = randomUUID();
    await runOperation(servers.host, 'snapshot.take', {
      project_id: project.id,
      branch_id: main.branch_id,
      source: main.database,
      snapshot_id: snapshot,
      busy_wait: BUSY_WAIT_MS,
      unless_same_as: null,
    });
    await end();
    await want({ [snapshot]: 20, [older]: 20 });
    expect([...(await spares.wanted(servers.host.postgres)).values()]).toEqual([20, 12]);
    await want({});
    run();
    await dropSnapshot();
    snapshot = older;
    await dropSnapshot();
  });
});

/** Snapshots of other projects of a tenant, of which each wants 32 spares. @returns a function that removes them */
async function otherSnapshots(tenant: string, count: number): Promise<() => Promise<void>> {
  const ids = Array.from({ length: count }, () => randomUUID());
  for (const id of ids) {
    await servers.query(`CREATE DATABASE ${snapshotDatabaseName(id)}`);
    await servers.query('INSERT INTO project (project_id, access_revision, tenant) VALUES ($1, 1, $2)', [
      id,
      tenant,
    ]);
    await servers.query(
      `INSERT INTO snapshot (snapshot_id, project_id, branch_id, source, kind, spares) VALUES ($1, $1, $1, 'x', 'taken', 32)`,
      [id],
    );
  }
  return async () => {
    for (const id of ids) {
      await servers.query(`DROP DATABASE ${snapshotDatabaseName(id)}`);
      await servers.query('DELETE FROM snapshot WHERE snapshot_id = $1', [id]);
      await servers.query('DELETE FROM project WHERE project_id = $1', [id]);
    }
  };
}

test('a tenant has at most 64, over all its projects', async () => {
  await end();
  const remove = await otherSnapshots('crowd', 3);
  const wanted = await new Spares().wanted(servers.host.postgres);
  expect([...wanted.values()]).toEqual([32, 32, 0]);
  const last = [...wanted.keys()].at(-1)?.replace('bgsnap_', '');
  expect(
    await new Spares().read(servers.host, String(last?.replace(/(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-'))),
  ).toEqual({
    wanted: 32,
    ready: 0,
    waiting_for: 'limit',
  });
  await remove();
  run();
  await dropSnapshot();
});

test('a tenant that has most of a full host gives up some for one with fewer, until both have the same', async () => {
  await end();
  const spares = new Spares({ ofHost: 4 });
  const { signal } = new AbortController();
  const keep = () =>
    eventually(async () => {
      await spares.keep(servers.host, signal);
      expect(spares.count).toBe(4);
    });
  const remove = await otherSnapshots('first', 1);
  await keep();
  const [first] = (await spareDatabases()).map(({ oid }) => oid);
  await want({ [snapshot]: 32 });
  await eventually(async () => {
    await keep();
    const left = (await spareDatabases()).map(({ oid }) => oid);
    expect(left).not.toContain(first);
  });
  const own = servers.host.spares;
  servers.host.spares = spares;
  try {
    for (let n = 0; n < 3; n += 1) await create();
    expect(spares.taken).toBe(2);
  } finally {
    servers.host.spares = own;
  }
  await spares.dropAll(servers.host.postgres);
  await remove();
  run();
  await want({});
  await dropSnapshot();
});

test('the next spare is of the tenant that has fewest, not of the newest snapshot', async () => {
  await end();
  const spares = new Spares();
  // Its snapshot is newer.
  const remove = await otherSnapshots('newer', 1);
  await want({ [snapshot]: 2 });
  const begun: unknown[] = [];
  const stop = new AbortController();
  const log = (_event: string, fields?: Record<string, unknown>) => {
    if (begun.push(fields?.snapshot) === 4) stop.abort();
  };
  await eventually(async () => {
    await spares.keep({ ...servers.host, log }, stop.signal);
    expect(begun).toHaveLength(4);
  });
  expect(begun.filter((of) => of === snapshotDatabaseName(snapshot))).toHaveLength(2);
  await spares.dropAll(servers.host.postgres);
  await remove();
  run();
  await want({});
  await dropSnapshot();
});

test.runIf(IS_NIGHTLY)(
  'numbers that go up and down have spares made for nothing 32 times, and then every 5 seconds',
  async () => {
    const unused = new UnusedSpares();
    for (let n = 0; n < 31; n += 1) unused.add('one', 0);
    expect(unused.isTooMany('one', 0)).toBe(false);
    unused.add('one', 0);
    expect([unused.isTooMany('one', 4_999), unused.isTooMany('other', 0)]).toEqual([true, false]);
    expect(unused.isTooMany('one', 5_000)).toBe(false);
    await dropSnapshot();
  },
);

test('a tenant that had them made for nothing gets no more, and another number does not help', async () => {
  await end();
  const unused = new UnusedSpares();
  for (let n = 0; n < 30; n += 1) unused.add(project.id, 0);
  servers.host.spares = new Spares({ unused, now: () => 0 });
  run();
  await want({ [snapshot]: 2 });
  await untilThereAre(2);
  await want({ [snapshot]: 0 });
  await untilThereAre(0);
  await end();
  await want({ [snapshot]: 32 });
  await servers.host.spares.keep(servers.host, new AbortController().signal);
  expect(await spareDatabases()).toEqual([]);
  expect(await state()).toEqual({ wanted: 32, ready: 0, waiting_for: 'unused' });
  servers.host.spares = new Spares();
  run();
  await want({});
  await dropSnapshot();
});

test('spares of a deleted snapshot do not count as made for nothing', async () => {
  await end();
  const unused = new UnusedSpares();
  for (let n = 0; n < 31; n += 1) unused.add(project.id, 0);
  servers.host.spares = new Spares({ unused, now: () => 0 });
  run();
  await want({ [snapshot]: 2 });
  await untilThereAre(2);
  await dropSnapshot();
  await untilThereAre(0);
  expect(unused.isTooMany(project.id, 0)).toBe(false);
  await end();
  servers.host.spares = new Spares();
  run();
});

test('a snapshot with very many files has no spares', async () => {
  const [{ oid } = { oid: '' }] = await servers.query<{ oid: string }>(
    'SELECT oid::text FROM pg_database WHERE datname = $1',
    [snapshotDatabaseName(snapshot)],
  );
  const folder = join(servers.settings.PGDATA_DIR, 'base', oid);
  for (let n = 0; n < 2_000; n += 1) writeFileSync(join(folder, `t9_${n}`), '');
  await want({ [snapshot]: 1 });
  // Its first look at the snapshot is over when another one has a spare.
  const large = snapshot;
  snapshot = randomUUID();
  await runOperation(servers.host, 'snapshot.take', {
    project_id: project.id,
    branch_id: main.branch_id,
    source: main.database,
    snapshot_id: snapshot,
    busy_wait: BUSY_WAIT_MS,
    unless_same_as: null,
  });
  await servers.query("UPDATE snapshot SET taken_at = taken_at - interval '1 hour' WHERE snapshot_id = $1", [
    snapshot,
  ]);
  await want({ [large]: 1, [snapshot]: 1 });
  await untilThereAre(1);
  const [spare] = await servers.query<{ files: number }>(
    "SELECT count(*)::int AS files FROM pg_database, pg_ls_dir('base/' || oid) WHERE datname ~ '^bgspare_'",
  );
  expect(spare?.files).toBeLessThan(2_000);
  expect(await state()).toEqual({ wanted: 2, ready: 1, waiting_for: 'files' });
  await want({});
  await dropSnapshot();
  snapshot = large;
  await dropSnapshot();
});

test('while clients work, one is made or dropped, and then none for 19 times as long, but those of dropped snapshots go', async () => {
  await end();
  let now = 0;
  const log = (event: string) => {
    if (event === 'spare.begun') now += 100;
  };
  const spares = new Spares({ now: () => now });
  const host = { ...servers.host, spares, log, cloneTurns: new CloneTurns('reflink') };
  const keep = async () => {
    await spares.keep(host, new AbortController().signal);
    return spares.count;
  };
  /** Works in `main`, and then stays open for as long as `wait` says. */
  const client = async (wait: Promise<void>) => {
    // A session of the platform would show neither its statement nor that it works.
    const session = await connect(servers.host, 'direct', main, 'read_only');
    await session.query('SELECT pg_sleep(600)').catch(() => {});
    await wait;
    await session.end();
  };
  const WORKING = `pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(600)'`;
  const isWorking = async () => (await servers.query(`SELECT FROM ${WORKING}`)).length === 1;
  const cancel = () => servers.query(`SELECT pg_cancel_backend(pid) FROM ${WORKING}`);
  const left = Promise.withResolvers<void>();
  const first = client(left.promise);
  await eventually(async () => expect(await isWorking()).toBe(true));
  await want({ [snapshot]: 3 });
  expect([await keep(), await keep()]).toEqual([1, 1]);
  expect(await spares.read(host, project.id)).toEqual({ wanted: 3, ready: 1, waiting_for: 'clients' });
  now += 1_899;
  expect(await keep()).toBe(1);
  now += 1;
  expect([await keep(), await keep()]).toEqual([2, 2]);
  await cancel();
  // A session that is open and idle is no reason.
  await eventually(async () => expect(await keep()).toBe(3));
  const second = client(Promise.resolve());
  await eventually(async () => expect(await isWorking()).toBe(true));
  await want({ [snapshot]: 0 });
  expect(await keep()).toBe(3);
  // Another process drops it, and these spares stay.
  await dropSnapshot();
  expect(await keep()).toBe(0);
  await cancel();
  left.resolve();
  await Promise.all([first, second]);
  run();
});

describe('spares go', () => {
  test('first where the disk is short, and none is made for a while', async () => {
    await want({ [snapshot]: 2 });
    await untilThereAre(2);
    expect(await makeRoom(servers.host, new NoCopyRoom(1, 'full'))).toBe(true);
    expect(await spareDatabases()).toEqual([]);
    expect(await servers.host.spares.dropAll(servers.host.postgres)).toBe(false);
    expect(await state()).toEqual({ wanted: 2, ready: 0, waiting_for: 'room' });
    servers.host.spares = new Spares();
    await dropSnapshot();
  });

  test('before a clone is refused because its files find no room', async () => {
    await want({ [snapshot]: 2 });
    await untilThereAre(2);
    const { copyRoom } = servers.host;
    servers.host.copyRoom = Object.assign(Object.create(copyRoom), {
      requireInodes: async () => {
        if ((await spareDatabases()).length > 0) throw new HostError('HOST_FULL', 'too few inodes are free');
      },
    });
    made += 1;
    const branch = await project.create(`${MAIN}_br_${made}`, main.database);
    expect(await idsIn(branch)).toEqual([{ id: 1 }]);
    expect(await spareDatabases()).toEqual([]);
    servers.host.copyRoom = copyRoom;
    servers.host.spares = new Spares();
    await dropSnapshot();
  });

  test.runIf(IS_NIGHTLY)('before any deleted branch, while too little of the disk is free', async () => {
    await want({ [snapshot]: 2 });
    made += 1;
    const kept = await project.create(`${MAIN}_br_${made}`, main.database);
    await runOperation(servers.host, 'branch.keep', {
      job_id: randomUUID(),
      project_id: project.id,
      ...dropped(kept),
      snapshot_id: randomUUID(),
      made_by: null,
    });
    await untilThereAre(2);
    const left: number[] = [];
    const host = {
      ...servers.host,
      settings: { ...servers.settings, MIN_FREE_DISK_MB: 2 ** 30 },
      log: (event: string) => {
        if (event === 'disk.deleted_branch_dropped') left.push(servers.host.spares.count);
      },
    };
    const full = new AbortController();
    const room = runRoomLoop(host, () => {}, full.signal);
    await eventually(async () => expect(left).toHaveLength(1));
    full.abort();
    await room;
    expect(left).toEqual([0]);
    expect(await spareDatabases()).toEqual([]);
    servers.host.spares = new Spares();
    await dropSnapshot();
  });

  test('with the agent that made them: the next one drops those that it does not know', async () => {
    await want({ [snapshot]: 1 });
    await untilThereAre(1);
    await end();
    const [before] = await spareDatabases();
    servers.host.spares = new Spares();
    run();
    await eventually(async () => {
      const [after] = await spareDatabases();
      expect(after).toBeDefined();
      expect(after?.oid).not.toBe(before?.oid);
    });
    await untilThereAre(1);
    await dropSnapshot();
  });

  test('and the login of one that was being warmed when the agent was killed', async () => {
    await end();
    const id = randomUUID().replaceAll('-', '');
    await servers.query(`CREATE DATABASE bgspare_${id} CONNECTION LIMIT 1`);
    await servers.query(`CREATE ROLE u_${id}_query LOGIN`);
    await servers.query(`GRANT CONNECT ON DATABASE bgspare_${id} TO u_${id}_query`);
    await want({ [snapshot]: 0 });
    await new Spares().keep(servers.host, new AbortController().signal);
    expect([await spareDatabases(), await spareLogins()]).toEqual([[], []]);
    run();
    await dropSnapshot();
  });

  test('nowhere because their session failed: such a spare is taken too', async () => {
    await end();
    await want({ [snapshot]: 1 });
    const events: string[] = [];
    const host = {
      ...servers.host,
      spares: new Spares(),
      settings: { ...servers.host.settings, POSTGRES_SOCKET_DIR: '/nowhere' },
      log: (event: string) => void events.push(event),
    };
    await eventually(async () => {
      await host.spares.keep(host, new AbortController().signal);
      expect(host.spares.count).toBe(1);
    });
    expect(events).toContain('spare.cold');
    expect(await spareLogins()).toEqual([]);
    const own = servers.host.spares;
    servers.host.spares = host.spares;
    expect(await idsIn(await create())).toEqual([{ id: 1 }]);
    expect(host.spares.taken).toBe(1);
    servers.host.spares = own;
    run();
    await dropSnapshot();
  });

  test('with the project', async () => {
    await want({ [snapshot]: 1 });
    await untilThereAre(1);
    const { oid } = (await spareDatabases())[0] ?? {};
    await end();
    // Those of this one are not known to the operation, as one is not that is being made.
    const spares = new Spares();
    const host = { ...servers.host, spares };
    const keep = () => eventually(() => spares.keep(host, new AbortController().signal));
    await keep();
    expect(spares.count).toBe(1);
    expect((await spareDatabases())[0]?.oid).not.toBe(oid);
    await runOperation(servers.host, 'project.drop', { job_id: randomUUID(), project_id: project.id });
    await keep();
    expect(await spareDatabases()).toEqual([]);
    const roles = await servers.query("SELECT FROM pg_roles WHERE rolname ~ '^(u|g)_[0-9a-f]{32}_'");
    expect(roles).toEqual([]);
  });
});
