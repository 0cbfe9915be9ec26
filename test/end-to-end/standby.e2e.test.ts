import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { connect as connectSocket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { measureFolder } from '../../agent/volumes/disk-bytes.ts';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api, type ProjectBody } from '../support/api.ts';
import { catalogLines, differentLines } from '../support/catalog-lines.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { memberOf, storeMember } from '../support/stack/partitions.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';
import { mountXfs, xfsHindrance } from '../support/stack/xfs.ts';

let home: string;
let stack: Stack;
let api: Api;
let operator: Api;
let project: ProjectBody;
/** Of another project, which asks for synchronous commits. */
let ledger: ProjectBody;

interface HostBody {
  id: string;
  name: string;
  linked: boolean;
  description: object | null;
  members: {
    host_id: string;
    role: string;
    lag_bytes: number | null;
    lag_seconds: number | null;
    sync: string | null;
  }[];
}

const hosts = async () => {
  const { body } = await operator.get<{ hosts: HostBody[] }>('/platform/v1/hosts');
  const of = (name: string) => body.hosts.find((host) => host.name === name) as HostBody;
  return { primary: of('local'), standby: of('local-standby') };
};

const roleOf = ({ members }: HostBody, { id }: HostBody) =>
  members.find(({ host_id }) => host_id === id)?.role;

