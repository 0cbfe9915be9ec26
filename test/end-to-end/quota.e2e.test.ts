import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { Api, type Credentials, type ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { deliveredMails } from '../support/sign-in/mails.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

const GIB = 2 ** 30;
const ALERT_EMAIL = 'ops@example.com';

let stack: Stack;
let api: Api;
let project: ProjectBody;
let credentials: Credentials;
let empty: number;
const clients: pg.Client[] = [];

beforeAll(async () => {
  stack = await startStack({ restarts: false, env: { MEASURE_INTERVAL_SECONDS: '1', ALERT_EMAIL } });
  api = new Api(stack.url, await stack.token());
});
afterAll(async () => {
  await Promise.all(clients.map((client) => client.end().catch(() => {})));
  await stack?.stop();
});
beforeEach(async () => {
  project = await api.project('Shop <b>1</b>');
  await api.allow(project.id);
  credentials = await api.credentials(project.id, 'main');
  await query(credentials.direct_url, 'create table filled (data text)');
  empty = await eventually(async () => {
    const { storage_used_bytes } = await usage();
    expect(storage_used_bytes).toBeGreaterThan(0);
    return storage_used_bytes;
  });
});

interface Usage {
  storage_used_bytes: number;
  storage_limit_bytes: number;
  storage_state: string;
}
const projectPath = () => `/api/v1/projects/${project.id}`;
const usage = async () => (await api.get<Usage>(`${projectPath()}/usage`)).body;

const setQuota = async (bytes: number) => {
  const { status, body } = await api.patch<{ storage_state: string }>(`/v1/projects/${project.id}`, {
    storage_quota_gib: bytes / GIB,
  });
  expect(status).toBe(200);
  return body.storage_state;
};

const inState = (state: string) => eventually(async () => expect((await usage()).storage_state).toBe(state));

/** Inserts random text, which does not compress. */
const fill = (url: string, mib: number) =>
  query(
    url,
    `insert into filled select string_agg(md5(random()::text), '') from generate_series(1, $1::int * 128)
       cross join generate_series(1, 256) as line group by generate_series`,
    [mib],
  );

const subjects = () =>
  deliveredMails(stack)
    .filter(({ text }) => text.includes(project.id))
    .map(({ subject }) => subject.split(':')[0]);

const events = () =>
  readFileSync(join(devFolder(stack.devDir).logs, 'gateway.log'), 'utf8')
    .split('\n')
    .filter((line) => line.includes('"STORAGE_WARNING"') || line.includes('"WRITE_BLOCKED"'))
    .map((line) => JSON.parse(line) as Record<string, unknown>)
    .filter(({ project_id }) => project_id === project.id);

const open = async (url: string) => {
  const client = await connect(url);
  clients.push(client);
  return client;
};

const writes = (client: pg.Client) =>
  client.query("insert into filled values ('x')").then(
    () => 'written',
    ({ code }: { code?: string }) => code,
  );

describe('a project that fills up', () => {
  test('is warned, blocked, and unblocked when data is deleted', async () => {
    await setQuota(empty + 20 * 1024 * 1024);
    const sessions = [await open(credentials.database_url), await open(credentials.direct_url)] as const;
    const [readWrite, owner] = sessions;
    expect(await writes(readWrite)).toBe('written');

    await fill(credentials.database_url, 17);
    await inState('warning');
    await eventually(async () => expect(subjects()).toEqual(['STORAGE_WARNING']));
    expect(await writes(readWrite)).toBe('written');

    await fill(credentials.database_url, 8);
    await inState('write_blocked');
    await eventually(async () => expect(subjects()).toEqual(['STORAGE_WARNING', 'WRITE_BLOCKED']));
    await eventually(async () => expect(await writes(readWrite)).toMatch(/^(42501|25006)$/));
    expect(await writes(await open(credentials.database_url))).toMatch(/^(42501|25006)$/);
    expect(await writes(owner)).toBe('written');

    await owner.query('truncate filled');
    await inState('normal');
    await eventually(async () => expect(await writes(readWrite)).toBe('written'));

    const [warning, blocked] = events();
    expect(warning).toEqual({
      event: 'STORAGE_WARNING',
      project_id: project.id,
      storage_used_gib: expect.any(Number),
      storage_quota_gib: (empty + 20 * 1024 * 1024) / GIB,
      usage_percent: expect.any(Number),
      timestamp: expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/),
    });
    expect(warning?.usage_percent).toBeGreaterThan(80);
    expect(warning?.usage_percent).toBeLessThan(100);
    expect(blocked).toMatchObject({ event: 'WRITE_BLOCKED', project_id: project.id });
    expect(blocked?.usage_percent).toBeGreaterThanOrEqual(100);
    expect(events()).toHaveLength(2);
    const [mail] = deliveredMails(stack).filter(({ text }) => text.includes(project.id));
    expect(mail).toMatchObject({ to: ALERT_EMAIL, from: expect.any(String) });
    expect(mail?.html).toContain('Shop &lt;b&gt;1&lt;/b&gt;');
  });

  test('is evaluated immediately when its quota changes, and reported once per episode', async () => {
    expect(await setQuota(empty / 0.9)).toBe('warning');
    expect(await setQuota(empty / 1.1)).toBe('write_blocked');
    const client = await open(credentials.database_url);
    expect(await writes(client)).toMatch(/^(42501|25006)$/);
    expect(await setQuota(empty * 2)).toBe('normal');
    expect(await writes(client)).toBe('written');
    expect(await setQuota(empty / 0.9)).toBe('warning');
    await eventually(async () =>
      expect(subjects()).toEqual(['STORAGE_WARNING', 'WRITE_BLOCKED', 'STORAGE_WARNING']),
    );
    const { body } = await api.get<{ audit_events: { metadata: { from: string; to: string } }[] }>(
      `/api/v1/audit-events?project_id=${project.id}&name=project.storage_state.changed`,
    );
    expect(body.audit_events.map(({ metadata }) => metadata.to).reverse()).toEqual([
      'warning',
      'write_blocked',
      'normal',
      'warning',
    ]);
  });

  test('sends its mails when the mail service is available again', async () => {
    await stack.kill('idp');
    await setQuota(empty / 0.9);
    expect(subjects()).toEqual([]);
    await stack.start('idp');
    await eventually(async () => expect(subjects()).toEqual(['STORAGE_WARNING']));
  });
});

