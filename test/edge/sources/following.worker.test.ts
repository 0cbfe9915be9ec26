import { and, eq } from 'drizzle-orm';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { auditEvents, jobs, projects } from '../../../edge/database/schema.ts';
import { follows, importSources } from '../../../edge/database/source-schema.ts';
import type { CallHost } from '../../../edge/hosts/host-client.ts';
import { stopFollowing } from '../../../edge/sources/end.ts';
import { sealedSource } from '../../../edge/sources/import.ts';
import { checkFollow, followsOn } from '../../../edge/sources/record.ts';
import type { FollowReport } from '../../../shared/protocol/follow.ts';
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
  attempts: number;
  error: { code: string; message: string } | null;
  steps: { name: string; status: string; warnings?: string[] }[];
}

let gateway: TripsGateway;
/** On the same host, and it stays. */
let neighbour: string;
let projectId: string;
let path: string;
let main: string;

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
  gateway.api.post<JobBody>(`${path}/follow`, { source_url: SOURCE, ...more });
const shown = () => gateway.api.get(`${path}/follow`);
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

/** A project whose `main` follows. */
async function follow() {
  const { body } = await begin();
  await ended(body.id, 'succeeded');
}

async function expectOpen() {
  expect(await branch()).toMatchObject({ status: 'active', blocked: null });
  const [project] = await gateway.db.select().from(projects).where(eq(projects.id, projectId));
  expect(project?.accessApplied).toBe(project?.accessRevision);
  expect(await gateway.db.select().from(importSources).where(eq(importSources.projectId, projectId))).toEqual(
    [],
  );
}

const audited = async (name: string) =>
  gateway.db
    .select()
    .from(auditEvents)
    .where(and(eq(auditEvents.projectId, projectId), eq(auditEvents.name, name)));

const report = (more: Partial<FollowReport> = {}): FollowReport => ({
  project_id: projectId,
  branch_id: main,
  observed_at: new Date().toISOString(),
  state: 'following',
  problem: null,
  slot_warning: false,
  lag_bytes: 0,
  lag_seconds: 1,
  slot_bytes: 1,
  keep_bytes: 1000,
  additions: [],
  ...more,
});

async function receive(more: Partial<FollowReport> = {}) {
  const [project] = await gateway.db.select().from(projects).where(eq(projects.id, projectId));
  await gateway.coordinatorOf(projectId).recordFollow(report(more), project?.hostId ?? '');
}

const hostOf = async (id: string) => {
  const [project] = await gateway.db.select().from(projects).where(eq(projects.id, id));
  return project?.hostId ?? '';
};

const ABSENT_STATUS = {
  state: 'absent',
  tables: [],
  lag_bytes: null,
  lag_seconds: null,
  slot_bytes: null,
  keep_bytes: null,
  problem: null,
};

const PROBLEM = {
  ...({ code: 'apply', message: 'PostgreSQL refuses a change.', table: 'public.book' } as const),
  statement: 'ALTER TABLE book ADD COLUMN a int',
};

