import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import {
  closeSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  readSync,
  renameSync,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, test } from 'vitest';
import { examine } from '../../../agent/maintenance/examine.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { drill, keepRecords, readDrillState, runDrills } from '../../../agent/past/drills.ts';
import { pastFolders } from '../../../agent/past/folders.ts';
import { RECOVERY_STEPS, type RecoveryStep, recoverDatabase } from '../../../agent/past/recover.ts';
import { PLATFORM_ROLE } from '../../../agent/postgres/connect.ts';
import type { OnProgress } from '../../../agent/process/progress.ts';
import { loadDatabaseName } from '../../../agent/transfer/load-database.ts';
import { serverUser } from '../../../dev/stack/os-user.ts';
import { snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import { momentOf } from '../../../shared/moment.ts';
import type { ReplayProgress } from '../../../shared/project/job.ts';
import type { DrillReport } from '../../../shared/protocol/recovery-drill.ts';
import { Random } from '../../simulation/random.ts';
import { eventually } from '../../support/eventually.ts';
import { asRoot, startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, identity, Project } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { mountXfs, type XfsMount, xfsHindrance } from '../../support/stack/xfs.ts';

const DISK_BYTES = 4 * 2 ** 30;
const SCHEMA = `
  create schema shop;
  create table shop.item (n bigint primary key, note text);
  create index on shop.item (note);
  create view shop.newest as select max(n) from shop.item;
  create table visit (at timestamptz default now());
  alter table visit enable row level security;
  alter table visit force row level security;
  create sequence steps;
  grant usage on schema shop to public;
  grant select on shop.item to public`;
/** Recovered seconds of a part. */
const SECONDS = IS_NIGHTLY ? 15 : 3;
const PARTS = Array.from({ length: IS_NIGHTLY ? 20 : 1 }, (_, part) => part + 1);
const COMMITS = IS_NIGHTLY ? 600 : 40;

let disk: XfsMount | null = null;
let servers: TestHost;
let project: Project;
let main: Branch;
let neighbour: Branch;

/** What another tenant has written, before the base copy and after it. */
const CANARIES = ['canary-7f3a9c1e-before', 'canary-7f3a9c1e-after'] as const;
const plant = (canary: string) =>
  asClient(
    servers.host,
    'direct',
    neighbour,
    'owner',
    `insert into secret select '${canary} ' || n from generate_series(1, 2000) n`,
  );

beforeAll(async () => {
  disk = xfsHindrance() === null ? mountXfs(DISK_BYTES) : null;
  const settings = { RECOVERY_WINDOW_HOURS: '24' };
  servers = await startHost({ settings, ...(disk && { dataDir: join(disk.folder, 'data') }) });
  project = new Project(servers.host);
  main = await project.create('db_past_prod', null);
  await asClient(servers.host, 'direct', main, 'owner', SCHEMA);
  neighbour = await new Project(servers.host).create('db_neighbour_prod', null);
  await asClient(servers.host, 'direct', neighbour, 'owner', 'create table secret (text text)');
  await plant(CANARIES[0]);
  await servers.host.past.copyBase({ fast: true });
  await plant(CANARIES[1]);
});

afterAll(async () => {
  await servers?.stop();
  disk?.remove();
});

const now = async () => {
  const [row] = await servers.query<{ at: string }>(
    `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.USZ') as at`,
  );
  const at = momentOf(row?.at ?? '');
  assert(at);
  return at;
};

const paramsOf = (at: string, branch: Branch = main) => ({
  job_id: randomUUID(),
  project_id: branch.project_id,
  branch_id: branch.branch_id,
  snapshot_id: randomUUID(),
  at,
  room_bytes: 2 ** 30,
  jobs: 2,
});

const drop = ({ project_id, snapshot_id }: ReturnType<typeof paramsOf>) =>
  runOperation(servers.host, 'snapshot.drop', { project_id, snapshot_id });

const foundByDoctor = async () =>
  (await examine(servers.host)).findings.map(({ sentence }) => sentence).join('\n');

/** Gives a branch of what is recovered to `read`. */
async function inRecovered<T>(at: string, read: (branch: Branch) => Promise<T>): Promise<T> {
  const params = paramsOf(at);
  const result = await runOperation(servers.host, 'past.recover', params);
  assert(result.recovered, `${JSON.stringify(result)}\n${servers.logged()}`);
  const source = snapshotDatabaseName(params.snapshot_id);
  const branch = await project.create(`db_past_prod_br_${params.job_id.slice(0, 8)}`, source);
  try {
    return await read(branch);
  } finally {
    await project.drop(branch);
    await drop(params);
  }
}

const readItems = async (branch: Branch) => {
  const rows = await asClient<{ n: number }>(
    servers.host,
    'direct',
    branch,
    'owner',
    'select n::int from shop.item order by n',
  );
  return rows.map(({ n }) => n);
};

/** Everything that a recovery could leave. */
async function leftOvers() {
  const databases = await servers.query<{ name: string }>(
    "select datname as name from pg_database where datname ~ '^bg(load|snap)_' union all select rolname from pg_roles where rolname ~ '_query$' and rolname not in (select 'u_' || replace(branch_id::text, '-', '') || '_query' from branch)",
  );
  const { recoveries } = pastFolders(servers.host.settings);
  const folders = readdirSync(recoveries);
  const processes = readdirSync('/proc').filter((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`${recoveries}/`);
    } catch {
      return false;
    }
  });
  return { databases, folders, processes };
}
const NOTHING = { databases: [], folders: [], processes: [] };

