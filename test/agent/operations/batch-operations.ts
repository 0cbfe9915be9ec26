import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { scramVerifier } from '../../../edge/crypto/scram.ts';
import { BRANCH_ROLES, loginName } from '../../../shared/branch/login.ts';
import type { Params } from '../../../shared/protocol/operations.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  BUSY_WAIT_MS,
  branchDatabases,
  makeProject,
  type Project,
  removeProjects,
} from '../../support/host/host-project.ts';

const SOURCE = 'db_batch_prod';

export function describeBatches(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let main: Branch;

  beforeAll(async () => {
    ({ servers, project, main } = await makeProject(
      host(),
      SOURCE,
      'CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1)',
    ));
  });
  afterAll(() => removeProjects(servers));

  const named = (branches: Branch[]) =>
    branches.map(({ branch_id, database }) => ({ branch_id, database, build_id: branch_id }));
  const verifiersOf = async ({ passwords }: Branch) =>
    Object.fromEntries(
      await Promise.all(BRANCH_ROLES.map(async (role) => [role, await scramVerifier(passwords[role])])),
    ) as Params<'branch.prepare'>['branches'][number]['verifiers'];

  test('a batch that was interrupted continues from its first clone, not from the changed source', async () => {
    const { host } = servers;
    const branches = ['one', 'two', 'three'].map((name) => project.plan(`${SOURCE}_br_${name}`));
    const batch = { job_id: randomUUID(), project_id: project.id };
    const clone = (members: Branch[]) =>
      runOperation(host, 'branch.clone', {
        ...batch,
        branches: named(members),
        source: SOURCE,
        busy_wait: BUSY_WAIT_MS,
      });
    // What a crash leaves: the first clone is complete, the others are not begun.
    expect(await clone(branches.slice(0, 1))).toMatchObject({ created: true });
    await asClient(host, 'pooled', main, 'read_write', 'INSERT INTO item VALUES (2)');
    expect(await clone(branches)).toMatchObject({ created: false });
    expect(await clone(branches)).toMatchObject({ created: false });
    expect(await branchDatabases(servers)).toHaveLength(4);

    const prepare = {
      ...batch,
      access: { revision: 1, rules: [{ branch_id: null, cidr: '127.0.0.1/32' }] },
      branches: await Promise.all(
        branches.map(async (branch, index) => ({
          ...named(branches)[index],
          verifiers: await verifiersOf(branch),
        })),
      ),
    };
    const proofs = branches.map((branch, index) => ({
      ...named(branches)[index],
      password: branch.passwords.read_write,
    }));
    for (let times = 1; times <= 2; times++) {
      await runOperation(host, 'branch.prepare', prepare);
      await runOperation(host, 'branch.finalize', { ...batch, branches: named(branches) });
      await runOperation(host, 'branch.prove', { ...batch, branches: proofs });
    }
    for (const branch of branches) {
      expect(await asClient(host, 'pooled', branch, 'read_write', 'SELECT id FROM item')).toEqual([
        { id: 1 },
      ]);
      expect(await project.drop(branch)).toEqual({ dropped: true });
    }
    expect(await branchDatabases(servers)).toEqual([SOURCE]);
  });

  test('a branch of a batch that is lost after the others were finalized gets their content', async () => {
    const { host } = servers;
    const branches = ['kept', 'lost'].map((name) => project.plan(`${SOURCE}_br_${name}`));
    const batch = { job_id: randomUUID(), project_id: project.id, branches: named(branches) };
    const clone = () =>
      runOperation(host, 'branch.clone', { ...batch, source: SOURCE, busy_wait: BUSY_WAIT_MS });
    await Promise.all([
      clone(),
      ...branches.map((branch) => project.prepare({ ...branch, job_id: branch.branch_id })),
    ]);
    await runOperation(host, 'branch.finalize', batch);
    await asClient(host, 'pooled', main, 'read_write', 'INSERT INTO item VALUES (3)');
    await servers.query(`DROP DATABASE "${branches[1]?.database}" WITH (FORCE)`);
    expect(await clone()).toMatchObject({ created: true });
    await runOperation(host, 'branch.finalize', batch);
    const contents = await Promise.all(
      branches.map((branch) =>
        asClient(host, 'direct', branch, 'read_only', 'SELECT id FROM item ORDER BY id'),
      ),
    );
    expect(contents[0]).toEqual([{ id: 1 }, { id: 2 }]);
    expect(contents[1]).toEqual(contents[0]);

    // What a kill leaves that comes before the rights which depend on the write block.
    const [kept] = branches;
    if (!kept) throw new Error('no branch');
    const login = loginName(kept.branch_id, 'read_write');
    await servers.query(`REVOKE TEMPORARY ON DATABASE "${kept.database}" FROM "${login}"`);
    await runOperation(host, 'branch.finalize', batch);
    await asClient(host, 'direct', kept, 'read_write', 'CREATE TEMPORARY TABLE scratch (id int)');
  });
}