test('main is closed while it copies, and can only be read while it follows', async () => {
  const succeed = await hold('transfer.copy');
  expect((await shown()).status).toBe(404);
  const { status, body: job } = await begin({ tables: ['book'] });
  expect([status, job]).toMatchObject([202, { kind: 'follow.start', branch_id: main }]);
  expect(await branch()).toMatchObject({ blocked: { reason: 'import' } });
  const source = { host: 'db.example.com', port: 5432, database: 'shop', version: '17.2' };
  expect((await shown()).body).toEqual({
    state: 'copying',
    source,
    tables: [],
    problem: null,
    lag_bytes: null,
    lag_seconds: null,
    slot_bytes: null,
  });
  expect(await begin()).toMatchObject({ status: 429, body: { error: 'PROJECT_BUSY' } });
  await succeed();
  const done = await ended(job.id, 'succeeded');
  expect(done.steps.map(({ name }) => name)).toEqual(['close', 'copy', 'swap', 'follow', 'open', 'discard']);
  expect((await shown()).body).toEqual({
    state: 'following',
    source,
    problem: null,
    lag_bytes: 0,
    lag_seconds: 0.5,
    slot_bytes: 10,
    tables: [{ schema: 'public', table: 'book', state: 'following', rows: 3, percent: 100 }],
  });

  expect(await branch()).toMatchObject({ blocked: { reason: 'following' } });
  expect((await gateway.api.get(path)).body).toMatchObject({ blocked: { reason: 'following' } });
  expect((await gateway.api.get(`${path}/branches/main/tables`)).status).toBe(200);
  expect((await gateway.api.post(`${path}/branches`, { branch_name: 'pr-1' })).status).toBe(201);
  const refused = { status: 409, body: { error: 'BRANCH_FOLLOWING' } };
  const rows = `${path}/branches/main/row-changes`;
  expect(
    await gateway.api.post(rows, { changes: [{ action: 'insert', table: 'book', values: { id: 1 } }] }),
  ).toMatchObject(refused);
  expect(await gateway.api.post(`${path}/import`, { source_url: SOURCE })).toMatchObject(refused);
  expect(await begin()).toMatchObject(refused);

  const stored = await gateway.db.batch([
    gateway.db.select().from(jobs),
    gateway.db.select().from(auditEvents),
    gateway.db.select().from(follows),
  ]);
  expect(JSON.stringify(stored)).toContain('db.example.com');
  expect(JSON.stringify([stored, done, (await shown()).body])).not.toContain(PASSWORD);
  expect(await audited('branch.followed')).toHaveLength(1);
  expect(await gateway.db.select().from(importSources).where(eq(importSources.projectId, projectId))).toEqual(
    [],
  );
});

test('a source that cannot be followed is refused before anything is made', async () => {
  const refusal = { status: 422, body: { error: 'SOURCE_UNSUITABLE', details: [{ problem: 'tables' }] } };
  expect(await begin({ tables: ['nope'] })).toMatchObject(refusal);
  expect((await shown()).status).toBe(404);
  await expectOpen();
});

test.each(
  firstByDay(2, ['transfer.copy', 'follow.start', 'access.apply', 'reset.swap', 'snapshot.drop'] as const),
)('a start ends well after failures of %s', async (method) => {
  const succeed = await hold(method);
  const { body } = await begin();
  await eventually(async () => expect((await jobOf(body.id)).attempts).toBeGreaterThan(0));
  await succeed();
  await ended(body.id, 'succeeded');
  expect((await shown()).body).toMatchObject({ state: 'following' });
  // What was copied is not copied again.
  if (method !== 'transfer.copy') expect(await calls('transfer.copy')).toBe(1);
});

test.each(firstByDay(2, ['transfer.copy', 'follow.start', 'reset.swap', 'snapshot.drop'] as const))(
  'a start that is cancelled at %s leaves an empty open main, and nothing at the source',
  async (method) => {
    await gateway.plantFailure(neighbour, method, FAILURE);
    const { body } = await begin();
    await eventually(async () => expect((await jobOf(body.id)).attempts).toBeGreaterThan(0));
    const left = method === 'follow.start' || method === 'snapshot.drop';
    await gateway.answerResetCancel(neighbour, left);
    expect(await gateway.api.delete(`${path}/follow`)).toMatchObject({ status: 202, body: { id: body.id } });
    if (method === 'snapshot.drop') await gateway.plantFailure(neighbour, method, null);
    expect((await ended(body.id, 'failed')).error).toMatchObject({ code: 'JOB_CANCELLED' });
    expect(await calls('transfer.cancel')).toBeGreaterThan(0);
    expect(await calls('follow.stop')).toBeGreaterThan(0);
    // Main has the copy already, so it gets its empty state back.
    expect((await calls('reset.clone')) > 0).toBe(left);
    await expectOpen();
    // What is left at the source stays to be read.
    expect((await shown()).body).toMatchObject({
      state: 'failed',
      problem: { code: 'JOB_CANCELLED', message: expect.stringContaining('left at the source') },
    });
    expect(await audited('branch.follow.cancelled')).toHaveLength(1);
    await gateway.answerResetCancel(neighbour, false);
    await gateway.plantFailure(neighbour, method, null);
    expect((await begin()).status).toBe(202);
  },
);