describe('a clone', () => {
  const clone = (branch_name: string) => api.post(`${projectPath()}/branches`, { branch_name });

  test('that does not fit is refused and leaves no record', async () => {
    const limit = Math.ceil(empty * 1.5);
    await setQuota(limit);
    const before = (await api.get<{ branches: unknown[] }>(`${projectPath()}/branches`)).body;
    const { status, body: refusal } = await clone('too-large');
    expect(status).toBe(409);
    expect(refusal).toMatchObject({ error: 'STORAGE_QUOTA_EXCEEDED', limit_bytes: limit });
    expect(refusal.used_bytes).toBe(refusal.needed_bytes);
    expect(Math.abs(Number(refusal.used_bytes) - empty)).toBeLessThan(1024 * 1024);
    expect((await api.get(`${projectPath()}/branches`)).body).toEqual(before);
    expect((await api.get<{ jobs: unknown[] }>(`${projectPath()}/jobs`)).body.jobs).toHaveLength(1);
    await setQuota(empty * 3);
    expect((await clone('fits')).status).toBe(201);
  });

  test('of concurrent requests succeeds as often as the quota permits', async () => {
    await setQuota(empty * 3.5);
    const responses = await Promise.all(['a', 'b', 'c', 'd', 'e'].map((name) => clone(`crowd-${name}`)));
    expect(responses.map(({ status }) => status).sort()).toEqual([201, 201, 409, 409, 409]);
  });
});