/** Whether a TCP connection to the port is accepted. */
const isOpen = (port: number) =>
  new Promise<boolean>((resolve) => {
    const socket = connectSocket(port, '127.0.0.1', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });

/** Commits one row after another over fresh URLs, and remembers which were confirmed, and when. */
class Writer {
  readonly confirmed = new Map<number, number>();
  #stopped = false;
  #next: number;
  readonly #done: Promise<void>;

  constructor(url: () => Promise<string>, from: number) {
    this.#next = from;
    this.#done = this.#run(url);
  }

  async #run(url: () => Promise<string>) {
    while (!this.#stopped) {
      let client: Awaited<ReturnType<typeof connect>> | null = null;
      try {
        client = await connect(await url());
        while (!this.#stopped) {
          const id = this.#next;
          this.#next += 1;
          await client.query('insert into written values ($1)', [id]);
          this.confirmed.set(id, Date.now());
          // Leaves the processors to the others.
          await sleep(IS_NIGHTLY ? 10 : 30);
        }
      } catch {
        await sleep(50);
      } finally {
        client?.end().catch(() => {});
      }
    }
  }

  async stop() {
    this.#stopped = true;
    await Promise.race([this.#done, sleep(2_000)]);
  }
}

const urlOf = async (ref: string, kind: 'direct_url' | 'database_url' = 'direct_url') =>
  (await api.credentials(project.id, ref))[kind] as string;

const ledgerUrl = async (kind: 'direct_url' | 'database_url' = 'direct_url') =>
  (await api.credentials(ledger.id, 'main'))[kind] as string;

const durabilityOf = async () => (await api.get(`/api/v1/projects/${ledger.id}`)).body.durability_state;

const catalogOf = async (ref: string) => {
  const client = await connect(await urlOf(ref));
  try {
    return await catalogLines(client, { rights: true });
  } finally {
    await client.end();
  }
};

const present = async () => {
  const rows = await query<{ id: number }>(await urlOf('main'), 'select id from written');
  return new Set(rows.map(({ id }) => id));
};

beforeAll(async () => {
  // As with `npm start` by root, the servers inherit a home that they may not read.
  home = mkdtempSync(join(tmpdir(), 'branchgate-home-'));
  stack = await startStack({
    restarts: false,
    env: { HOME: home, STANDBY: '1', MEASURE_INTERVAL_SECONDS: '2', ...UNLIMITED },
  });
  api = new Api(stack.url, await stack.token());
  operator = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET);
  project = await api.project('shop');
  await api.allow(project.id);
  await query(await urlOf('main'), 'create table written (id int primary key)');
  const schema = readFileSync(join(import.meta.dirname, '../support/schemas/rest-service.sql'), 'utf8');
  await query(await urlOf('main'), schema);
  await api.branch(project.id, 'pr-1');
  ledger = await api.project('ledger');
  await api.allow(ledger.id);
  await query(await ledgerUrl(), 'create table written (id int primary key)');
});

afterAll(async () => {
  await stack.stop();
  rmSync(home, { recursive: true });
});

describe('a host with a standby', () => {
  test('its record has both members, and the standby is closed to clients', async () => {
    await eventually(async () => {
      const { primary, standby } = await hosts();
      expect(roleOf(primary, primary)).toBe('primary');
      expect(roleOf(standby, standby)).toBe('standby');
      const [, lag] = primary.members;
      expect(lag).toMatchObject({ host_id: standby.id, lag_bytes: 0 });
      expect(lag?.lag_seconds).toBeLessThan(10);
      expect(standby.members).toHaveLength(2);
      expect(standby.description).not.toBeNull();
    });
    const problems = async (tool: Stack['agentTool']) => {
      const { stdout } = await tool('doctor').catch((error: { stdout: string }) => error);
      return stdout.split('\n').filter((line) => line.startsWith('problem: '));
    };
    expect(await problems(stack.standby.agentTool)).toEqual(await problems(stack.agentTool));
    const { port } = new URL(await urlOf('main'));
    const [direct, pooled] = await Promise.all([urlOf('main'), urlOf('main', 'database_url')]);
    for (const [url, ownPort] of [
      [direct, stack.standby.ports.direct],
      [pooled, stack.standby.ports.pooled],
    ] as const) {
      const there = new URL(url);
      there.port = String(ownPort);
      await expect(query(there.href, 'select 1')).rejects.toThrow();
    }
    expect(port).not.toBe(String(stack.standby.ports.direct));
  });

  test('a project with synchronous commits waits for the standby, and nobody else does', async () => {
    const path = `/api/v1/projects/${ledger.id}`;
    const before = await connect(await ledgerUrl());
    const changed = await api.patch(path, { durability: 'sync' });
    expect(changed).toMatchObject({
      status: 200,
      body: { durability: 'sync', durability_state: 'confirming' },
    });
    expect(changed.body).not.toHaveProperty('warning');
    // Its session would not wait.
    await expect(before.query('select 1')).rejects.toThrow();
    const events = await api.get<{ audit_events: { name: string; metadata: object }[] }>(
      `/api/v1/audit-events?project_id=${ledger.id}`,
    );
    expect(events.body.audit_events).toContainEqual(
      expect.objectContaining({
        name: 'project.durability.changed',
        metadata: { from: 'async', to: 'sync' },
      }),
    );
    const direct = await ledgerUrl();
    const pooled = await ledgerUrl('database_url');
    for (const url of [direct, pooled])
      expect(await query(url, 'show synchronous_commit')).toEqual([{ synchronous_commit: 'on' }]);
    await query(direct, 'insert into written values (-1)');
    const other = await urlOf('main');
    expect(await query(other, 'show synchronous_commit')).toEqual([{ synchronous_commit: 'local' }]);

    await stack.standby.kill('postgres');
    // The agent's own work does not wait.
    await api.branch(ledger.id, 'pr-1');
    const ofBranch = (await api.credentials(ledger.id, 'pr-1')).direct_url as string;
    expect(await query(ofBranch, 'show synchronous_commit')).toEqual([{ synchronous_commit: 'on' }]);
    await query(ofBranch, 'set synchronous_commit = local; delete from written where id = 0');

    const waiting = query(direct, 'insert into written values (-2)');
    // A commit with NOTIFY holds a lock that all databases share.
    const notifying = await connect(direct);
    const notified = notifying.query("insert into written values (-3); notify news, 'hello'");
    let hasEnded = false;
    void waiting.then(() => {
      hasEnded = true;
    });
    const failed = notified.then(
      () => 'confirmed',
      () => 'ended',
    );
    await eventually(async () => expect(await durabilityOf()).toBe('waiting'));
    const { standby } = await hosts();
    expect(standby.members.find(({ host_id }) => host_id === standby.id)).toMatchObject({ sync: 'waiting' });
    await query(other, "insert into written values (-1); notify news, 'hello'");
    expect(await failed).toBe('ended');
    expect(hasEnded).toBe(false);
    await stack.standby.start('postgres');
    await waiting;
    await eventually(async () => expect(await durabilityOf()).toBe('confirming'));
    expect(await query(direct, 'select id from written order by id')).toEqual(
      [-3, -2, -1].map((id) => ({ id })),
    );
  });

  test('a planned switch loses nothing, and the former primary stays fenced', async () => {
    const { primary, standby } = await hosts();
    const catalog = await catalogOf('pr-1');
    expect(catalog.length).toBeGreaterThan(50);
    const writer = new Writer(() => urlOf('main'), 1);
    await eventually(async () => expect(writer.confirmed.size).toBeGreaterThan(20));
    const promoted = await operator.post<{ host: HostBody }>(`/platform/v1/hosts/${standby.id}/promote`, {});
    expect(promoted.body).toMatchObject({ host: { name: 'local-standby' } });
    expect(promoted.status).toBe(200);
    const before = writer.confirmed.size;
    await eventually(async () => expect(writer.confirmed.size).toBeGreaterThan(before + 20));
    await writer.stop();
    const found = await present();
    expect([...writer.confirmed.keys()].filter((id) => !found.has(id))).toEqual([]);
    const url = new URL(await urlOf('pr-1', 'database_url'));
    expect(url.port).toBe(String(stack.standby.ports.pooled));
    expect(await query(url.href, 'select 1 as one')).toEqual([{ one: 1 }]);
    expect(differentLines(catalog, await catalogOf('pr-1'))).toEqual([]);
    const now = await hosts();
    expect([roleOf(now.standby, now.standby), roleOf(now.standby, primary)]).toEqual(['primary', 'fenced']);
    for (const port of [stack.state.direct_port, stack.state.pooled_port])
      await eventually(async () => expect(await isOpen(port)).toBe(false));
    // Nobody is informed of a loss, because there was none.
    const { body } = await operator.get<{ survived_until?: string }>(`/platform/v1/hosts/${standby.id}`);
    expect(body).not.toHaveProperty('survived_until');
  });

  test('the new primary makes branches and takes rules', async () => {
    // It has no standby yet, and nothing waits.
    await query(await ledgerUrl(), 'insert into written values (-4)');
    expect(await durabilityOf()).toBe('off');
    await api.branch(project.id, 'pr-2');
    expect(await query(await urlOf('pr-2'), 'select count(*)::int > 0 as has from written')).toEqual([
      { has: true },
    ]);
  });

  test('the servers of the former primary do not open a port when they start', async () => {
    const stateDir = join(stack.state.host_dir, 'agent');
    // The agent has not heard of it: the machine was off when its standby was promoted.
    const stored = memberOf({ stateDir });
    expect(stored.role).toBe('fenced');
    const { standby } = await hosts();
    const former = { role: 'primary', generation: 1, closing: false, standby_id: standby.id };
    storeMember({ stateDir }, { ...stored, ...former });
    await stack.kill('agent');
    const starts = (['postgres', 'pgbouncer'] as const).map((part) => stack.start(part).catch(() => {}));
    await eventually(async () => expect(memberOf({ stateDir }).role).toBe('fenced'));
    await sleep(3_000);
    expect(await isOpen(stack.state.direct_port)).toBe(false);
    expect(await isOpen(stack.state.pooled_port)).toBe(false);
    await Promise.all([stack.kill('postgres'), stack.kill('pgbouncer'), ...starts]);
  });

  test('the former primary becomes the standby by another copy, although branches were made on both sides', async () => {
    await stack.agentTool('copy-primary');
    for (const part of ['postgres', 'pgbouncer', 'agent'] as const) await stack.start(part);
    await eventually(async () => {
      const { primary } = await hosts();
      const own = primary.members.find(({ host_id }) => host_id === primary.id);
      expect(own).toMatchObject({ role: 'standby', lag_bytes: 0 });
    });
    await eventually(async () => expect(await durabilityOf()).toBe('confirming'));
    await api.branch(project.id, 'pr-3');
    expect(await isOpen(stack.state.direct_port)).toBe(true);
    const there = new URL(await urlOf('main'));
    there.port = String(stack.state.direct_port);
    await expect(query(there.href, 'select 1')).rejects.toThrow(/no pg_hba.conf entry/);
  });

  test.runIf(IS_NIGHTLY)('a standby that does not catch up: the primary opens again', async () => {
    const { primary: standby } = await hosts();
    const onStandby = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate');
    await onStandby.query('select pg_wal_replay_pause()');
    await query(await urlOf('main'), 'insert into written values (-21)');
    const refused = await operator.post(`/platform/v1/hosts/${standby.id}/promote`, {});
    expect(refused).toMatchObject({ status: 409, body: { error: 'STANDBY_NOT_READY' } });
    await query(await urlOf('main'), 'insert into written values (-22)');
    await onStandby.query('select pg_wal_replay_resume()');
    await onStandby.end();
  });

  test('a primary that is lost: the standby serves, and tenants learn until when everything survived', async () => {
    const { primary: next, standby: lost } = await hosts();
    const writer = new Writer(() => urlOf('main'), 1_000_000);
    const synchronous = new Writer(() => ledgerUrl(), 1);
    await eventually(async () => expect(synchronous.confirmed.size).toBeGreaterThan(50));
    await eventually(async () => expect(writer.confirmed.size).toBeGreaterThan(50));
    // The reported time is a whole second.
    await sleep(4_000);
    // What it has on its disk is confirmed, and applied when it takes over.
    const onNext = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate');
    await onNext.query('select pg_wal_replay_pause()');
    await eventually(async () =>
      expect((await onNext.query('select pg_get_wal_replay_pause_state() as state')).rows).toEqual([
        { state: 'paused' },
      ]),
    );
    const sofar = synchronous.confirmed.size;
    await eventually(async () => expect(synchronous.confirmed.size).toBeGreaterThan(sofar + 10));
    await onNext.end();
    await Promise.all((['agent', 'postgres', 'pgbouncer'] as const).map((part) => stack.standby.kill(part)));
    const refused = await operator.post(`/platform/v1/hosts/${next.id}/promote`, {});
    expect(refused).toMatchObject({ status: 409, body: { error: 'PRIMARY_UNAVAILABLE' } });
    const asked = performance.now();
    const promoted = await operator.post<{ survived_until: string }>(
      `/platform/v1/hosts/${next.id}/promote`,
      {
        lost: lost.id,
      },
    );
    expect(promoted.status).toBe(200);
    const before = writer.confirmed.size;
    await eventually(async () => expect(writer.confirmed.size).toBeGreaterThan(before));
    const servedAfter = performance.now() - asked;
    console.log(`the standby served after ${Math.round(servedAfter)} ms`);
    await Promise.all([writer.stop(), synchronous.stop()]);
    const kept = await query<{ id: number }>(await ledgerUrl(), 'select id from written');
    const lostCommits = [...synchronous.confirmed.keys()].filter((id) => !kept.some((row) => row.id === id));
    expect(lostCommits).toEqual([]);
    const survivedUntil = Date.parse(promoted.body.survived_until);
    const found = await present();
    const mustBeThere = [...writer.confirmed].filter(([, at]) => at < survivedUntil);
    expect(mustBeThere.length).toBeGreaterThan(0);
    expect(mustBeThere.filter(([id]) => !found.has(id))).toEqual([]);
    expect(Date.now() - survivedUntil).toBeLessThan(120_000);
    await eventually(async () => {
      const mails = readdirSync(stack.state.mail_dir).map((name) =>
        readFileSync(join(stack.state.mail_dir, name), 'utf8'),
      );
      expect(mails.some((mail) => mail.includes(promoted.body.survived_until) && mail.includes('shop'))).toBe(
        true,
      );
    });
    const again = await operator.post(`/platform/v1/hosts/${next.id}/promote`, { lost: lost.id });
    expect(again).toMatchObject({ status: 200, body: { survived_until: promoted.body.survived_until } });
  });

  test.runIf(IS_NIGHTLY)('a lost primary that comes back is fenced before it opens a port', async () => {
    const starts = (['postgres', 'pgbouncer', 'agent'] as const).map((part) =>
      stack.standby.start(part).catch(() => {}),
    );
    await eventually(async () => expect(memberOf(stack.standby).role).toBe('fenced'));
    for (let n = 0; n < 20; n += 1) {
      expect(await isOpen(stack.standby.ports.direct)).toBe(false);
      expect(await isOpen(stack.standby.ports.pooled)).toBe(false);
      await sleep(100);
    }
    await Promise.all((['agent', 'postgres', 'pgbouncer'] as const).map((part) => stack.standby.kill(part)));
    await Promise.all(starts);
  });

  test.runIf(IS_NIGHTLY)(
    'an agent that is killed while it promotes finishes that when it starts again',
    async () => {
      await stack.standby.agentTool('copy-primary');
      for (const part of ['postgres', 'pgbouncer', 'agent'] as const) await stack.standby.start(part);
      await eventually(async () => {
        const { standby } = await hosts();
        const own = standby.members.find(({ host_id }) => host_id === standby.id);
        expect(own).toMatchObject({ role: 'standby', lag_bytes: 0 });
      });
      const { standby } = await hosts();
      await query(await urlOf('main'), 'insert into written values (-10)');
      const isPromoting = () => memberOf(stack.standby).role === 'promoting';
      const promoting = operator.post(`/platform/v1/hosts/${standby.id}/promote`, {});
      while (!isPromoting()) await sleep(1);
      await stack.standby.kill('agent');
      expect(await promoting).toMatchObject({ status: 409, body: { error: 'STANDBY_NOT_READY' } });
      await stack.standby.start('agent');
      await eventually(async () => {
        const again = await operator.post(`/platform/v1/hosts/${standby.id}/promote`, {});
        expect(again.status).toBe(200);
      });
      expect(await query(await urlOf('main'), 'select id from written where id = -10')).toHaveLength(1);
      await query(await urlOf('main'), 'insert into written values (-11)');
      expect(isPromoting()).toBe(false);
    },
  );
});

test.runIf(IS_NIGHTLY && xfsHindrance() === null)('branches share blocks on the standby too', async () => {
  const volume = mountXfs(6 * 2 ** 30);
  const shared = await startStack({
    devDir: join(volume.folder, 'dev'),
    env: { STANDBY: '1', GUARDS: 'off', SNAPSHOT_COPY_ROOM: '0', ...UNLIMITED },
  });
  try {
    const own = new Api(shared.url, await shared.token());
    const { id } = await own.project('large', { storage_quota_gib: 5 });
    await own.allow(id);
    const { direct_url: url } = await own.credentials(id, 'main');
    await query(
      url as string,
      'create table large as select n, repeat(md5(n::text), 30) as text from generate_series(1, 150000) n',
    );
    const [{ bytes } = { bytes: 0 }] = await query<{ bytes: number }>(
      url as string,
      'select pg_database_size(current_database())::float8 as bytes',
    );
    expect(bytes).toBeGreaterThan(100 * 2 ** 20);
    const base = join(shared.standby.dataDir, 'base');
    const had = new Set(readdirSync(base));
    const added = () => readdirSync(base).filter((name) => !had.has(name));
    const before = volume.usedBytes();
    for (const name of ['one', 'two', 'three']) await own.branch(id, name);
    await eventually(async () => expect(added().length).toBeGreaterThanOrEqual(3));
    // The standby has replayed what the primary has written of them.
    await query(url as string, 'create table last (n int)');
    await sleep(2_000);
    const grown = volume.usedBytes() - before;
    const copies = await Promise.all(added().map((name) => measureFolder(join(base, name))));
    const sum = (of: 'own' | 'shared') => copies.reduce((all, copy) => all + (copy?.[of] ?? 0), 0);
    const percent = (100 * sum('own')) / (sum('own') + sum('shared'));
    const inMegabytes = (number: number) => Math.round(number / 2 ** 20);
    process.stderr.write(
      `MEASURED 3 branches of ${inMegabytes(bytes)} MB: ${percent.toFixed(2)} % of their blocks on the standby are their own, both hosts grew by ${inMegabytes(grown)} MB\n`,
    );
    expect(sum('shared')).toBeGreaterThan(2.5 * bytes);
    expect(percent).toBeLessThan(5);
    // Copies on one of both hosts would take three times the size. WAL is among what has grown.
    expect(grown).toBeLessThan(bytes);
  } finally {
    await shared.stop();
    volume.remove();
  }
});
