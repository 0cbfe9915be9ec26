import { afterAll, beforeAll, expect, test } from 'vitest';
import { Api, type BranchBody } from '../support/api.ts';
import { freePort } from '../support/free-port.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { LinkProxy } from '../support/stack/link-proxy.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

let stack: Stack;
let link: LinkProxy;

beforeAll(async () => {
  const gatewayPort = String(await freePort());
  link = await LinkProxy.start(`http://127.0.0.1:${gatewayPort}`);
  stack = await startStack({ env: { GATEWAY_PORT: gatewayPort, GATEWAY_URL: link.url } });
});
afterAll(async () => {
  await stack?.stop();
  await link?.stop();
});

const apiIn = async (tenant: string) =>
  new Api(stack.url, await stack.token({ email: 'mover@example.com', tenant }));

test.runIf(IS_NIGHTLY)('a branch created while its user moves is recorded in the new tenant', async () => {
  const before = await apiIn('former');
  const project = await before.project('Moving');
  const proved = link.hold({ method: 'branch.prove', side: 'reply' });
  const creation = before.post<BranchBody>(`/api/v1/projects/${project.id}/branches`, {
    branch_name: 'meanwhile',
  });
  await proved;
  const after = await apiIn('new');
  expect(await after.get(`/api/v1/projects/${project.id}`)).toMatchObject({ status: 200 });
  link.letGo();

  expect(await creation).toMatchObject({ status: 201 });
  const { body } = await after.get<{ audit_events: { name: string }[] }>(
    `/api/v1/audit-events?project_id=${project.id}`,
  );
  expect(body.audit_events.map(({ name }) => name).sort()).toEqual(['branch.created', 'project.created']);
});
