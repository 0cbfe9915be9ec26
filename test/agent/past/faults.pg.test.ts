import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { appendFileSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, test, vi } from 'vitest';
import { examine } from '../../../agent/maintenance/examine.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { archivedBytes } from '../../../agent/past/archive.ts';
import { keptBytes, readBaseCopies } from '../../../agent/past/base-copies.ts';
import { pastFolders } from '../../../agent/past/folders.ts';
import { removeLeftRecoveries } from '../../../agent/past/recover.ts';
import type { AgentSettings } from '../../../agent/process/settings.ts';
import { diskSize, freeBytes } from '../../../agent/volumes/volumes.ts';
import { snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import { microsecondsOf, momentAt } from '../../../shared/moment.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, Project, toolOptions } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

/** Recoveries that are killed, meet a full disk, or cross other work of the host. */

let servers: TestHost;
let project: Project;
let main: Branch;

const SETTINGS = { RECOVERY_WINDOW_HOURS: '24' };

beforeAll(async () => {
  servers = await startHost({ settings: SETTINGS });
  project = new Project(servers.host);
  main = await project.create('db_faults_prod', null);
  await write('create table item (n int primary key, note text)');
  await servers.host.past.copyBase({ fast: true });
});

afterAll(() => servers?.stop());

const write = (sql: string, branch = main) => asClient(servers.host, 'direct', branch, 'owner', sql);
const add = (from: number, to: number) =>
  write(`insert into item select n, 'note ' || n from generate_series(${from}, ${to}) n`);

const now = async () => {
  const [row] = await servers.query<{ at: string }>(
    `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at`,
  );
  return row?.at ?? '';
};

const paramsOf = (at: string, branch: Branch = main) => ({
  job_id: randomUUID(),
  project_id: branch.project_id,
  branch_id: branch.branch_id,
  snapshot_id: randomUUID(),
  at,
  room_bytes: 2 ** 30,
  jobs: 1,
});

const dropOf = ({ project_id, snapshot_id }: ReturnType<typeof paramsOf>) =>
  runOperation(servers.host, 'snapshot.drop', { project_id, snapshot_id });

/** Numbers of the items of a recovered snapshot, which is dropped. */
async function itemsOf(params: ReturnType<typeof paramsOf>): Promise<number[]> {
  const name = `${main.database}_br_${params.job_id.slice(0, 8)}`;
  const branch = await project.create(name, snapshotDatabaseName(params.snapshot_id));
  try {
    const rows = await asClient<{ n: number }>(
      servers.host,
      'direct',
      branch,
      'owner',
      'select n from item order by n',
    );
    return rows.map(({ n }) => n);
  } finally {
    await project.drop(branch);
    await dropOf(params);
  }
}

async function itemsAt(at: string): Promise<number[]> {
  const params = paramsOf(at);
  const result = await runOperation(servers.host, 'past.recover', params);
  const { wal, bases } = pastFolders(servers.host.settings);
  const kept = [
    readdirSync(wal),
    await readBaseCopies(pastFolders(servers.host.settings)),
    readdirSync(bases),
  ];
  assert(result.recovered, JSON.stringify([at, result, kept]));
  return itemsOf(params);
}

const itemsNow = async () =>
  (await asClient<{ n: number }>(servers.host, 'direct', main, 'owner', 'select n from item order by n')).map(
    ({ n }) => n,
  );

async function leftOvers() {
  const { recoveries } = pastFolders(servers.host.settings);
  const databases = await servers.query<{ name: string }>(
    "select datname as name from pg_database where datname ~ '^bg(load|snap|diff)_'",
  );
  const processes = readdirSync('/proc').filter((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`${recoveries}/`);
    } catch {
      return false;
    }
  });
  return { databases, folders: existsSync(recoveries) ? readdirSync(recoveries) : [], processes };
}
const NOTHING = { databases: [], folders: [], processes: [] };