/** Files below a folder that have the text. Those that the server removes meanwhile have none. */
const filesWith = (folder: string, text: string): string[] =>
  readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .map((name) => join(folder, name))
    .filter((path) => {
      try {
        return statSync(path).isFile() && readFileSync(path).includes(text);
      } catch (error) {
        assert.equal((error as NodeJS.ErrnoException).code, 'ENOENT');
        return false;
      }
    });

/** Folders from there on that not only their owner may enter. */
function openFolders(folder: string): string[] {
  return [
    folder,
    ...readdirSync(folder, { recursive: true, encoding: 'utf8' }).map((name) => join(folder, name)),
  ].filter((path) => {
    const found = statSync(path, { throwIfNoEntry: false });
    return found?.isDirectory() && (found.mode & 0o077) !== 0;
  });
}

describe('a branch of a second of the past', () => {
  const random = new Random('seconds of the past');
  const moments: { at: string; n: number }[] = [];

  beforeAll(async () => {
    const session = await connect(servers.host, 'direct', main, 'owner');
    try {
      for (let n = 1; n <= COMMITS; n += 1) {
        await session.query('insert into shop.item values ($1, $2)', [n, `item ${n}`]);
        await session.query("update shop.item set note = note || '.' where n = 1");
        moments.push({ at: await now(), n });
        if (IS_NIGHTLY && n % 100 === 0) await servers.host.past.copyBase({ fast: true });
      }
    } finally {
      await session.end();
    }
  });

  test.each(PARTS)('has every commit up to then, and none after it: part %i', async () => {
    const chosen = Array.from({ length: SECONDS }, () => random.pick(moments));
    for (const { at, n } of chosen)
      await inRecovered(at, async (branch) => {
        assert.deepEqual(
          await readItems(branch),
          Array.from({ length: n }, (_, index) => index + 1),
        );
        assert.deepEqual(
          await asClient(
            servers.host,
            'direct',
            branch,
            'read_write',
            'select note from shop.item where n = 1',
          ),
          [{ note: `item 1${'.'.repeat(n)}` }],
        );
      });
    assert.deepEqual(await leftOvers(), NOTHING);
    // Each recovery ends a segment, whose zeros would fill the disk of the test.
    const { wal } = pastFolders(servers.host.settings);
    for (const name of readdirSync(wal)) execFileSync('fallocate', ['--dig-holes', join(wal, name)]);
  });
});

