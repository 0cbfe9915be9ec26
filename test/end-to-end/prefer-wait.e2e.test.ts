import { beforeAll, describe, expect, test } from 'vitest';
import { type Api, type BranchBody, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import type { Job } from '../support/records/jobs.ts';
import { ownerOf } from '../support/tenants.ts';

let api: Api;
let project: ProjectBody;
const path = () => `/api/v1/projects/${project.id}/branches`;

const create = <B = Job>(branch_name: string, prefer: string, more: Record<string, string> = {}) =>
  api.post<B>(path(), { branch_name }, { ...FROM_LOOPBACK, Prefer: prefer, ...more });

/** Waits until the job has succeeded. */
const success = ({ id }: Job) =>
  eventually(async () => {
    const { body } = await api.get<Job>(`/api/v1/jobs/${id}`);
    expect(body.status).toBe('succeeded');
    return body;
  });

beforeAll(async () => {
  api = await ownerOf('prefer');
  project = await api.project('Prefer');
});

describe('Prefer: wait=0', () => {
  test('responds immediately with the job, and the branch is created', async () => {
    const response = await create('later', 'wait=0');
    expect(response).toMatchObject({
      status: 202,
      body: {
        kind: 'branch.create',
        project_id: project.id,
        status: expect.stringMatching(/queued|running/),
      },
    });
    await success(response.body);
    const { body } = await api.get<{ matches: BranchBody[] }>(`${path()}/lookup?name=later`);
    expect(body.matches).toMatchObject([{ branch_name: 'later', status: 'active' }]);
    const { database_url } = await api.credentials(project.id, 'later');
    expect(await query(database_url, 'select 1 as one')).toEqual([{ one: 1 }]);
  });

  test('works for projects', async () => {
    const { status, body } = await api.post<Job & { project_id: string }>(
      '/api/v1/projects',
      { name: 'Later' },
      { Prefer: 'wait=0' },
    );
    expect([status, body.kind]).toEqual([202, 'project.create']);
    await success(body);
    expect((await api.get(`/api/v1/projects/${body.project_id}`)).body).toMatchObject({ status: 'active' });
  });

  test('does not hide a refusal', async () => {
    expect((await create('taken', 'wait=60')).status).toBe(201);
    expect(await create('taken', 'wait=0')).toMatchObject({ status: 409, body: { error: 'BRANCH_EXISTS' } });
  });

  test('with a key returns the job while it runs, then the branch', async () => {
    const key = { 'Idempotency-Key': 'later' };
    const first = await create('by-key', 'wait=0', key);
    expect(first.status).toBe(202);
    const again = await create<Record<string, unknown>>('by-key', 'wait=0', key);
    if (again.status !== 201) {
      expect(again).toMatchObject({
        status: 409,
        body: { error: 'IDEMPOTENCY_IN_FLIGHT', job_id: first.body.id },
      });
    }
    await success(first.body);
    const made = await create<BranchBody>('by-key', 'wait=0', key);
    expect(made).toMatchObject({ status: 201, body: { branch_name: 'by-key', status: 'active' } });
    expect(made.headers.get('idempotency-replayed')).toBe('true');
  });
});

test.each(['wait=1000', 'wait=soon', 'wait=-1', 'respond-async', ',;='])(
  'Prefer: %s does not cause a refusal',
  async (prefer) => {
    const there = { branch_name: 'taken', on_exists: 'return' };
    expect((await api.post(path(), there, { Prefer: prefer })).status).toBe(200);
  },
);