test('a start whose URL can no longer be decrypted fails immediately, and says that something may be left', async () => {
  await hold('transfer.copy');
  const { body } = await begin();
  await eventually(async () => expect((await jobOf(body.id)).attempts).toBeGreaterThan(0));
  await gateway.db.update(importSources).set({ keyId: 'gone' }).where(eq(importSources.jobId, body.id));
  const { error } = await ended(body.id, 'failed');
  expect(error).toMatchObject({
    code: 'SOURCE_UNSUITABLE',
    message: expect.stringContaining('can no longer be decrypted'),
  });
  expect((await shown()).body).toMatchObject({
    state: 'failed',
    problem: { code: 'SOURCE_UNSUITABLE', message: expect.stringContaining('Drop the slot') },
  });
  await expectOpen();
});

test('what the copy refuses is undone, and the record says why', async () => {
  const { body } = await begin({ tables: ['refused'] });
  await ended(body.id, 'failed');
  expect((await shown()).body).toMatchObject({
    state: 'failed',
    problem: { code: 'SOURCE_UNSUITABLE', message: expect.stringContaining('refuses the rows') },
  });
  expect(await calls('follow.start')).toBe(0);
  await expectOpen();
  expect(await gateway.api.delete(`${path}/follow`)).toMatchObject({
    status: 409,
    body: { error: 'FOLLOW_STATE', state: 'failed' },
  });
});

