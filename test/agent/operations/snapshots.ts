import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CopyRoom } from '../../../agent/cloning/copy-room.ts';
import { recover } from '../../../agent/maintenance/recover.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { dropOldest } from '../../../agent/snapshots/make-room.ts';
import { runSeparationLoop, separateSnapshots } from '../../../agent/snapshots/separate-snapshots.ts';
import { copyDatabaseName } from '../../../agent/snapshots/snapshot-databases.ts';
import { snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import { loginName } from '../../../shared/branch/login.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  BUSY_WAIT_MS,
  branchDatabases,
  connect,
  identity,
  makeProject,
  type Project,
  removeProjects,
} from '../../support/host/host-project.ts';

const MAIN = 'db_snap_prod';

export function describeSnapshots(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let main: Branch;

  beforeAll(async () => {
    ({ servers, project, main } = await makeProject(
      host(),
      MAIN,
      'CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1)',
    ));
  });
  afterAll(() => removeProjects(servers));

  const take = (branch: Branch, snapshot_id: string, unless_same_as: string | null = null) =>
    runOperation(servers.host, 'snapshot.take', {
      project_id: project.id,
      branch_id: branch.branch_id,
      source: branch.database,
      snapshot_id,
      busy_wait: BUSY_WAIT_MS,
      unless_same_as,
    });
  const drop = (snapshot_id: string) =>
    runOperation(servers.host, 'snapshot.drop', { project_id: project.id, snapshot_id });
  const idsIn = async (branch: Branch) =>
    (
      await asClient<{ id: number }>(
        servers.host,
        'pooled',
        branch,
        'read_only',
        'SELECT id FROM item ORDER BY id',
      )
    ).map(({ id }) => id);
  const insert = (branch: Branch, id: number) =>
    asClient(servers.host, 'pooled', branch, 'read_write', `INSERT INTO item VALUES (${id})`);
  const snapshotDatabases = async () =>
    (
      await servers.query<{ datname: string }>(
        'SELECT datname FROM pg_database WHERE datname ~ \'^bg(snap|copy)_\' ORDER BY datname COLLATE "C"',
      )
    ).map(({ datname }) => datname);
  const snapshotsOnHost = async () => (await runOperation(servers.host, 'host.inventory', {})).snapshots;

  describe('a snapshot', () => {
    test('is taken once, accepts nobody, and stays as it was', async () => {
      const id = randomUUID();
      const first = await take(main, id);
      expect(first).toMatchObject({ taken: true, independent: servers.host.cloneMethod === 'copy' });
      await insert(main, 2);
      expect(await take(main, id)).toMatchObject({ taken: true });
      expect(await snapshotsOnHost()).toMatchObject([
        { snapshot_id: id, project_id: project.id, ready: true },
      ]);

      const login = { ...main, database: snapshotDatabaseName(id) };
      for (const port of ['direct', 'pooled'] as const)
        await expect(connect(servers.host, port, login, 'owner')).rejects.toThrow();
      const branch = await project.create(`${MAIN}_br_of-snapshot`, snapshotDatabaseName(id));
      expect(branch.clone.paused_ms).toBe(0);
      expect(await idsIn(branch)).toEqual([1]);
      expect(await drop(id)).toEqual({ dropped: true });
      expect(await drop(id)).toEqual({ dropped: false });
      expect(await idsIn(branch)).toEqual([1]);
      await project.drop(branch);
      expect(await snapshotDatabases()).toEqual([]);
    });

    test('is not taken when the branch has not changed since the one before', async () => {
      const second = randomUUID();
      let first = '';
      for (let isSame = false; !isSame; ) {
        if (first !== '') await drop(first);
        first = randomUUID();
        await take(main, first);
        await sleep(500);
        const outcome = await take(main, second, first);
        isSame = !outcome.taken;
        if (isSame) expect(outcome).toEqual({ taken: false, size_bytes: 0, independent: false });
        else await drop(second);
      }
      expect(await snapshotsOnHost()).toHaveLength(1);
      // A session reports its work at its end, or when it has been idle for some time.
      await asClient(servers.host, 'direct', main, 'read_write', 'INSERT INTO item VALUES (3)');
      const isTaken = async () => (await take(main, second, first)).taken;
      for (let tries = 1; !(await isTaken()) && tries < 100; tries += 1) await sleep(50);
      expect(await snapshotsOnHost()).toHaveLength(2);
      await Promise.all([drop(first), drop(second)]);
    });

    test('that a crash left half-dropped is dropped at the next start', async () => {
      const id = randomUUID();
      await take(main, id);
      await servers.query('UPDATE pg_database SET datconnlimit = -2 WHERE datname = $1', [
        snapshotDatabaseName(id),
      ]);
      expect(await snapshotsOnHost()).toMatchObject([{ ready: false }]);
      expect(await recover(servers.host)).toEqual([]);
      expect(await snapshotDatabases()).toEqual([]);
      await drop(id);
    });
  });

  test('a snapshot that shares blocks with main is replaced by a copy while it is cloned', async () => {
    const id = randomUUID();
    await take(main, id);
    const content = await idsIn(main);
    await servers.query('UPDATE snapshot SET independent = false');
    const oidOf = async () =>
      (
        await servers.query<{ oid: string }>('SELECT oid FROM pg_database WHERE datname = $1', [
          snapshotDatabaseName(id),
        ])
      )[0]?.oid;
    const before = await oidOf();
    const [separated, branch] = await Promise.all([
      separateSnapshots(servers.host),
      project.create(`${MAIN}_br_meanwhile`, snapshotDatabaseName(id)),
    ]);
    expect(separated).toBe(1);
    expect(await oidOf()).not.toBe(before);
    expect(await separateSnapshots(servers.host)).toBe(0);
    expect(await snapshotsOnHost()).toMatchObject([{ snapshot_id: id, ready: true, independent: true }]);
    expect(await snapshotDatabases()).toEqual([snapshotDatabaseName(id)]);
    expect(await idsIn(branch)).toEqual(content);
    await project.drop(branch);

    await servers.query('UPDATE snapshot SET independent = false');
    const full = { ...servers.host, settings: { ...servers.host.settings, SNAPSHOT_COPY_ROOM: 1e9 } };
    expect(await separateSnapshots(full)).toBe(0);
    // What a crash leaves of a copy.
    await servers.query(`CREATE DATABASE "${copyDatabaseName(id)}"`);
    expect(await recover(servers.host)).toEqual([]);
    expect(await snapshotDatabases()).toEqual([snapshotDatabaseName(id)]);
    await drop(id);
  });

  test('a replaced snapshot that a full disk kept from being dropped is dropped while the agent runs', async () => {
    const name = copyDatabaseName(randomUUID());
    await servers.query(`CREATE DATABASE ${name}`);
    const ending = new AbortController();
    const loop = runSeparationLoop({ ...servers.host, cloneMethod: 'reflink' }, ending.signal);
    await eventually(async () => expect(await snapshotDatabases()).toEqual([]));
    ending.abort();
    await loop;
  });

  test('a full disk costs checkpoints, then the branches that were deleted first, and no snapshot', async () => {
    const taken = randomUUID();
    const first = randomUUID();
    const second = randomUUID();
    await take(main, taken);
    const kept: string[] = [];
    for (const snapshot_id of [first, second]) {
      const branch = await project.create(`${MAIN}_br_full`, MAIN);
      kept.push(branch.branch_id);
      await runOperation(servers.host, 'branch.keep', { ...identity(branch), snapshot_id, made_by: null });
    }
    const checkpoint = randomUUID();
    await runOperation(servers.host, 'snapshot.take', {
      project_id: project.id,
      branch_id: main.branch_id,
      snapshot_id: checkpoint,
      source: main.database,
      busy_wait: BUSY_WAIT_MS,
      unless_same_as: null,
      checkpoint: true,
    });
    const left = async () => (await snapshotsOnHost())?.map(({ snapshot_id }) => snapshot_id);
    expect(await dropOldest(servers.host)).toBe(true);
    expect(await left()).toEqual([taken, first, second]);
    // A restoration of the first begins.
    await servers.query(
      'INSERT INTO branch (branch_id, project_id, job_id, database) SELECT branch_id, project_id, snapshot_id, $2 FROM snapshot WHERE branch_id = $1',
      [kept[0], `${MAIN}_br_full`],
    );
    expect(await dropOldest(servers.host)).toBe(true);
    expect(await left()).toEqual([taken, first]);
    expect(await dropOldest(servers.host)).toBe(false);
    await servers.query('DELETE FROM branch WHERE branch_id = $1', [kept[0]]);
    expect(await dropOldest(servers.host)).toBe(true);
    expect(await dropOldest(servers.host)).toBe(false);
    expect(await left()).toEqual([taken]);
    await drop(taken);
  });

  describe('a copy that finds no room', () => {
    const deleted: string[] = [];
    const events: unknown[] = [];
    let bytes = 0;
    beforeAll(async () => {
      for (const name of ['oldest', 'older', 'newest']) {
        const branch = await project.create(`${MAIN}_br_${name}`, MAIN);
        const snapshot_id = randomUUID();
        deleted.push(snapshot_id);
        const kept = await runOperation(servers.host, 'branch.keep', {
          ...identity(branch),
          snapshot_id,
          made_by: null,
        });
        bytes = Math.max(bytes, kept.size_bytes);
      }
    });
    afterAll(() => Promise.all(deleted.map(drop)));

    /** A disk on which the copy fits once no more than so many of the deleted branches are left. */
    class LittleRoom extends CopyRoom {
      readonly #most: number;
      constructor(most: number) {
        super(servers.host.settings);
        this.#most = most;
      }
      override async missing() {
        return ((await snapshotDatabases()).length - this.#most - 0.5) * bytes;
      }
    }
    const takeWith = (copyRoom: CopyRoom, snapshot_id: string) =>
      runOperation({ ...servers.host, copyRoom, log: (event) => events.push(event) }, 'snapshot.take', {
        project_id: project.id,
        branch_id: main.branch_id,
        source: main.database,
        snapshot_id,
        busy_wait: BUSY_WAIT_MS,
        unless_same_as: null,
      });

    test.each([
      ['some megabytes', () => new LittleRoom(-1)],
      ['nearly all of the disk', () => new CopyRoom({ ...servers.host.settings, MIN_FREE_DISK_MB: 2 ** 40 })],
    ])('is refused, and costs no deleted branch, if these have too little: %s', async (_, room) => {
      const id = randomUUID();
      await expect(takeWith(room(), id)).rejects.toMatchObject({ code: 'HOST_FULL' });
      expect(await snapshotDatabases()).toHaveLength(3);
      await drop(id);
      expect(await idsIn(main)).toContain(1);
    });

    test('costs as many deleted branches as it needs, the oldest first', async () => {
      const id = randomUUID();
      const room = new LittleRoom(1);
      expect(await takeWith(room, id)).toMatchObject({ taken: true });
      expect(await snapshotDatabases()).toEqual(
        [deleted[2] ?? '', id].map((one) => snapshotDatabaseName(one)).toSorted(),
      );
      expect(events).toEqual(Array(2).fill('disk.deleted_branch_dropped'));
      await drop(id);
    });
  });

  test('a deleted branch comes back from what was kept, with its passwords', async () => {
    const branch = await project.create(`${MAIN}_br_kept`, MAIN);
    await insert(branch, 9);
    const session = await connect(servers.host, 'direct', branch, 'owner');
    const ended = new Promise((resolve) => session.once('end', resolve));
    const snapshot_id = randomUUID();
    const keep = () =>
      runOperation(servers.host, 'branch.keep', { ...identity(branch), snapshot_id, made_by: null });
    const another = { ...identity(branch), snapshot_id, made_by: randomUUID() };
    expect(await runOperation(servers.host, 'branch.keep', another)).toEqual({ kept: false, size_bytes: 0 });
    expect(await branchDatabases(servers)).toContain(branch.database);
    const first = await keep();
    expect(first).toEqual({ kept: true, size_bytes: expect.any(Number) });
    expect(await keep()).toEqual(first);
    await ended;
    await expect(connect(servers.host, 'direct', branch, 'owner')).rejects.toThrow();
    await expect(connect(servers.host, 'pooled', branch, 'read_write')).rejects.toThrow();
    expect(await branchDatabases(servers)).toEqual([MAIN]);
    const logins = await servers.query('SELECT FROM pg_roles WHERE rolname = $1', [
      loginName(branch.branch_id, 'owner'),
    ]);
    expect(logins).toHaveLength(0);

    const again = { ...branch, job_id: randomUUID() };
    await Promise.all([project.prepare(again), project.clone(again, snapshotDatabaseName(snapshot_id))]);
    await project.finalize(again);
    expect(await idsIn(branch)).toEqual([...(await idsIn(main)), 9]);
    await drop(snapshot_id);
    await project.drop(again);
  });

  test('a branch without a database leaves nothing to keep', async () => {
    const branch = project.plan(`${MAIN}_br_never`);
    await project.prepare(branch);
    const snapshot_id = randomUUID();
    expect(
      await runOperation(servers.host, 'branch.keep', { ...identity(branch), snapshot_id, made_by: null }),
    ).toEqual({
      kept: false,
      size_bytes: 0,
    });
    expect(await snapshotsOnHost()).toEqual([]);
  });

  describe('a reset', () => {
    const reset = (branch: Branch, source: string, snapshot_id: string) => {
      const job = { ...identity(branch), job_id: randomUUID() };
      const { host } = servers;
      return {
        job_id: job.job_id,
        clone: () => runOperation(host, 'reset.clone', { ...job, source, busy_wait: BUSY_WAIT_MS }),
        swap: () => runOperation(host, 'reset.swap', { ...job, snapshot_id }),
        cancel: () => {
          const { job_id, project_id, branch_id } = job;
          return runOperation(host, 'reset.cancel', { job_id, project_id, branch_id, snapshot_id });
        },
      };
    };

    test('ends the sessions, and swaps the content under the same logins', async () => {
      const branch = await project.create(`${MAIN}_br_reset`, MAIN);
      await insert(branch, 50);
      const before = await idsIn(branch);
      await insert(main, 51);
      const idle = await connect(servers.host, 'direct', branch, 'owner');
      const busy = await connect(servers.host, 'pooled', branch, 'read_write');
      await busy.query('BEGIN; INSERT INTO item VALUES (52)');
      const ends = [idle, busy].map((session) => new Promise((resolve) => session.once('end', resolve)));

      const snapshot_id = randomUUID();
      const { clone, swap, cancel } = reset(branch, MAIN, snapshot_id);
      expect(await clone()).toMatchObject({ created: true });
      expect(await clone()).toMatchObject({ created: false });
      // Nothing has changed for its clients yet.
      await insert(branch, 53);
      const first = await swap();
      expect(first).toMatchObject({ kept: true });
      await Promise.all(ends);
      // Repeated after a lost reply.
      expect(await clone()).toMatchObject({ created: false });
      expect(await swap()).toEqual(first);
      expect(await cancel()).toEqual({ dropped: false, left: first });
      expect(await idsIn(branch)).toEqual(await idsIn(main));
      await insert(branch, 54);
      await asClient(servers.host, 'direct', branch, 'owner', 'CREATE TABLE added (id int)');
      await asClient(servers.host, 'pooled', branch, 'read_write', 'INSERT INTO added VALUES (1)');

      const back = reset(branch, snapshotDatabaseName(snapshot_id), randomUUID());
      await back.clone();
      await back.swap();
      expect(await idsIn(branch)).toEqual([...before, 53]);
      expect(await snapshotsOnHost()).toHaveLength(2);
      for (const { snapshot_id: id } of (await snapshotsOnHost()) ?? []) await drop(id);
      await project.drop(branch);
      expect(await branchDatabases(servers)).toEqual([MAIN]);
    });

    test('is in the inventory until its clone is swapped in, or dropped', async () => {
      const branch = await project.create(`${MAIN}_br_listed`, MAIN);
      const creation = project.plan(`${MAIN}_br_unfinished`);
      await project.clone(creation, MAIN);
      const resets = async () => (await runOperation(servers.host, 'inventory.digest', {})).resets;
      expect(await resets()).toEqual([]);
      const [swapped, left] = [randomUUID(), randomUUID()].map((id) => reset(branch, MAIN, id));
      await swapped?.clone();
      await left?.clone();
      expect(await resets()).toEqual([swapped?.job_id, left?.job_id].toSorted());
      await swapped?.swap();
      expect(await resets()).toEqual([left?.job_id]);
      // The branch that it was to reset is gone.
      await project.drop(branch);
      expect(await resets()).toEqual([left?.job_id]);
      expect(await left?.cancel()).toMatchObject({ dropped: true });
      expect(await resets()).toEqual([]);
      await project.drop(creation);
      for (const { snapshot_id } of (await snapshotsOnHost()) ?? []) await drop(snapshot_id);
      expect(await branchDatabases(servers)).toEqual([MAIN]);
    });

    test('that is abandoned leaves the branch as it was', async () => {
      const branch = await project.create(`${MAIN}_br_given-up`, MAIN);
      await insert(branch, 60);
      const { clone, cancel, swap } = reset(branch, MAIN, randomUUID());
      await expect(swap()).rejects.toMatchObject({ code: 'INVALID_CALL' });
      await clone();
      expect(await cancel()).toEqual({ dropped: true, left: null });
      expect(await cancel()).toEqual({ dropped: false, left: null });
      expect(await idsIn(branch)).toContain(60);
      await project.drop(branch);
      expect(await branchDatabases(servers)).toEqual([MAIN]);
    });
  });

  test('the snapshots of a project are dropped with it', async () => {
    await take(main, randomUUID());
    await runOperation(servers.host, 'project.drop', { job_id: randomUUID(), project_id: project.id });
    expect(await snapshotDatabases()).toEqual([]);
    expect(await snapshotsOnHost()).toEqual([]);
    expect(await servers.query("SELECT FROM pg_roles WHERE rolname ~ '^[ug]_'")).toHaveLength(0);
  });
}
