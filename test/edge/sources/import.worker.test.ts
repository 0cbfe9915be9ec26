import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { auditEvents, jobs, projects } from '../../../edge/database/schema.ts';
import { importSources } from '../../../edge/database/source-schema.ts';
import type { Method } from '../../../shared/protocol/operations.ts';
import type { BranchBody } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { firstByDay } from '../../support/nightly.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

const PASSWORD = 'password-of-the-source';
const SOURCE = `postgresql://app:${PASSWORD}@db.example.com:5432/shop`;
const FAILURE = { code: 'POSTGRES_UNAVAILABLE', message: 'planted' } as const;

interface JobBody extends Record<string, unknown> {
  id: string;
  status: string;
  error: { code: string; message: string } | null;
  steps: { name: string; status: string; tables?: object[] }[];
}

let gateway: TripsGateway;
let projectId: string;
let path: string;
let main: string;
/** Another project on the same host, which stays. */
let neighbour: string;

beforeAll(async () => {
  gateway = await startTripsGateway(0);
  neighbour = (await gateway.api.project('Neighbour')).id;
});
afterAll(() => gateway?.stop());
beforeEach(async () => {
  await gateway.forgetCalls(neighbour);
  const project = await gateway.api.project('Shop');
  projectId = project.id;
  main = project.main_branch.id;
  path = `/api/v1/projects/${projectId}`;
});

const begin = (more: object = {}) =>
  gateway.api.post<JobBody>(`${path}/import`, { source_url: SOURCE, ...more });
const jobOf = async (id: string) => (await gateway.api.get<JobBody>(`/api/v1/jobs/${id}`)).body;
const branch = async () => (await gateway.api.get<BranchBody>(`${path}/branches/${main}`)).body;
const calls = (method: Method) => gateway.countCalls(neighbour, method);

/** The calls of the method fail until the function that this returns is called. */
async function hold(method: Method) {
  await gateway.plantFailure(neighbour, method, FAILURE);
  return async () => {
    await gateway.plantFailure(neighbour, method, null);
    await gateway.coordinatorOf(projectId).wake();
  };
}

const ended = (id: string, status: string) =>
  eventually(async () => {
    const job = await jobOf(id);
    expect(job).toMatchObject({ status });
    return job;
  });

async function expectOpen() {
  expect(await branch()).toMatchObject({ status: 'active', blocked: null });
  const [project] = await gateway.db.select().from(projects).where(eq(projects.id, projectId));
  expect(project?.accessApplied).toBe(project?.accessRevision);
  expect(await gateway.db.select().from(importSources).where(eq(importSources.projectId, projectId))).toEqual(
    [],
  );
}

test('main is closed while an import fills it, and nothing shows the password', async () => {
  const succeed = await hold('transfer.copy');
  const { status, body: job } = await begin({ tables: ['book'] });
  expect([status, job]).toMatchObject([202, { kind: 'branch.import', branch_id: main }]);
  await eventually(async () => expect(await calls('transfer.copy')).toBeGreaterThan(0));
  expect(await branch()).toMatchObject({ status: 'active', blocked: { reason: 'import' } });
  expect((await gateway.api.get(path)).body).toMatchObject({ blocked: { reason: 'import' } });
  expect(await gateway.api.get(`${path}/branches/main/tables`)).toMatchObject({
    status: 409,
    body: { error: 'BRANCH_NOT_ACTIVE', message: expect.stringContaining('import') },
  });
  expect(await gateway.api.post(`${path}/branches`, { branch_name: 'pr-1' })).toMatchObject({
    status: 409,
    body: { error: 'SOURCE_NOT_ACTIVE' },
  });
  expect(await begin()).toMatchObject({ status: 429, body: { error: 'PROJECT_BUSY' } });
  const stored = await gateway.db.batch([
    gateway.db.select().from(jobs),
    gateway.db.select().from(auditEvents),
    gateway.db.select().from(importSources),
  ]);
  expect(JSON.stringify(stored)).toContain('db.example.com');
  expect(JSON.stringify([stored, job, await jobOf(job.id)])).not.toContain(PASSWORD);

  await succeed();
  const done = await ended(job.id, 'succeeded');
  expect(done.steps.map(({ name }) => name)).toEqual(['close', 'copy', 'swap', 'open', 'discard']);
  expect(done.steps[1]).toMatchObject({
    tables: [{ schema: 'public', table: 'book', state: 'copied', rows: 3, percent: 100 }],
  });
  await expectOpen();
  const events = await gateway.db
    .select()
    .from(auditEvents)
    .where(eq(auditEvents.projectId, projectId))
    .orderBy(auditEvents.createdAt);
  expect(events.slice(-2)).toMatchObject([
    { name: 'branch.import.started', metadata: { host: 'db.example.com', tables: ['book'] } },
    { name: 'branch.imported', actorId: events[0]?.actorId, metadata: { rows: 3 } },
  ]);
});

test('a source that cannot be used is refused before anything is made', async () => {
  const wrong = { tables: ['nope'] };
  const refusal = { status: 422, body: { error: 'SOURCE_UNSUITABLE', details: [{ problem: 'tables' }] } };
  expect(await begin(wrong)).toMatchObject(refusal);
  expect(await gateway.api.post(`${path}/import/probe`, { source_url: SOURCE, ...wrong })).toMatchObject(
    refusal,
  );
  expect(await gateway.api.post(`${path}/import/probe`, { source_url: SOURCE })).toMatchObject({
    status: 200,
    body: { source: { host: 'db.example.com' }, tables: [], warnings: [] },
  });
  expect(await calls('access.apply')).toBe(0);
  await expectOpen();
});

