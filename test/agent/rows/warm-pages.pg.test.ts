import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { closeHost, openHost } from '../../../agent/host.ts';
import { type Project, startHostWithProject } from '../../support/host/host-project.ts';
import { Browser } from '../../support/host/host-rows.ts';

let world: Awaited<ReturnType<typeof startHostWithProject>>;
let browser: Browser;
beforeAll(async () => {
  world = await startHostWithProject(
    'db_warm_prod',
    `create table note (id int primary key, title text); insert into note values (1, 'One');
     create function leaves_traces() returns text language plpgsql as $$ begin
       perform set_config('my.trace', 'left', false); perform set_config('DateStyle', 'German', false);
       perform set_config('search_path', 'public', false); perform set_config('statement_timeout', '0', false);
       perform pg_advisory_lock(7); execute 'listen traces';
       if not exists (select from pg_prepared_statements) then execute 'prepare trace as select 1'; end if;
       return 'left';
     end $$;
     create view leaving as select pg_backend_pid() as pid, leaves_traces() as traces;
     create view found as select pg_backend_pid() as pid, current_setting('my.trace', true) as setting,
       current_setting('DateStyle') as style, current_setting('statement_timeout') as timeout,
       (select count(*)::int from pg_locks where locktype = 'advisory') as locks,
       (select count(*)::int from pg_listening_channels()) as channels,
       (select count(*)::int from pg_prepared_statements) as prepared,
       current_setting('transaction_read_only') as read_only, current_user::text as login;
     create view failing as select 1 / 0 as n;`,
  );
  browser = new Browser(world.servers.host, world.main);
});
afterAll(() => world.servers.stop());
afterEach(() => world.servers.host.rows.kept.close());

const SESSIONS = `select pid from pg_stat_activity where application_name = 'branchgate-rows' and datname = 'db_warm_prod'`;
const pidOf = async (view: string) => {
  const [row] = (await browser.page(view)).rows;
  // The session is kept after the response.
  await new Promise((resolve) => setTimeout(resolve, 100));
  return row?.pid;
};

test('the next page uses the same session, in which nothing of the tenant’s code is left', async () => {
  const pid = await pidOf('leaving');
  const [found] = (await browser.page('found')).rows;
  expect(found).toMatchObject({
    pid,
    style: 'ISO, YMD',
    timeout: '5s',
    locks: 0,
    channels: 0,
    prepared: 0,
    read_only: 'on',
    login: `u_${world.main.branch_id.replaceAll('-', '')}_rw`,
  });
  expect(found?.setting ?? '').toBe('');
  expect((await browser.tables()).tables.map(({ name }) => name)).toContain('note');
});

test('a change and a query have sessions of their own', async () => {
  const pid = await pidOf('found');
  const sql = 'select pg_backend_pid()';
  const pids = [
    (await browser.query(sql)).rows[0]?.[0],
    (await browser.query(sql, [], 'read_write')).rows[0]?.[0],
    await pidOf('found'),
  ];
  expect(pids.map((other) => other === pid)).toEqual([false, false, true]);
});

test('a failed page ends its session', async () => {
  const pid = await pidOf('found');
  await expect(browser.page('failing')).rejects.toMatchObject({ sqlstate: '22012' });
  expect(await pidOf('found')).not.toBe(pid);
});

test('a session that the server has ended is replaced', async () => {
  const pid = await pidOf('found');
  await world.servers.query('select pg_terminate_backend($1)', [pid]);
  const next = await pidOf('found');
  expect([typeof next, next === pid]).toEqual(['number', false]);
});

test('a clone does not wait for a kept session, and does not pause the clients for it', async () => {
  await pidOf('found');
  const { clone } = await (world.project as Project).create('db_warm_prod_br_one', world.main.database);
  expect(clone).toMatchObject({ created: true, paused_ms: 0 });
});

test('a clone by another process ends the sessions that this one keeps', async () => {
  const other = await openHost(world.servers.settings);
  try {
    await new Browser(other, world.main).page('note');
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(await world.servers.query(SESSIONS)).toHaveLength(1);
    const { clone } = await (world.project as Project).create('db_warm_prod_br_two', world.main.database);
    expect(clone.created).toBe(true);
    expect(await world.servers.query(SESSIONS)).toEqual([]);
    expect((await new Browser(other, world.main).page('note')).rows).toHaveLength(1);
  } finally {
    await closeHost(other);
  }
});
