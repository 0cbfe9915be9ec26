import { setTimeout as after } from 'node:timers/promises';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { GuardWatch } from '../../../agent/guard/watch-guards.ts';
import { eventually } from '../../support/eventually.ts';
import { attempt, targetOf } from '../../support/host/attempts.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type Branch, connect, startHostWithProject } from '../../support/host/host-project.ts';

/** PostgreSQL's default, so that the table is full in a moment. */
const LOCKS_PER_CONNECTION = 64;
const FULL = { code: '53200' };

let servers: TestHost;
let main: Branch;
let other: Branch;
const events: { event: string; [field: string]: unknown }[] = [];

beforeAll(async () => {
  const started = await startHostWithProject('db_locks_prod', 'SELECT');
  ({ servers, main } = started);
  other = await started.project.create('db_locks_prod_br_other', null);
  await servers.query(`ALTER SYSTEM SET max_locks_per_transaction = ${LOCKS_PER_CONNECTION}`);
  await servers.end('postgres', 'SIGINT');
  await servers.start('postgres');
});
afterAll(() => servers.stop());

/** The process of the session that watches. Its open transaction alone keeps the lock of a catalog. */
const watchingPid = () =>
  eventually(async () => {
    const [found] = await servers.query<{ pid: number }>(
      `SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
       WHERE relation = 'pg_collation'::regclass AND wait_event = 'ClientRead' AND usename = current_user`,
    );
    expect(found?.pid).toBeGreaterThan(1);
    return Number(found?.pid);
  });

/** Stops the process while it waits for its client: elsewhere it may hold a lock that all of PostgreSQL needs. */
const stop = (pid: number) =>
  eventually(async () => {
    process.kill(pid, 'SIGSTOP');
    const read = servers.query(`SELECT wait_event FROM pg_stat_activity WHERE pid = ${pid}`);
    const found = await Promise.race([read, after(2_000, [])]);
    if (found[0]?.wait_event !== 'ClientRead') process.kill(pid, 'SIGCONT');
    expect(found).toEqual([{ wait_event: 'ClientRead' }]);
  });

/** Empties the caches of sessions that do not follow: more changes of catalogs than PostgreSQL queues. */
const MANY_CHANGES = `
  DO $$ BEGIN
    FOR n IN 1..1500 LOOP EXECUTE format('CREATE TABLE t_%s (id integer); DROP TABLE t_%s', n, n); COMMIT; END LOOP;
  END $$`;

async function fill(attacker: pg.Client): Promise<void> {
  await attacker.query(`ALTER ROLE CURRENT_USER PASSWORD 'another'`);
  await expect(
    attacker.query('SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 200000) AS n'),
  ).rejects.toMatchObject(FULL);
}

test('who has filled the lock table is ended and blocked, although every cache is empty', async () => {
  const ending = new AbortController();
  const watch = new GuardWatch(servers.host, (event, fields) => events.push({ event, ...fields }));
  const running = watch.run(ending.signal);
  const pid = await watchingPid();
  const owner = await connect(servers.host, 'direct', main, 'owner');
  const attackers = await Promise.all([1, 2].map(() => connect(servers.host, 'direct', main, 'read_only')));
  const [first] = attackers as [pg.Client];
  const ended = Promise.all(
    attackers.map((attacker) => new Promise<void>((resolve) => attacker.once('end', resolve))),
  );
  // Otherwise the session would be ended before it has filled the table.
  await stop(pid);
  try {
    await owner.query(MANY_CHANGES);
    await fill(first);
    await expect(connect(servers.host, 'direct', other, 'read_only')).rejects.toMatchObject(FULL);
  } finally {
    process.kill(pid, 'SIGCONT');
  }
  await ended;
  await eventually(async () => expect(await attempt(targetOf(servers, 'direct', other))).toBe('in'));
  await eventually(async () => expect(await attempt(targetOf(servers, 'direct', main))).toBe('refused'));
  expect(events).toContainEqual({
    event: 'guard.blocked',
    branch_id: main.branch_id,
    reason: 'locks',
    locks: expect.any(Number),
  });
  expect(events.filter(({ what }) => what === 'sessions')).toEqual([]);
  ending.abort();
  await Promise.all([running, owner.end()]);
});
