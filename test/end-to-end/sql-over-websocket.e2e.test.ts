import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { type Client, neonConfig } from '@neondatabase/serverless';
import { afterEach, beforeAll, describe, expect, inject, test } from 'vitest';
import { WebSocket } from 'ws';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import type { StackState } from '../../dev/stack/stack.ts';
import type { Api, Credentials, ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ownerOf } from '../support/tenants.ts';
import { openDoor, socketClient, socketPool, socketQuery } from '../support/web-socket.ts';

/** Clients of these tests connect from addresses of loopback, which rules distinguish. */
const ADMITTED = '127.0.0.1';
const STRANGE = '127.0.0.9';

let api: Api;
let project: ProjectBody;
let credentials: Credentials;
let rules: string;
let state: StackState;
const door = () => ({ port: state.sql_port, ca: state.ca_certificate });

beforeAll(async () => {
  state = JSON.parse(readFileSync(join(inject('stack').devDir, 'stack.json'), 'utf8'));
  openDoor(door());
  neonConfig.fetchEndpoint = `${inject('stack').url}/sql`;
  api = await ownerOf('sql-over-websocket');
  project = await api.project('SQL over WebSocket');
  const path = `/api/v1/projects/${project.id}`;
  rules = `${path}/network-rules`;
  await api.post(`${path}/branches`, { branch_name: 'pr-1' }, { 'CF-Connecting-IP': '203.0.113.9' });
  await api.post(rules, { cidr: ADMITTED, via: 'sql' });
  credentials = await api.credentials(project.id, 'pr-1');
  // Each test logs in more often than a branch allows by default.
  await unlimited('pr-1');
});
afterEach(() => openDoor(door()));

const unlimited = (branch: string) =>
  api.patch(`/api/v1/projects/${project.id}/branches/${branch}`, { connection_attempts_per_minute: 1000 });

/** A branch that no rule opens a port of, with its URLs. */
async function branchOf(name: string): Promise<Credentials & { id: string }> {
  const { body } = await api.post<{ id: string }>(
    `/api/v1/projects/${project.id}/branches`,
    { branch_name: name },
    { 'CF-Connecting-IP': '203.0.113.9' },
  );
  await unlimited(name);
  return { ...(await api.credentials(project.id, name)), id: body.id };
}

/** Both ways of a branch, by the URLs of its credentials. */
const waysOf = ({ database_url, direct_url }: Credentials) =>
  [
    ['through the pooler', database_url],
    ['directly', direct_url],
  ] as const;

const withPassword = (url: string, password: string) => url.replace(/:[^:@]+@/, `:${password}@`);

const refusal = (url: string) =>
  socketQuery(url, 'select 1').then(
    () => null,
    (error) => ({ code: error.code, message: error.message }),
  );

describe('the unmodified client of Neon', () => {
  test('runs an interactive transaction in a pool, while the ports stay closed', async () => {
    const pool = socketPool(credentials.database_url, { max: 3 });
    const owner = socketPool(credentials.direct_url);
    await owner.query('create table account (id int primary key, balance int check (balance >= 0))');
    await owner.query('insert into account values (1, 100), (2, 0)');
    const move = async (amount: number) => {
      const client = await pool.connect();
      try {
        await client.query('begin');
        const { rows } = await client.query('select balance from account where id = 1 for update');
        await client.query('update account set balance = balance + $1 where id = 2', [amount]);
        await client.query('update account set balance = $1 where id = 1', [rows[0]?.balance - amount]);
        await client.query('commit');
      } catch (error) {
        await client.query('rollback');
        throw error;
      } finally {
        client.release();
      }
    };
    await Promise.all(Array.from({ length: 10 }, () => move(10)));
    await expect(move(1)).rejects.toMatchObject({ code: '23514', constraint: 'account_balance_check' });
    expect((await pool.query('select balance from account order by id')).rows).toEqual([
      { balance: 0 },
      { balance: 100 },
    ]);
    const [session] = await socketQuery<object>(
      `${credentials.database_url}&application_name=shop`,
      "select current_user::text as login, current_setting('application_name') as name",
    );
    expect(session).toEqual({ login: new URL(credentials.database_url).username, name: 'shop' });
    await Promise.all([pool.end(), owner.end()]);
    for (const [, url] of waysOf(credentials))
      await expect(query(url, 'select 1')).rejects.toMatchObject({
        code: expect.stringMatching(/28000|08P01/),
      });
    const http = await fetch(`${inject('stack').url}/sql`, {
      method: 'POST',
      headers: { 'Neon-Connection-String': credentials.database_url },
      body: JSON.stringify({ query: 'select 1 as one', params: [] }),
    });
    expect(await http.json()).toMatchObject({ rows: [{ one: 1 }] });
  });

  test.each([true, false])(
    'prepares statements and listens in a direct session (pipelined: %s)',
    async (isPipelined) => {
      neonConfig.pipelineConnect = isPipelined ? 'password' : false;
      const client = await socketClient(credentials.direct_url);
      const prepared = { name: 'sum', text: 'select $1::int + $2::int as sum' };
      for (const [a, b] of [
        [1, 2],
        [40, 2],
      ])
        expect((await client.query({ ...prepared, values: [a, b] })).rows).toEqual([
          { sum: Number(a) + Number(b) },
        ]);
      expect((await client.query('select count(*)::int as n from pg_prepared_statements')).rows).toEqual([
        { n: 1 },
      ]);
      const notified = new Promise((resolve) => client.on('notification', ({ payload }) => resolve(payload)));
      await client.query('listen news');
      await client.query("set statement_timeout = '7s'");
      await socketQuery(credentials.direct_url, "select pg_notify('news', 'hello')");
      expect(await notified).toBe('hello');
      expect((await client.query('show statement_timeout')).rows).toEqual([{ statement_timeout: '7s' }]);
      await client.end();
      neonConfig.pipelineConnect = 'password';
    },
  );

  test.each(['through the pooler', 'directly'])(
    'gets large replies and sends large values whole (%s)',
    async (name) => {
      const url = new Map<string, string>(waysOf(credentials)).get(name) ?? '';
      const client = await socketClient(url);
      const value = 'ü"\\€'.repeat(60_000);
      const { rows } = await client.query('select repeat($1, 20) as text, md5($1) as sum', [value]);
      expect(rows[0]?.text === value.repeat(20)).toBe(true);
      // A frame has a bound, above which its connection ends.
      await expect(client.query('select length($1)', ['x'.repeat(2_000_000)])).rejects.toThrow();
    },
  );
});

