import { beforeAll, describe, expect, test } from 'vitest';
import { type Api, type BranchBody, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { ownerOf } from '../support/tenants.ts';

let api: Api;
let project: ProjectBody;
const path = () => `/api/v1/projects/${project.id}/branches`;

beforeAll(async () => {
  api = await ownerOf('idempotency');
  project = await api.project('Once');
});

const post = (key: string, body: unknown) =>
  api.post<BranchBody>(path(), body, { ...FROM_LOOPBACK, 'Idempotency-Key': key });

describe('Idempotency-Key', () => {
  test('a repeated request gets the same response and creates nothing', async () => {
    const first = await post('key-1', { branch_name: 'once', lifespan: '1m' });
    const again = await post('key-1', { lifespan: '1m', branch_name: 'once' });
    expect(first.status).toBe(201);
    expect(first.headers.get('idempotency-replayed')).toBeNull();
    expect(again.status).toBe(201);
    expect(again.headers.get('idempotency-replayed')).toBe('true');
    expect(again.body).toEqual(first.body);
    const { body } = await api.get<{ branches: unknown[] }>(path());
    expect(body.branches).toHaveLength(2);
  });

  test('another body under the same key is refused', async () => {
    await post('key-2', { branch_name: 'two' });
    const other = await post('key-2', { branch_name: 'other' });
    expect(other).toMatchObject({ status: 422, body: { error: 'IDEMPOTENCY_KEY_REUSED' } });
  });

  test('ten concurrent requests create one branch; requests during its creation get a conflict', async () => {
    const responses = await Promise.all(
      Array.from({ length: 10 }, () => post('key-3', { branch_name: 'three' })),
    );
    const made = responses.filter(({ status }) => status === 201);
    expect(made.length).toBeGreaterThanOrEqual(1);
    expect(new Set(made.map(({ body }) => body.id)).size).toBe(1);
    for (const { status, body } of responses) {
      if (status !== 201)
        expect({ status, error: body.error }).toEqual({ status: 409, error: 'IDEMPOTENCY_IN_FLIGHT' });
    }
  });

  test('a refused request leaves the key free', async () => {
    expect(await post('key-4', { branch_name: 'once' })).toMatchObject({
      status: 409,
      body: { error: 'BRANCH_EXISTS' },
    });
    expect((await post('key-4', { branch_name: 'four' })).status).toBe(201);
  });

  test('is scoped to path and user, and works for projects', async () => {
    const headers = { 'Idempotency-Key': 'key-1' };
    const first = await api.post<ProjectBody>('/api/v1/projects', { name: 'By key' }, headers);
    const again = await api.post<ProjectBody>('/api/v1/projects', { name: 'By key' }, headers);
    expect(first.status).toBe(201);
    expect(again.body).toEqual(first.body);
    const other = await ownerOf('idempotency-other');
    const ofOther = await other.post<ProjectBody>('/api/v1/projects', { name: 'By key' }, headers);
    expect(ofOther.status).toBe(201);
    expect(ofOther.body.id).not.toBe(first.body.id);
  });

  test('a malformed key is refused', async () => {
    expect(await post('has space', { branch_name: 'nope' })).toMatchObject({ status: 422 });
  });
});
