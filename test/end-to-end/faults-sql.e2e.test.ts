import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { WebSocket } from 'ws';
import { Api, type Credentials } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { percentile } from '../support/percentile.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';
import { openDoor, socketClient, socketQuery } from '../support/web-socket.ts';

let stack: Stack;
let api: Api;
let projectId: string;

/** A branch with its URLs, whose attempts are not limited here. */
async function branchOf(own: Api, project: string, name: string): Promise<Credentials> {
  await own.branch(project, name);
  await own.patch(`/api/v1/projects/${project}/branches/${name}`, { connection_attempts_per_minute: 'max' });
  return own.credentials(project, name);
}

/** @returns status and body */
async function send(
  url: string,
  body: object,
  headers: Record<string, string> = {},
): Promise<{ status: number; body: Record<string, unknown> }> {
  const response = await fetch(`${stack.url}/sql`, {
    method: 'POST',
    headers: { 'Neon-Connection-String': url, ...headers },
    body: JSON.stringify(body),
  });
  return { status: response.status, body: JSON.parse(await response.text()) };
}

describe.runIf(IS_NIGHTLY)('SQL over HTTP and WebSocket', () => {
  beforeAll(async () => {
    stack = await startStack({ env: { ...UNLIMITED, LIMIT_SQL_PER_MINUTE: '100000' }, restarts: false });
    openDoor({ port: stack.state.sql_port, ca: stack.state.ca_certificate });
    api = new Api(stack.url, await stack.token());
    projectId = (await api.project('SQL and faults')).id;
    await api.allow(projectId);
  });
  afterAll(() => stack?.stop());

  /** A project has a limit of branches. */
  const anotherProject = async () => {
    const { id } = await api.project('SQL without faults');
    await api.allow(id);
    return id;
  };

  const ROWS = 40;
  const values = (batch: number) => Array.from({ length: ROWS }, (_, n) => [batch, n]);
  const INSERT = 'insert into entry select $1::int, $2::int from pg_sleep(0.02)';

  /** One batch, all or nothing. @throws Error when it was not committed, or nobody knows */
  const WAYS: Record<string, (branch: Credentials, batch: number) => Promise<void>> = {
    '/sql': async ({ database_url }, batch) => {
      const queries = values(batch).map((params) => ({ query: INSERT, params }));
      const { status, body } = await send(database_url, { queries });
      if (status !== 200) throw new Error(`${status} ${JSON.stringify(body)}`);
    },
    '/v2 through the pooler': ({ database_url }, batch) => overSocket(database_url, batch),
    '/v2 directly': ({ direct_url }, batch) => overSocket(direct_url, batch),
  };

  async function overSocket(url: string, batch: number): Promise<void> {
    const client = await socketClient(url);
    try {
      await client.query('begin');
      for (const row of values(batch)) await client.query(INSERT, row);
      await client.query('commit');
    } finally {
      await Promise.race([client.end().catch(() => {}), sleep(1_000)]);
    }
  }

  test.each(
    Object.keys(WAYS).flatMap((way) =>
      (['agent', 'pgbouncer', 'postgres'] as const).map((victim) => [way, victim] as const),
    ),
  )('a batch by %s while %s is killed is done wholly or not at all, and never hangs', async (way, victim) => {
    const name = `killed-${Object.keys(WAYS).indexOf(way)}-${victim}`;
    const branch = await branchOf(api, projectId, name);
    await query(branch.direct_url, 'create table entry (batch int, n int)');
    const outcomes: string[] = [];
    for (const [batch, moment] of [50, 300, 600, 900].entries()) {
      const running = WAYS[way]?.(branch, batch).then(
        () => 'done',
        () => 'failed',
      );
      await sleep(moment);
      await stack.kill(victim);
      outcomes.push((await Promise.race([running, sleep(60_000, 'hangs')])) ?? '');
      await stack.start(victim);
      await stack.untilReady();
      // Before PostgreSQL and the pooler accept clients again, nothing can be said.
      const rows = await eventually(() =>
        query<{ n: number }>(branch.direct_url, 'select count(*)::int as n from entry where batch = $1', [
          batch,
        ]),
      );
      const found = rows[0]?.n;
      expect([0, ROWS]).toContain(found);
      if (outcomes.at(-1) === 'done') expect(found).toBe(ROWS);
    }
    expect(outcomes).not.toContain('hangs');
    // A direct session does not need the pooler.
    if (way === '/v2 directly' && victim === 'pgbouncer')
      expect(new Set(outcomes)).toEqual(new Set(['done']));
    else expect(outcomes).toContain('failed');
    await eventually(() => WAYS[way]?.(branch, 99) ?? Promise.reject(new Error('no such way')));
  });

  test('an unknown database takes as long as a wrong password', async () => {
    const { database_url: url } = await branchOf(api, await anotherProject(), 'timed');
    const altered = (change: (given: URL) => void) => {
      const other = new URL(url);
      change(other);
      return other.href;
    };
    const wrong = altered((given) => (given.password = 'x'.repeat(32)));
    const unknown = altered((given) => (given.pathname = '/db_unknown_prod'));
    const nobody = altered((given) => (given.username = `u_${'0'.repeat(32)}_rw`));
    const kinds = Object.entries({ wrong, unknown, nobody });
    // An address has 50 wrong passwords a minute at the gateway, so each kind gets another one after forty.
    const addressOf = (at: number, round: number) => `198.51.${at}.${1 + Math.floor(round / 40)}`;
    const DOORS: Record<string, (given: string, address: string) => Promise<unknown>> = {
      '/v2': (given) => socketQuery(given, 'select 1').catch((error) => error.code),
      '/sql': (given, address) =>
        send(given, { query: 'select 1', params: [] }, { 'CF-Connecting-IP': address }).then(
          ({ body }) => body.code,
        ),
    };
    const ORDERS = ['012', '021', '102', '120', '201', '210'].map((order) => [...order].map(Number));
    for (const [door, open] of Object.entries(DOORS)) {
      const times = kinds.map((): number[] => []);
      for (let round = 0; round < 600; round += 1) {
        // Each kind follows each other one equally often.
        for (const at of ORDERS[round % ORDERS.length] ?? []) {
          const begun = performance.now();
          expect(await open(kinds[at]?.[1] ?? '', addressOf(at, round))).toBe('28P01');
          // The first request of an address also makes its count.
          const took = performance.now() - begun;
          if (round % 40 > 0) times[at]?.push(took);
          // The host begins 50 handshakes a second with a network.
          if (door === '/v2') await sleep(Math.max(0, 25 - took));
        }
      }
      const [ofWrong = Number.NaN, ...others] = times.map((own) => percentile(own, 0.5));
      console.info(door, ofWrong, others);
      for (const other of others) expect(Math.abs(other / ofWrong - 1), door).toBeLessThan(0.1);
    }
  });

  test('twenty clients at the limit with replies of 10 MiB keep agent and gateway small', async () => {
    const urls: string[] = [];
    for (let n = 0; n < 3; n += 1) {
      const own = new Api(
        stack.url,
        await stack.token({ tenant: `large-${n}`, email: `large-${n}@example.com` }),
      );
      const { id } = await own.project('Large replies');
      await own.allow(id);
      for (const name of ['one', 'two']) urls.push((await branchOf(own, id, name)).database_url);
    }
    const LARGE = "select repeat('x', 1000000) as text from generate_series(1, 10)";
    const clients = Array.from({ length: 20 }, (_, n) => urls[n % urls.length] ?? '');
    const bySlowSocket = async (url: string) => {
      const client = await socketClient(url);
      const { rows } = await client.query(LARGE);
      expect(rows).toHaveLength(10);
      await client.end();
    };
    const byHttp = async (url: string) => {
      const { status, body } = await send(url, { query: LARGE, params: [] });
      // Several tenants can wait for longer than two seconds.
      expect([status, body.code]).toEqual(status === 200 ? [200, undefined] : [400, '53300']);
    };
    for (const [door, read] of [
      ['/v2', bySlowSocket],
      ['/sql', byHttp],
    ] as const) {
      await Promise.all(clients.slice(0, 4).map(read));
      const before = memory();
      let highest = before;
      const timer = setInterval(() => {
        const now = memory();
        highest = {
          agent: Math.max(now.agent, highest.agent),
          gateway: Math.max(now.gateway, highest.gateway),
        };
      }, 50);
      for (let round = 0; round < 3; round += 1) await Promise.all(clients.map(read));
      clearInterval(timer);
      console.info(door, { before, highest });
      // All replies of a round have 200 MB.
      expect(highest.agent - before.agent, `agent, ${door}`).toBeLessThan(100 * MB);
      expect(highest.gateway - before.gateway, `gateway, ${door}`).toBeLessThan(100 * MB);
    }
  });

  test('a client that reads nothing holds little of its reply in the agent', async () => {
    const { direct_url } = await branchOf(api, await anotherProject(), 'slow');
    const open: WebSocket[] = [];
    const Client = openDoorCapturing(open);
    const client = await Client(direct_url);
    const before = memory();
    open[0]?.pause();
    const reading = client.query("select repeat('x', 1000000) as text from generate_series(1, 300)");
    await sleep(5_000);
    expect(memory().agent - before.agent).toBeLessThan(50 * MB);
    open[0]?.resume();
    expect((await reading).rows).toHaveLength(300);
    await client.end();
  });
});

const MB = 2 ** 20;

/** Resident bytes of the agent and of the gateway's processes. */
function memory(): { agent: number; gateway: number } {
  const { agent, gateway } = stack.state.pids;
  return { agent: residentOf(agent), gateway: residentOf(gateway) };
}

/** Resident bytes of all processes of a group. */
function residentOf(group: number | null): number {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .reduce((sum, pid) => {
      try {
        const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
          .replace(/^.*\) /s, '')
          .split(' ');
        if (Number(stat[2]) !== group) return sum;
        return (
          sum +
          Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) * 1024
        );
      } catch {
        return sum;
      }
    }, 0);
}

/** Makes `socketClient` give its WebSocket, which can be stopped. */
function openDoorCapturing(open: WebSocket[]) {
  openDoor({ port: stack.state.sql_port, ca: stack.state.ca_certificate }, '127.0.0.1', (socket) =>
    open.push(socket),
  );
  return socketClient;
}
