import { eq } from 'drizzle-orm';
import { beforeAll, expect, test } from 'vitest';
import { changes } from '../../../edge/database/change-schema.ts';
import { moves } from '../../../edge/database/move-schema.ts';
import { projectBranches, projects, snapshots } from '../../../edge/database/schema.ts';
import { Api } from '../../support/api.ts';
import { signInClient, tokensOf } from '../../support/oauth/client-app.ts';
import { createMachines } from '../../support/operations.ts';
import { changeRow } from '../../support/records/changes.ts';
import { insertRows, readAll, type Twin, twinOf, twinRows } from '../../support/records/twins.ts';
import { sharedTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

/** Responses to the same requests before and after others have the same of everything. */

let gateway: TripsGateway;
let owner: Api;
/** Limited to the project. */
let machine: Api;
let project: string;
let job: string;
let rule: string;
let change: string;

beforeAll(async () => {
  gateway = await sharedTripsGateway();
  owner = new Api(gateway.url, await gateway.tokenOf({ gid: 'reader', tenant: 'reading' }));
  ({ id: project } = await owner.project('Read'));
  ({ id: rule } = await owner.allow(project));
  const { id: branchId } = await owner.branch(project, 'made');
  await owner.webhook(project);
  await createMachines(owner, project);
  const { form } = await signInClient(gateway.url, SETTINGS.BASE_URL, owner, { project_id: project });
  await tokensOf(gateway.url, form);
  const rights = {
    name: 'CI',
    role: 'admin',
    scopes: ['read', 'write'],
    project_id: project,
    expires_in_days: 1,
  };
  const { body: key } = await owner.post<{ key: string }>('/api/v1/api-keys', rights);
  machine = new Api(gateway.url, key.key);
  const { body } = await owner.get<{ jobs: { id: string }[] }>(`/api/v1/projects/${project}/jobs`);
  job = body.jobs[0]?.id ?? '';
  const [branch] = await gateway.db.select().from(projectBranches).where(eq(projectBranches.id, branchId));
  if (!branch) throw new Error('no branch');
  const times = { createdAt: new Date(0), updatedAt: new Date(0) };
  const host = crypto.randomUUID();
  await gateway.db.insert(moves).values({
    projectId: project,
    jobId: job,
    fromHostId: host,
    toHostId: host,
    phase: 'undone',
    keyId: '1',
    branches: [],
    ...times,
  });
  // No snapshot of the project has a number of spares, and main is not active: the twins have both.
  await gateway.db.insert(snapshots).values({
    id: crypto.randomUUID(),
    projectId: project,
    branchId,
    branchName: 'made',
    kind: 'manual',
    status: 'ready',
    data: 'full',
    keepTables: [],
    takenAt: new Date(0),
    tenantId: 'reading',
    createdAt: new Date(0),
  });
  change = crypto.randomUUID();
  const [{ createdBy = '' } = {}] = await gateway.db
    .select({ createdBy: projects.createdBy })
    .from(projects)
    .where(eq(projects.id, project));
  await gateway.db
    .insert(changes)
    .values(changeRow({ id: change, projectId: project, tenantId: 'reading', createdBy }));
  await gateway.db
    .update(projectBranches)
    .set({ status: 'failed' })
    .where(eq(projectBranches.databaseName, branch.sourceDatabase));
});

/** Adds the same of another tenant, or of another project of this one. */
async function plant(...twins: Twin[]): Promise<void> {
  const rows = await readAll(gateway.database);
  const ours = rows.filter(
    ({ columns }) => columns.tenant_id === 'reading' || columns.project_id === project,
  );
  const users = new Set(ours.filter(({ table }) => table === 'users').map(({ columns }) => columns.id));
  const people = rows.filter(
    ({ table, columns }) =>
      columns.idp_tenant_id === 'reading' ||
      (table === 'organization_members' && users.has(columns.user_id ?? null)),
  );
  for (const twin of twins) {
    const planted = twinRows([...ours, ...people], twin).map(({ table, columns }) => ({
      table,
      columns:
        table === 'snapshots'
          ? { ...columns, spares: 2 }
          : table === 'project_branches' && columns.is_default === 1
            ? { ...columns, status: 'active' }
            : columns,
    }));
    await insertRows(gateway.database, planted);
  }
  // A query without a condition would find another main first.
  await gateway.database
    .prepare(
      'update project_branches set rowid = (select max(rowid) + 1 from project_branches) where project_id = ? and is_default',
    )
    .bind(project)
    .run();
}

const OF_PROJECT = [
  ...['', '/jobs', '/trusts', '/network-rules', '/metrics/summary', '/usage', '/branches', '/snapshots'],
  ...['/masking', '/members', '/changes'],
].map((path) => `/api/v1/projects/{project}${path}`);
const OF_TENANT = [
  '/api/v1/projects',
  '/api/v1/webhooks',
  '/api/v1/api-keys',
  '/api/v1/audit-events',
  '/api/v1/members',
  '/api/v1/oauth-grants',
];

/** The responses of the requests, with what they name of a twin. */
async function responses(caller: Api, paths: readonly string[], twin: Twin): Promise<unknown> {
  const read = async (path: string) => {
    const { status, body } = await caller.get(path.replace('{project}', project));
    return { path, status, body: { ...(body as object), request_id: null } };
  };
  const rehearsal = async (id: string) => {
    const path = `/api/v1/projects/${project}/changes/${id}/rehearse`;
    const { status, body } = await caller.post(path, {});
    return { path, status, body: { ...(body as object), request_id: null } };
  };
  const changed = async (method: string) => {
    const path = `/api/v1/projects/${project}/network-rules/${twinOf(rule, twin)}`;
    const sent = method === 'PATCH' ? { body: { ttl_seconds: 3600 } } : {};
    const { status, body } = await caller.call(method, path, sent);
    return { path: method, status, body: { ...body, request_id: null } };
  };
  const reads = [];
  for (const path of [...paths, `/api/v1/jobs/${twinOf(job, twin)}`]) reads.push(await read(path));
  return [
    ...reads,
    await rehearsal(change),
    await rehearsal(twinOf(change, twin)),
    await changed('PATCH'),
    await changed('DELETE'),
  ];
}

test('a response has nothing of another tenant', async () => {
  const paths = [...OF_PROJECT, ...OF_TENANT];
  const alone = await responses(owner, paths, 'earlier');
  const move = await gateway.platform.get(`/platform/v1/projects/${project}/move`);
  await plant('earlier', 'later');
  expect(await responses(owner, paths, 'earlier')).toEqual(alone);
  expect((await gateway.platform.get(`/platform/v1/projects/${project}/move`)).body).toEqual(move.body);
});

test('a response has nothing of another project of the tenant', async () => {
  const paths = [...OF_PROJECT, '/api/v1/projects', '/api/v1/audit-events'];
  const alone = await responses(machine, paths, 'sibling');
  const ofOwner = await responses(owner, OF_PROJECT, 'sibling');
  await plant('sibling');
  expect(await responses(machine, paths, 'sibling')).toEqual(alone);
  // The owner may read the job of the other project.
  const isJob = ({ path = '' }) => path.startsWith('/api/v1/jobs/');
  const without = (all: unknown) => (all as { path?: string }[]).filter((one) => !isJob(one));
  expect(without(await responses(owner, OF_PROJECT, 'sibling'))).toEqual(without(ofOwner));
});