/** Settings of the second server. */
const REFUSED = {
  archive_mode: 'off',
  autovacuum: 'off',
  autovacuum_freeze_max_age: '2000000000',
  hot_standby: 'off',
  listen_addresses: '',
  max_logical_replication_workers: '0',
  session_preload_libraries: '',
  shared_preload_libraries: '',
};
const CAN_LEAVE_NETWORK =
  spawnSync('/usr/bin/setpriv', [
    ...['--reuid', String(serverUser().uid), '--clear-groups', '/usr/bin/unshare', '--user'],
    ...['--map-current-user', '--net', '--', '/bin/true'],
  ]).status === 0;

/** What the second server of a recovery is, while it runs. */
async function factsOf(folder: string) {
  const data = join(folder, 'data');
  const [pid = ''] = readFileSync(join(data, 'postmaster.pid'), 'utf8').split('\n');
  const session = new pg.Client({
    host: readlinkSync(join(folder, 'sockets')),
    port: 5432,
    user: PLATFORM_ROLE,
    database: PLATFORM_ROLE,
  });
  await session.connect();
  const { rows } = await session.query<{ name: string; setting: string }>(
    'select name, setting from pg_settings where name = any ($1)',
    [Object.keys(REFUSED)],
  );
  await session.end();
  const devices = asRoot(() => readFileSync(`/proc/${pid}/net/dev`, 'utf8'));
  return {
    settings: Object.fromEntries(rows.map(({ name, setting }) => [name, setting])),
    slots: readdirSync(join(data, 'pg_replslot')),
    interfaces: [...devices.matchAll(/^ *([^ :]+):/gm)].map(([, name]) => name),
  };
}

test('no byte of another tenant is in the copy when anything of the tenant can run there', async () => {
  const { wal, bases } = pastFolders(servers.host.settings);
  const seen: Partial<Record<RecoveryStep, string[][]>> = {};
  const facts: Partial<Awaited<ReturnType<typeof factsOf>>> = {};
  const params = paramsOf(await now());
  const replays: ReplayProgress[] = [];
  const open: string[] = [];
  const onProgress: OnProgress = (_, details) => {
    const { replay } = details?.() ?? {};
    if (replay) replays.push(replay);
  };
  const result = await recoverDatabase(servers.host, params, onProgress, async (step, folder) => {
    if (step === 'archived') return;
    open.push(...openFolders(folder));
    seen[step] = CANARIES.map((canary) => filesWith(folder, canary));
    if (step === 'replayed') Object.assign(facts, await factsOf(folder));
  });
  assert(result.recovered, `${JSON.stringify(result)}\n${servers.logged()}`);
  // The test can see them: in the base copy and in the archive.
  assert(filesWith(bases, CANARIES[0]).length > 0);
  assert(filesWith(wal, CANARIES[1]).length > 0);
  assert((seen.replayed?.[1] ?? []).length > 0);
  assert.deepEqual(seen.opened, [[], []]);
  assert.deepEqual(seen.filled, [[], []]);
  assert.deepEqual(facts.settings, REFUSED);
  assert.deepEqual(facts.slots, []);
  if (CAN_LEAVE_NETWORK) assert.deepEqual(facts.interfaces, ['lo']);
  assert.deepEqual(open, []);
  assert(replays.length > 0);
  for (const { bytes, replayed_bytes } of replays) assert(replayed_bytes < bytes);
  await drop(params);
});