test('an import whose URL can no longer be decrypted fails immediately, unless its rows are here already', async () => {
  const gone = (id: string) =>
    gateway.db.update(importSources).set({ keyId: 'gone' }).where(eq(importSources.jobId, id));
  await hold('transfer.copy');
  const { body } = await begin();
  await eventually(async () => expect(await calls('transfer.copy')).toBeGreaterThan(0));
  await gone(body.id);
  expect((await ended(body.id, 'failed')).error).toMatchObject({
    code: 'SOURCE_UNSUITABLE',
    message: expect.stringContaining('can no longer be decrypted'),
  });
  await expectOpen();
  await gateway.plantFailure(neighbour, 'transfer.copy', null);
  const succeed = await hold('reset.swap');
  const { body: copied } = await begin();
  await eventually(async () => expect(await calls('reset.swap')).toBeGreaterThan(0));
  await gone(copied.id);
  await succeed();
  await ended(copied.id, 'succeeded');
});

test('what the copy refuses is removed, and the job says why', async () => {
  const { body } = await begin({ tables: ['refused'] });
  const job = await ended(body.id, 'failed');
  expect(job.error).toEqual({ code: 'SOURCE_UNSUITABLE', message: 'PostgreSQL refuses the rows.' });
  expect(await calls('reset.cancel')).toBe(1);
  expect(await calls('reset.swap')).toBe(0);
  await expectOpen();
  expect((await begin()).status).toBe(202);
});

test.each(firstByDay(2, ['transfer.copy', 'reset.swap', 'access.apply', 'snapshot.drop'] as const))(
  'an import ends well after failures of %s',
  async (method) => {
    const succeed = await hold(method);
    const { body } = await begin();
    await eventually(async () => expect((await jobOf(body.id)).attempts).toBeGreaterThan(0));
    const copies = await calls('transfer.copy');
    await succeed();
    await ended(body.id, 'succeeded');
    if (method === 'reset.swap' || method === 'snapshot.drop') {
      // Its source is not read again.
      expect([copies, await calls('transfer.copy')]).toEqual([1, 1]);
    }
    await expectOpen();
  },
);

test('an import of more than an hour ends well, although calls of it time out', async () => {
  await gateway.plantFailure(neighbour, 'transfer.copy', { code: 'HOST_TIMEOUT', message: 'planted' });
  const { body } = await gateway.api.post<JobBody>(`${path}/import`, { source_url: SOURCE });
  await eventually(async () => expect(await calls('transfer.copy')).toBeGreaterThan(0));
  await gateway.db
    .update(jobs)
    .set({ createdAt: new Date(Date.now() - 48 * 3_600_000) })
    .where(eq(jobs.id, body.id));
  // A copy that runs on is no failure either.
  await gateway.plantFailure(neighbour, 'transfer.copy', { code: 'PROJECT_BUSY', message: 'planted' });
  const timedOut = await calls('transfer.copy');
  await gateway.coordinatorOf(projectId).wake();
  await eventually(async () => expect(await calls('transfer.copy')).toBeGreaterThan(timedOut));
  await gateway.plantFailure(neighbour, 'transfer.copy', null);
  await gateway.coordinatorOf(projectId).wake();
  await ended(body.id, 'succeeded');
});

describe('a cancellation', () => {
  test('undoes an import that is being copied, once', async () => {
    await hold('transfer.copy');
    const { body } = await begin();
    await eventually(async () => expect((await jobOf(body.id)).attempts).toBeGreaterThan(0));
    expect(await gateway.api.delete(`${path}/import`)).toMatchObject({ status: 202, body: { id: body.id } });
    expect((await ended(body.id, 'failed')).error).toMatchObject({ code: 'JOB_CANCELLED' });
    expect(await calls('transfer.cancel')).toBeGreaterThan(0);
    expect([await calls('reset.cancel'), await calls('reset.swap')]).toEqual([1, 0]);
    await expectOpen();
    expect((await gateway.api.delete(`${path}/import`)).status).toBe(404);
    const cancelled = await gateway.db.select().from(auditEvents).where(eq(auditEvents.projectId, projectId));
    expect(cancelled.filter(({ name }) => name === 'branch.import.cancelled')).toHaveLength(1);
  });

  test('is refused once everything is copied', async () => {
    const succeed = await hold('reset.swap');
    const { body } = await begin();
    await eventually(async () => expect(await calls('reset.swap')).toBeGreaterThan(0));
    expect(await gateway.api.delete(`${path}/import`)).toMatchObject({
      status: 409,
      body: { error: 'IMPORT_FINISHING' },
    });
    await succeed();
    expect((await ended(body.id, 'succeeded')).error).toBeNull();
    await expectOpen();
  });

  test('comes with the deletion of the project, which waits for no copy', async () => {
    await hold('transfer.copy');
    const { body } = await begin();
    await eventually(async () => expect((await jobOf(body.id)).attempts).toBeGreaterThan(0));
    expect((await gateway.api.delete(path)).status).toBe(202);
    await ended(body.id, 'failed');
    expect(await calls('reset.swap')).toBe(0);
  });
});
