import { beforeAll, describe, expect, inject, test } from 'vitest';
import { Api, type ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { tokenOf } from '../support/tenants.ts';

interface DifferenceBody {
  against: { kind: string; id: string; name: string | null };
  method: string;
  rows: { tables: object[]; compared: number; not_compared: object[] } | null;
  schema: object | null;
  [field: string]: unknown;
}
interface RowsBody {
  rows: object[];
  next_cursor: string | null;
  [field: string]: unknown;
}

const TENANT = { tenant: 'comparers' };

let api: Api;
let viewer: Api;
let project: ProjectBody;
let path: string;
/** A comparison that waits for locks, from the first test on. */
let slow: Promise<{
  project: ProjectBody;
  status: number;
  body: Record<string, unknown>;
  unlock: () => Promise<void>;
}>;

const urlOf = async (of: ProjectBody, ref: string) => (await api.credentials(of.id, ref)).direct_url;

beforeAll(async () => {
  api = new Api(inject('stack').url, await tokenOf({ ...TENANT, role: 'owner' }));
  viewer = new Api(
    inject('stack').url,
    await tokenOf({ ...TENANT, role: 'viewer', email: 'reader@comparers.example' }),
  );
  slow = startSlow();
  project = await api.project('Library', { storage_quota_gib: 2 });
  path = `/api/v1/projects/${project.id}`;
  await api.allow(project.id);
  await query(
    await urlOf(project, 'main'),
    "create table book (id int primary key, title text); insert into book select n, 'old' from generate_series(1, 100) n",
  );
  await api.branch(project.id, 'pr-1');
  await query(
    await urlOf(project, 'pr-1'),
    "update book set title = 'new' where id <= 60; delete from book where id = 90; insert into book values (200, 'added')",
  );
});

/**
 * Each locked table takes three seconds, so the comparison takes five minutes, unless the lock ends before.
 */
async function startSlow() {
  const own = await api.project('Slow');
  await api.allow(own.id);
  const all = (sql: string) =>
    `do $$ begin for n in 1..100 loop execute format('${sql}', n); end loop; end $$`;
  await query(await urlOf(own, 'main'), all('create table t%s (id int primary key)'));
  await api.branch(own.id, 'locked');
  const client = await connect(await urlOf(own, 'locked'));
  await client.query(all('insert into t%s values (1)'));
  await client.query(`begin; ${all('lock table t%s')}`);
  const { status, body } = await api.get(`/api/v1/projects/${own.id}/branches/locked/diff`);
  return { project: own, status, body, unlock: () => client.end() };
}

const diff = (ref: string, query_ = '', by = api) =>
  by.get<DifferenceBody>(`${path}/branches/${ref}/diff${query_}`);

describe('a difference', () => {
  test('counts rows against the parent, another branch and a snapshot', async () => {
    const expected = [{ schema: 'public', name: 'book', inserted: 1, updated: 60, deleted: 1 }];
    const { status, body } = await diff('pr-1');
    expect(status).toBe(200);
    expect(body).toMatchObject({
      against: { kind: 'branch', id: project.main_branch.id, name: 'main' },
      rows: { tables: expected, compared: 1, not_compared: [] },
      schema: null,
    });
    expect((await diff('main', '?against=pr-1')).body.rows?.tables).toMatchObject([
      { inserted: 1, updated: 60, deleted: 1 },
    ]);
    const { body: snapshot } = await api.post<{ id: string }>(`${path}/branches/main/snapshots`, {});
    expect((await diff('pr-1', `?against=${snapshot.id}`)).body).toMatchObject({
      against: { kind: 'snapshot', id: snapshot.id },
      rows: { tables: expected },
    });
    expect((await diff('pr-1', '?rows=false')).body).toMatchObject({ method: null, rows: null });
  });

  test('lists the rows page by page', async () => {
    const rows: object[] = [];
    let cursor = '';
    do {
      const page = await api.get<RowsBody>(`${path}/branches/pr-1/diff/rows?table=book&limit=50${cursor}`);
      expect(page).toMatchObject({
        status: 200,
        body: { table: 'book', schema: 'public', primary_key: ['id'] },
      });
      rows.push(...page.body.rows);
      cursor = page.body.next_cursor ? `&cursor=${encodeURIComponent(page.body.next_cursor)}` : '';
    } while (cursor);
    expect(rows).toHaveLength(62);
    expect(rows[0]).toEqual({
      change: 'updated',
      before: { id: 1, title: 'old' },
      after: { id: 1, title: 'new' },
    });
    expect(rows.slice(-2)).toEqual([
      { change: 'deleted', before: { id: 90, title: 'old' }, after: null },
      { change: 'inserted', before: null, after: { id: 200, title: 'added' } },
    ]);
  });

  test('is readable for whoever reads rows, with both sides in reach', async () => {
    const other = new Api(inject('stack').url, await tokenOf({ tenant: 'another-tenant', role: 'owner' }));
    expect((await diff('pr-1', '', other)).status).toBe(404);
    expect((await diff('pr-1', '', viewer)).status).toBe(404);
    await api.branch(project.id, 'pr-2', { source_branch_id: project.main_branch.id });
    const { body } = await api.post<{ key: string }>('/api/v1/api-keys', {
      name: 'ci',
      role: 'viewer',
      scopes: ['branchgate:read'],
      project_id: project.id,
      branch_pattern: 'pr-*',
      expires_in_days: 1,
    });
    const key = new Api(inject('stack').url, body.key);
    expect((await diff('pr-1', '?against=pr-2', key)).status).toBe(200);
    expect((await diff('pr-1', '?against=main', key)).status).toBe(404);
    expect((await diff('pr-1', '', key)).status).toBe(404);
    expect((await key.get(`${path}/branches/pr-1/diff/rows?table=book`)).status).toBe(404);
  });

  test('is refused with a reason', async () => {
    expect(await diff('main')).toMatchObject({ status: 409, body: { error: 'SOURCE_NOT_ACTIVE' } });
    expect((await diff('pr-1', '?against=nowhere')).status).toBe(404);
    expect((await diff('pr-1', `?job_id=${crypto.randomUUID()}`)).status).toBe(404);
    expect((await diff('pr-1', '?against=')).status).toBe(422);
    const rows = (more: string) => api.get(`${path}/branches/pr-1/diff/rows?${more}`);
    expect((await rows('table=none')).status).toBe(404);
    expect((await rows('table=book&cursor=nonsense')).status).toBe(422);
  });

  test.runIf(IS_NIGHTLY)(
    'that takes long becomes a job, which can be cancelled, and whose result stays',
    async () => {
      const { project: own, status, body, unlock } = await slow;
      expect(status).toBe(202);
      expect(body).toMatchObject({ kind: 'branch.diff', project_id: own.id });
      const at = `/api/v1/projects/${own.id}/branches/locked/diff`;
      const again = await api.get(`${at}?job_id=${body.id}`);
      expect(again).toMatchObject({ status: 202, body: { id: body.id } });
      // The same request without the id finds it while it is open.
      expect(await api.get(at)).toMatchObject({ status: 202, body: { id: body.id } });
      // Its host reports its progress.
      await eventually(async () => {
        const { body: job } = await api.get<{ steps: { percent?: number }[] }>(`/api/v1/jobs/${body.id}`);
        expect(job.steps[0]?.percent).toEqual(expect.any(Number));
      }, 30);
      // Cancelled, its host stops waiting, so the next comparison begins.
      expect(await api.delete(at)).toMatchObject({ status: 202, body: { id: body.id } });
      await eventually(async () =>
        expect((await api.get(`/api/v1/jobs/${body.id}`)).body).toMatchObject({
          status: 'failed',
          error: { code: 'JOB_CANCELLED' },
        }),
      );
      expect((await api.get(`${at}?job_id=${body.id}`)).status).toBe(404);
      expect((await api.get(`${at}?rows=false&schema=true`)).status).toBe(200);
      expect((await api.delete(at)).status).toBe(404);
      const { body: next } = await api.get<{ id: string }>(at);
      await unlock();
      const result = await eventually(async () => {
        const { status: now, body: found } = await api.get<DifferenceBody>(`${at}?job_id=${next.id}`);
        expect(now).toBe(200);
        return found;
      });
      expect(result).toMatchObject({ against: { name: 'main' }, rows: { compared: expect.any(Number) } });
      // Another comparison than that of the job does not find it.
      expect((await api.get(`${at}?job_id=${next.id}&rows=false`)).status).toBe(404);
    },
  );
});