test('a base copy beside clones, a snapshot that is deleted later and a database that is dropped since', async () => {
  await add(1, 100);
  const names = ['one', 'two', 'three'].map((name) => `${main.database}_br_${name}`);
  const [, ...clones] = await Promise.all([
    servers.host.past.copyBase({ fast: true }),
    ...names.map((name) => project.create(name, main.database)),
  ]);
  const snapshot_id = randomUUID();
  const { project_id, branch_id, database: source } = main;
  const taken = { project_id, branch_id, snapshot_id, source, busy_wait: 5_000, unless_same_as: null };
  await runOperation(servers.host, 'snapshot.take', taken);
  const at = await now();
  const before = await itemsNow();
  await runOperation(servers.host, 'snapshot.drop', { project_id, snapshot_id });
  for (const clone of clones) await project.drop(clone);
  await add(101, 200);
  assert.deepEqual(await itemsAt(at), before);
  assert.deepEqual(await itemsAt(await now()), await itemsNow());
  assert.deepEqual(await leftOvers(), NOTHING);
});

/** Keeps the window until `isKept`, as if it were `time`, in Unix milliseconds. */
async function keepAt(time: number, isKept: () => Promise<unknown>): Promise<void> {
  vi.useFakeTimers({ toFake: ['Date'], now: time });
  const stop = new AbortController();
  const running = servers.host.past.run(() => {}, stop.signal);
  try {
    await eventually(isKept);
  } finally {
    stop.abort();
    await running;
    vi.useRealTimers();
  }
}

const baseNames = async () =>
  (await readBaseCopies(pastFolders(servers.host.settings))).map(({ name }) => name);
const foundByDoctor = async () =>
  (await examine(servers.host)).findings.map(({ sentence }) => sentence).join('\n');

test('a base copy is made when the last one is as old as BASE_COPY_HOURS, and not before', async () => {
  const { past, settings } = servers.host;
  const last = await past.copyBase({ fast: true });
  const hours = settings.BASE_COPY_HOURS * 3_600_000;
  const before = await baseNames();
  const looked = vi.spyOn(past, 'lacksRoom');
  await keepAt(Date.parse(last.ended_at) + hours - 1, async () => assert(looked.mock.calls.length > 0));
  looked.mockRestore();
  assert.deepEqual(await baseNames(), before);
  await keepAt(Date.parse(last.ended_at) + hours + 1, async () =>
    assert.equal((await baseNames()).length, before.length + 1),
  );
});

test('what is older than the window goes, and the window that is shown is recovered at both ends', async () => {
  const { past, settings } = servers.host;
  const { wal } = pastFolders(settings);
  const older = await baseNames();
  await add(501, 510);
  const first = await past.copyBase({ fast: true });
  const itemsOfFirst = await itemsNow();
  await add(511, 520);
  const second = await past.copyBase({ fast: true });
  await add(521, 530);
  assert(older.length > 0 && readdirSync(wal).some((name) => name < first.segment));
  // The window begins between the two copies, and the last one is a day old.
  const day = settings.RECOVERY_WINDOW_HOURS ?? 0;
  await keepAt(Date.parse(first.ended_at) + 1 + day * 3_600_000, async () => {
    const names = await baseNames();
    assert.deepEqual(names.slice(0, 2), [first.name, second.name]);
    assert.equal(names.length, 3);
    assert.equal((await past.state()).copies, 3);
  });
  const kept = readdirSync(wal).filter((name) => /^[0-9A-F]{24}$/.test(name));
  assert.equal(kept.sort()[0], first.segment);
  const { recoverable_from: from } = (await runOperation(servers.host, 'host.describe', {})) ?? {};
  assert.equal(from, first.ended_at);
  const before = paramsOf(momentAt(microsecondsOf(first.ended_at) - 1n));
  const refused = await runOperation(servers.host, 'past.recover', before);
  assert.deepEqual([refused.recovered, refused.window.from], [null, from]);
  assert.deepEqual(await itemsAt(first.ended_at), itemsOfFirst);
  assert.deepEqual(await itemsAt(refused.window.until ?? ''), await itemsNow());
});

