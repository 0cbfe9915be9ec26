import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Api, BranchBody, Credentials } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { STATE, TRANSFER } from '../support/host/follower.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import type { Stack } from '../support/stack/stack.ts';
import { BANK, type MoveBody, pathOf, runAt as run, TwoHosts } from '../support/stack/two-hosts.ts';
import { openDoor, socketClient, socketQuery } from '../support/web-socket.ts';

let two: TwoHosts;
let stack: Stack;
let api: Api;
let platform: Api;

beforeAll(async () => {
  two = await TwoHosts.start();
  ({ stack, api, platform } = two);
});
afterAll(() => stack?.stop());

const otherThan = (hostId: string) => two.otherThan(hostId);
const hostOf = (projectId: string) => two.hostOf(projectId);
const moveOf = (projectId: string) => two.moveOf(projectId);
const hasEnded = (projectId: string, status: string) => two.hasEnded(projectId, status);

/** Sends a statement every 20 ms, and counts the codes of the answers. */
class HttpPoll {
  readonly #url: string;
  readonly #connection: string;
  readonly #codes: Record<string, number> = {};
  readonly #ended: Promise<void>;
  #isOver = false;

  constructor(url: string, connection: string) {
    this.#url = url;
    this.#connection = connection;
    this.#ended = this.#run();
  }

  async #run(): Promise<void> {
    while (!this.#isOver) {
      const code = await this.once();
      this.#codes[code] = (this.#codes[code] ?? 0) + 1;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async once(): Promise<string> {
    const response = await fetch(this.#url, {
      method: 'POST',
      headers: { 'Neon-Connection-String': this.#connection },
      body: JSON.stringify({ query: 'select 1', params: [] }),
    });
    const { code } = (await response.json()) as { code?: string };
    return response.status === 200 ? 'done' : String(code);
  }

  async stop(): Promise<Record<string, number>> {
    this.#isOver = true;
    await this.#ended;
    return this.#codes;
  }
}

async function expectNothingLost(url: string, committed: number, unknown: number) {
  const [state] = await run<{ sum: number; transfers: number; counted: number }>(url, STATE);
  expect(state).toMatchObject({ sum: 50_000, transfers: state?.counted });
  expect(state?.counted).toBeGreaterThanOrEqual(committed);
  expect(state?.counted).toBeLessThanOrEqual(committed + unknown);
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
        id,
        branch_name,
        status,
        labels,
        lease_ends_at,
        expires_at,
      }),
    );
  const rules = async () => (await api.get(`/api/v1/projects/${project.id}/network-rules`)).body;
  const branches = await listed();
  const networks = await rules();
  const from = await hostOf(project.id);
  const to = otherThan(from);
  const planned = await platform.get<MoveBody>(`${pathOf(project.id)}?host_id=${to}`);
  expect(planned.body).toMatchObject({ state: 'planned', urls_change: true });
  expect(planned.body.branches.map(({ name }) => name)).toEqual(['main', 'pr-1', 'pr-2']);
  expect(planned.body.branches.every(({ size_bytes }) => size_bytes > 1_000_000)).toBe(true);

  // A change that stays open, and is applied there.
  const changes = `/api/v1/projects/${project.id}/changes`;
  const { body: change } = await api.post<{ id: string }>(changes, {
    sql: 'alter table account add note text',
  });
  const stateOf = async () => (await api.get<{ state: string }>(`${changes}/${change.id}`)).body.state;
  expect((await api.post(`${changes}/${change.id}/rehearse`, {})).status).toBe(202);
  await eventually(async () => expect(await stateOf()).toBe('rehearsed'));

  const old = before['pr-1'] as Credentials;
  const doorOf = ({ direct_url, ca_certificate = '' }: Credentials) => {
    const [other] = stack.state.other_hosts;
    const isFirst = new URL(direct_url).port === String(stack.state.direct_port);
    return { port: (isFirst ? stack.state.sql_port : other?.sql_port) ?? 0, ca: ca_certificate };
  };
  openDoor(doorOf(old));
  const sockets = await Promise.all(
    [old.database_url, old.direct_url].map(async (url) => {
      const client = await socketClient(url);
      const ended = client.query('select pg_sleep(600)').then(
        () => 'done',
        () => 'ended',
      );
      return { ended };
    }),
  );
  const poll = new HttpPoll(`${stack.url}/sql`, old.database_url);

  const writer = two.writer(project.id, IS_NIGHTLY ? 10 : 30);
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
      const former = new URL(one);
      const present = new URL(other);
      expect(present.password).toBe(former.password);
      expect(present.username).toBe(former.username);
      expect(present.port).not.toBe(former.port);
      await expect(run(one, 'select 1')).rejects.toThrow();
      await run(other, 'select 1');
    }
  }
  for (const { ended } of sockets) expect(await ended).toBe('ended');
  expect(await socketQuery(old.direct_url, 'select 1').catch(({ code }) => code)).toBe('28P01');
  const present = await api.credentials(project.id, 'pr-1');
  openDoor(doorOf(present));
  for (const url of [present.database_url, present.direct_url])
    expect(await socketQuery(url, 'select 1 as one')).toEqual([{ one: 1 }]);
  // Over HTTP the former URL leads to the present host, and clients that come in between are to try again.
  const codes = await poll.stop();
  console.info('codes of SQL over HTTP during the move', codes);
  expect(Object.keys(codes)).toEqual(expect.arrayContaining(['done', '57P03']));
  expect(Object.keys(codes)).not.toContain('28000');
  expect(await poll.once()).toBe('done');
  const main = await api.credentials(project.id, 'main');
  await expectNothingLost(main.database_url, committed, unknown);
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
  const applied = await api.post(`${changes}/${change.id}/apply`, { confirm: 'main' });
  expect(applied, JSON.stringify(applied.body)).toMatchObject({ status: 202 });
  await eventually(async () => expect(await stateOf()).toBe('applied'));
});

