import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api, type BranchBody, type Credentials } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { STATE, TRANSFER } from '../support/host/follower.ts';
import { firstByDay } from '../support/nightly.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';

let stack: Stack;
let api: Api;
let platform: Api;
let hosts: { id: string; name: string }[];

beforeAll(async () => {
  stack = await startStack({ env: { HOSTS: '2', ...UNLIMITED } });
  api = new Api(stack.url, await stack.token());
  platform = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET ?? '');
  await eventually(async () => {
    const { body } = await platform.get<{ hosts: { id: string; name: string; linked: boolean }[] }>(
      '/platform/v1/hosts',
    );
    expect(body.hosts).toMatchObject([{ linked: true }, { linked: true }]);
    hosts = body.hosts;
  });
});
afterAll(() => stack?.stop());

const BANK = `
  create table account (id int primary key, balance int not null);
  create table transfer (id bigint generated always as identity primary key, amount int not null);
  create table counter (id int primary key, n int not null);
  insert into account select n, 1000 from generate_series(1, 50) n;
  insert into counter values (1, 0)`;

async function run<Row extends pg.QueryResultRow>(url: string, sql: string): Promise<Row[]> {
  const client = new pg.Client({
    connectionString: withoutVerification(url),
    connectionTimeoutMillis: 20_000,
  });
  client.on('error', () => {});
  await client.connect();
  try {
    return (await client.query<Row>(sql)).rows;
  } finally {
    await client.end().catch(() => {});
  }
}
const withoutVerification = (url: string) => url.replace(/sslmode=[a-z-]+/, 'sslmode=no-verify');

interface MoveBody {
  state: string;
  from_host_id: string;
  to_host_id: string;
  urls_change: boolean;
  branches: { name: string; size_bytes: number; state: string }[];
  job: {
    id: string;
    status: string;
    error: unknown;
    steps: { name: string; started_at: string; finished_at: string }[];
  };
}

const pathOf = (projectId: string) => `/platform/v1/projects/${projectId}/move`;
const otherThan = (hostId: string) => hosts.find(({ id }) => id !== hostId)?.id ?? '';
async function hostOf(projectId: string): Promise<string> {
  const [first, second] = hosts;
  const { status } = await platform.get(`${pathOf(projectId)}?host_id=${first?.id}`);
  return (status === 422 ? first?.id : second?.id) ?? '';
}
const moveOf = async (projectId: string) => (await platform.get<MoveBody>(pathOf(projectId))).body;
const hasEnded = (projectId: string, status: string) =>
  eventually(async () => {
    const { job } = await moveOf(projectId);
    expect(job, JSON.stringify(job)).toMatchObject({ status });
  });

/** A client that writes without a pause, and reconnects to the URL that is current. */
class Writer {
  committed = 0;
  unknown = 0;
  longestGap = 0;
  #isOver = false;
  readonly #done: Promise<void>;

  constructor(url: () => Promise<string>) {
    this.#done = this.#run(url);
  }

  async #run(url: () => Promise<string>) {
    let last = performance.now();
    while (!this.#isOver) {
      let client: pg.Client | undefined;
      try {
        client = new pg.Client({
          connectionString: withoutVerification(await url()),
          connectionTimeoutMillis: 5_000,
        });
        client.on('error', () => {});
        await client.connect();
        while (!this.#isOver) {
          this.unknown += 1;
          await client.query(TRANSFER);
          this.unknown -= 1;
          this.committed += 1;
          this.longestGap = Math.max(this.longestGap, performance.now() - last);
          last = performance.now();
        }
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 20));
      } finally {
        await client?.end().catch(() => {});
      }
    }
  }

  async stop() {
    this.#isOver = true;
    await this.#done;
    return this;
  }
}

