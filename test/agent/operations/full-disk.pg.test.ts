import { randomUUID } from 'node:crypto';
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Host } from '../../../agent/host/host.ts';
import { DiskUsage } from '../../../agent/measurement/disk-usage.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { runRoomLoop } from '../../../agent/snapshots/make-room.ts';
import { separateSnapshots } from '../../../agent/snapshots/separate-snapshots.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { type Branch, BUSY_WAIT_MS, connect, identity, Project } from '../../support/host/host-project.ts';
import { SmallDisk } from '../../support/stack/small-disk.ts';
import { xfsHindrance } from '../../support/stack/xfs.ts';

const MB = 2 ** 20;
/** More than what XFS finds when it is full, from files that it had made room for. */
const MAIN_MB = 80;
const hindrance = xfsHindrance();
/** For instance in a container without loop devices. */
const NO_DISK = 'no XFS could be mounted';

describe.skipIf(hindrance !== null)(`on a small disk${hindrance ? ` (${hindrance})` : ''}`, () => {
  let disk: SmallDisk | null;
  let servers: TestHost;
  let host: Host;
  let project: Project;
  let main: Branch;
  let client: pg.Client;
  const events: { event: string; branch_id?: unknown }[] = [];
  const dropped = () =>
    events.filter(({ event }) => event === 'disk.deleted_branch_dropped').map(({ branch_id }) => branch_id);

  /** A table with rows of 1 kB. */
  const fill = async (branch: Branch, megabytes: number) => {
    const owner = await connect(host, 'direct', branch, 'owner');
    await owner.query(
      `CREATE TABLE IF NOT EXISTS filler (content text);
       INSERT INTO filler SELECT repeat('x', 980) FROM generate_series(1, ${megabytes * 1024})`,
    );
    await owner.end();
  };
  /** @returns a branch that was deleted, and owns that much of the disk */
  const keepDeleted = async (name: string, megabytes: number) => {
    const branch = await project.create(`db_disk_prod_br_${name}`, main.database);
    await fill(branch, megabytes);
    await runOperation(host, 'branch.keep', {
      ...identity(branch),
      snapshot_id: randomUUID(),
      made_by: null,
    });
    return branch.branch_id;
  };
  const take = (snapshot_id: string) =>
    runOperation(host, 'snapshot.take', {
      project_id: project.id,
      branch_id: main.branch_id,
      source: main.database,
      snapshot_id,
      busy_wait: BUSY_WAIT_MS,
      unless_same_as: null,
    });
  const snapshotDatabases = () =>
    servers.query<{ datname: string }>("SELECT datname FROM pg_database WHERE datname ~ '^bg'");
  const isIndependent = async (id: string) =>
    (await runOperation(host, 'host.inventory', {})).snapshots?.find(({ snapshot_id }) => snapshot_id === id)
      ?.independent;

  beforeAll(async () => {
    disk = SmallDisk.mount();
    if (!disk) return;
    servers = await startHost({
      dataDir: disk.folder,
      settings: { MIN_FREE_DISK_MB: '16', SNAPSHOT_COPY_ROOM: '0.1' },
    });
    // In tests, the shared memory of parallel workers would be on this disk.
    await servers.query('ALTER SYSTEM SET max_parallel_workers_per_gather = 0');
    await servers.query('SELECT pg_reload_conf()');
    host = { ...servers.host, log: (event, fields) => events.push({ event, ...fields }) };
    project = new Project(host);
    main = await project.create('db_disk_prod', null);
    await fill(main, MAIN_MB);
    client = await connect(host, 'pooled', main, 'read_write');
    await client.query('SELECT count(*) FROM filler');
  });
  afterAll(async () => {
    await client?.end();
    await servers?.stop();
    disk?.remove();
  });

  test('the deletion of a branch frees its own bytes', async ({ skip }) => {
    skip(disk === null, NO_DISK);
    const branch = await project.create('db_disk_prod_br_measured', main.database);
    await fill(branch, 60);
    await servers.query('CHECKPOINT');
    // The log of changes grows and shrinks on its own.
    const used = () => {
      const wal = join(disk?.folder ?? '', 'pg_wal');
      const files = readdirSync(wal, { withFileTypes: true }).filter((entry) => entry.isFile());
      return (
        (disk?.usedBytes ?? 0) -
        files.reduce((sum, { name }) => sum + statSync(join(wal, name)).blocks * 512, 0)
      );
    };
    const before = used();
    const usage = new DiskUsage(host);
    await usage.measure();
    const { own_bytes: own = 0 } = usage.of(project.id).disk?.find(({ id }) => id === branch.branch_id) ?? {};
    expect(own).toBeGreaterThan(60 * MB);
    await project.drop(branch);
    await eventually(async () => expect(Math.abs((before - used()) / own - 1)).toBeLessThan(0.05));
  });

  test('a full disk ends the oldest deleted branch, and no snapshot, copy or session', async ({ skip }) => {
    skip(disk === null, NO_DISK);
    const oldest = await keepDeleted('oldest', 120);
    const younger = await keepDeleted('younger', 40);
    const snapshot = randomUUID();
    expect(await take(snapshot)).toMatchObject({ taken: true, independent: false });

    // Enough to try the copy, and too little for it.
    disk?.fill(20 * MB);
    await expect(separateSnapshots(host)).rejects.toThrow();
    expect(await snapshotDatabases()).toHaveLength(3);
    expect(await isIndependent(snapshot)).toBe(false);
    await client.query("INSERT INTO filler VALUES ('during')");
    const ending = new AbortController();
    let reports = 0;
    const room = runRoomLoop(
      { ...host, settings: { ...host.settings, MIN_FREE_DISK_MB: 60 } },
      () => (reports += 1),
      ending.signal,
    );
    await eventually(async () => expect(await separateSnapshots(host)).toBe(1));
    ending.abort();
    await room;
    expect(reports).toBeGreaterThan(0);
    expect(await isIndependent(snapshot)).toBe(true);
    expect(dropped()).toEqual([oldest]);

    // A snapshot meets a disk without any room: the next deleted branch goes, and it is repeated.
    disk?.fill();
    expect(await take(randomUUID())).toMatchObject({ taken: true });
    expect(dropped()).toEqual([oldest, younger]);

    // Nothing is left to drop.
    disk?.fill();
    await expect(take(randomUUID())).rejects.toMatchObject({ code: 'HOST_FULL' });
    expect(await snapshotDatabases()).toHaveLength(2);
    expect((await client.query('SELECT count(*)::int FROM filler')).rows).toEqual([
      { count: MAIN_MB * 1024 + 1 },
    ]);
    disk?.empty();
    await client.query("INSERT INTO filler VALUES ('after')");
    expect(await take(randomUUID())).toMatchObject({ taken: true });
  });
});
