import { beforeAll, describe, expect, inject, test } from 'vitest';
import { Api } from '../support/api.ts';
import { ownerOf } from '../support/tenants.ts';

let api: Api;
let branchesPath: string;

beforeAll(async () => {
  api = await ownerOf('requests');
  const project = await api.project('Requests');
  branchesPath = `/api/v1/projects/${project.id}/branches`;
});

describe('an unreadable request', () => {
  test.each([
    ['JSON that does not end', 400, 'BAD_REQUEST', '{"branch_name":'],
    ['no body', 400, 'BAD_REQUEST', ''],
    ['a body over 1 MiB', 413, 'PAYLOAD_TOO_LARGE', `{"branch_name":"${'x'.repeat(1024 * 1024)}"}`],
    ['an unknown field', 422, 'VALIDATION_FAILED', '{"branch_name":"fine","colour":"red"}'],
  ])('with %s → %i, and nothing is created', async (_, status, error, body) => {
    expect(await api.call('POST', branchesPath, { body })).toMatchObject({ status, body: { error } });
    const { body: list } = await api.get<{ branches: unknown[] }>(branchesPath);
    expect(list.branches).toHaveLength(1);
  });

  test('of a route that takes no body has no effect, unless it is an empty object', async () => {
    const branch = await api.branch(branchesPath.split('/')[4] ?? '', 'kept');
    const refusals: [body: unknown, status: number, error: string, details?: object[]][] = [
      [{ force: true }, 422, 'VALIDATION_FAILED', [{ path: 'force' }]],
      ['["now"]', 422, 'VALIDATION_FAILED', [{ path: '' }]],
      ['now', 400, 'BAD_REQUEST'],
    ];
    for (const [body, status, error, details] of refusals) {
      const refused = await api.call('DELETE', `${branchesPath}/${branch.id}`, { body });
      expect(refused).toMatchObject({ status, body: { error, ...(details && { details }) } });
      expect(await api.get(`${branchesPath}/lookup?id=${branch.id}`)).toMatchObject({
        body: { matches: [{ status: 'active' }] },
      });
    }
    // It has no field that could be ignored.
    expect((await api.call('DELETE', `${branchesPath}/${branch.id}`, { body: {} })).status).toBe(202);
  });

  test('a rotation takes no other field than the roles', async () => {
    const rotate = `${branchesPath}/main/credentials/rotate`;
    expect(await api.post(rotate, { x: 1 })).toMatchObject({
      status: 422,
      body: { details: [{ path: 'x' }] },
    });
  });

  test('with an unknown query parameter → 422', async () => {
    expect(await api.get(`${branchesPath}?colour=red`)).toMatchObject({
      status: 422,
      body: { details: [{ path: 'colour' }] },
    });
  });
});

describe('every response has a request ID', () => {
  test("from the client's header, if it is well-formed", async () => {
    const named = await api.get('/api/v1/nowhere', { headers: { 'X-Request-Id': 'client-chosen-1' } });
    expect(named.headers.get('x-request-id')).toBe('client-chosen-1');
    expect(named.body.request_id).toBe('client-chosen-1');
    const renamed = await api.get('/api/v1/projects', { headers: { 'X-Request-Id': 'no spaces, please' } });
    expect(renamed.headers.get('x-request-id')).toMatch(/^[0-9a-f-]{36}$/);
  });

  test('also without a token', async () => {
    const { headers, body } = await new Api(inject('stack').url, null).get('/api/v1/projects');
    expect(headers.get('x-request-id')).toBe(body.request_id);
  });
});
