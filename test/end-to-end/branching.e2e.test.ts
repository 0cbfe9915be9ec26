import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { beforeAll, describe, expect, inject, test } from 'vitest';
import { type Api, type BranchBody, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { fingerprint, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { readStackFile } from '../support/stack/started-stack.ts';
import { ownerOf } from '../support/tenants.ts';

const run = promisify(execFile);
const SAMPLE = new URL('../support/sample.sql', import.meta.url).pathname;

let api: Api;
let project: ProjectBody;
let main: Awaited<ReturnType<Api['credentials']>>;
const branches = () => `/api/v1/projects/${project.id}/branches`;

beforeAll(async () => {
  api = await ownerOf('branching');
  project = await api.project('Book Shop');
  await api.allow(project.id);
  main = await api.credentials(project.id, 'main');
  await run('psql', ['-q', '-v', 'ON_ERROR_STOP=1', '-f', SAMPLE, main.direct_url]);
});

describe('a branch of a live database', () => {
  test('is equal to it, and neither sees the writes of the other', async () => {
    await api.branch(project.id, 'equal');
    const branch = await api.credentials(project.id, 'equal');
    const [ofMain, ofBranch] = await Promise.all([
      fingerprint(main.direct_url),
      fingerprint(branch.direct_url),
    ]);
    expect(ofMain).toMatchObject({ tables: 3, rows: 2840 });
    expect(ofBranch).toEqual(ofMain);

    await query(branch.database_url, "insert into author (name) values ('only in the branch')");
    await query(main.database_url, "update book set title = 'only in main' where isbn = 'isbn-1'");
    expect(await query(main.direct_url, "select 1 from author where name = 'only in the branch'")).toEqual(
      [],
    );
    expect(await query(branch.direct_url, "select title from book where isbn = 'isbn-1'")).toEqual([
      { title: 'Title 1' },
    ]);
  });

  test('can be branched itself', async () => {
    const parent = await api.branch(project.id, 'parent');
    const ofParent = await api.credentials(project.id, 'parent');
    await query(ofParent.direct_url, "create table only_here as select 'copied' as value");
    const child = await api.branch(project.id, 'child', { source_branch_id: parent.id });
    const ofChild = await api.credentials(project.id, 'child');
    expect(child).toMatchObject({ parent_branch_id: parent.id, source_database: parent.database_name });
    expect(await query(ofChild.database_url, 'select value from only_here')).toEqual([{ value: 'copied' }]);
    expect(await fingerprint(ofChild.direct_url)).toEqual(await fingerprint(ofParent.direct_url));
  });

  test('admits its creator immediately with psql, on both ports, and each login has the privileges of its role', async () => {
    await api.branch(project.id, 'immediate');
    const found = await api.credentials(project.id, 'immediate');
    const readOnly = await api.credentials(project.id, 'immediate', '?role=read_only');
    for (const url of [found.database_url, found.direct_url, readOnly.database_url, readOnly.direct_url]) {
      const { stdout } = await run('psql', ['-At', '-c', 'select count(*) from book', url]);
      expect(stdout.trim()).toBe('800');
    }
    await query(found.direct_url, 'create table by_owner (n int)');
    await query(found.database_url, 'insert into by_owner values (1)');
    await expect(query(found.database_url, 'create table by_rw (n int)')).rejects.toMatchObject({
      code: '42501',
    });
    await expect(query(readOnly.database_url, 'insert into by_owner values (2)')).rejects.toMatchObject({
      code: '42501',
    });
    expect(await query(readOnly.direct_url, 'select n from by_owner')).toEqual([{ n: 1 }]);
  });
});

describe('the records', () => {
  test('a branch has exactly the fields of the specification', async () => {
    const response = await api.post(
      branches(),
      { branch_name: 'fields', lifespan: '1 Month' },
      FROM_LOOPBACK,
    );
    expect(response.status).toBe(201);
    expect(response.body).toEqual({
      id: expect.stringMatching(/^[0-9a-f-]{36}$/),
      project_id: project.id,
      parent_branch_id: project.main_branch.id,
      branch_name: 'fields',
      database_name: `${project.main_branch.database_name}_br_fields`,
      source_database: project.main_branch.database_name,
      status: 'active',
      lifespan: '1m',
      expires_at: expect.stringMatching(/Z$/),
      ttl_seconds: 2_592_000,
      lease_seconds: null,
      lease_ends_at: null,
      connection_attempts_per_minute: 50,
      settings: {},
      data: 'full',
      keep_tables: [],
      masking_version: null,
      checked_at: null,
      labels: {},
      is_default: false,
      protected: false,
      created_by: project.created_by,
      tenant_id: expect.stringMatching(/^branching-/),
      created_at: expect.stringMatching(/Z$/),
      created: true,
    });
    const { created_at, expires_at } = response.body as Record<string, string>;
    expect(Date.parse(expires_at ?? '') - Date.parse(created_at ?? '')).toBe(2_592_000_000);
  });

  test('commits wait for a standby only where there is one', async () => {
    const path = `/api/v1/projects/${project.id}`;
    expect(await api.get(path)).toMatchObject({ body: { durability: 'async', durability_state: 'off' } });
    expect(await api.patch(path, { durability: 'sync' })).toMatchObject({
      status: 409,
      body: { error: 'NO_STANDBY' },
    });
    expect(await api.patch(path, { durability: 'async' })).toMatchObject({ status: 200 });
  });

  test('credentials have the form of specification 2.5', async () => {
    await api.branch(project.id, 'with-hyphen');
    const found = await api.credentials(project.id, 'with-hyphen');
    const name = `${project.main_branch.database_name.slice(3)}_br_with-hyphen`
      .toUpperCase()
      .replaceAll('-', '_');
    expect(found).toMatchObject({ runtime_key: `DATABASE_URL_${name}`, direct_key: `DIRECT_URL_${name}` });
    expect(found.database_url).toMatch(
      /^postgresql:\/\/u_[0-9a-f]{32}_rw:[\w-]{32}@127\.0\.0\.1:\d+\/db_\S+\?sslmode=require$/,
    );
    expect(found.direct_url).toMatch(/^postgresql:\/\/u_[0-9a-f]{32}_owner:/);
    const { direct_port, pooled_port } = readStackFile(inject('stack').devDir);
    expect(direct_port).not.toBe(pooled_port);
    for (const view of ['', '?role=read_only']) {
      const { database_url, direct_url } = await api.credentials(project.id, 'with-hyphen', view);
      expect([new URL(database_url).port, new URL(direct_url).port]).toEqual([
        String(pooled_port),
        String(direct_port),
      ]);
    }
  });

  test('main is listed first; deleted branches are not listed', async () => {
    await api.branch(project.id, 'short-lived');
    const { body: gone } = await api.get<{ matches: { id: string }[] }>(
      `${branches()}/lookup?name=short-lived`,
    );
    const deletion = await api.delete(`${branches()}/${gone.matches[0]?.id}`);
    expect(deletion.status).toBe(202);
    expect(deletion.body).toEqual({
      id: gone.matches[0]?.id,
      status: 'deleted',
      deleted_at: expect.stringMatching(/Z$/),
      job_id: expect.any(String),
      restorable_until: expect.stringMatching(/Z$/),
      recoverable_until: null,
    });
    const list = await api.get<{ branches: Record<string, unknown>[] }>(branches());
    expect(list.body.branches[0]).toMatchObject({
      branch_name: 'main',
      is_default: true,
      protected: true,
      expires_at: null,
      source_database: 'template0',
      lifespan: 'forever',
      ttl_seconds: null,
      deletes_at: null,
      parent_branch_id: null,
    });
    const created = list.body.branches.slice(1).map((branch) => String(branch.created_at));
    expect(created).toEqual([...created].sort());
    expect(list.body.branches.map((branch) => branch.branch_name)).not.toContain('short-lived');
    expect(Object.keys(list.body.branches[0] ?? {})).toContain('updated_at');
    const [, other] = list.body.branches;
    for (const search of [`name=${other?.branch_name}`, `id=${other?.id}`]) {
      expect((await api.get(`${branches()}/lookup?${search}`)).body).toEqual({
        matches: [other],
        is_duplicate: true,
      });
    }
    const lookup = await api.get(`${branches()}/lookup?name=short-lived`);
    expect(lookup.body).toEqual({ matches: [], is_duplicate: false });
    expect((await api.delete(`${branches()}/${gone.matches[0]?.id}`)).status).toBe(404);
  });

  test('the children of a deleted branch have no parent, and still name their source', async () => {
    const { body: parent } = await api.get<BranchBody>(`${branches()}/parent`);
    const { body: child } = await api.get<BranchBody>(`${branches()}/child`);
    expect(child.parent_branch_id).toBe(parent.id);
    expect((await api.delete(`${branches()}/${parent.id}`)).status).toBe(202);
    const { body } = await api.get<{ matches: unknown[] }>(`${branches()}/lookup?id=${child.id}`);
    expect(body.matches).toMatchObject([{ parent_branch_id: null, source_database: parent.database_name }]);
  });

  test('a deleted branch leaves no database and no login, and its name is free immediately', async () => {
    const first = await api.branch(project.id, 'again');
    const credentials = await api.credentials(project.id, 'again');
    await api.delete(`${branches()}/${first.id}`);
    const second = await api.branch(project.id, 'again');
    expect(second).toMatchObject({ database_name: first.database_name, status: 'active' });
    expect(second.id).not.toBe(first.id);
    await expect(query(credentials.direct_url, 'select 1')).rejects.toThrow();
    const [found] = await query(
      (await api.credentials(project.id, 'again')).direct_url,
      'select count(*)::int as books from book',
    );
    expect(found).toEqual({ books: 800 });
  });

  test('the lifespan counts from its change; that of main is fixed', async () => {
    const { body: branch } = await api.get<BranchBody>(`${branches()}/fields`);
    const before = Date.now();
    const changed = await api.patch<Record<string, string>>(`${branches()}/${branch.id}`, {
      lifespan: 'permanent',
    });
    expect(changed).toMatchObject({
      status: 200,
      body: { lifespan: 'forever', expires_at: null, ttl_seconds: null },
    });
    const week = await api.patch<Record<string, string>>(`${branches()}/${branch.id}`, { lifespan: '7d' });
    expect(Date.parse(week.body.expires_at ?? '')).toBeGreaterThanOrEqual(before + 604_800_000);
    const ofMain = await api.patch(`${branches()}/${project.main_branch.id}`, { lifespan: '7d' });
    expect(ofMain).toMatchObject({ status: 403, body: { error: 'BRANCH_PROTECTED' } });
    expect((await api.patch(`${branches()}/${branch.id}`, { lifespan: '2d' })).status).toBe(422);
  });

  test('main cannot be deleted', async () => {
    const response = await api.delete(`${branches()}/${project.main_branch.id}`);
    expect(response).toMatchObject({ status: 403, body: { error: 'BRANCH_PROTECTED' } });
  });
});

describe('jobs', () => {
  test('list every step of a creation', async () => {
    const jobs = await api.get<{ jobs: Record<string, unknown>[] }>(
      `/api/v1/projects/${project.id}/jobs?limit=100`,
    );
    const creation = jobs.body.jobs.find(({ kind }) => kind === 'branch.create');
    expect(creation).toMatchObject({ status: 'succeeded', error: null });
    const steps = creation?.steps as { name: string; status: string }[];
    expect(steps.map(({ name, status }) => `${name} ${status}`)).toEqual([
      'prepare succeeded',
      'clone succeeded',
      'publish succeeded',
      'prove succeeded',
    ]);
    expect((await api.get(`/api/v1/jobs/${creation?.id}`)).body).toEqual(creation);
  });

  test('a deleted project is removed with its databases; its job stays readable', async () => {
    const doomed = await api.project('Doomed');
    await api.allow(doomed.id);
    await api.branch(doomed.id, 'one');
    const { direct_url } = await api.credentials(doomed.id, 'one');
    const deletion = await api.delete<{ id: string }>(`/api/v1/projects/${doomed.id}`);
    expect(deletion).toMatchObject({ status: 202, body: { kind: 'project.delete' } });
    const job = await eventually(async () => {
      const { body } = await api.get(`/api/v1/jobs/${deletion.body.id}`);
      expect(body.status).toBe('succeeded');
      return body;
    });
    expect(job).toMatchObject({ project_id: doomed.id, error: null });
    expect((await api.get(`/api/v1/projects/${doomed.id}`)).status).toBe(404);
    await expect(query(direct_url, 'select 1')).rejects.toThrow();
  });
});

describe('projects', () => {
  test('are listed page by page, renamed, and have a unique app key', async () => {
    const lister = await ownerOf('lister');
    const made = [];
    for (const name of ['First', 'Second']) made.push(await lister.project(name));
    const first = await lister.get<{ projects: ProjectBody[]; next_cursor: string }>(
      '/api/v1/projects?limit=1',
    );
    const rest = await lister.get<{ projects: ProjectBody[]; next_cursor: string | null }>(
      `/api/v1/projects?limit=1&cursor=${encodeURIComponent(first.body.next_cursor)}`,
    );
    expect([...first.body.projects, ...rest.body.projects].map(({ id }) => id)).toEqual(
      made.map(({ id }) => id),
    );
    expect(rest.body.next_cursor).toBeNull();

    const renamed = await lister.patch(`/api/v1/projects/${made[0]?.id}`, { name: 'Renamed' });
    expect(renamed).toMatchObject({
      status: 200,
      body: { name: 'Renamed', branch_count: 1, branch_limit: 10 },
    });

    const { app_key, env } = made[0] as ProjectBody;
    const taken = await lister.post('/api/v1/projects', { name: 'Other', app_key, env });
    expect(taken).toMatchObject({ status: 409, body: { error: 'PROJECT_EXISTS' } });
  });
});
