import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { scramVerifier } from '../../edge/crypto/scram.ts';
import { groupName, loginName } from '../../shared/branch/login.ts';
import { Api, type BranchBody, type ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { dropBranch, dropProject } from '../support/records/jobs.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

let stack: Stack;
let api: Api;
let project: ProjectBody;
let host: pg.Client;

beforeAll(async () => {
  stack = await startStack();
  api = new Api(stack.url, await stack.token());
  project = await api.project('Reconciled');
  await api.allow(project.id);
  host = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate');
});

afterAll(async () => {
  await host.end();
  await stack.stop();
});

/** Reconnects the host, which triggers a reconciliation. */
async function relink(): Promise<void> {
  await stack.kill('agent');
  await eventually(async () => expect(stack.state.pids.agent).not.toBeNull());
  await stack.untilReady();
}

const databases = async () => {
  const { rows } = await host.query<{ datname: string }>(
    "select datname from pg_database where datname like 'db\\_%'",
  );
  return rows.map(({ datname }) => datname);
};
const roles = async (id: string) => {
  const { rows } = await host.query('select rolname from pg_roles where rolname like $1', [
    `%${id.replaceAll('-', '')}%`,
  ]);
  return rows;
};

async function recordOf(branch: BranchBody) {
  const path = `/api/v1/projects/${project.id}/branches/lookup?id=${branch.id}`;
  return (await api.get<{ matches: BranchBody[] }>(path)).body.matches[0];
}

function auditedBranches(event: string): unknown[] {
  const [file = ''] = globSync(join(devFolder(stack.devDir).gatewayState, '**/d1/**/*.sqlite'));
  const d1 = new DatabaseSync(file, { readOnly: true, timeout: 5000 });
  const rows = d1.prepare('select branch_id from audit_events where name = ?').all(event);
  d1.close();
  return rows.map(({ branch_id }) => branch_id);
}

/** Creates a branch on the host with the control tool, without a record in the gateway. */
async function makeUnrecorded(
  projectId: string,
  database: string,
  branchId: string = crypto.randomUUID(),
): Promise<string> {
  const job = crypto.randomUUID();
  const branchOf = (member: object) => [
    ...['--job-id', job, '--project-id', projectId],
    ...['--branches', JSON.stringify([{ branch_id: branchId, database, build_id: job, ...member }])],
  ];
  const verifier = await scramVerifier('a password that nobody has');
  const verifiers = { owner: verifier, read_write: verifier, read_only: verifier };
  const access = JSON.stringify({ revision: 0, rules: [] });
  await stack.agentTool('branch', 'prepare', ...branchOf({ verifiers }), '--access', access);
  await stack.agentTool(
    'branch',
    'clone',
    ...branchOf({}),
    '--source',
    project.main_branch.database_name,
    '--busy-wait',
    '3000',
  );
  await stack.agentTool('branch', 'finalize', ...branchOf({}));
  expect(await databases()).toContain(database);
  return branchId;
}

describe('when a host connects', () => {
  test('a database that a job created and no record claims is dropped, with its logins', async () => {
    const branch = await api.branch(project.id, 'dropped');
    await dropBranch(api, project.id, branch.id);
    await makeUnrecorded(project.id, branch.database_name, branch.id);
    const unrecorded = [branch.id];
    if (IS_NIGHTLY) {
      const gone = await api.project('Gone');
      await dropProject(api, gone.id);
      unrecorded.push(gone.id, await makeUnrecorded(gone.id, 'db_gone_prod_br_unrecorded'));
    }
    await relink();
    await eventually(async () => {
      expect(await databases()).toEqual([project.main_branch.database_name]);
      for (const id of unrecorded) expect(await roles(id)).toEqual([]);
    });
  });

  test.runIf(IS_NIGHTLY)(
    'a database that no job created is left alone, and the log says what to do',
    async () => {
      const branchId = await makeUnrecorded(project.id, `${project.main_branch.database_name}_br_unknown`);
      const unknownProject = crypto.randomUUID();
      await makeUnrecorded(unknownProject, 'db_unknown_prod_br_unrecorded');
      const before = await databases();
      await relink();
      const log = join(devFolder(stack.devDir).logs, 'gateway.log');
      await eventually(async () => {
        const logged = readFileSync(log, 'utf8')
          .split('\n')
          .filter((line) => line.includes('"reconcile.stranger"'));
        for (const id of [branchId, unknownProject]) expect(logged.join()).toContain(id);
        expect(logged.join()).toContain('reconciliation.md');
      });
      expect(await databases()).toEqual(before);
      await stack.agentTool(
        'project',
        'drop',
        '--job-id',
        crypto.randomUUID(),
        '--project-id',
        unknownProject,
      );
      const identity = ['--project-id', project.id, '--branch-id', branchId];
      const database = `${project.main_branch.database_name}_br_unknown`;
      await stack.agentTool(
        'branch',
        'drop',
        '--job-id',
        crypto.randomUUID(),
        ...identity,
        '--database',
        database,
      );
      expect(await databases()).toEqual([project.main_branch.database_name]);
    },
  );

  test('a record without a database becomes failed, is audited once, and frees its name', async () => {
    const [lost, other] = [await api.branch(project.id, 'lost'), await api.branch(project.id, 'other')];
    await host.query(`drop database "${lost.database_name}" with (force)`);
    await relink();
    await eventually(async () => expect(await recordOf(lost)).toMatchObject({ status: 'failed' }));
    expect(await recordOf(other)).toMatchObject({ status: 'active' });
    await relink();
    expect(auditedBranches('branch.lost')).toEqual([lost.id]);
    const again = await eventually(() => api.branch(project.id, 'lost'));
    expect(again.status).toBe('active');
    const { database_url } = await api.credentials(project.id, 'lost');
    expect(await query(database_url, 'select 1 as one')).toEqual([{ one: 1 }]);
  });

  test.runIf(IS_NIGHTLY)(
    'a database that was missing for a while is not dropped when it is back',
    async () => {
      const missing = await api.branch(project.id, 'missing');
      const rename = (from: string, to: string) =>
        host.query(`alter database "${from}" with connection limit 0`).then(async () => {
          await host.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [
            from,
          ]);
          await host.query(`alter database "${from}" rename to "${to}"`);
          await host.query(`alter database "${to}" with connection limit -1`);
        });
      await rename(missing.database_name, 'elsewhere');
      await relink();
      await eventually(async () => expect(await recordOf(missing)).toMatchObject({ status: 'failed' }));
      await rename('elsewhere', missing.database_name);
      await relink();
      await eventually(async () => expect(await recordOf(missing)).toMatchObject({ status: 'active' }));
      expect(auditedBranches('branch.found')).toEqual([missing.id]);
      const { database_url } = await api.credentials(project.id, 'missing');
      expect(await query(database_url, 'select 1 as one')).toEqual([{ one: 1 }]);
      await api.delete(`/api/v1/projects/${project.id}/branches/${missing.id}`);
    },
  );

  test.runIf(IS_NIGHTLY)('rules that the host has lost are restored', async () => {
    const { direct_url } = await api.credentials(project.id, 'main');
    await host.query('update project set access_revision = 0; delete from network_rule');
    await relink();
    await eventually(async () => expect(await query(direct_url, 'select 1 as one')).toEqual([{ one: 1 }]));
    const { rows } = await host.query<{ n: string }>(
      'select count(*) as n from network_rule where project_id = $1',
      [project.id],
    );
    expect(Number(rows[0]?.n)).toBeGreaterThan(0);
  });

  test.runIf(IS_NIGHTLY)('a password that a login set itself is reset', async () => {
    const { direct_url } = await api.credentials(project.id, 'main');
    const login = loginName(project.main_branch.id, 'owner');
    const verifier = () => host.query('select rolpassword from pg_authid where rolname = $1', [login]);
    const before = (await verifier()).rows;
    await query(direct_url, `set role none; alter role ${login} password 'my own choice'`);
    await expect(query(direct_url, 'select 1')).rejects.toMatchObject({ code: '28P01' });
    await relink();
    // Not by a login: attempts with a wrong password are limited.
    await eventually(async () => expect((await verifier()).rows).toEqual(before));
    expect(await query(direct_url, 'select 1 as one')).toEqual([{ one: 1 }]);
  });

  test('correct state is not changed', async () => {
    const { body } = await api.get(`/api/v1/projects/${project.id}`);
    expect(body).toMatchObject({ status: 'active', branch_count: 3 });
    expect(await roles(project.id)).toHaveLength(3);
    expect(
      await host.query('select 1 from pg_roles where rolname = $1', [groupName(project.id, 'owner')]),
    ).toMatchObject({ rowCount: 1 });
  });
});