test('a project moves with its branches under load: no commit is lost, and passwords, rules and leases stay', async () => {
  const project = await api.project('Moving shop', { app_key: 'moving' });
  await api.allow(project.id);
  const before: Record<string, Credentials> = { main: await api.credentials(project.id, 'main') };
  await run(before.main?.direct_url ?? '', BANK);
  for (const name of ['pr-1', 'pr-2']) {
    await api.branch(project.id, name, { lease_seconds: 3600, labels: { pr: name } });
    before[name] = await api.credentials(project.id, name);
    await run(before[name]?.database_url ?? '', `update counter set n = ${name === 'pr-1' ? 11 : 22}`);
  }
  const listed = async () =>
    (await api.get<{ branches: BranchBody[] }>(`/api/v1/projects/${project.id}/branches`)).body.branches.map(
      ({ id, branch_name, status, labels, lease_ends_at, expires_at }) => ({
        ...{ id, branch_name, status, labels, lease_ends_at, expires_at },
      }),
    );
  const rules = async () => (await api.get(`/api/v1/projects/${project.id}/network-rules`)).body;
  const [branches, networks] = [await listed(), await rules()];
  const from = await hostOf(project.id);
  const to = otherThan(from);
  const planned = await platform.get<MoveBody>(`${pathOf(project.id)}?host_id=${to}`);
  expect(planned.body).toMatchObject({ state: 'planned', urls_change: true });
  expect(planned.body.branches.map(({ name }) => name)).toEqual(['main', 'pr-1', 'pr-2']);
  expect(planned.body.branches.every(({ size_bytes }) => size_bytes > 1_000_000)).toBe(true);

  const writer = new Writer(async () => (await api.credentials(project.id, 'main')).direct_url);
  const started = await platform.post<MoveBody>(pathOf(project.id), { host_id: to });
  expect(started, JSON.stringify(started.body)).toMatchObject({ status: 202, body: { state: 'building' } });
  expect(await api.post(`/api/v1/projects/${project.id}/branches`, { branch_name: 'late' })).toMatchObject({
    status: 409,
    body: { error: 'PROJECT_MOVING' },
  });
  await hasEnded(project.id, 'succeeded');
  await eventually(async () => {
    const { committed } = writer;
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect(writer.committed).toBeGreaterThan(committed);
  });
  const { committed, unknown, longestGap } = await writer.stop();
  const { job } = await moveOf(project.id);
  const times = job.steps.map(
    ({ name, started_at, finished_at }) => `${name} ${Date.parse(finished_at) - Date.parse(started_at)}`,
  );
  process.stderr.write(
    `MEASURED gap ${Math.round(longestGap)} ms, committed ${committed}; ${times.join(', ')}\n`,
  );

  expect(await hostOf(project.id)).toBe(to);
  for (const [name, { database_url, direct_url }] of Object.entries(before)) {
    const now = await api.credentials(project.id, name);
    for (const [one, other] of [
      [database_url, now.database_url],
      [direct_url, now.direct_url],
    ] as const) {
      const [former, present] = [new URL(one), new URL(other)];
      expect(present.password).toBe(former.password);
      expect(present.username).toBe(former.username);
      expect(present.port).not.toBe(former.port);
      await expect(run(one, 'select 1')).rejects.toThrow();
      await run(other, 'select 1');
    }
  }
  const main = await api.credentials(project.id, 'main');
  const [state] = await run<{ sum: number; transfers: number; counted: number }>(main.database_url, STATE);
  expect(state).toMatchObject({ sum: 50_000, transfers: state?.counted });
  expect(state?.counted).toBeGreaterThanOrEqual(committed);
  expect(state?.counted).toBeLessThanOrEqual(committed + unknown);
  for (const [name, n] of [
    ['pr-1', 11],
    ['pr-2', 22],
  ] as const) {
    const { database_url } = await api.credentials(project.id, name);
    expect(await run(database_url, 'update counter set n = n returning n')).toEqual([{ n }]);
  }
  expect(await listed()).toEqual(branches);
  expect(await rules()).toEqual(networks);
  await api.branch(project.id, 'after');
});

test('a move that is cancelled leaves the project as it was', async () => {
  const project = await api.project('Staying shop', { app_key: 'staying' });
  await api.allow(project.id);
  const { direct_url } = await api.credentials(project.id, 'main');
  await run(direct_url, BANK);
  await api.branch(project.id, 'pr-1');
  const from = await hostOf(project.id);
  const to = otherThan(from);
  expect((await platform.post(pathOf(project.id), { host_id: to })).status).toBe(202);
  const cancelled = await platform.delete(pathOf(project.id));
  expect(cancelled.status, JSON.stringify(cancelled.body)).toBe(202);
  await hasEnded(project.id, 'failed');
  expect(await moveOf(project.id)).toMatchObject({ state: 'undone' });
  expect(await hostOf(project.id)).toBe(from);
  const branch = await api.credentials(project.id, 'pr-1');
  for (const url of [direct_url, branch.database_url, branch.direct_url]) await run(url, TRANSFER);
  // It can move afterwards.
  expect((await platform.post(pathOf(project.id), { host_id: to })).status).toBe(202);
  await hasEnded(project.id, 'succeeded');
  // And back, although the former host still has the closed databases.
  expect((await platform.post(pathOf(project.id), { host_id: from })).status).toBe(202);
  await hasEnded(project.id, 'succeeded');
  const now = await api.credentials(project.id, 'pr-1');
  expect(await run(now.database_url, 'select n from counter')).toEqual([{ n: 2 }]);
});

