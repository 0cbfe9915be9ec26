import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { Api, type BranchBody, type ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

let stack: Stack;
let api: Api;
let project: ProjectBody;

beforeAll(async () => {
  stack = await startStack({ restarts: false });
  api = new Api(stack.url, await stack.token());
  project = await api.project('Existing');
});
afterAll(() => stack.stop());

const branchesPath = () => `/api/v1/projects/${project.id}/branches`;

async function restartHost(whileDown: () => Promise<void> | void): Promise<void> {
  await stack.kill('agent');
  await stack.kill('postgres');
  await whileDown();
  await stack.start('postgres');
  await stack.start('agent');
}

const events = () =>
  readFileSync(join(devFolder(stack.devDir).logs, 'gateway.log'), 'utf8')
    .split('\n')
    .flatMap((line) => /"event":"(host\.[a-z_]+)"/.exec(line)?.[1] ?? []);

test.runIf(IS_NIGHTLY)(
  'a host that starts with an empty cluster is not reconciled and gets no work; with its data back, everything works again',
  async () => {
    const branch = await api.branch(project.id, 'existing');
    const { database_url } = await api.credentials(project.id, 'existing');

    let restore = () => {};
    await restartHost(async () => {
      restore = await stack.swapCluster();
    });
    await eventually(async () => expect((await stack.fetch('/readyz')).status).toBe(503));
    await eventually(async () => expect(events()).toEqual(['host.another_cluster']));
    const refused = { status: 503, body: { error: 'HOST_UNAVAILABLE' } };
    expect(await api.post(branchesPath(), { branch_name: 'new' })).toMatchObject(refused);
    expect(await api.post('/api/v1/projects', { name: 'New' })).toMatchObject(refused);
    const { body } = await api.get<{ branches: BranchBody[] }>(branchesPath());
    expect(body.branches.map(({ branch_name, status }) => [branch_name, status])).toEqual([
      ['main', 'active'],
      ['existing', 'active'],
    ]);

    await restartHost(() => restore());
    await stack.untilReady();
    await eventually(async () => expect(events()).toEqual(['host.another_cluster', 'host.known_cluster']));
    expect(await query(database_url, 'select current_database() as at')).toEqual([
      { at: branch.database_name },
    ]);
    expect((await api.branch(project.id, 'new')).status).toBe('active');
  },
);