test('a window with more than its share of the disk, or on a disk that is short, shrinks, and is shown as shrunk', async () => {
  const { past } = servers.host;
  const folders = pastFolders(servers.host.settings);
  const settings: { -readonly [Name in keyof AgentSettings]: AgentSettings[Name] } = servers.host.settings;
  const { PAST_DISK_PERCENT, MIN_FREE_DISK_MB } = settings;
  // A copy is due, and the present ones are still in the window.
  const due = Date.now() + 23 * 3_600_000;
  const shrunk = /the oldest were dropped and the window of recoveries is shorter/;
  try {
    for (let n = (await baseNames()).length; n < 3; n += 1) await past.copyBase({ fast: true });
    const [oldest = '', ...others] = await baseNames();
    assert.doesNotMatch(await foundByDoctor(), shrunk);
    const taken =
      (await archivedBytes(folders)) +
      (await keptBytes(folders, settings.PGDATA_DIR, past.method === 'reflink'));
    settings.PAST_DISK_PERCENT = (100 * (taken - 1)) / (await diskSize(folders.root));
    await keepAt(due, async () => {
      const left = await baseNames();
      assert(!left.includes(oldest) && !others.includes(left.at(-1) ?? ''));
    });
    assert((await past.state()).isShortened);
    assert.match(await foundByDoctor(), shrunk);
    // One stays, and no other one is made.
    const last = (await baseNames()).slice(-1);
    settings.MIN_FREE_DISK_MB = (await freeBytes(folders.root)) / 2 ** 20;
    await keepAt(due, async () => assert.deepEqual(await baseNames(), last));
    assert.equal((await past.state()).copies, 1);
    await assert.rejects(runOperation(servers.host, 'past.recover', paramsOf(await now())), {
      code: 'HOST_FULL',
    });
    assert.deepEqual(await leftOvers(), NOTHING);
  } finally {
    Object.assign(settings, { PAST_DISK_PERCENT, MIN_FREE_DISK_MB });
  }
  assert.deepEqual(await itemsAt(await now()), await itemsNow());
});

/** When a recovery is at a step, by what the host has then. */
const STEPS: Record<string, (data: string) => Promise<boolean>> = {
  'files are copied': async (data) => existsSync(data),
  'the log is replayed': async (data) =>
    existsSync(join(data, 'postmaster.pid')) && existsSync(join(data, 'recovery.signal')),
  'the copy is promoted': async (data) =>
    existsSync(join(data, 'postmaster.pid')) && !existsSync(join(data, 'recovery.signal')),
  'other databases are removed': async (data) =>
    existsSync(join(data, 'base')) &&
    !existsSync(join(data, 'recovery.signal')) &&
    readdirSync(join(data, 'base')).length === 1,
  'the database is made': () => has("select from pg_database where datname ~ '^bgload_'"),
  'the schema is copied': () => has("select from pg_stat_activity where datname ~ '^bgload_'"),
  'rows are copied': () =>
    has("select from pg_stat_activity where datname ~ '^bgload_' and query ~* '^copy'"),
  'the snapshot is there': () => has("select from pg_database where datname ~ '^bgsnap_'"),
};
const has = async (sql: string) => (await servers.query(sql)).length > 0;

