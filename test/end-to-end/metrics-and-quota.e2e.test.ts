import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { STREAMS_MAX } from '../../edge/monitoring/measurement-streams.ts';
import { METRIC_NAMES } from '../../edge/monitoring/metrics.ts';
import { Api, type Credentials, type ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { listenTo } from '../support/listen.ts';
import { fillText } from '../support/load.ts';
import { firstByDay, IS_NIGHTLY } from '../support/nightly.ts';
import { deliveredMails } from '../support/sign-in/mails.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';
import { openDoor, socketClient, socketQuery } from '../support/web-socket.ts';

const GIB = 2 ** 30;
const ALERT_EMAIL = 'ops@example.com';

interface Summary {
  metrics: { database_size_bytes: number; active_connections: number; cache_hit_ratio: number };
  usage: { storageUsedBytes: number; storageLimitBytes: number };
  observed_at: string | null;
  stale: boolean;
  alerts?: { name: string; value: number; threshold: number }[];
}
interface Series {
  start: string;
  end: string;
  step_seconds: number;
  stale: boolean;
  series: { metric: string; unit: string; values: { timestamp: string; value: number }[] }[];
}
interface Usage {
  storage_used_bytes: number;
  storage_state: string;
  branches: { branch_name: string; database_size_bytes: number; next_branch_bytes: number }[];
}

let stack: Stack;
let api: Api;
let project: ProjectBody;

beforeAll(async () => {
  stack = await startStack({ restarts: false, env: { MEASURE_INTERVAL_SECONDS: '1', ALERT_EMAIL } });
  api = new Api(stack.url, await stack.token());
  project = await api.project('Measured');
  await api.allow(project.id);
});
afterAll(() => stack?.stop());

const metricsPath = (branch: string, rest = '') =>
  `/api/v1/projects/${project.id}/branches/${branch}/metrics${rest}`;

async function get<B>(path: string): Promise<B> {
  const { status, body } = await api.get<B>(path);
  expect(status, JSON.stringify(body)).toBe(200);
  return body;
}
const summaryOf = (branch: string, search = '') => get<Summary>(metricsPath(branch, `/summary${search}`));
const usageOf = () => get<Usage>(`/api/v1/projects/${project.id}/usage`);

/** @returns the state of the project's storage with this quota */
async function setQuota(bytes: number, { id }: ProjectBody): Promise<string> {
  const { status, body } = await api.patch<{ storage_state: string }>(`/v1/projects/${id}`, {
    storage_quota_gib: bytes / GIB,
  });
  expect(status).toBe(200);
  return body.storage_state;
}

const measured = (branch: string) =>
  eventually(async () => {
    const summary = await summaryOf(branch);
    expect(summary).toMatchObject({ stale: false, observed_at: expect.any(String) });
    return summary;
  });

async function last(branch: string): Promise<Record<string, number | undefined>> {
  const { series } = await get<Series>(metricsPath(branch));
  return Object.fromEntries(series.map(({ metric, values }) => [metric, values.at(-1)?.value]));
}

describe('the summary', () => {
  test('has the fields of the specification, measured', async () => {
    const summary = await measured('main');
    expect(summary).toEqual({
      project_id: project.id,
      branch_id: project.main_branch.id,
      branch_name: 'main',
      database: project.main_branch.database_name,
      metrics: {
        database_size_bytes: expect.any(Number),
        active_connections: expect.any(Number),
        cache_hit_ratio: expect.any(Number),
      },
      usage: { storageUsedBytes: summary.metrics.database_size_bytes, storageLimitBytes: 268_435_456 },
      observed_at: expect.any(String),
      stale: false,
    });
    const { database_url } = await api.credentials(project.id, 'main');
    const [size] = await query<{ bytes: string }>(
      database_url,
      'select pg_database_size(current_database()) as bytes',
    );
    expect(Math.abs(summary.metrics.database_size_bytes - Number(size?.bytes))).toBeLessThan(1024 * 1024);
  });

  test('agrees with the series of all branches', async () => {
    const { metrics, observed_at } = await measured('main');
    const all = await get<{
      unit: string;
      observed_at: string;
      branches: { branch_id: string; branch_name: string; values: { timestamp: string; value: number }[] }[];
    }>(`/api/v1/projects/${project.id}/metrics?metric=database_size_bytes`);
    expect([all.unit, all.branches.length]).toEqual(['bytes', 1]);
    expect(all.branches[0]).toMatchObject({ branch_id: project.main_branch.id, branch_name: 'main' });
    expect(all.observed_at >= String(observed_at)).toBe(true);
    const size = all.branches[0]?.values.at(-1)?.value ?? 0;
    expect(Math.abs(size - metrics.database_size_bytes)).toBeLessThan(1024 * 1024);
    const tooMany = await api.get(
      `/api/v1/projects/${project.id}/metrics?metric=cpu_seconds&start=2026-01-01T00:00:00Z&step=86400`,
    );
    expect(tooMany.status).toBe(422);
  });

  test.runIf(IS_NIGHTLY)('counts open sessions', async () => {
    const { database_url, direct_url } = await api.credentials(project.id, 'main');
    const clients = await Promise.all([connect(direct_url), connect(direct_url), connect(database_url)]);
    try {
      await eventually(async () => expect((await summaryOf('main')).metrics.active_connections).toBe(3));
    } finally {
      await Promise.all(clients.map((client) => client.end()));
    }
    await eventually(async () => expect((await summaryOf('main')).metrics.active_connections).toBe(0));
  });

  test('lists alerts for exceeded thresholds', async () => {
    expect(await summaryOf('main')).not.toHaveProperty('alerts');
    const quiet = await summaryOf('main', '?include=alerts');
    expect(quiet.alerts?.map(({ name }) => name)).not.toContain('storage');
    const { usage } = await measured('main');
    await setQuota(usage.storageUsedBytes / 0.95, project);
    await eventually(async () => {
      const { alerts = [] } = await summaryOf('main', '?include=alerts');
      expect(alerts.find(({ name }) => name === 'storage')).toEqual({
        name: 'storage',
        value: expect.closeTo(0.95, 1),
        threshold: 0.9,
      });
    });
    expect(await setQuota(usage.storageLimitBytes, project)).toBe('normal');
  });

  test('is stale as soon as the host disconnects, and fresh when it is back', async () => {
    const { observed_at } = await measured('main');
    await stack.kill('agent');
    try {
      const away = await eventually(async () => {
        const summary = await summaryOf('main');
        expect(summary.stale).toBe(true);
        return summary;
      });
      expect(Date.parse(away.observed_at ?? '')).toBeGreaterThanOrEqual(Date.parse(observed_at ?? ''));
    } finally {
      await stack.start('agent');
    }
    await stack.untilReady();
    await measured('main');
  });
});

describe('the series', () => {
  test('has every metric with its unit, and counts activity', async () => {
    await measured('main');
    const before = await last('main');
    const { database_url } = await api.credentials(project.id, 'main');
    const client = await connect(database_url);
    await client.query('create table counted (n int)').catch(() => {});
    await client.end();
    await eventually(async () =>
      expect((await last('main')).total_connections).toBeGreaterThan(before.total_connections ?? 0),
    );
    const { series } = await eventually(async () => {
      const found = await get<Series>(metricsPath('main'));
      expect(found).toMatchObject({ step_seconds: 60, stale: false });
      return found;
    });
    expect(series.map(({ metric }) => metric)).toEqual([...METRIC_NAMES]);
    const units = Object.fromEntries(series.map(({ metric, unit }) => [metric, unit]));
    expect(units).toMatchObject({
      cpu_seconds: 'seconds',
      rows_inserted: 'count',
      cache_hit_ratio: 'ratio',
      database_size_bytes: 'bytes',
    });
  });

  test('has the values of what a client has done', async () => {
    const branch = await api.branch(project.id, 'worked');
    await measured('worked');
    const untouched = await last('worked');
    for (const [metric, value] of Object.entries(untouched)) {
      if (!/^(?:database_|file_count$)/.test(metric)) expect([0, undefined], metric).toContain(value);
    }
    const { direct_url } = await api.credentials(project.id, branch.id);
    const client = await connect(direct_url);
    await client.query('create table done (id int primary key, n int)');
    for (let id = 1; id <= 5; id++) await client.query('insert into done values ($1, 0)', [id]);
    for (let id = 1; id <= 3; id++) await client.query('update done set n = 1 where id = $1', [id]);
    for (let id = 1; id <= 2; id++) await client.query('delete from done where id = $1', [id]);
    for (let n = 1; n <= 4; n++) await client.query('begin; select 1; rollback');
    await client.query('select pg_stat_force_next_flush()');
    await client.query('select count(*) from generate_series(1, 1500000)');
    await eventually(async () => {
      const worked = await last('worked');
      expect(worked).toMatchObject({ active_connections: 1, total_connections: 1 });
      const atLeast = {
        transactions_committed: 1 + 5 + 3 + 2,
        transactions_rolled_back: 4,
        rows_fetched: 3 + 2,
        rows_inserted: 5,
        rows_updated: 3,
        rows_deleted: 2,
        cpu_seconds: 0.05,
        memory_bytes: 300_000,
        database_size_bytes: untouched.database_size_bytes ?? 0,
        longest_query_seconds: 0,
      };
      // The catalogs' own rows are counted with the tenant's, and those of CREATE TABLE are some tens.
      const atMost = {
        transactions_committed: 25,
        transactions_rolled_back: 4,
        rows_inserted: 5 + 60,
        rows_updated: 3 + 20,
        rows_deleted: 2 + 20,
        rows_fetched: 5_000,
        cpu_seconds: 10,
        memory_bytes: 50_000_000,
      };
      for (const [metric, least] of Object.entries(atLeast))
        expect(worked[metric], metric).toBeGreaterThanOrEqual(least);
      for (const [metric, most] of Object.entries(atMost))
        expect(worked[metric], metric).toBeLessThanOrEqual(most);
      expect(worked.cache_hit_ratio).toBeGreaterThan(0.5);
    });
    await client.end();
  });

  test('of one metric stays within its bounds, by name and by id', async () => {
    const start = new Date(Date.now() - 3_600_000).toISOString();
    const search = `?metric=total_connections&start=${start}&step=3600`;
    const byName = await get<Series>(metricsPath('main', search));
    const byId = await get<Series>(metricsPath(project.main_branch.id, search));
    expect(byName).toMatchObject({ start, step_seconds: 3600 });
    expect(byName.series.map(({ metric }) => metric)).toEqual(['total_connections']);
    expect(byName.series[0]?.values.length).toBeGreaterThan(0);
    expect(byId.series[0]?.values.length).toBe(byName.series[0]?.values.length);
    for (const { timestamp } of byName.series[0]?.values ?? []) {
      expect(timestamp >= byName.start && timestamp <= byName.end).toBe(true);
    }
    const old = new Date(Date.now() - 40 * 24 * 3_600_000).toISOString();
    expect(await get<Series>(metricsPath('main', `?start=${old}`))).toMatchObject({ step_seconds: 86_400 });
  });

  test.each([
    ['an unknown metric', 'metric=rows_read'],
    ['a malformed timestamp', 'start=yesterday'],
    ['a fractional step', 'step=90.5'],
    ['a step below a minute', 'step=59'],
    ['a start after the end', 'start=2026-01-02T00:00:00Z&end=2026-01-01T00:00:00Z'],
    ['a start in the future', 'start=2126-01-01T00:00:00Z'],
    ['more points than a response may have', 'start=2001-01-01T00:00:00Z'],
    ['an unknown parameter', 'from=2026-01-01T00:00:00Z'],
  ])('refuses %s', async (_, search) => {
    const { status, body } = await api.get(metricsPath('main', `?${search}`));
    expect(status).toBe(422);
    expect(body).toMatchObject({ error: 'VALIDATION_FAILED', details: [{ path: expect.any(String) }] });
  });

  test.runIf(IS_NIGHTLY)('of a branch with the name of a deleted one has none of its history', async () => {
    const { id } = await api.branch(project.id, 'again');
    await measured('again');
    expect((await get<Series>(metricsPath('again'))).series[0]?.values.length).toBeGreaterThan(0);
    await api.delete(`/api/v1/projects/${project.id}/branches/${id}`);
    const second = await api.branch(project.id, 'again');
    expect(second.id).not.toBe(id);
    const created = Date.parse(String(second.created_at));
    const { series } = await get<Series>(metricsPath('again'));
    for (const { timestamp } of series.flatMap(({ values }) => values)) {
      expect(Date.parse(timestamp)).toBeGreaterThanOrEqual(created);
    }
    expect((await api.get(metricsPath(id))).status).toBe(404);
  });

  test.runIf(IS_NIGHTLY)('survives a restart of the gateway', async () => {
    await measured('main');
    // The current minute has another last value afterwards.
    const minutes = ({ series }: Series) =>
      (series[0]?.values ?? []).map(({ timestamp }) => timestamp.slice(0, 'YYYY-MM-DDThh:mm'.length));
    const before = minutes(await get<Series>(metricsPath('main', '?metric=total_connections')));
    expect(before.length).toBeGreaterThan(0);
    await stack.kill('gateway');
    await stack.start('gateway');
    await stack.untilReady();
    await measured('main');
    const after = minutes(await get<Series>(metricsPath('main', '?metric=total_connections')));
    expect(after.slice(0, before.length)).toEqual(before);
  });
});

test('usage is that of the counted branches, and changes immediately after a deletion', async () => {
  const { id } = await api.branch(project.id, 'counted');
  const usage = await eventually(async () => {
    const found = await usageOf();
    const sizes = found.branches.map(({ database_size_bytes }) => database_size_bytes);
    expect(Math.min(...sizes)).toBeGreaterThan(0);
    expect(found.storage_used_bytes).toBe(sizes.reduce((sum, size) => sum + size, 0));
    return found;
  });
  expect(usage.branches.map(({ branch_name }) => branch_name)).toContain('counted');
  const main = usage.branches.find(({ branch_name }) => branch_name === 'main');
  const counted = usage.branches.find(({ branch_name }) => branch_name === 'counted');
  expect(main?.next_branch_bytes).toBe(main?.database_size_bytes);
  expect(Math.abs((main?.next_branch_bytes ?? 0) - (counted?.database_size_bytes ?? 0))).toBeLessThan(
    2 ** 20,
  );
  expect(usage.storage_state).toBe('normal');
  await api.delete(`/api/v1/projects/${project.id}/branches/${id}`);
  const { storage_used_bytes } = await usageOf();
  expect(storage_used_bytes).toBeLessThan(usage.storage_used_bytes);
  await eventually(async () => {
    const { body } = await api.get<{ storage_used_bytes: number }>(`/api/v1/projects/${project.id}`);
    expect(Math.abs(body.storage_used_bytes - storage_used_bytes)).toBeLessThan(2 * 1024 * 1024);
  });
});

describe('the stream', () => {
  const open = async (path: string, headers: Record<string, string> = {}) => {
    const abort = new AbortController();
    const response = await fetch(`${stack.url}${path}`, {
      headers: { authorization: `Bearer ${await stack.token()}`, ...headers },
      signal: abort.signal,
    });
    return { response, abort };
  };
  const listen = async (path: string, headers?: Record<string, string>) => {
    const { response, abort } = await open(path, headers);
    expect(response.headers.get('content-type')).toBe('text/event-stream');
    return listenTo<{ observed_at: string; branches: { branch_id: string }[] }>(response, abort);
  };

  test.each(firstByDay(1, ['project', 'branch']))(
    'of a %s sends each measurement as it arrives',
    async (of) => {
      const path =
        of === 'project' ? `/api/v1/projects/${project.id}/metrics/stream` : metricsPath('main', '/stream');
      const { events } = await listen(path);
      await eventually(async () => expect(events.length).toBeGreaterThanOrEqual(3));
      const ids = events.map(({ id }) => id);
      expect(ids).toEqual([...new Set(ids)].sort());
      for (const { data } of events) {
        const sent = data.branches.map(({ branch_id }) => branch_id);
        if (of === 'branch') expect(sent).toEqual([project.main_branch.id]);
        else expect(sent).toContain(project.main_branch.id);
      }
      const again = await listen(path, { 'Last-Event-ID': ids[0] ?? '' });
      await eventually(async () => expect(again.events.length).toBeGreaterThan(0));
      expect(again.events.map(({ id }) => id)).not.toContain(ids[0]);
    },
  );

  test.runIf(IS_NIGHTLY)('of a disconnected client frees its slot', async () => {
    const { id } = await api.project('Streamed');
    const openAll = () =>
      Promise.all(Array.from({ length: STREAMS_MAX }, () => open(`/api/v1/projects/${id}/metrics/stream`)));
    const gone = await openAll();
    for (const { abort } of gone) abort.abort();
    const next = await openAll();
    onTestFinished(() => {
      for (const { abort } of next) abort.abort();
    });
    expect([...gone, ...next].map(({ response }) => response.status)).toEqual(
      Array(2 * STREAMS_MAX).fill(200),
    );
  });
});

describe('the storage quota', () => {
  let project: ProjectBody;
  let credentials: Credentials;
  let empty: number;
  const clients: pg.Client[] = [];

  afterAll(async () => {
    await Promise.all(clients.map((client) => client.end().catch(() => {})));
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

  const projectPath = () => `/api/v1/projects/${project.id}`;
  const usage = async () => (await api.get<Usage>(`${projectPath()}/usage`)).body;

  const inState = (state: string) =>
    eventually(async () => expect((await usage()).storage_state).toBe(state));

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
      const quota = empty + 8 * 1024 * 1024;
      await setQuota(quota, project);
      const sessions = [await open(credentials.database_url), await open(credentials.direct_url)] as const;
      const [readWrite, owner] = sessions;
      expect(await writes(readWrite)).toBe('written');

      await fillText(credentials.database_url, 6);
      await inState('warning');
      await eventually(async () => expect(subjects()).toEqual(['STORAGE_WARNING']));
      expect(await writes(readWrite)).toBe('written');

      await fillText(credentials.database_url, 4);
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
        storage_quota_gib: quota / GIB,
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

    test.runIf(IS_NIGHTLY)(
      'is evaluated immediately when its quota changes, and reported once per episode',
      async () => {
        expect(await setQuota(empty / 0.9, project)).toBe('warning');
        expect(await setQuota(empty / 1.1, project)).toBe('write_blocked');
        const client = await open(credentials.database_url);
        expect(await writes(client)).toMatch(/^(42501|25006)$/);
        expect(await setQuota(empty * 2, project)).toBe('normal');
        expect(await writes(client)).toBe('written');
        expect(await setQuota(empty / 0.9, project)).toBe('warning');
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
      },
    );

    test('ends its clients over HTTP and WebSocket too, and refuses what they write before', async () => {
      openDoor({ port: stack.state.sql_port, ca: stack.state.ca_certificate });
      const insert = "insert into filled values ('x')";
      const codeOf = (work: Promise<unknown>) =>
        work.then(
          () => 'written',
          ({ code }: { code?: string }) => code,
        );
      const overHttp = async () => {
        const response = await fetch(`${stack.url}/sql`, {
          method: 'POST',
          headers: { 'Neon-Connection-String': credentials.database_url },
          body: JSON.stringify({ query: insert, params: [] }),
        });
        const { code = 'written' } = (await response.json()) as { code?: string };
        return code;
      };
      // A project is closed 32 MiB above a small quota.
      await fillText(credentials.direct_url, 40);
      const used = await eventually(async () => {
        const { storage_used_bytes } = await usage();
        expect(storage_used_bytes).toBeGreaterThan(40 * 2 ** 20);
        return storage_used_bytes;
      });
      const pooled = await socketClient(credentials.database_url);
      expect([await overHttp(), await codeOf(pooled.query(insert))]).toEqual(['written', 'written']);
      expect(await setQuota(used / 1.1, project)).toBe('write_blocked');
      for (const code of [await overHttp(), await codeOf(pooled.query(insert))])
        expect(code).toMatch(/^(42501|25006)$/);

      const sleeping = await Promise.all(
        [credentials.database_url, credentials.direct_url].map(async (url) => {
          const client = await socketClient(url);
          const ended = client.query('select pg_sleep(300)').then(
            () => 'done',
            () => 'ended',
          );
          return { ended };
        }),
      );
      expect(await setQuota(2 * 2 ** 20, project)).toBe('closed');
      for (const { ended } of sleeping) expect(await ended).toBe('ended');
      for (const url of [credentials.database_url, credentials.direct_url])
        expect(await codeOf(socketQuery(url, insert))).toBe('28P01');
      expect(await overHttp()).toBe('28P01');

      expect(await setQuota(used * 4, project)).toBe('normal');
      expect(await overHttp()).toBe('written');
      expect(await codeOf(socketQuery(credentials.database_url, insert))).toBe('written');
    });

    test.runIf(IS_NIGHTLY)('sends its mails when the mail service is available again', async () => {
      await stack.kill('idp');
      await setQuota(empty / 0.9, project);
      expect(subjects()).toEqual([]);
      await stack.start('idp');
      await eventually(async () => expect(subjects()).toEqual(['STORAGE_WARNING']));
    });
  });

  describe('a clone', () => {
    const clone = (branch_name: string) => api.post(`${projectPath()}/branches`, { branch_name });

    test('that does not fit is refused and leaves no record', async () => {
      const limit = Math.ceil(empty * 1.5);
      await setQuota(limit, project);
      const before = (await api.get<{ branches: unknown[] }>(`${projectPath()}/branches`)).body;
      const { status, body: refusal } = await clone('too-large');
      expect(status).toBe(409);
      expect(refusal).toMatchObject({ error: 'STORAGE_QUOTA_EXCEEDED', limit_bytes: limit });
      expect(refusal.used_bytes).toBe(refusal.needed_bytes);
      expect(Math.abs(Number(refusal.used_bytes) - empty)).toBeLessThan(1024 * 1024);
      expect((await api.get(`${projectPath()}/branches`)).body).toEqual(before);
      expect((await api.get<{ jobs: unknown[] }>(`${projectPath()}/jobs`)).body.jobs).toHaveLength(1);
      await setQuota(empty * 3, project);
      expect((await clone('fits')).status).toBe(201);
    });

    test.runIf(IS_NIGHTLY)('of concurrent requests succeeds as often as the quota permits', async () => {
      await setQuota(empty * 3.5, project);
      const responses = await Promise.all(['a', 'b', 'c', 'd', 'e'].map((name) => clone(`crowd-${name}`)));
      expect(responses.map(({ status }) => status).sort()).toEqual([201, 201, 409, 409, 409]);
    });
  });
});