describe('reports of the host', () => {
  test('show a problem once, additions once each, and a slot that grows', async () => {
    await follow();
    const addition = {
      id: crypto.randomUUID(),
      at: new Date().toISOString(),
      statement: 'CREATE TABLE a ()',
    };
    await receive({ additions: [addition] });
    await receive({ additions: [addition], slot_bytes: 600, slot_warning: true });
    expect(await audited('branch.follow.addition_applied')).toMatchObject([
      { metadata: { statement: addition.statement } },
    ]);
    const state = async () => {
      const [row] = await gateway.db.select().from(follows).where(eq(follows.projectId, projectId));
      return { state: row?.state, problem: row?.problem?.code };
    };
    expect(await state()).toEqual({ state: 'following', problem: 'slot_size' });
    for (let n = 0; n < 2; n++) await receive({ state: 'stopped', problem: PROBLEM });
    expect(await state()).toEqual({ state: 'stopped', problem: 'apply' });
    expect(await audited('branch.follow.interrupted')).toHaveLength(1);
    // An older one that comes late.
    await receive({ observed_at: '2026-01-01T00:00:00.000Z' });
    expect(await state()).toEqual({ state: 'stopped', problem: 'apply' });
    expect(await gateway.api.post(`${path}/follow/cutover`, {})).toMatchObject({
      status: 409,
      body: { error: 'FOLLOW_STATE' },
    });
    expect(await gateway.api.post(`${path}/follow/resume`, {})).toMatchObject({
      status: 200,
      body: { state: 'following' },
    });
    expect(await state()).toEqual({ state: 'following', problem: undefined });
    expect(await audited('branch.follow.resumed')).toHaveLength(1);
  });

  test('are missing from a host that has lost it, which the reconciliation finds', async () => {
    await follow();
    await receive();
    const asked: string[] = [];
    const callHost = (async (method: string) => {
      asked.push(method);
      return ABSENT_STATUS;
    }) as unknown as CallHost;
    const [recorded] = (await followsOn(gateway.db, await hostOf(projectId))).filter(
      ({ follow: one }) => one.projectId === projectId,
    );
    if (recorded) await checkFollow(gateway.db, callHost, recorded);
    expect(asked).toEqual(['follow.status']);
    expect(
      (await gateway.db.select().from(follows).where(eq(follows.projectId, projectId)))[0],
    ).toMatchObject({
      state: 'stopped',
      problem: { code: 'absent' },
    });
    expect(await audited('branch.follow.interrupted')).toHaveLength(1);
    // It is the same with the next reconciliation, and a host that follows changes nothing.
    const [again] = (await followsOn(gateway.db, await hostOf(projectId))).filter(
      ({ follow: one }) => one.projectId === projectId,
    );
    if (again) await checkFollow(gateway.db, callHost, again);
    expect(await audited('branch.follow.interrupted')).toHaveLength(1);
    // A report of the host, whose database is there again.
    await receive();
    expect((await shown()).body).toMatchObject({ state: 'following', problem: null });
  });

  test('of another host change nothing', async () => {
    await follow();
    const other = crypto.randomUUID();
    await gateway
      .coordinatorOf(projectId)
      .recordFollow(report({ state: 'stopped', problem: PROBLEM }), other);
    expect((await gateway.db.select().from(follows).where(eq(follows.projectId, projectId)))[0]?.state).toBe(
      'following',
    );
  });

  test('that it follows nothing stop it, unless a job ends it', async () => {
    await follow();
    const recorded = async () =>
      (await gateway.db.select().from(follows).where(eq(follows.projectId, projectId)))[0];
    const succeed = await hold('follow.cutover');
    const { body } = await gateway.api.post<JobBody>(`${path}/follow/cutover`, {});
    await eventually(async () => expect((await jobOf(body.id)).attempts).toBeGreaterThan(0));
    await receive({ state: 'absent' });
    expect(await recorded()).toMatchObject({ state: 'following', problem: null });
    expect((await gateway.api.delete(`${path}/follow/cutover`)).status).toBe(202);
    await succeed();
    await ended(body.id, 'failed');
    await receive({ state: 'absent' });
    expect(await recorded()).toMatchObject({ state: 'stopped', problem: { code: 'absent' } });
  });
});

test('without its host, what is known is shown', async () => {
  await follow();
  await gateway.plantFailure(neighbour, 'follow.status', FAILURE);
  expect((await shown()).body).toMatchObject({
    state: 'following',
    lag_bytes: null,
    tables: [{ table: 'book', state: 'copied', rows: 3 }],
  });
});

describe('a cut-over', () => {
  test.each(['follow.cutover', 'access.apply'] as const)(
    'opens main, also after failures of %s',
    async (method) => {
      await follow();
      const succeed = await hold(method);
      const { status, body } = await gateway.api.post<JobBody>(`${path}/follow/cutover`, {});
      expect([status, body.kind]).toEqual([202, 'follow.cutover']);
      await eventually(async () => expect((await jobOf(body.id)).attempts).toBeGreaterThan(0));
      // Nothing else ends it meanwhile.
      expect((await gateway.api.delete(`${path}/follow`)).body).toMatchObject({ error: 'HOST_BUSY' });
      await succeed();
      await ended(body.id, 'succeeded');
      await expectOpen();
      expect((await shown()).body).toMatchObject({
        state: 'cut_over',
        problem: null,
        // Those of the cut-over, not of the copy before.
        tables: [{ table: 'book', state: 'copied', rows: 4 }],
      });
      expect(await audited('branch.follow.cut_over')).toMatchObject([
        { metadata: { rows: 4, refused_ms: 4 } },
      ]);
    },
  );

  test('that is called off leaves main as it follows', async () => {
    await follow();
    await hold('follow.cutover');
    const { body } = await gateway.api.post<JobBody>(`${path}/follow/cutover`, {});
    await eventually(async () => expect((await jobOf(body.id)).attempts).toBeGreaterThan(0));
    expect(await gateway.api.delete(`${path}/follow/cutover`)).toMatchObject({
      status: 202,
      body: { id: body.id },
    });
    expect((await ended(body.id, 'failed')).error).toMatchObject({ code: 'JOB_CANCELLED' });
    expect(await calls('follow.cancel_cutover')).toBeGreaterThan(0);
    expect((await shown()).body).toMatchObject({ state: 'following' });
    expect(await branch()).toMatchObject({ blocked: { reason: 'following' } });
    expect((await gateway.api.delete(`${path}/follow/cutover`)).status).toBe(404);
  });

  test('whose sides differ is called off, and says why', async () => {
    await follow();
    const { body } = await gateway.api.post<JobBody>(`${path}/follow/cutover`, { writes_stopped: true });
    expect((await ended(body.id, 'failed')).error).toMatchObject({ message: 'Both sides have other rows.' });
    expect((await shown()).body).toMatchObject({ state: 'following' });
  });
});

