import { cpSync, globSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { Api, type ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
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

test('restoring records from an old backup drops no database, and newer access on the host is replaced', async () => {
  const [file = ''] = globSync(join(devFolder(stack.devDir).gatewayState, '**/d1/**/*.sqlite'));
  const records = dirname(file);
  const backup = join(stack.devDir, 'backup');
  await whileGatewayIsDown(() => cpSync(records, backup, { recursive: true }));

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

  // The host applies access sent after the restore, although it has applied newer revisions than the recorded one.
  const host = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate');
  try {
    const rule = { cidr: '198.51.100.0/24' };
    await eventually(async () => {
      const { rows } = await host.query('select cidr from network_rule where project_id = $1', [project.id]);
      expect(rows.map(({ cidr }) => cidr)).not.toContain('203.0.113.0/24');
    });
    expect(await api.post(`/api/v1/projects/${project.id}/network-rules`, rule)).toMatchObject({
      status: 201,
    });
    const { rows } = await host.query('select cidr from network_rule where project_id = $1', [project.id]);
    expect(rows.map(({ cidr }) => cidr)).toContain(rule.cidr);
  } finally {
    await host.end();
  }
  expect((await api.get(`/api/v1/projects/${newProject.id}`)).status).toBe(404);
  expect(branch.status).toBe('active');
  for (const url of newer) expect(await aliveAt(url)).toEqual(ALIVE);
  const { direct_url } = await api.credentials(project.id, 'main');
  expect(await aliveAt(direct_url)).toEqual(ALIVE);
});
