import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { CopyRoom, NoCopyRoom } from '../../../agent/cloning/copy-room.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { withLocks } from '../../../agent/postgres/locks.ts';
import { dropOldest, makeRoom } from '../../../agent/snapshots/make-room.ts';
import { snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type Branch, identity, Project, removeProjects } from '../../support/host/host-project.ts';

export function describeRoom(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let main: Branch;
  let branch: Branch;
  let kept: string;
  let made = 0;

  beforeAll(async () => {
    servers = host();
    project = new Project(servers.host);
    main = await project.create('db_room_prod', null);
  });
  afterAll(() => removeProjects(servers));

  /** A deleted branch, the only one of the host. */
  beforeEach(async () => {
    made += 1;
    branch = await project.create(`db_room_prod_br_${made}`, main.database);
    const snapshot_id = randomUUID();
    kept = snapshotDatabaseName(snapshot_id);
    await runOperation(servers.host, 'branch.keep', { ...identity(branch), snapshot_id, made_by: null });
    return async () => {
      await runOperation(servers.host, 'snapshot.drop', { project_id: project.id, snapshot_id });
    };
  });

  const isThere = async () =>
    (await servers.query('SELECT FROM pg_database WHERE datname = $1', [kept])).length === 1;

  test('a deleted branch whose restoration begins meanwhile keeps its database', async () => {
    const { host } = servers;
    const { branch_id, job_id, database } = branch;
    const [dropping] = await withLocks(host.sessions, [`clone:${branch_id}`], async (session) => {
      const outcome = dropOldest(host);
      await eventually(async () =>
        expect(
          await servers.query("SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"),
        ).toHaveLength(1),
      );
      await session.query(
        'INSERT INTO branch (branch_id, project_id, job_id, database) VALUES ($1, $2, $3, $4)',
        [branch_id, project.id, job_id, database],
      );
      return [outcome];
    });
    await dropping;
    expect(await isThere()).toBe(true);
    expect(await dropOldest(host)).toBe(false);
    await servers.query('DELETE FROM branch WHERE branch_id = $1', [branch_id]);
    expect(await dropOldest(host)).toBe(true);
    expect(await isThere()).toBe(false);
  });

  test('a deleted branch that cannot be dropped does not save the younger ones', async () => {
    const younger = await project.create(`db_room_prod_br_${made}_younger`, main.database);
    const snapshot_id = randomUUID();
    await runOperation(servers.host, 'branch.keep', { ...identity(younger), snapshot_id, made_by: null });
    await servers.query(
      `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted'; END $$;
     CREATE TRIGGER refuse BEFORE DELETE ON snapshot FOR EACH ROW WHEN (OLD.branch_id = '${branch.branch_id}')
     EXECUTE FUNCTION refuse()`,
    );
    try {
      expect(await dropOldest(servers.host)).toBe(true);
      expect(
        await servers.query('SELECT snapshot_id FROM snapshot WHERE snapshot_id = $1', [snapshot_id]),
      ).toEqual([]);
      await expect(dropOldest(servers.host)).rejects.toThrow('planted');
    } finally {
      await servers.query('DROP FUNCTION refuse CASCADE');
    }
  });

  test('nothing is dropped while a copy runs, whose room becomes free when it ends', async () => {
    let isCopying = true;
    class ScriptedRoom extends CopyRoom {
      override get isCopying() {
        return isCopying;
      }
      override async missing() {
        return (await isThere()) ? 1 : 0;
      }
    }
    const host = { ...servers.host, copyRoom: new ScriptedRoom(servers.host.settings) };
    const failure = new NoCopyRoom(1, 'as scripted');
    expect(await makeRoom(host, failure)).toBe(false);
    expect(await isThere()).toBe(true);
    isCopying = false;
    expect(await makeRoom(host, failure)).toBe(true);
    expect(await isThere()).toBe(false);
  });
}
