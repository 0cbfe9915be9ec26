import { setTimeout as sleep } from 'node:timers/promises';
import { beforeAll, describe, expect, inject, test } from 'vitest';
import { Api, type ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { readD1, tokenOf } from '../support/tenants.ts';

/** A change of `main`: `docs/changes.md`. */

interface ChangeBody {
  id: string;
  state: string;
  stale: boolean;
  digest: string;
  statements: { sql: string; applied: boolean; findings: { rule: string }[] }[];
  rehearsal: {
    data: string;
    verdict: string;
    error: { statement: number; message: string | null } | null;
  } | null;
  approvals: { user_id: string; counts: boolean }[];
  approvals_required: number;
  application: { reason: string | null; at: string | null } | null;
  safety_snapshot_id: string | null;
  error?: string;
  [field: string]: unknown;
}

const { url } = inject('stack');
const TENANT = 'changing';
const as = async (name: string, role: string) =>
  new Api(url, await tokenOf({ tenant: TENANT, role, email: `${name}@changing.example` }));

let owner: Api;
let admin: Api;
let developer: Api;
let project: ProjectBody;

const path = (id = project.id) => `/api/v1/projects/${id}/changes`;
const plan = async (body: object, by = developer, of = project.id) =>
  (await by.post<ChangeBody>(path(of), body)).body;
const read = async (id: string, by = developer) => (await by.get<ChangeBody>(`${path()}/${id}`)).body;
const act = (id: string, verb: string, body?: object, by = owner, of = project.id) =>
  by.post<ChangeBody>(`${path(of)}/${id}/${verb}`, body);
const until = (id: string, ...states: string[]) =>
  eventually(async () => {
    const change = await read(id, owner);
    const { application, stale, rehearsal } = change;
    expect(states, JSON.stringify({ application, stale, rehearsal })).toContain(change.state);
    return change;
  });
const refusal = ({ status, body }: { status: number; body: { error?: string } }) => [status, body.error];
const MAIN = { confirm: 'main' };

async function inMain<R extends object>(sql: string): Promise<R[]> {
  return query<R>((await owner.credentials(project.id, 'main', '?role=owner')).direct_url, sql);
}
const columns = async () =>
  (
    await inMain<{ name: string }>(
      "select attname as name from pg_attribute where attrelid = 'book'::regclass and attnum > 0 and not attisdropped order by attnum",
    )
  ).map(({ name }) => name);

async function rehearsed(id: string, by = developer): Promise<ChangeBody> {
  const { status, body } = await act(id, 'rehearse', undefined, by);
  expect(status).toBe(202);
  // A masked copy writes the catalogs of the database again.
  await eventually(async () => {
    const { body: job } = await owner.get(`/api/v1/jobs/${body.job_id}`);
    expect(job.status, JSON.stringify(job)).toMatch(/succeeded|failed/);
  }, 240);
  return until(id, 'rehearsed', 'approved');
}

beforeAll(async () => {
  owner = await as('owner', 'owner');
  admin = await as('admin', 'admin');
  developer = await as('developer', 'operator');
  project = await developer.project('Changing', { storage_quota_gib: 2 });
  await developer.allow(project.id);
  await inMain(
    "create table book (id int primary key, title text); insert into book values (7, 'Seven'), (8, 'Eight')",
  );
});

test('a branch is planned, rehearsed, approved, applied and undone', async () => {
  const branch = await developer.branch(project.id, 'pr-7');
  const { direct_url } = await developer.credentials(project.id, branch.id, '?role=owner');
  await query(direct_url, 'alter table book add note text; create index by_title on book (title)');
  const change = await plan({ from: 'pr-7' });
  expect(change).toMatchObject({ state: 'planned', stale: false, source: { branch_name: 'pr-7' } });
  expect(change.statements.map(({ sql }) => sql)).toEqual([
    expect.stringMatching(/ALTER TABLE .*ADD COLUMN "note" text/i),
    expect.stringMatching(/CREATE INDEX by_title/),
  ]);
  expect(change.statements[1]?.findings).toMatchObject([{ rule: 'index-not-concurrent' }]);
  expect(refusal(await act(change.id, 'apply', MAIN))).toEqual([409, 'CHANGE_STATE']);
  expect(refusal(await act(change.id, 'apply', { confirm: 'pr-7' }))).toEqual([422, 'VALIDATION_FAILED']);

  const { rehearsal } = await rehearsed(change.id);
  expect(rehearsal).toMatchObject({ data: 'full', verdict: 'safe', error: null });
  // The branch is not needed any more.
  await developer.delete(`/api/v1/projects/${project.id}/branches/pr-7`);
  expect((await rehearsed(change.id)).digest).toBe(change.digest);

  expect(refusal(await developer.patch(`/api/v1/projects/${project.id}`, { change_approvals: 1 }))).toEqual([
    403,
    'FORBIDDEN',
  ]);
  expect((await admin.patch(`/api/v1/projects/${project.id}`, { change_approvals: 1 })).body).toMatchObject({
    change_approvals: 1,
  });
  expect(refusal(await act(change.id, 'apply', MAIN))).toEqual([409, 'CHANGE_NOT_APPROVED']);
  expect(refusal(await act(change.id, 'approve', undefined, developer))).toEqual([403, 'FORBIDDEN']);
  const wanted = { name: 'ci', role: 'admin', scopes: ['branchgate:write'], expires_in_days: 1 };
  const keys = '/api/v1/api-keys';
  const { body: made } = await admin.post<{ key: string }>(keys, { ...wanted, permissions: ['data.full'] });
  const key = new Api(url, made.key);
  expect(refusal(await act(change.id, 'approve', undefined, key))).toEqual([403, 'FORBIDDEN']);
  // What a key has proposed is the proposal of the person who made the key.
  const ofKey = await plan({ sql: 'alter table book add by_key int' }, key);
  await rehearsed(ofKey.id);
  expect(refusal(await act(ofKey.id, 'approve', undefined, admin))).toEqual([403, 'FORBIDDEN']);
  await owner.delete(`${path()}/${ofKey.id}`);
  const limited = await admin.post<{ key: string }>(keys, {
    ...wanted,
    project_id: project.id,
    branch_pattern: 'pr-*',
  });
  expect(refusal(await act(change.id, 'apply', MAIN, new Api(url, limited.body.key)))).toEqual([
    404,
    'NOT_FOUND',
  ]);
  const approved = (await act(change.id, 'approve', undefined, admin)).body;
  expect(approved).toMatchObject({ state: 'approved', approvals: [{ counts: true }] });

  expect((await act(change.id, 'apply', MAIN, key)).status).toBe(202);
  const applied = await until(change.id, 'applied');
  expect(applied.statements.every((statement) => statement.applied)).toBe(true);
  expect(applied.safety_snapshot_id).toEqual(expect.any(String));
  expect(await columns()).toEqual(['id', 'title', 'note']);
  expect(refusal(await owner.delete(`${path()}/${change.id}`))).toEqual([409, 'CHANGE_STATE']);

  await inMain("insert into book values (9, 'Nine', 'lost by the undo')");
  const against = `/api/v1/projects/${project.id}/branches/main/diff?against=${applied.safety_snapshot_id}`;
  expect((await owner.get(against)).body).toMatchObject({ rows: { tables: [{ name: 'book' }] } });
  expect((await act(change.id, 'undo', MAIN)).status).toBe(202);
  await until(change.id, 'undone');
  expect(await columns()).toEqual(['id', 'title']);
  expect(await inMain('select id from book order by id')).toEqual([{ id: 7 }, { id: 8 }]);
  await admin.patch(`/api/v1/projects/${project.id}`, { change_approvals: 0 });

  const events = readD1<{ name: string }>(
    "select name from audit_events where project_id = ? and name like 'change.%' order by created_at, id",
    project.id,
  );
  expect(events.map(({ name }) => name)).toEqual([
    'change.created',
    'change.rehearsed',
    'change.rehearsed',
    ...['change.created', 'change.rehearsed', 'change.closed'],
    'change.approved',
    'change.applied',
    'change.undone',
  ]);
});

test('a migration of main in between makes a change stale, and its next rehearsal plans it again', async () => {
  const change = await plan({ sql: 'alter table book add stock int' });
  await rehearsed(change.id);
  expect((await act(change.id, 'approve', undefined, admin)).body.approvals).toMatchObject([
    { counts: true },
  ]);
  await inMain('create table shelf (id int)');
  expect(await read(change.id)).toMatchObject({ stale: true, state: 'approved' });
  expect(refusal(await act(change.id, 'apply', MAIN))).toEqual([409, 'CHANGE_STALE']);
  // Another plan: the approval was of the one before.
  expect(await rehearsed(change.id)).toMatchObject({
    stale: false,
    state: 'rehearsed',
    approvals: [{ counts: false }],
  });
  expect((await owner.delete(`${path()}/${change.id}`)).body).toMatchObject({ state: 'closed' });
  await inMain('drop table shelf');
});

test('a change stays open while main is reset, and is stale if that gave main another schema', async () => {
  await inMain('create table kept (id int)');
  const { body: before } = await owner.post<{ id: string }>(
    `/api/v1/projects/${project.id}/branches/main/snapshots`,
    {},
  );
  const change = await plan({ sql: 'alter table kept add note text' });
  await rehearsed(change.id);
  const reset = () =>
    owner.post(`/api/v1/projects/${project.id}/branches/main/reset`, { to: before.id, confirm: 'main' });
  expect((await reset()).status).toBe(200);
  expect(await read(change.id)).toMatchObject({ stale: false, state: 'rehearsed' });
  await inMain('alter table kept add other int');
  expect(await read(change.id)).toMatchObject({ stale: true });
  expect((await reset()).status).toBe(200);
  expect((await act(change.id, 'apply', MAIN)).status).toBe(202);
  await until(change.id, 'applied');
  expect(
    await inMain("select attname from pg_attribute where attrelid = 'kept'::regclass and attnum = 2"),
  ).toEqual([{ attname: 'note' }]);
  await inMain('drop table kept');
});

test('while a transaction of a client stays open, a change stops before its first statement', async () => {
  const change = await plan({ sql: 'create table after_the_wait (id int)' });
  await rehearsed(change.id);
  const { direct_url } = await owner.credentials(project.id, 'main', '?role=owner');
  const session = await connect(direct_url);
  await session.query('begin; select from book');
  const patience = { ...MAIN, lock_timeout_ms: 100, attempts: 2 };
  expect((await act(change.id, 'apply', patience)).status).toBe(202);
  expect(await until(change.id, 'stopped')).toMatchObject({
    applied_count: 0,
    application: { reason: 'source_busy' },
    safety_snapshot_id: null,
  });
  await session.query('commit');
  await session.end();
  expect((await act(change.id, 'apply', MAIN)).status).toBe(202);
  const applied = await until(change.id, 'applied');
  expect(applied).toMatchObject({ paused_ms: expect.any(Number) });
  const stops = readD1<{ id: string }>(
    "select id from audit_events where project_id = ? and name = 'change.stopped'",
    project.id,
  );
  expect(stops).toHaveLength(1);
  // Without the safety snapshot nothing is undone.
  const safety = `/api/v1/projects/${project.id}/snapshots/${applied.safety_snapshot_id}`;
  expect((await owner.delete(safety)).status).toBeLessThan(300);
  expect(refusal(await act(change.id, 'undo', MAIN))).toEqual([409, 'NO_SNAPSHOT']);
  await inMain('drop table after_the_wait');
});

test('of two applications of a project one runs, and what is too slow needs the consent to an outage', async () => {
  const slow = await plan({ sql: 'begin; alter table book add slow int; select pg_sleep(1); commit' });
  const other = await plan({ sql: 'alter table book add other int' });
  const { longest_lock_ms: longest } = await rehearsed(slow.id);
  expect(longest).toBeGreaterThanOrEqual(1_000);
  expect(longest).toBeLessThan(30_000);
  await rehearsed(other.id);
  const over = await act(slow.id, 'apply', { ...MAIN, budget_ms: 500 });
  expect(refusal(over)).toEqual([409, 'CHANGE_OVER_BUDGET']);
  expect(over.body).toMatchObject({ statement: 1 });
  expect((await act(slow.id, 'apply', { ...MAIN, budget_ms: 500, accept_outage: true })).status).toBe(202);
  expect((await act(other.id, 'apply', MAIN)).body.error).toBe('PROJECT_BUSY');
  await until(slow.id, 'applied');
  expect((await read(other.id)).stale).toBe(true);
  await owner.delete(`${path()}/${other.id}`);
});

test('a change is applied when it is due, and one that is refused by PostgreSQL can continue', async () => {
  const scheduled = await plan({
    sql: 'alter table book add later int; alter table book add constraint even check (id % 2 = 0) not valid; alter table book validate constraint even',
  });
  await until((await act(scheduled.id, 'rehearse', undefined, developer)).body.id, 'planned');
  const failed = await eventually(async () => {
    const { rehearsal } = await read(scheduled.id);
    expect(rehearsal).not.toBeNull();
    return rehearsal;
  });
  expect(failed?.error).toMatchObject({ statement: 3, message: expect.stringContaining('even') });
  await inMain('delete from book where id = 7');
  await rehearsed(scheduled.id);
  const at = new Date(Date.now() + 3_000).toISOString();
  expect((await act(scheduled.id, 'apply', { ...MAIN, at })).body).toMatchObject({
    state: 'scheduled',
    application: { at },
  });
  await inMain("insert into book values (7, 'Seven')");
  expect(await until(scheduled.id, 'failed')).toMatchObject({
    applied_count: 2,
    application: { reason: 'refused' },
  });
  await inMain('delete from book where id = 7');
  expect((await act(scheduled.id, 'apply', MAIN)).status).toBe(202);
  await until(scheduled.id, 'applied');
});

test('a change that is due without its approvals stops, and no time of the past is taken', async () => {
  const change = await plan({ sql: 'create table due (id int)' });
  await rehearsed(change.id);
  const inMs = (ms: number) => ({ ...MAIN, at: new Date(Date.now() + ms).toISOString() });
  expect(refusal(await act(change.id, 'apply', inMs(-60_000)))).toEqual([422, 'VALIDATION_FAILED']);
  expect(refusal(await act(change.id, 'apply', inMs(31 * 86_400_000)))).toEqual([422, 'VALIDATION_FAILED']);
  expect((await act(change.id, 'apply', inMs(3_000))).body.state).toBe('scheduled');
  await admin.patch(`/api/v1/projects/${project.id}`, { change_approvals: 1 });
  expect(await until(change.id, 'stopped')).toMatchObject({
    applied_count: 0,
    application: { reason: 'not_allowed' },
  });
  await admin.patch(`/api/v1/projects/${project.id}`, { change_approvals: 0 });
  await owner.delete(`${path()}/${change.id}`);
});

test('main that differs from the rehearsed clone after the last statement is said', async () => {
  const change = await plan({
    sql: `do $$ begin
      if current_database() like 'bgchange%' then create table of_clone (id int); else create table of_main (id int); end if;
    end $$`,
  });
  await rehearsed(change.id);
  expect((await act(change.id, 'apply', MAIN)).status).toBe(202);
  expect(await until(change.id, 'applied', 'applied_with_differences')).toMatchObject({
    state: 'applied_with_differences',
    applied_count: 1,
  });
  await inMain('drop table of_main');
});

test.runIf(IS_NIGHTLY)(
  'pooled clients that write meanwhile lose nothing, and wait as announced',
  async () => {
    await inMain('create table tally (id bigint generated always as identity primary key, n int)');
    const { database_url } = await owner.credentials(project.id, 'main');
    const change = await plan({
      sql: `alter table tally add note text; create index concurrently by_n on tally (n);
      alter table tally add constraint positive check (n > 0) not valid; alter table tally validate constraint positive`,
    });
    await rehearsed(change.id);
    let isOver = false;
    const waits: number[] = [];
    const failures: string[] = [];
    const client = async () => {
      const session = await connect(database_url);
      let committed = 0;
      while (!isOver) {
        const began = performance.now();
        await session.query('insert into tally (n) values (1)').then(
          () => {
            committed += 1;
          },
          (error) => failures.push(error.message),
        );
        waits.push(performance.now() - began);
        await sleep(20);
      }
      await session.end();
      return committed;
    };
    const clients = Array.from({ length: 10 }, client);
    await sleep(1_000);
    expect((await act(change.id, 'apply', MAIN)).status).toBe(202);
    const { paused_ms } = await until(change.id, 'applied');
    isOver = true;
    const committed = (await Promise.all(clients)).reduce((sum, count) => sum + count, 0);
    expect(failures).toEqual([]);
    expect(await inMain('select count(*)::int as n from tally')).toEqual([{ n: committed }]);
    const longest = Math.max(...waits);
    console.info(`${committed} rows, paused ${paused_ms} ms, the longest wait ${Math.round(longest)} ms`);
    expect(longest).toBeLessThanOrEqual(Math.max(Number(paused_ms), 500 + 2_000) + 200);
    await inMain('drop table tally');
  },
);

describe('in a project whose members get masked data only', () => {
  test('a developer rehearses on masked data, cannot apply, and needs an approval', async () => {
    const masked = `/api/v1/projects/${project.id}`;
    const policy = { rules: [{ table: 'book', column: 'title', with: 'hash' }], unlisted: 'keep' };
    expect((await owner.call('PUT', `${masked}/masking`, { body: policy })).status).toBe(200);
    await owner.patch(masked, { masked_only: true });
    const change = await plan({ sql: "alter table book add constraint c check (title <> 'Eight')" });
    // The value is another one there.
    expect(await rehearsed(change.id)).toMatchObject({
      rehearsal: { data: 'masked', error: null },
      approvals_required: 1,
    });
    expect(refusal(await act(change.id, 'apply', MAIN, developer))).toEqual([403, 'FORBIDDEN']);
    expect(refusal(await act(change.id, 'apply', MAIN))).toEqual([409, 'CHANGE_NOT_APPROVED']);
    await act(change.id, 'approve', undefined, admin);
    await act(change.id, 'apply', MAIN);
    const failed = await until(change.id, 'failed');
    expect(failed).toMatchObject({ application: { error: { statement: 1, message: expect.any(String) } } });
    expect(await read(change.id)).toMatchObject({ application: { error: { statement: 1, message: null } } });
    await owner.patch(masked, { masked_only: false });
  });
});