test('a base copy shares no block with main where there is room, so that main does not get fragmented', async () => {
  if (!disk) return;
  const { PGDATA_DIR } = servers.host.settings;
  const settings: { PAST_DISK_PERCENT: number } = servers.host.settings;
  const isShared = (path: string) =>
    execFileSync('filefrag', ['-v', path], { encoding: 'utf8' }).includes('shared');
  const [own] = await servers.query<{ oid: string; file: string }>(
    `select oid::text, pg_relation_filepath('branch') as file from pg_database where datname = '${main.database}'`,
  );
  const [{ file = '' } = {}] = await asClient<{ file: string }>(
    servers.host,
    'direct',
    main,
    'owner',
    "select pg_relation_filepath('shop.item') as file",
  );
  const { apart, name } = await servers.host.past.copyBase({ fast: true });
  assert(apart.includes(own?.oid ?? ''));
  const copied = (path: string) => join(pastFolders(servers.host.settings).bases, name, 'data', path);
  for (const path of [join(PGDATA_DIR, file), copied(file)]) assert(!isShared(path), path);
  assert(isShared(copied(own?.file ?? '')));
  const { PAST_DISK_PERCENT } = settings;
  settings.PAST_DISK_PERCENT = 0;
  const sharing = await servers.host.past.copyBase({ fast: true });
  settings.PAST_DISK_PERCENT = PAST_DISK_PERCENT;
  assert.deepEqual(sharing.apart, []);
});

test('a recovery that fails at any step leaves nothing, and the next one succeeds', async () => {
  // By night the log since the last copy takes a minute to replay.
  await servers.host.past.copyBase({ fast: true });
  const at = await now();
  for (const last of IS_NIGHTLY ? RECOVERY_STEPS : (['replayed', 'filled'] as const)) {
    const params = paramsOf(at);
    const failing = recoverDatabase(servers.host, params, undefined, async (step) => {
      if (step === last) throw new Error(`ended at ${step}`);
    });
    await assert.rejects(failing, new RegExp(`ended at ${last}`));
    if (last === 'closed') await drop(params);
    assert.deepEqual({ ...(await leftOvers()), last }, { ...NOTHING, last });
  }
});

/** Turns a byte of a file around. */
function flip(path: string, offset: number): void {
  const file = openSync(path, 'r+');
  const byte = Buffer.alloc(1);
  readSync(file, byte, 0, 1, offset);
  byte.writeUInt8(byte.readUInt8() ^ 0xff);
  writeSync(file, byte, 0, 1, offset);
  closeSync(file);
}

test('a drill passes, finds a lost byte of the archive and a lost base copy, and yields to users', async () => {
  const { wal, bases, drills } = pastFolders(servers.host.settings);
  const drillNow = () => drill(servers.host, main, () => 0);
  assert.equal(await drillNow(), null);
  await keepRecords(servers.host, main);
  assert.deepEqual(openFolders(pastFolders(servers.host.settings).root), []);
  const file = join(drills, `${main.project_id}.json`);
  const [record] = JSON.parse(readFileSync(file, 'utf8')).records;
  assert.deepEqual(
    record.samples.map(({ name, count }: { name: string; count: number }) => ({ name, count })),
    [{ name: 'item', count: COMMITS }],
  );
  assert(!readFileSync(file, 'utf8').includes('item 1'), 'values are in the record');
  await asClient(servers.host, 'direct', main, 'owner', 'insert into shop.item values (0)');
  const passed = await drillNow();
  assert.deepEqual([passed?.problem, passed?.at, passed?.tables], [null, record.at, 1]);
  assert.deepEqual(await leftOvers(), NOTHING);
  await asClient(servers.host, 'direct', main, 'owner', 'delete from shop.item where n = 0');

  // The record is in the replayed part of this segment.
  const [parts] = await servers.query<{ file: string; offset: number }>(
    `select file_name as file, file_offset as offset from pg_walfile_name_offset('${record.position}')`,
  );
  assert(parts);
  const segment = join(wal, parts.file);
  flip(segment, parts.offset - 40);
  assert.equal((await drillNow())?.problem, 'log_unreadable');
  assert.match(await foundByDoctor(), /drill of a recovery has failed/);
  flip(segment, parts.offset - 40);
  const base = join(bases, record.base);
  renameSync(base, `${base}.away`);
  assert.equal((await drillNow())?.problem, 'base_copy_missing');
  renameSync(`${base}.away`, base);

  // A recorded table has other rows than at the position: what a silent fault of a recovery would leave.
  const state = JSON.parse(readFileSync(file, 'utf8'));
  state.records[0].samples[0].count += 1;
  writeFileSync(file, JSON.stringify(state));
  assert.equal((await drillNow())?.problem, 'content_differs');
  state.records[0].samples[0].count -= 1;
  writeFileSync(file, JSON.stringify(state));

  const drilling = drillNow();
  const turn = await eventually(async () => {
    assert(JSON.parse(readFileSync(file, 'utf8')).running);
    return servers.host.past.turns.begin('a user');
  });
  turn();
  assert.equal(await drilling, null);
  assert.deepEqual(await leftOvers(), NOTHING);
  assert.equal((await drillNow())?.problem, null);
  assert.deepEqual(await readDrillState(servers.host), { failing: 0, overdue: 0 });

  // The loop drops what a killed drill has left, repeats the last report, and drills who has none.
  const killed = randomUUID();
  await servers.query(`create database ${loadDatabaseName(killed)}`);
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), running: killed }));
  const reports: DrillReport[] = [];
  const stop = new AbortController();
  const running = runDrills(servers.host, (report) => reports.push(report), stop.signal);
  await eventually(async () => assert.equal(reports.length, 2));
  stop.abort();
  await running;
  assert.deepEqual(reports[0], JSON.parse(readFileSync(file, 'utf8')).reports.at(-1));
  assert.deepEqual([reports[1]?.project_id, reports[1]?.problem], [neighbour.project_id, null]);
  assert.deepEqual(await leftOvers(), NOTHING);
  const old = {
    ...JSON.parse(readFileSync(file, 'utf8')),
    since: '2026-01-01T00:00:00.000000Z',
    reports: [],
  };
  writeFileSync(file, JSON.stringify(old));
  assert.deepEqual(await readDrillState(servers.host), { failing: 0, overdue: 1 });
  assert.match(await foundByDoctor(), /No drill has proven the recoveries/);
});

