import { type OpenAPIClient, OpenAPIClientAxios, type UnknownOperationMethod } from 'openapi-client-axios';
import { beforeAll, expect, inject, test } from 'vitest';
import { DESCRIPTION } from '../support/contract.ts';
import { query } from '../support/database.ts';
import { tokenOf } from '../support/tenants.ts';

type OperationId =
  | 'createProject'
  | 'listProjects'
  | 'deleteProject'
  | 'createNetworkRule'
  | 'createBranch'
  | 'listBranches'
  | 'getCredentials'
  | 'deleteBranch'
  | 'getJob';

/** Generated from the document that the gateway serves. */
let client: OpenAPIClient<Record<OperationId, UnknownOperationMethod>>;

beforeAll(async () => {
  const { url } = inject('stack');
  const token = await tokenOf({ tenant: 'generated' });
  client = await new OpenAPIClientAxios({
    definition: `${url}/api/v1/openapi.json`,
    withServer: { url },
    axiosConfigDefaults: { headers: { Authorization: `Bearer ${token}` } },
  }).init();
});

test('the client is generated from the document that the tests check responses against', () => {
  expect(client.api.document).toEqual(JSON.parse(JSON.stringify(DESCRIPTION)));
});

test('creates a project and a branch, connects to it, and deletes them', async () => {
  const project = await client.createProject({}, { name: 'Generated' });
  expect(project.status).toBe(201);
  const project_id: string = project.data.id;
  await client.createNetworkRule({ project_id }, { cidr: '127.0.0.1/32' });
  const branch = await client.createBranch({ project_id }, { branch_name: 'generated' });
  expect(branch.status).toBe(201);
  const branch_id: string = branch.data.id;

  const projects = await client.listProjects({ limit: 1 });
  expect(projects.data).toMatchObject({ projects: [{ id: project_id }], next_cursor: null });
  const branches = await client.listBranches({ project_id });
  expect(branches.data).toMatchObject({ branches: [{ branch_name: 'main' }, { id: branch_id }] });
  const credentials = await client.getCredentials({ project_id, branch_ref: 'generated', role: 'read_only' });
  expect(await query(credentials.data.database_url, 'select 1 as one')).toEqual([{ one: 1 }]);

  const deletion = await client.deleteBranch({ project_id, branch_ref: branch_id });
  expect(deletion).toMatchObject({ status: 202, data: { id: branch_id, status: 'deleted' } });
  const job = await client.getJob({ job_id: deletion.data.job_id });
  expect(job.data).toMatchObject({ project_id, kind: 'branch.delete' });
  expect((await client.deleteProject({ project_id })).status).toBe(202);
});

test('a refusal has the documented code', async () => {
  const refused = client.createBranch({ project_id: crypto.randomUUID() }, { branch_name: 'nowhere' });
  await expect(refused).rejects.toMatchObject({ response: { status: 404, data: { error: 'NOT_FOUND' } } });
});
