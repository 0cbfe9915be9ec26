import { expect, inject, test } from 'vitest';
import { createClient } from '../../client/client.ts';
import { dataOf } from '../../client/response-error.ts';
import { tokenOf } from '../support/tenants.ts';

const BRANCHES = '/api/v1/projects/{project_id}/branches';

test('the client creates, lists, streams and waits on the real gateway', async () => {
  const { url } = inject('stack');
  const client = createClient({ url, token: await tokenOf({ tenant: 'typed-client' }) });
  const { id: project_id } = await client.create('/api/v1/projects', { body: { name: 'Typed' } });
  const path = { project_id };

  const stop = new AbortController();
  const events = client.events(project_id, { signal: stop.signal });
  expect((await events.next()).value).toMatchObject({ type: 'ready', data: { project_id } });
  // With `wait=0` the gateway responds with the job, and the client waits for it.
  const header = { prefer: 'wait=0' };
  const branch = await client.create(BRANCHES, { params: { path, header }, body: { branch_name: 'pr-1' } });
  expect(branch).toMatchObject({ branch_name: 'pr-1', status: 'active' });
  const seen: unknown[] = [];
  for await (const { type, data } of events) {
    seen.push(data);
    const { data: change } = data as { data: { branch_name?: string; status?: string } };
    if (type === 'branch.changed' && change.status === 'active') break;
  }
  expect(seen.at(-1)).toMatchObject({ type: 'branch.changed', data: { branch_id: branch.id } });
  stop.abort();

  const kinds = [];
  const jobs = client.all('/api/v1/projects/{project_id}/jobs', { params: { path, query: { limit: 1 } } });
  for await (const { kind } of jobs) kinds.push(kind);
  expect(kinds).toEqual(['branch.create', 'project.create']);
  const params = { path: { ...path, branch_ref: 'pr-1' } };
  const { job_id } = await dataOf(client.api.DELETE(`${BRANCHES}/{branch_ref}`, { params }));
  expect(await client.waitForJob(job_id)).toMatchObject({ status: 'succeeded' });
});