describe('who may', () => {
  test.each(['through the pooler', 'directly'])(
    'a wrong password, an unknown login and an unknown database look alike (%s)',
    async (name) => {
      const url = new URL(new Map<string, string>(waysOf(credentials)).get(name) ?? '');
      const nobody = `u_${'0'.repeat(32)}_rw`;
      const altered = (change: (given: URL) => void) => {
        const other = new URL(url);
        change(other);
        return other.href;
      };
      const cases: [string, string][] = [
        [altered((given) => (given.password = 'x'.repeat(32))), url.username],
        [altered((given) => (given.pathname = '/db_unknown_prod')), url.username],
        [altered((given) => (given.pathname = '/postgres')), url.username],
        [altered((given) => (given.username = nobody)), nobody],
        [altered((given) => (given.username = 'branchgate')), 'branchgate'],
      ];
      for (const [wrong, login] of cases)
        expect(await refusal(wrong)).toEqual({
          code: '28P01',
          message: `password authentication failed for user "${login}"`,
        });
    },
  );

  test('the login of another branch has no way into this one', async () => {
    const other = await branchOf('other');
    const mixed = new URL(credentials.direct_url);
    mixed.username = new URL(other.direct_url).username;
    mixed.password = new URL(other.direct_url).password;
    expect(await refusal(mixed.href)).toMatchObject({ code: '28P01' });
  });

  test('an address without a rule is refused, after the right password only', async () => {
    openDoor(door(), STRANGE);
    for (const [, url] of waysOf(credentials)) {
      expect(await refusal(url)).toMatchObject({ code: '28000' });
      expect(await refusal(withPassword(url, 'wrong'))).toMatchObject({ code: '28P01' });
    }
  });

  test('any other address than those of this host is refused', async () => {
    const open = (path: string) =>
      new Promise<string>((resolve) => {
        const socket = new WebSocket(`wss://127.0.0.1:${state.sql_port}${path}`, {
          ca: state.ca_certificate,
        });
        socket.on('open', () => resolve('open'));
        socket.on('error', (error) => resolve(error.message));
        socket.on('close', () => resolve('closed'));
      });
    expect(await open('/v2')).toBe('open');
    expect(await open(`/v2?address=127.0.0.1:${state.direct_port}`)).toBe('open');
    for (const path of [
      `/v2?address=127.0.0.1:${state.sql_port}`,
      `/v2?address=127.0.0.2:${state.direct_port}`,
      `/v2?address=localhost:${state.direct_port}`,
      '/v2?address=',
      '/v1',
      '/',
    ])
      expect([path, await open(path)]).toEqual([path, 'Unexpected server response: 404']);
  });

  test('attempts count with those of the ports, and close both', async () => {
    const guessed = await branchOf('guessed');
    await api.allow(project.id, '127.0.0.1/32', guessed.id);
    await api.patch(`/api/v1/projects/${project.id}/branches/guessed`, {
      connection_attempts_per_minute: 10,
    });
    await eventually(async () => expect(await refusal(guessed.direct_url)).toBeNull());
    const codes = [];
    for (let n = 0; n < 12; n += 1)
      codes.push((await refusal(withPassword(guessed.direct_url, 'wrong')))?.code);
    expect(codes.filter((code) => code === '28P01').length).toBeLessThanOrEqual(10);
    expect(codes.slice(10)).toEqual(['53300', '53300']);
    expect(await refusal(guessed.database_url)).toMatchObject({ code: '53300' });
    // The ports follow when both servers have read their rules.
    await eventually(async () => {
      const code = await query(guessed.direct_url, 'select 1').then(
        () => null,
        (error) => error.code,
      );
      expect(code).toBe('28000');
    });
  });
});