test.runIf(IS_NIGHTLY)('a move that is cancelled leaves the project as it was', async () => {
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

test.runIf(IS_NIGHTLY)('a project that is deleted while it moves leaves nothing on either host', async () => {
  const project = await api.project('Doomed shop', { app_key: 'doomed' });
  await api.allow(project.id);
  await run((await api.credentials(project.id, 'main')).direct_url, BANK);
  const to = otherThan(await hostOf(project.id));
  expect((await platform.post(pathOf(project.id), { host_id: to })).status).toBe(202);
  expect((await api.delete(`/api/v1/projects/${project.id}`)).status).toBe(202);
  await eventually(async () => expect((await api.get(`/api/v1/projects/${project.id}`)).status).toBe(404));
});

test.runIf(IS_NIGHTLY)('a host is drained, one project at a time', async () => {
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

const BRANCHES = 20;
const CLIENTS = 10;
const PER_SECOND = 300;
test.runIf(IS_NIGHTLY)(
  'a project with 20 branches moves under 300 transactions a second, and none is lost',
  async () => {
    const names = Array.from({ length: BRANCHES }, (_, n) => `pr-${n}`);
    const project = await two.project('Large shop', { app_key: 'large' });
    const limited = await platform.patch(`/platform/v1/projects/${project.id}`, {
      branch_limit: BRANCHES + 1,
    });
    expect(limited.status, JSON.stringify(limited.body)).toBe(200);
    for (const name of names) await api.branch(project.id, name);
    for (const [n, name] of names.entries())
      await run((await api.credentials(project.id, name)).database_url, `update counter set n = ${n}`);
    const writers = Array.from({ length: CLIENTS }, () =>
      two.writer(project.id, (1000 * CLIENTS) / PER_SECOND),
    );
    const began = performance.now();
    await two.begin(project.id, otherThan(await hostOf(project.id)));
    await hasEnded(project.id, 'succeeded');
    const seconds = (performance.now() - began) / 1000;
    const stopped = await Promise.all(writers.map((writer) => writer.stop()));
    const sum = (of: (writer: (typeof stopped)[number]) => number) =>
      stopped.reduce((all, writer) => all + of(writer), 0);
    const committed = sum((writer) => writer.committed);
    process.stderr.write(
      `MEASURED 20 branches: ${Math.round(seconds)} s, ${Math.round(committed / seconds)} commits a second, gap ${Math.round(
        Math.max(...stopped.map(({ longestGap }) => longestGap)),
      )} ms\n`,
    );
    await expectNothingLost(
      (await api.credentials(project.id, 'main')).database_url,
      committed,
      sum(({ unknown }) => unknown),
    );
    for (const [n, name] of names.entries()) {
      const { database_url } = await api.credentials(project.id, name);
      expect(await run(database_url, 'update counter set n = n returning n')).toEqual([{ n }]);
    }
    await api.delete(`/api/v1/projects/${project.id}`);
  },
  900_000,
);

const DRAINED = 50;
const DRAIN_KILLS = 20;
const DRAIN_WITHIN_SECONDS = 1_500;
/** The parts are those of the first host, so a direction decides which side of the move is killed. */
const VICTIMS = ['agent', 'postgres', 'gateway', 'pgbouncer'] as const;
const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

test.runIf(IS_NIGHTLY)(
  `a drain of ${DRAINED} projects continues through ${DRAIN_KILLS} kills, and no project loses a commit`,
  async () => {
    const [drained, other] = two.hosts;
    const setDraining = (id: string | undefined, draining: boolean) =>
      platform.patch(`/platform/v1/hosts/${id}`, { draining });
    // All are made on the first one.
    await setDraining(other?.id, true);
    const projects = [];
    for (let n = 0; n < DRAINED; n += 1)
      projects.push(
        await two.project(`Drained ${n}`, { app_key: `drained_${n}` }, n % 10 === 0 ? ['pr-1'] : []),
      );
    await setDraining(other?.id, false);
    for (const { id } of projects) expect(await hostOf(id)).toBe(drained?.id);
    const writers = projects.slice(0, 2).map(({ id }) => ({ id, writer: two.writer(id, 20) }));
    const path = `/platform/v1/hosts/${drained?.id}/drain`;
    const left = async () =>
      (
        await platform.get<{
          remaining: number;
          moving: unknown;
          failed: { project_id: string; code: string }[];
        }>(path)
      ).body;
    /** A crash of PostgreSQL can undo a move, which the operator tries again. */
    const repeatFailed = async () => {
      const body = await left();
      if (body.failed.length > 0 || body.moving === null) await platform.post(path, {});
      return body;
    };
    expect((await platform.post(path, {})).status).toBe(202);
    const began = performance.now();
    let kills = 0;
    for (; kills < DRAIN_KILLS; kills += 1) {
      await pause(1_500 + 700 * (kills % 7));
      if ((await left()).remaining === 0) break;
      await stack.kill(VICTIMS[kills % VICTIMS.length] ?? 'agent');
      await stack.untilReady();
      await repeatFailed();
    }
    await eventually(async () => {
      const body = await repeatFailed();
      expect(body, JSON.stringify(body)).toMatchObject({ remaining: 0, moving: null });
    }, DRAIN_WITHIN_SECONDS);
    process.stderr.write(
      `MEASURED drain: ${DRAINED} projects in ${Math.round((performance.now() - began) / 1000)} s through ${kills} kills\n`,
    );
    expect(kills).toBe(DRAIN_KILLS);
    for (const { id, writer } of writers) {
      const { committed, unknown } = await writer.stop();
      await expectNothingLost((await api.credentials(id, 'main')).database_url, committed, unknown);
    }
    for (const [n, { id }] of projects.entries()) {
      expect(await hostOf(id)).toBe(other?.id);
      await run((await api.credentials(id, n % 10 === 0 ? 'pr-1' : 'main')).database_url, TRANSFER);
      await api.delete(`/api/v1/projects/${id}`);
    }
    await setDraining(drained?.id, false);
  },
  2 * DRAIN_WITHIN_SECONDS * 1000,
);

/** When a kill comes: at the beginning of a step, or some milliseconds later. */
const MOMENTS = [
  ...(['admit', 'clear', 'build', 'copy', 'branches', 'compare'] as const).map((step) => [step, 0] as const),
  ['fence', 0],
  ['fence', 250],
  ['open', 0],
  // By then it is released.
  ['open', 400],
] as const;
type Moment = (typeof MOMENTS)[number];
const STEPS: string[] = [...new Set(MOMENTS.map(([step]) => step))];

const DIRECTIONS = ['away from', 'to'] as const;
type Kills = [
  victim: (typeof VICTIMS)[number],
  direction: (typeof DIRECTIONS)[number],
  moments: readonly Moment[],
];
/** A move is killed again and again: to begin one for each kill takes longer than the kills. */
const KILLS = VICTIMS.flatMap((victim) => DIRECTIONS.map((direction): Kills => [victim, direction, MOMENTS]));

/** The project that is moved to and fro. */
let shuttle: string | null = null;

async function shuttleOn(hostId: string): Promise<string> {
  shuttle ??= (await two.project('Shuttle', {}, ['pr-1'])).id;
  if ((await hostOf(shuttle)) !== hostId) {
    await two.begin(shuttle, hostId);
    await hasEnded(shuttle, 'succeeded');
  }
  return shuttle;
}

/**
 * Waits until the move is at the step, or beyond it: short ones may be over before they are seen. The phase is in the
 * records immediately, and the steps once a second.
 * @returns false if the move has ended before, or is being undone
 */
async function isAtStep(projectId: string, step: string): Promise<boolean> {
  for (;;) {
    const { state, job } = await moveOf(projectId);
    if (state === 'undone' || (job.status !== 'queued' && job.status !== 'running')) return false;
    if (state === 'moved' || (state === 'fenced' && step !== 'open')) return true;
    const last = job.steps.findLast(({ status }) => status !== 'pending');
    if (last && STEPS.indexOf(last.name) >= STEPS.indexOf(step)) return true;
    await pause(5);
  }
}

/** Kills a move at these moments, as far as it lives. @returns those that it has not come to */
async function moveWithKills(
  [victim, direction]: Kills,
  moments: readonly Moment[],
  projectId: string,
  to: string,
): Promise<Moment[]> {
  const left = [...moments];
  const { direct_url } = await api.credentials(projectId, 'main');
  const [before] = await run<{ counted: number }>(direct_url, STATE);
  const writer = two.writer(projectId);
  try {
    await two.begin(projectId, to);
    for (let moment = left[0]; moment && (await isAtStep(projectId, moment[0])); moment = left[0]) {
      left.shift();
      await pause(moment[1]);
      await stack.kill(victim);
      await stack.untilReady();
    }
    const { state, job } = await two.end(projectId);
    process.stderr.write(`${victim} ${direction}: ${state} after ${moments.length - left.length} kills\n`);
    // Whether a branch that could only be read was written is not known after a crash of its PostgreSQL.
    if (victim === 'postgres' && direction === 'away from' && state === 'undone')
      expect(job.error).toMatchObject({ code: 'SOURCE_UNSUITABLE' });
    else expect(job, JSON.stringify(job)).toMatchObject({ status: 'succeeded' });
    expect((await hostOf(projectId)) === to).toBe(state === 'moved');
    await eventually(async () => {
      const { committed } = writer;
      await pause(300);
      expect(writer.committed).toBeGreaterThan(committed);
    });
  } finally {
    await writer.stop();
  }
  const { committed, unknown } = writer;
  const counted = (before?.counted ?? 0) + committed;
  await expectNothingLost((await api.credentials(projectId, 'main')).database_url, counted, unknown);
  const branch = await api.credentials(projectId, 'pr-1');
  for (const url of [branch.database_url, branch.direct_url]) await run(url, TRANSFER);
  return left;
}

test.runIf(IS_NIGHTLY).each(KILLS)(
  'kills of the %s of a move %s it lose no commit, at the steps %j',
  async (...kills) => {
    const [first, second] = two.hosts;
    const [from, to] = kills[1] === 'to' ? [second, first] : [first, second];
    for (let left: Moment[] = [...kills[2]]; left.length > 0; ) {
      const projectId = await shuttleOn(from?.id ?? '');
      try {
        left = await moveWithKills(kills, left, projectId, to?.id ?? '');
      } catch (error) {
        // The next one does not begin with what this one has left.
        shuttle = null;
        throw error;
      }
    }
  },
  1_200_000,
);