test('a reset since then does not matter: the database that the branch had is recovered', async () => {
  const before = await readItems(main);
  const at = await now();
  const snapshot_id = randomUUID();
  const { project_id, branch_id, database: source } = main;
  const taken = { project_id, branch_id, snapshot_id, source, busy_wait: 5_000, unless_same_as: null };
  await runOperation(servers.host, 'snapshot.take', taken);
  await asClient(servers.host, 'direct', main, 'owner', 'delete from shop.item');
  const reset = { ...identity(main), job_id: randomUUID() };
  const clone = { ...reset, source: snapshotDatabaseName(snapshot_id), busy_wait: 5_000 };
  await runOperation(servers.host, 'reset.clone', clone);
  await runOperation(servers.host, 'reset.swap', { ...reset, snapshot_id: randomUUID() });
  await asClient(servers.host, 'direct', main, 'owner', 'truncate shop.item');
  assert.deepEqual(await inRecovered(at, readItems), before);
});

test('a time outside of the window, a missing file and a branch of later are no recoveries', async () => {
  const { wal } = pastFolders(servers.host.settings);
  const at = await now();
  const later = await project.create('db_past_prod_br_later', main.database);
  const ofLater = await runOperation(servers.host, 'past.recover', paramsOf(at, later));
  assert.equal(ofLater.recovered, null);
  const early = await runOperation(servers.host, 'past.recover', paramsOf('2020-01-01T00:00:00.000000Z'));
  assert.equal(early.recovered, null);
  assert(early.window.from !== null && early.window.until !== null && early.window.from < at);
  const names = readdirSync(wal).filter((name) => /^[0-9A-F]{24}$/.test(name));
  const missing = names.sort().at(-2) ?? '';
  renameSync(join(wal, missing), join(wal, `${missing}.away`));
  const gone = await runOperation(servers.host, 'past.recover', paramsOf(at));
  assert.deepEqual([gone.recovered, gone.window], [null, { from: null, until: null }]);
  assert.match(await foundByDoctor(), /there is no base copy with all WAL/);
  renameSync(join(wal, `${missing}.away`), join(wal, missing));
  assert.doesNotMatch(await foundByDoctor(), /recovered to an earlier time|backup of the last/);
  await project.drop(later);
});
