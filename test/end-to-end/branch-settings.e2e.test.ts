import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import type { Api, ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { ownerOf } from '../support/tenants.ts';

const TENANT = 'settings-of-branches';

let api: Api;
let project: ProjectBody;
let path: string;

beforeAll(async () => {
  api = await ownerOf(TENANT);
  project = await api.project('Shop');
  await api.allow(project.id);
  // Every read below is a login.
  await api.patch(`/api/v1/projects/${project.id}`, { connection_attempts_per_minute: 'max' });
  path = `/api/v1/projects/${project.id}/branches`;
});

const shown = async (url: string, name: string) =>
  Object.values((await query<Record<string, string>>(url, `show ${name}`))[0] ?? {})[0];

test('a branch has settings of PostgreSQL on both ports, which its branches inherit and no login ends', async () => {
  const { direct_url: direct, database_url: pooled } = await api.credentials(project.id, 'main');
  // The pooler has a session that began without them.
  await query(pooled, 'select 1');
  const settings = { search_path: 'app, public', TimeZone: 'Europe/Berlin', statement_timeout: '30s' };
  const changed = await api.patch(`${path}/main`, { settings });
  expect(changed).toMatchObject({ status: 200, body: { settings } });
  for (const url of [direct, pooled])
    await eventually(async () => {
      expect(await shown(url, 'search_path')).toBe('app, public');
      expect(await shown(url, 'TimeZone')).toBe('Europe/Berlin');
    });
  await query(direct, 'alter role current_user set search_path = elsewhere');
  await eventually(async () => expect(await shown(direct, 'search_path')).toBe('app, public'), 30);

  expect((await api.branch(project.id, 'pr-1')).id).toBeTypeOf('string');
  expect((await api.get(`${path}/pr-1`)).body).toMatchObject({ settings });
  const { direct_url: ofBranch } = await api.credentials(project.id, 'pr-1');
  expect(await shown(ofBranch, 'search_path')).toBe('app, public');
  await api.patch(`${path}/pr-1`, { settings: { search_path: null, TimeZone: 'UTC' } });
  await eventually(async () => expect(await shown(ofBranch, 'search_path')).toBe('"$user", public'));
  expect(await shown(ofBranch, 'TimeZone')).toBe('UTC');
  expect(await shown(ofBranch, 'statement_timeout')).toBe('30s');
  // A reset gives it another database.
  await api.call('POST', `${path}/pr-1/reset`, { body: {} });
  expect(await shown((await api.credentials(project.id, 'pr-1')).direct_url, 'TimeZone')).toBe('UTC');

  const { body } = await api.get<{ audit_events: { metadata: unknown }[] }>(
    `/api/v1/audit-events?name=branch.settings.changed&project_id=${project.id}`,
  );
  expect(body.audit_events.map(({ metadata }) => metadata)).toEqual([
    { branch_name: 'pr-1', settings: { search_path: null, TimeZone: 'UTC' } },
    { branch_name: 'main', settings },
  ]);
});

test('a renamed branch has its content, passwords, rules and settings under its new URLs', async () => {
  const { id } = await api.branch(project.id, 'draft');
  await api.patch(`${path}/draft`, { settings: { TimeZone: 'Asia/Tokyo' } });
  await api.post(`/api/v1/projects/${project.id}/network-rules`, { branch_id: id, cidr: '198.51.100.7/32' });
  const former = await api.credentials(project.id, 'draft');
  await query(former.direct_url, 'create table mine as select 1 as n');
  const open = await connect(former.database_url);
  open.on('error', () => {});
  await open.query('select 1');

  expect(await api.patch(`${path}/draft`, { branch_name: 'final' })).toMatchObject({
    status: 200,
    body: { id, branch_name: 'final', status: 'active', settings: { TimeZone: 'Asia/Tokyo' } },
  });
  await expect(open.query('select 1')).rejects.toThrow();
  const renamed = await api.credentials(project.id, 'final');
  const moved = (text = '') => text.replace('draft', 'final').replace('DRAFT', 'FINAL');
  expect(renamed).toMatchObject({
    branch_id: id,
    database: moved(former.database),
    runtime_key: moved(former.runtime_key),
    direct_key: moved(former.direct_key),
    direct_url: moved(former.direct_url),
    database_url: moved(former.database_url),
  });
  for (const url of [renamed.direct_url, renamed.database_url]) {
    expect(await query(url, 'select n from mine')).toEqual([{ n: 1 }]);
    expect(await shown(url, 'TimeZone')).toBe('Asia/Tokyo');
  }
  for (const url of [former.direct_url, former.database_url])
    await expect(query(url, 'select 1')).rejects.toThrow();
  const { body } = await api.get<{ network_rules: { branch_id: string; cidr: string }[] }>(
    `/api/v1/projects/${project.id}/network-rules`,
  );
  expect(body.network_rules).toContainEqual(
    expect.objectContaining({ branch_id: id, cidr: '198.51.100.7/32', status: 'applied' }),
  );
  expect(await api.get(`${path}/draft`)).toMatchObject({ status: 404 });
  expect((await api.get(`${path}/final/tables`)).status).toBe(200);
  expect((await api.call('POST', `${path}/final/reset`, { body: { to: 'parent' } })).status).toBe(200);
});

test('docs/clients.md says how sessions are cancelled, who a session is, and what ANALYZE skips', async () => {
  const { direct_url: direct, database_url: pooled } = await api.credentials(project.id, 'main');
  const [one, other] = await Promise.all([connect(pooled), connect(pooled)]);
  try {
    const { processID } = one as unknown as { processID: number };
    expect((await other.query('select pg_cancel_backend($1) as done', [processID])).rows).toEqual([
      { done: false },
    ]);
    await one.query('begin');
    const { rows } = await one.query('select pg_backend_pid() as pid');
    const sleeping = one.query('select pg_sleep(60)');
    const [cancelled] = await Promise.all([
      sleeping.catch((error) => error),
      eventually(async () => {
        const sent = await other.query(
          "select pg_cancel_backend(pid) as done from pg_stat_activity where pid = $1 and query like 'select pg_sleep%' and state = 'active'",
          [rows[0]?.pid],
        );
        expect(sent.rows).toEqual([{ done: true }]);
      }),
    ]);
    expect(cancelled).toMatchObject({ code: '57014' });
  } finally {
    await Promise.all([one.end(), other.end()]);
  }

  // Ctrl-C of psql is the cancel request of the protocol.
  const psql = spawn('psql', [pooled, '-c', 'select pg_sleep(60)'], { stdio: ['ignore', 'ignore', 'pipe'] });
  const said = psql.stderr.toArray().then((parts) => parts.join(''));
  await eventually(async () =>
    expect(
      await query(
        pooled,
        "select from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active' and pid <> pg_backend_pid()",
      ),
    ).toHaveLength(1),
  );
  psql.kill('SIGINT');
  expect(await said).toContain('canceling statement due to user request');

  const [who] = await query<{ acts: string; is: string }>(
    direct,
    'select current_user::text as acts, session_user::text as is',
  );
  expect(who?.acts).toMatch(/^g_[0-9a-f]{32}_owner$/);
  expect(who?.is).toMatch(/^u_[0-9a-f]{32}_owner$/);

  await query(direct, 'create table if not exists analyzed as select 1 as n');
  const owner = await connect(direct);
  const warnings: unknown[] = [];
  owner.on('notice', (notice) => warnings.push(notice));
  await owner.query('analyze');
  await owner.end();
  const page = readFileSync(join(import.meta.dirname, '../../docs/clients.md'), 'utf8');
  expect(page).toContain(`(${warnings.length} warnings`);
  expect(
    await query(
      direct,
      "select from pg_stat_user_tables where relname = 'analyzed' and last_analyze is not null",
    ),
  ).toHaveLength(1);
});

test('no setting of a tenant reaches the sessions of the platform in its database', async () => {
  const settings = {
    statement_timeout: '100ms',
    lock_timeout: '100ms',
    DateStyle: 'German',
    default_transaction_isolation: 'serializable',
    client_min_messages: 'error',
  };
  expect(await api.patch(`${path}/main`, { settings })).toMatchObject({ status: 200 });
  const { direct_url: direct } = await api.credentials(project.id, 'main');
  await eventually(async () => expect(await shown(direct, 'DateStyle')).toBe('German, DMY'));
  await query(
    direct,
    "set statement_timeout = 0; create table day (at date); insert into day values ('31.1.2026')",
  );
  await api.branch(project.id, 'pr-2');
  expect((await api.get(`${path}/pr-2/tables/day/rows`)).body).toMatchObject({
    rows: [{ at: '2026-01-31' }],
  });
});

test.each([
  { session_preload_libraries: 'x' },
  { search_path: "a'; select 1" },
  { search_path: 'a,,b' },
  { statement_timeout: '25h' },
  { statement_timeout: '99ms' },
  { TimeZone: 'Nowhere/Town' },
  { TimeZone: '+02:00' },
  { DateStyle: 'ISO, DDD' },
  { lock_timeout: '-1' },
  { TimeZone: 'a b' },
  { IntervalStyle: 'other' },
])('%j is refused', async (settings) => {
  expect(await api.patch(`${path}/main`, { settings })).toMatchObject({ status: 422 });
});
