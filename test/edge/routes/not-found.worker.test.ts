import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import { sharedTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

let gateway: TripsGateway;
let project: string;

beforeAll(async () => {
  gateway = await sharedTripsGateway();
  project = (await gateway.makeThings()).project_id ?? '';
});

const unknown = randomUUID();

test.each([
  ['a project', '/{unknown}', 'project', 'No project was found.'],
  ['a malformed ID', '/nope/branches', 'project', 'No project was found.'],
  [
    'a branch by name',
    '/{project}/branches/nope/credentials',
    'branch',
    'No branch nope was found in this project.',
  ],
  ['a snapshot', '/{project}/snapshots/{unknown}', 'operation', /no such operation/],
  [
    'what a branch is compared with',
    '/{project}/branches/main/diff?against=gone',
    'branch',
    'No branch gone was found in this project.',
  ],
])('%s that does not exist is named', async (_, path, resource, message) => {
  const filled = path.replaceAll('{project}', project).replaceAll('{unknown}', unknown);
  const { status, body } = await gateway.api.get(`/api/v1/projects${filled}`);
  expect([status, body]).toEqual([
    404,
    { error: 'NOT_FOUND', resource, message: expect.stringMatching(message), request_id: expect.any(String) },
  ]);
});

test.each([
  ['branches', { branch_name: 'one', source_branch_id: unknown }, 'branch'],
  ['branches', { branch_name: 'one', snapshot_id: unknown }, 'snapshot'],
  ['network-rules', { cidr: '192.0.2.9', branch_id: unknown }, 'branch'],
])('%s: what the body names and does not exist is named', async (list, body, resource) => {
  const response = await gateway.api.call('POST', `/api/v1/projects/${project}/${list}`, { body });
  expect(response).toMatchObject({ status: 404, body: { resource, message: `No ${resource} was found.` } });
});

test('every operation with an ID in its path says what was not found', async () => {
  const { body } = await gateway.api.get<{ paths: Record<string, Record<string, unknown>> }>(
    '/api/v1/openapi.json',
  );
  const unnamed: string[] = [];
  for (const [path, methods] of Object.entries(body.paths)) {
    if (!/^\/api\/.*\}/.test(path)) continue;
    for (const method of ['get', 'delete'].filter((name) => name in methods)) {
      const filled = path.replace('{project_id}', project).replaceAll(/\{\w+\}/g, unknown);
      if (filled === path.replace('{project_id}', project)) continue;
      const response = await gateway.api.call(method.toUpperCase(), filled);
      if (response.status === 404 && !('resource' in response.body)) unnamed.push(`${method} ${path}`);
    }
  }
  expect(unnamed).toEqual([]);
});
