import { mkdtempSync, rmSync } from 'node:fs';
import { createConnection, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { closeHost, openHost } from '../../../agent/host/host.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { backendPid, inSession } from '../../../agent/postgres/connect.ts';
import { BROWSING, endKeptSessions, KEPT } from '../../../agent/postgres/sessions.ts';
import type { AgentSettings } from '../../../agent/process/settings.ts';
import { loginName } from '../../../shared/branch/login.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type HostWithProject, makeProject, removeProjects } from '../../support/host/host-project.ts';
import { Browser } from '../../support/host/host-rows.ts';

export function describeBranchSessions(servers: () => TestHost): void {
  let started: HostWithProject;
  let browser: Browser;
  beforeAll(async () => {
    started = await makeProject(
      servers(),
      'db_shop_prod',
      `create table note (id int primary key);
     create table large as select repeat('x', 70000) as text;
     create view found as select pg_backend_pid() as pid, current_setting('my.trace', true) as setting,
       current_setting('DateStyle') as style, current_setting('statement_timeout') as timeout,
       current_setting('idle_session_timeout') as waits, current_setting('transaction_read_only') as read_only,
       current_user::text as login,
       (select count(*)::int from pg_locks where locktype = 'advisory') as locks,
       (select count(*)::int from pg_listening_channels()) as channels,
       (select count(*)::int from pg_prepared_statements) as prepared;
     create view ending as select id, pg_terminate_backend(id) as ended, pg_sleep(1)::text as slept from note;
     create view failing as select 1 / 0 as n;
     create function leaves_traces() returns text language plpgsql as $$ begin
       perform set_config('my.trace', 'left', false); perform set_config('DateStyle', 'German', false);
       perform set_config('search_path', 'public', false); perform set_config('statement_timeout', '0', false);
       perform set_config('idle_session_timeout', '0', false);
       perform set_config('default_transaction_read_only', 'off', false);
       perform pg_advisory_lock(7); execute 'listen traces'; execute 'prepare trace as select 1';
       return 'left';
     end $$;
     create view leaving as select pg_backend_pid() as pid, leaves_traces() as traces;`,
    );
    browser = new Browser(started.servers.host, started.main);
  });
  afterAll(() => removeProjects(servers()));
  afterEach(() => started.servers.host.rows.kept.close());

  type Socketed = Pick<AgentSettings, 'POSTGRES_SOCKET_DIR' | 'POSTGRES_PORT'>;

  /**
   * A proxy of PostgreSQL's socket that drops everything a client sends after its login.
   * @returns its folder
   */
  async function silentSocket({ POSTGRES_SOCKET_DIR, POSTGRES_PORT }: Socketed) {
    const folder = mkdtempSync(join(tmpdir(), 'branchgate-silent-'));
    const name = `.s.PGSQL.${POSTGRES_PORT}`;
    const sockets: Socket[] = [];
    const server = createServer((client) => {
      const real = createConnection(join(POSTGRES_SOCKET_DIR, name));
      sockets.push(client, real);
      for (const socket of [client, real]) socket.on('error', () => {});
      client.once('data', (login) => real.write(login));
      real.pipe(client);
    });
    await new Promise<void>((resolve) => server.listen(join(folder, name), resolve));
    return {
      folder,
      close: () => {
        for (const socket of sockets) socket.destroy();
        server.close();
        rmSync(folder, { recursive: true });
      },
    };
  }

  /** A proxy of PostgreSQL's socket that counts how often a client speaks after an answer. @returns its folder */
  async function countingSocket({ POSTGRES_SOCKET_DIR, POSTGRES_PORT }: Socketed) {
    const folder = mkdtempSync(join(tmpdir(), 'branchgate-counting-'));
    const name = `.s.PGSQL.${POSTGRES_PORT}`;
    const counted = { trips: 0 };
    const server = createServer((client) => {
      const real = createConnection(join(POSTGRES_SOCKET_DIR, name));
      let isAnswered = true;
      for (const socket of [client, real]) socket.on('error', () => {});
      client.on('data', (sent) => {
        if (isAnswered) counted.trips += 1;
        isAnswered = false;
        real.write(sent);
      });
      real.on('data', (answer) => {
        isAnswered = true;
        client.write(answer);
      });
      client.on('close', () => real.destroy());
      real.on('close', () => client.destroy());
    });
    await new Promise<void>((resolve) => server.listen(join(folder, name), resolve));
    const close = () => {
      server.close();
      rmSync(folder, { recursive: true });
    };
    return { folder, counted, close };
  }

  test('a page of a table that the session knows takes one trip to PostgreSQL, and one more to reset it', async () => {
    const { host } = started.servers;
    const counting = await countingSocket(host.settings);
    const counted = { ...host, settings: { ...host.settings, POSTGRES_SOCKET_DIR: counting.folder } };
    /** Sessions that were reset, and wait for the next page. */
    const waiting = async () =>
      (await started.servers.query(`SELECT FROM pg_stat_activity WHERE ${KEPT}`)).length;
    const tripsOf = async (table: string) => {
      const before = counting.counted.trips;
      await new Browser(counted, started.main).page(table);
      await eventually(async () => expect(await waiting()).toBe(1));
      return counting.counted.trips - before;
    };
    await tripsOf('note');
    expect(await tripsOf('note')).toBe(2);
    // A page that did not fit in one piece is read with all precautions the first time.
    await tripsOf('large');
    expect(await tripsOf('large')).toBe(3);
    await host.rows.kept.close();
    counting.close();
  });

  test('an operation ends in time although the server says nothing after the login', async () => {
    const { servers, main } = started;
    const { host } = servers;
    const silent = await silentSocket(host.settings);
    const frozen = { ...host, settings: { ...host.settings, POSTGRES_SOCKET_DIR: silent.folder } };
    const { branch_id, database } = main;
    const table = { branch_id, database, schema: 'public', table: 'note' };
    const params = { ...table, limit: 1, offset: 0, filter: [], order: [] };
    try {
      await expect(runOperation(frozen, 'row.list', params)).rejects.toMatchObject({
        code: 'TIME_LIMIT_REACHED',
      });
    } finally {
      silent.close();
    }
  });

  /** Reads a page, and waits until its session is kept. */
  async function pageOf(view: string, { host } = started.servers) {
    const [row] = (await new Browser(host, started.main).page(view)).rows;
    await eventually(async () => expect(host.rows.kept.has(Number(row?.pid))).toBe(true));
    return row ?? {};
  }

  const CLEAN = { setting: '', style: 'ISO, YMD', timeout: '5s', waits: '10s', read_only: 'on' };

  test('the next page uses the same session, in which nothing of the tenant’s code is left', async () => {
    const { pid, traces } = await pageOf('leaving');
    expect(traces).toBe('left');
    const login = loginName(started.main.branch_id, 'read_write');
    expect(await pageOf('found')).toEqual({ pid, ...CLEAN, login, locks: 0, channels: 0, prepared: 0 });
    expect((await browser.tables()).tables.map(({ name }) => name)).toContain('found');
  });

  test('a session that waits holds no lock', async () => {
    await pageOf('leaving');
    const locks = "select from pg_locks join pg_database on oid = database where datname = 'db_shop_prod'";
    expect(await started.servers.query(locks)).toEqual([]);
  });

  test('a change and a query have sessions of their own', async () => {
    const { pid } = await pageOf('found');
    const sql = 'select pg_backend_pid()';
    const others = [await browser.query(sql), await browser.query(sql, [], 'read_write')];
    expect(others.map(({ rows }) => rows[0]?.[0] === pid)).toEqual([false, false]);
    expect((await pageOf('found')).pid).toBe(pid);
  });

  test('a page that fails ends its session', async () => {
    const { pid } = await pageOf('found');
    await expect(browser.page('failing')).rejects.toMatchObject({ sqlstate: '22012' });
    expect((await pageOf('found')).pid).not.toBe(pid);
  });

  test('a session that the server has ended is replaced, without an error', async () => {
    const { pid } = await pageOf('found');
    await started.servers.query('select pg_terminate_backend($1)', [pid]);
    expect((await pageOf('found')).pid).not.toBe(pid);
  });

  test.each(['describes', 'knows'])(
    'a page whose code ends the session that %s it is not read again',
    async (what) => {
      // A busy machine may not reset a session in time, and the next page has another one then.
      await eventually(async () => {
        await browser.query('delete from note', [], 'read_write');
        const { pid } = await pageOf('found');
        if (what === 'knows') await browser.page('ending');
        // In any other session, the view ends nothing and returns its row.
        await browser.query(`insert into note values (${pid})`, [], 'read_write');
        await expect(browser.page('ending')).rejects.toThrow();
        expect((await pageOf('found')).pid).not.toBe(pid);
      });
      await browser.query('delete from note', [], 'read_write');
    },
  );

  test('the session waits for no other database, and for no clone', async () => {
    const { host } = started.servers;
    const { pid } = await pageOf('found');
    await endKeptSessions(host.postgres, 'db_other_prod');
    const left = () => started.servers.query('select from pg_stat_activity where pid = $1', [pid]);
    expect(await left()).toHaveLength(1);
    await endKeptSessions(host.postgres, 'db_shop_prod');
    expect(await left()).toEqual([]);
  });

  test('a session that has just logged in is not treated as one that waits', async () => {
    const { POSTGRES_SOCKET_DIR: host, POSTGRES_PORT: port } = started.servers.settings;
    const user = loginName(started.main.branch_id, 'read_write');
    const config = { host, port, user, database: 'db_shop_prod', application_name: BROWSING };
    await inSession(config, async (session) => {
      const idle = 'select state, query from pg_stat_activity where pid = $1';
      const own = () => started.servers.query(idle, [backendPid(session)]);
      await eventually(async () => expect(await own()).toEqual([{ state: 'idle', query: '' }]));
      await endKeptSessions(started.servers.host.postgres, 'db_shop_prod');
      expect((await session.query('select 1 as n')).rows).toEqual([{ n: 1 }]);
    });
  });

  test('a clone by another process ends the session', async () => {
    const other = await openHost(started.servers.settings);
    try {
      const { pid } = await pageOf('found', { ...started.servers, host: other });
      const { clone } = await started.project.create('db_shop_prod_br_one', started.main.database);
      expect(clone.created).toBe(true);
      expect((await pageOf('found', { ...started.servers, host: other })).pid).not.toBe(pid);
    } finally {
      await closeHost(other);
    }
  });
}