describe.runIf(IS_NIGHTLY)('an agent that is killed', () => {
  let at: string;
  let before: number[];
  beforeAll(async () => {
    await add(1_000, 60_000);
    at = await now();
    before = await itemsNow();
  });

  test.each(Object.entries(STEPS))('while %s', async (_, isThere) => {
    const params = paramsOf(at);
    const data = join(pastFolders(servers.host.settings).recoveries, params.job_id, 'data');
    const tool = await servers.spawnTool('past', 'recover', ...toolOptions(params));
    const ended = once(tool, 'exit');
    let isSeen = false;
    while (!isSeen && tool.exitCode === null) {
      isSeen = await isThere(data).catch(() => false);
      await sleep(1);
    }
    tool.kill('SIGKILL');
    await ended;
    assert(isSeen, 'the step was not seen');
    // The agent does this at its start; the gateway then repeats the call.
    await removeLeftRecoveries(servers.host.settings);
    await eventually(async () => assert.deepEqual((await leftOvers()).processes, []));
    assert.deepEqual((await leftOvers()).folders, []);
    const repeated = await runOperation(servers.host, 'past.recover', params);
    assert(repeated.recovered, JSON.stringify(repeated));
    assert.deepEqual(await itemsOf(params), before);
    assert.deepEqual(await leftOvers(), NOTHING);
  });
});

/** Writes of a client while the archive takes nothing. */
const load = () =>
  write("select pg_logical_emit_message(true, 'load', repeat('x', 8000000))").catch(() => {});

test.runIf(IS_NIGHTLY)('a full archive stops nothing, and a new window begins when it has room', async () => {
  const { wal } = pastFolders(servers.host.settings);
  await add(100_000, 100_010);
  const lost = await now();
  const asRoot = <T>(action: () => T): T => {
    const user = process.geteuid?.() ?? 0;
    process.seteuid?.(0);
    try {
      return action();
    } finally {
      process.seteuid?.(user);
    }
  };
  const uid = process.geteuid?.() ?? 0;
  asRoot(() => execFileSync('mount', ['-t', 'tmpfs', '-o', `size=80m,mode=0700,uid=${uid}`, 'archive', wal]));
  try {
    for (let n = 0; n < 8; n += 1) {
      await add(200_000 + n, 200_000 + n);
      await load();
      await servers.query('select pg_switch_wal()');
    }
    // PostgreSQL has nothing to archive again, and serves.
    await eventually(async () => {
      const [found] = await servers.query<{ waiting: number }>(
        "select count(*)::int as waiting from pg_ls_archive_statusdir() where name like '%.ready'",
      );
      assert.equal(found?.waiting, 0);
    });
    assert.equal((await itemsNow()).includes(200_007), true);
    const gone = await runOperation(servers.host, 'past.recover', paramsOf(lost));
    assert.equal(gone.recovered, null);
    // The loop makes a base copy, and the archive holds what follows.
    const stop = new AbortController();
    const running = servers.host.past.run(() => {}, stop.signal);
    await eventually(async () => assert((await servers.host.past.copies()).length > 0), 120);
    stop.abort();
    await running;
    await add(300_000, 300_001);
    assert.deepEqual(await itemsAt(await now()), await itemsNow());
  } finally {
    asRoot(() => execFileSync('umount', ['--lazy', wal]));
  }
  assert.deepEqual(await leftOvers(), NOTHING);
});

test.runIf(IS_NIGHTLY)('a promoted server continues the archive on its new time line', async () => {
  await servers.host.past.copyBase({ fast: true });
  await add(400_000, 400_001);
  const first = { at: await now(), items: await itemsNow() };
  const { PGDATA_DIR } = servers.host.settings;
  await servers.end('postgres', 'SIGINT');
  appendFileSync(join(PGDATA_DIR, 'postgresql.auto.conf'), "restore_command = 'false'\n");
  writeFileSync(join(PGDATA_DIR, 'standby.signal'), '');
  await servers.start('postgres');
  await servers.query('select pg_promote()');
  await eventually(async () => {
    const [found] = await servers.query<{ line: number }>(
      "select ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int as line",
    );
    assert.equal(found?.line, 2);
  });
  await add(400_002, 400_003);
  const second = { at: await now(), items: await itemsNow() };
  assert.deepEqual(await itemsAt(first.at), first.items);
  assert.deepEqual(await itemsAt(second.at), second.items);
  assert.deepEqual(await leftOvers(), NOTHING);
});
