import { cpSync, globSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api, type ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { dropBranch } from '../support/records/jobs.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

let stack: Stack;
let api: Api;
let project: ProjectBody;

beforeAll(async () => {
  stack = await startStack({ restarts: false });
  api = new Api(stack.url, await stack.token());
  project = await api.project('Old');
  await api.allow(project.id);
});
afterAll(() => stack.stop());

async function whileGatewayIsDown(action: () => void): Promise<void> {
  await stack.kill('gateway');
  action();
  await stack.start('gateway');
  await stack.untilReady();
}

const ALIVE = [{ alive: 1 }];
const aliveAt = (url: string) => query(url, 'select 1 as alive');

const logged = () => readFileSync(join(devFolder(stack.devDir).logs, 'gateway.log'), 'utf8');

test.runIf(IS_NIGHTLY)(
  'restoring records from an old backup drops no database, and newer access on the host is replaced',
  async () => {
    const [file = ''] = globSync(join(devFolder(stack.devDir).gatewayState, '**/d1/**/*.sqlite'));
    const records = dirname(file);
    const backup = join(stack.devDir, 'backup');
    const undone = await api.branch(project.id, 'undone');
    await dropBranch(api, project.id, undone.id);
    await whileGatewayIsDown(() => cpSync(records, backup, { recursive: true }));

    // The backup calls it deleted, and its creation is on record there.
    expect(await api.post(`/api/v1/projects/${project.id}/branches/${undone.id}/restore`, {})).toMatchObject({
      status: 200,
    });
    const branch = await api.branch(project.id, 'newer');
    const newProject = await api.project('Newer');
    await api.allow(newProject.id);
    const newer = [
      (await api.credentials(project.id, 'newer')).direct_url,
      (await api.credentials(newProject.id, 'main')).direct_url,
    ];
    await api.post(`/api/v1/projects/${project.id}/network-rules`, { cidr: '203.0.113.0/24' });
    await whileGatewayIsDown(() => {
      rmSync(records, { recursive: true });
      cpSync(backup, records, { recursive: true });
    });

    // The host applies access sent after the restore, although it has applied newer revisions than the
    // recorded one.
    const host = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate');
    try {
      const rule = { cidr: '198.51.100.0/24' };
      await eventually(async () => {
        const { rows } = await host.query('select cidr from network_rule where project_id = $1', [
          project.id,
        ]);
        expect(rows.map(({ cidr }) => cidr)).not.toContain('203.0.113.0/24');
      });
      expect(await api.post(`/api/v1/projects/${project.id}/network-rules`, rule)).toMatchObject({
        status: 201,
      });
      const { rows } = await host.query('select cidr from network_rule where project_id = $1', [project.id]);
      expect(rows.map(({ cidr }) => cidr)).toContain(rule.cidr);

      const databases = () =>
        host.query('select 1 from pg_database where datname = $1', [undone.database_name]);
      await eventually(async () => {
        for (const text of ['"host.records_went_back"', 'so nothing is removed'])
          expect(logged()).toContain(text);
      });
      // A new job does not make the records newer.
      const newest = await api.branch(project.id, 'newest');
      const purged = await api.delete<{ job_id: string }>(
        `/api/v1/projects/${project.id}/branches/${newest.id}?purge=true`,
      );
      const job = async () => (await api.get(`/api/v1/jobs/${purged.body.job_id}`)).body;
      await eventually(async () => expect((await job()).attempts).toBeGreaterThan(0));
      expect((await databases()).rowCount).toBe(1);

      const platform = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET);
      const { body } = await platform.get<{ hosts: { id: string }[] }>('/platform/v1/hosts');
      await platform.patch(`/platform/v1/hosts/${body.hosts[0]?.id}`, { accept_records: true });
      await eventually(async () => expect((await databases()).rowCount).toBe(0));
      await eventually(async () => expect(await job()).toMatchObject({ status: 'succeeded' }), 30);
    } finally {
      await host.end();
    }
    expect((await api.get(`/api/v1/projects/${newProject.id}`)).status).toBe(404);
    expect(branch.status).toBe('active');
    for (const url of newer) expect(await aliveAt(url)).toEqual(ALIVE);
    const { direct_url } = await api.credentials(project.id, 'main');
    expect(await aliveAt(direct_url)).toEqual(ALIVE);
  },
);