describe('an end', () => {
  test.each(['follow.stop', 'access.apply'] as const)(
    'opens main, also after failures of %s',
    async (method) => {
      await follow();
      const succeed = await hold(method);
      const { status, body } = await gateway.api.delete<JobBody>(`${path}/follow`);
      expect([status, body.kind]).toEqual([202, 'follow.stop']);
      await eventually(async () => expect((await jobOf(body.id)).attempts).toBeGreaterThan(0));
      await succeed();
      expect((await ended(body.id, 'succeeded')).steps[0]?.warnings).toEqual([
        'The slot is left at the source.',
      ]);
      await expectOpen();
      expect((await shown()).status).toBe(404);
      expect(await audited('branch.follow.stopped')).toMatchObject([
        { metadata: { dropped_at_source: false } },
      ]);
    },
  );

  test('comes with the deletion of the project', async () => {
    await follow();
    await gateway.api.delete(path);
    await eventually(async () => expect(await calls('project.drop')).toBe(1));
    expect(await calls('follow.stop')).toBe(1);
  });

  test('comes with the deletion of a project that still copies', async () => {
    await hold('transfer.copy');
    const { body } = await begin();
    await eventually(async () => expect((await jobOf(body.id)).attempts).toBeGreaterThan(0));
    // The job of the start, which would undo it, goes with the project.
    const [job] = await gateway.db.select().from(jobs).where(eq(jobs.id, body.id));
    if (!job) throw new Error('the start has no job');
    const keys = [{ id: '1', bytes: new Uint8Array(32) }];
    const { keyId, sealedUrl } = await sealedSource(keys, job, SOURCE);
    await gateway.db.update(importSources).set({ keyId, sealedUrl }).where(eq(importSources.jobId, job.id));
    let called: [method: string, params: Record<string, unknown>][] = [];
    const callHost = (async (method: string, params: Record<string, unknown>) => {
      called.push([method, params]);
      return {};
    }) as unknown as CallHost;
    await stopFollowing({ db: gateway.db, job, callHost, settings: { CREDENTIAL_KEYS: keys } } as never);
    expect(called).toMatchObject([
      ['transfer.cancel', { job_id: job.id, project_id: projectId }],
      ['follow.stop', { branch_id: main, source_url: SOURCE }],
    ]);
    // A key that is gone does not keep the project.
    called = [];
    await stopFollowing({ db: gateway.db, job, callHost, settings: { CREDENTIAL_KEYS: [] } } as never);
    expect(called.at(-1)).toMatchObject(['follow.stop', { source_url: null }]);
    expect((await gateway.api.delete(path)).status).toBe(202);
    await eventually(async () => expect(await calls('project.drop')).toBeGreaterThan(0));
    expect(await calls('follow.start')).toBe(0);
  });
});
