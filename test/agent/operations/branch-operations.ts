import { randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { loginName } from '../../../shared/branch/login.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  BUSY_WAIT_MS,
  branchDatabases,
  connect,
  identity,
  makeProject,
  newBranch,
  Project,
  removeProjects,
} from '../../support/host/host-project.ts';
import { firstByDay } from '../../support/nightly.ts';

export function describeBranchOperations(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let main: Branch;

  beforeAll(async () => {
    ({ servers, project, main } = await makeProject(
      host(),
      'db_steps_prod',
      "CREATE TABLE item (id int PRIMARY KEY, name text); INSERT INTO item VALUES (1, 'one')",
    ));
  });
  afterAll(() => removeProjects(servers));

  const roles = () => servers.query("SELECT rolname FROM pg_roles WHERE rolname ~ '^[ug]_' ORDER BY 1");
  const inventory = () => runOperation(servers.host, 'host.inventory', {});

  describe('a branch from its preparation to its drop, with every step twice', () => {
    test('main is made empty, and its owner’s tables are open to the other logins', async () => {
      const { host } = servers;
      await asClient(host, 'pooled', main, 'read_write', "INSERT INTO item VALUES (2, 'two')");
      expect(await asClient(host, 'pooled', main, 'read_only', 'SELECT count(*)::int FROM item')).toEqual([
        { count: 2 },
      ]);
      await expect(asClient(host, 'direct', main, 'read_only', 'DELETE FROM item')).rejects.toThrow(
        'permission denied',
      );
      await expect(asClient(host, 'direct', main, 'read_write', 'CREATE TABLE mine ()')).rejects.toThrow(
        'permission denied for schema public',
      );
    });

    test('a clone has the data and privileges of its source; repeated steps change nothing', async () => {
      const branch = project.plan('db_steps_prod_br_twice');
      const first = await project.clone(branch, 'db_steps_prod');
      expect(first).toMatchObject({
        created: true,
        strategy: servers.host.cloneMethod === 'copy' ? 'wal_log' : 'reflink',
      });
      expect(first.source_bytes).toBeGreaterThan(1_000_000);
      expect(await project.clone(branch, 'db_steps_prod')).toMatchObject({ created: false, strategy: null });
      await project.prepare(branch);
      await project.prepare(branch);
      await project.finalize(branch);
      await project.finalize(branch);
      expect(await project.clone(branch, 'db_steps_prod')).toMatchObject({ created: false });
      expect((await project.prove(branch)).login_ms).toBeGreaterThan(0);
      await asClient(servers.host, 'pooled', branch, 'read_write', "INSERT INTO item VALUES (3, 'three')");
      await asClient(servers.host, 'direct', branch, 'owner', 'ALTER TABLE item ADD COLUMN price int');
      expect(
        await asClient(servers.host, 'pooled', main, 'read_write', 'SELECT * FROM item ORDER BY id'),
      ).toEqual([
        { id: 1, name: 'one' },
        { id: 2, name: 'two' },
      ]);
      expect(await project.drop(branch)).toEqual({ dropped: true });
      expect(await project.drop(branch)).toEqual({ dropped: false });
      expect(await branchDatabases(servers)).toEqual(['db_steps_prod']);
      await expect(connect(servers.host, 'pooled', branch, 'read_write')).rejects.toThrow();
    });

    test('the inventory distinguishes prepared, building and ready branches', async () => {
      const prepared = project.plan('db_steps_prod_br_prepared');
      const building = project.plan('db_steps_prod_br_building');
      await project.prepare(prepared);
      await project.clone(building, 'db_steps_prod');
      const { system_identifier, free_bytes, branches, projects } = await inventory();
      expect(Object.fromEntries(branches.map(({ database, state }) => [database, state]))).toEqual({
        db_steps_prod: 'ready',
        db_steps_prod_br_building: 'building',
        db_steps_prod_br_prepared: 'prepared',
      });
      expect(projects).toEqual([{ project_id: project.id, access_revision: 1 }]);
      expect(free_bytes).toBeGreaterThan(2 ** 20);
      expect(await servers.query('SELECT system_identifier::text FROM pg_control_system()')).toEqual([
        { system_identifier },
      ]);
      expect(await project.drop(prepared)).toEqual({ dropped: false });
      expect(await project.drop(building)).toEqual({ dropped: true });
    });

    test('a database without a record is found by its mark and can be dropped', async () => {
      const branch = await project.create('db_steps_prod_br_unrecorded', 'db_steps_prod');
      await servers.query('DELETE FROM branch WHERE branch_id = $1', [branch.branch_id]);
      expect((await inventory()).branches).toContainEqual({
        project_id: project.id,
        branch_id: branch.branch_id,
        database: branch.database,
        state: 'ready',
        made_by: branch.job_id,
      });
      expect(await project.drop(branch)).toEqual({ dropped: true });
    });

    test('a leftover is dropped, but not what was restored under its id since it was listed', async () => {
      const branch = await project.create('db_steps_prod_br_left', 'db_steps_prod');
      const { database, branch_id, made_by } =
        (await inventory()).branches.find((held) => held.branch_id === branch.branch_id) ?? {};
      const dropLeftover = () =>
        runOperation(servers.host, 'branch.drop', {
          ...identity(branch),
          job_id: randomUUID(),
          made_by: made_by ?? null,
        });
      // The deletion that was under way ends, and the branch is restored by another job.
      await project.drop(branch);
      const restored = { ...branch, job_id: randomUUID() };
      await project.prepare(restored);
      expect(await dropLeftover()).toEqual({ dropped: false });
      await project.clone(restored, 'db_steps_prod');
      expect(await dropLeftover()).toEqual({ dropped: false });
      await project.finalize(restored);
      expect(await dropLeftover()).toEqual({ dropped: false });
      expect((await inventory()).branches).toContainEqual(
        expect.objectContaining({ branch_id, database, state: 'ready', made_by: restored.job_id }),
      );
      const again = { ...identity(branch), job_id: randomUUID(), made_by: restored.job_id };
      expect(await runOperation(servers.host, 'branch.drop', again)).toEqual({ dropped: true });
    });

    test('a name that another branch has is refused until that branch is dropped, and then available immediately', async () => {
      const first = await project.create('db_steps_prod_br_name', 'db_steps_prod');
      const second = project.plan('db_steps_prod_br_name');
      await expect(project.prepare(second)).rejects.toMatchObject({ code: 'DATABASE_NAME_HELD' });
      await expect(project.clone(second, 'db_steps_prod')).rejects.toMatchObject({
        code: 'DATABASE_NAME_HELD',
      });
      await project.drop(first);
      const again = await project.create('db_steps_prod_br_name', 'db_steps_prod');
      await expect(
        connect(servers.host, 'pooled', { ...first, database: again.database }, 'read_write'),
      ).rejects.toThrow();
      await project.drop(again);
    });

    test('a branch gets another name, with its sessions ended and its logins kept; repeated, it changes nothing', async () => {
      const branch = await project.create('db_steps_prod_br_former', 'db_steps_prod');
      const renamed = { ...branch, database: 'db_steps_prod_br_renamed' };
      await asClient(servers.host, 'direct', branch, 'owner', 'CREATE TABLE of_former ()');
      const sessions = await Promise.all(
        (['direct', 'pooled'] as const).map((port) => connect(servers.host, port, branch, 'read_write')),
      );
      for (const session of sessions) {
        session.on('error', () => {});
        await session.query('SELECT 1');
      }
      const rename = ({ database }: { database: string } = renamed) =>
        runOperation(servers.host, 'branch.rename', {
          ...identity(branch),
          job_id: randomUUID(),
          database,
        });
      await expect(rename(main)).rejects.toMatchObject({ code: 'DATABASE_NAME_HELD' });
      const usage = () =>
        servers.query('SELECT totals FROM branch_usage WHERE branch_id = $1', [branch.branch_id]);
      const used = await usage();
      expect(await rename()).toEqual({ renamed: true });
      expect(await rename()).toEqual({ renamed: false });
      for (const session of sessions) await expect(session.query('SELECT 1')).rejects.toThrow();
      for (const port of ['direct', 'pooled'] as const) {
        expect(await asClient(servers.host, port, renamed, 'read_write', 'SELECT * FROM of_former')).toEqual(
          [],
        );
        await expect(connect(servers.host, port, branch, 'read_write')).rejects.toThrow();
      }
      expect(await usage()).toEqual(used);
      expect((await inventory()).branches).toContainEqual(
        expect.objectContaining({ branch_id: branch.branch_id, database: renamed.database, state: 'ready' }),
      );
      // Another branch takes the former name, and is not dropped with this one.
      const next = await project.create(branch.database, renamed.database);
      await expect(rename(branch)).rejects.toMatchObject({ code: 'DATABASE_NAME_HELD' });
      expect(await project.drop(branch)).toEqual({ dropped: true });
      expect(await branchDatabases(servers)).toEqual([main.database, next.database]);
      await project.drop(next);
      await expect(rename()).rejects.toMatchObject({ code: 'INVALID_CALL' });
    });

    test('another job’s branch, or an unmanaged database, is not treated as the branch', async () => {
      const branch = await project.create('db_steps_prod_br_mine', 'db_steps_prod');
      const otherJob = { ...branch, job_id: randomUUID() };
      await expect(project.prepare(otherJob)).rejects.toMatchObject({ code: 'INVALID_CALL' });
      await expect(project.finalize(project.plan('db_steps_prod_br_unmade'))).rejects.toMatchObject({
        code: 'INVALID_CALL',
      });
      await servers.query('CREATE DATABASE db_unmanaged');
      await expect(project.prepare(project.plan('db_unmanaged'))).rejects.toMatchObject({
        code: 'DATABASE_NAME_HELD',
      });
      expect(await project.drop(project.plan('db_unmanaged'))).toEqual({ dropped: false });
      expect(await branchDatabases(servers)).toContain('db_unmanaged');
      await servers.query('DROP DATABASE db_unmanaged');
      await project.drop(branch);
    });

    test('a missing source and a proof with a wrong password are refused', async () => {
      const orphan = project.plan('db_steps_prod_br_orphan');
      await expect(project.clone(orphan, 'db_steps_gone')).rejects.toMatchObject({ code: 'SOURCE_MISSING' });
      await project.drop(orphan);
      const forged = { ...main, passwords: { ...main.passwords, read_write: 'not-the-right-one' } };
      await expect(project.prove(forged)).rejects.toMatchObject({ code: 'PROOF_FAILED' });
    });

    test('a login that a clone still refers to is disabled, and dropped after the clone', async () => {
      const parent = await project.create('db_steps_prod_br_parent', 'db_steps_prod');
      const login = loginName(parent.branch_id, 'read_write');
      await asClient(servers.host, 'direct', parent, 'read_write', 'SELECT lo_create(0)');
      const child = await project.create('db_steps_prod_br_child', parent.database);
      await project.drop(parent);
      const stored = () =>
        servers.query('SELECT rolcanlogin, rolpassword FROM pg_authid WHERE rolname = $1', [login]);
      expect(await stored()).toEqual([{ rolcanlogin: false, rolpassword: null }]);
      await project.drop(child);
      await inventory();
      expect(await stored()).toEqual([]);
    });

    test('a project’s drop removes its databases, roles, records and rules', async () => {
      await Promise.all(
        ['a', 'b'].map((name) => project.create(`db_steps_prod_br_${name}`, 'db_steps_prod')),
      );
      await project.prepare(project.plan('db_steps_prod_br_half'));
      const call = { project_id: project.id, job_id: randomUUID() };
      expect(await runOperation(servers.host, 'project.drop', call)).toEqual({ dropped_databases: 3 });
      expect(await runOperation(servers.host, 'project.drop', call)).toEqual({ dropped_databases: 0 });
      expect(await branchDatabases(servers)).toEqual([]);
      expect(await roles()).toEqual([]);
      expect(await inventory()).toMatchObject({ branches: [], projects: [] });
      for (const file of ['pg_hba.conf', 'pgbouncer_databases.ini', 'userlist.txt']) {
        expect(await readFile(join(servers.layout.rulesDir, file), 'utf8')).toBe('');
      }
    });
  });

  test('branches of one source can be made concurrently', async () => {
    const project = new Project(servers.host);
    await project.create('db_parallel_prod', null);
    const names = firstByDay(3, [1, 2, 3, 4, 5, 6]).map((name) => `db_parallel_prod_br_${name}`);
    const branches = await Promise.all(names.map((name) => project.create(name, 'db_parallel_prod')));
    expect(branches.map(({ clone }) => clone.created)).toEqual(names.map(() => true));
    await runOperation(servers.host, 'project.drop', { project_id: project.id, job_id: randomUUID() });
  });

  test.each([
    'all',
    'replication',
    'postgres',
    'db_a"; DROP DATABASE postgres; --',
    'db_a\nhost all all all trust',
    'db_+group',
    'DB_A',
    `db_${'a'.repeat(61)}`,
    '',
  ])('the name %j never reaches a server', async (name) => {
    const branch = { ...new Project(servers.host).plan('db_fine'), database: name };
    const calls = [
      runOperation(servers.host, 'branch.finalize', newBranch(branch)),
      runOperation(servers.host, 'branch.drop', { ...identity(branch), made_by: null }),
      runOperation(servers.host, 'branch.clone', {
        ...newBranch({ ...branch, database: 'db_fine' }),
        source: name,
        busy_wait: BUSY_WAIT_MS,
      }),
    ];
    for (const call of calls) await expect(call).rejects.toMatchObject({ code: 'INVALID_CALL' });
  });

  test('a refusal of invalid parameters does not repeat their values', async () => {
    const branch = new Project(servers.host).plan('db_fine');
    const call = runOperation(servers.host, 'branch.prove', newBranch(branch, { password: 'hunter2' }));
    await expect(call).rejects.toMatchObject({ message: expect.not.stringContaining('hunter2') });
  });
}