/** Sessions of both ways that wait in a statement until something ends them. */
async function openBoth(given: Credentials): Promise<{ client: Client; ended: Promise<unknown> }[]> {
  return Promise.all(
    waysOf(given).map(async ([, url]) => {
      const client = await socketClient(url);
      await client.query('select 1');
      const ended = client.query('select pg_sleep(300)').then(
        () => 'done',
        (error) => error,
      );
      return { client, ended };
    }),
  );
}

/** Changes the gateway's records, so that a test needs not wait for days. */
function inRecords(change: (d1: DatabaseSync) => void): void {
  const folder = devFolder(inject('stack').devDir).gatewayState;
  const [file = ''] = globSync(join(folder, '**/d1/**/*.sqlite'));
  const d1 = new DatabaseSync(file, { timeout: 5000 });
  try {
    change(d1);
  } finally {
    d1.close();
  }
}

const expectEnded = async (open: Awaited<ReturnType<typeof openBoth>>) => {
  for (const { ended } of open) expect(await ended).toBeInstanceOf(Error);
};

describe('a change of access ends open sockets', () => {
  test('the end of a rule, and its change to the other addresses', async () => {
    const branch = await branchOf('ruled');
    const { body: rule } = await api.post(rules, { cidr: STRANGE, branch_id: branch.id, via: 'sql' });
    openDoor(door(), STRANGE);
    const open = await openBoth(branch);
    openDoor(door());
    const others = await socketClient(branch.direct_url);
    expect((await api.delete(`${rules}/${rule.id}`)).status).toBe(204);
    await expectEnded(open);
    // Sessions of other addresses stay.
    expect((await others.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
    await others.end();
    openDoor(door(), STRANGE);
    for (const [, url] of waysOf(branch)) expect(await refusal(url)).toMatchObject({ code: '28000' });
  });

  test.each([
    ['the deletion of the branch', 'deleted', (path: string) => api.delete(path)],
    ['a rotation of its passwords', 'rotated', (path: string) => api.post(`${path}/credentials/rotate`, {})],
  ] as const)('%s', async (_, name, change) => {
    const branch = await branchOf(name);
    const open = await openBoth(branch);
    const { status } = await change(`/api/v1/projects/${project.id}/branches/${name}`);
    expect(status).toBeLessThan(300);
    await expectEnded(open);
    for (const [, url] of waysOf(branch)) expect(await refusal(url)).toMatchObject({ code: '28P01' });
  });

  test.runIf(IS_NIGHTLY)('the expiry of the branch, and that of a rule', async () => {
    const branch = await branchOf('expired');
    const other = await branchOf('rule-expired');
    const { body: rule } = await api.post(rules, { cidr: STRANGE, branch_id: other.id, via: 'sql' });
    const open = await openBoth(branch);
    openDoor(door(), STRANGE);
    open.push(...(await openBoth(other)));
    openDoor(door());
    const past = Date.now() - 1_000;
    inRecords((d1) => {
      d1.prepare('update project_branches set expires_at = ? where id = ?').run(past, branch.id);
      d1.prepare('update network_rules set expires_at = ? where id = ?').run(past, String(rule.id));
    });
    // The alarm after a change looks for what has ended.
    await unlimited('rule-expired');
    await expectEnded(open);
    for (const [, url] of waysOf(branch)) expect(await refusal(url)).toMatchObject({ code: '28P01' });
    openDoor(door(), STRANGE);
    for (const [, url] of waysOf(other)) expect(await refusal(url)).toMatchObject({ code: '28000' });
  });

  test('a watchdog that blocks the branch', async () => {
    const branch = await branchOf('greedy');
    const open = await openBoth(branch);
    const greedy = await socketClient(branch.direct_url);
    // Enough for the watchdog, and not for the lock table, which the tests beside this one share.
    const taken = greedy.query(
      'select pg_advisory_lock(n) from generate_series(1, 6000) as n; select pg_sleep(300)',
    );
    await expect(taken).rejects.toThrow();
    await expectEnded(open);
    // The watchdog ends the sessions that it has found before the block is stored.
    for (const [, url] of waysOf(branch))
      await eventually(async () => expect(await refusal(url)).toMatchObject({ code: '28000' }));
  });
});