test('a project that is deleted while it moves leaves nothing on either host', async () => {
  const project = await api.project('Doomed shop', { app_key: 'doomed' });
  await api.allow(project.id);
  await run((await api.credentials(project.id, 'main')).direct_url, BANK);
  const to = otherThan(await hostOf(project.id));
  expect((await platform.post(pathOf(project.id), { host_id: to })).status).toBe(202);
  expect((await api.delete(`/api/v1/projects/${project.id}`)).status).toBe(202);
  await eventually(async () => expect((await api.get(`/api/v1/projects/${project.id}`)).status).toBe(404));
});

test('a host is drained, one project at a time', async () => {
  const projects = [];
  for (const name of ['one', 'two', 'three']) {
    const project = await api.project(name, { app_key: `drain_${name}` });
    await api.allow(project.id);
    await run((await api.credentials(project.id, 'main')).direct_url, BANK);
    projects.push(project);
  }
  const drained = await hostOf(projects[0]?.id ?? '');
  const begun = await platform.post(`/platform/v1/hosts/${drained}/drain`, {});
  expect(begun, JSON.stringify(begun.body)).toMatchObject({ status: 202 });
  await eventually(async () => {
    const { body } = await platform.get(`/platform/v1/hosts/${drained}/drain`);
    expect(body, JSON.stringify(body)).toMatchObject({ remaining: 0, moving: null, failed: [] });
  });
  for (const { id } of projects) {
    expect(await hostOf(id)).not.toBe(drained);
    await run((await api.credentials(id, 'main')).direct_url, TRANSFER);
  }
  expect((await platform.patch(`/platform/v1/hosts/${drained}`, { draining: false })).status).toBe(200);
});

/** The parts are those of the first host, so a direction decides which side of the move is killed. */
const VICTIMS = ['agent', 'postgres', 'gateway', 'pgbouncer'] as const;
const STEPS = [
  'admit',
  'clear',
  'build',
  'copy',
  'branches',
  'compare',
  'fence',
  'switch',
  'open',
  'release',
];
const DANGEROUS = [
  ['gateway', 'away from', 'fence'],
  ['agent', 'away from', 'open'],
] as const;
const isDangerous = (one: readonly unknown[]) => DANGEROUS.some((other) => String(other) === String(one));
const KILLS = VICTIMS.flatMap((victim) =>
  (['away from', 'to'] as const).flatMap((direction) =>
    STEPS.map((step) => [victim, direction, step] as const),
  ),
);

test.each(firstByDay(DANGEROUS.length, [...DANGEROUS, ...KILLS.filter((one) => !isDangerous(one))]))(
  'a kill of the %s of a move %s it at the step %s loses no commit',
  async (victim, direction, step) => {
    const [first, second] = hosts;
    const to = (direction === 'to' ? first : second)?.id ?? '';
    const project = await api.project(`Killed ${victim} ${direction} ${step}`);
    await api.allow(project.id);
    await run((await api.credentials(project.id, 'main')).direct_url, BANK);
    await api.branch(project.id, 'pr-1');
    if ((await hostOf(project.id)) === to) {
      await platform.post(pathOf(project.id), { host_id: otherThan(to) });
      await hasEnded(project.id, 'succeeded');
    }
    const writer = new Writer(async () => (await api.credentials(project.id, 'main')).direct_url);
    expect((await platform.post(pathOf(project.id), { host_id: to })).status).toBe(202);
    await eventually(async () => {
      const { job } = await moveOf(project.id);
      // Short steps may be over before they are seen.
      expect(job.steps.some(({ name }) => STEPS.indexOf(name) >= STEPS.indexOf(step))).toBe(true);
    });
    await stack.kill(victim);
    await stack.untilReady();
    await hasEnded(project.id, 'succeeded');
    const { committed, unknown } = await writer.stop();
    expect(await hostOf(project.id)).toBe(to);
    const { database_url } = await api.credentials(project.id, 'main');
    const [state] = await run<{ sum: number; transfers: number; counted: number }>(database_url, STATE);
    expect(state).toMatchObject({ sum: 50_000, transfers: state?.counted });
    expect(state?.counted).toBeGreaterThanOrEqual(committed);
    expect(state?.counted).toBeLessThanOrEqual(committed + unknown);
    await api.delete(`/api/v1/projects/${project.id}`);
  },
);
