import { beforeAll, expect, test } from 'vitest';
import type { Api, ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
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
