import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { GuardWatch } from '../../../agent/guard/watch-guards.ts';
import { eventually } from '../../support/eventually.ts';
import { attempt, targetOf } from '../../support/host/attempts.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type Branch, connect, startHostWithProject } from '../../support/host/host-project.ts';

/** The default of PostgreSQL, so that the table is full in a moment. */
const LOCKS_PER_CONNECTION = 64;
const FULL = { code: '53200' };
const FILL = 'SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 200000) AS n';

interface Event {
  event: string;
  [field: string]: unknown;
}

let servers: TestHost;
let main: Branch;
let other: Branch;
const events: Event[] = [];

beforeAll(async () => {
  const started = await startHostWithProject('db_locks_prod', 'SELECT');
  ({ servers, main } = started);
  other = await started.project.create('db_locks_prod_br_other', null);
  await servers.query(`ALTER SYSTEM SET max_locks_per_transaction = ${LOCKS_PER_CONNECTION}`);
  await servers.end('postgres', 'SIGINT');
  await servers.start('postgres');
});
afterAll(() => servers.stop());

const loginFails = () => expect(connect(servers.host, 'direct', other, 'read_only')).rejects;

/**
 * Runs the watchdogs, but holds back their signals and polls until `attack` has filled the table: in reality they would
 * end the session before.
 */
async function watchDuring(attack: () => Promise<void>): Promise<() => Promise<void>> {
  const ending = new AbortController();
  const watch = new GuardWatch(servers.host, (event, fields) => events.push({ event, ...fields }));
  const running = watch.run(ending.signal);
  // It has opened its session and read once.
  await eventually(async () =>
    expect(
      await servers.query("SELECT FROM pg_stat_activity WHERE state = 'idle in transaction'"),
    ).toHaveLength(1),
  );
  const stopped = await servers.query<{ pid: number }>(
    "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'",
  );
  process.kill(stopped[0]?.pid ?? 0, 'SIGSTOP');
  try {
    await attack();
  } finally {
    process.kill(stopped[0]?.pid ?? 0, 'SIGCONT');
  }
  return async () => {
    ending.abort();
    await running;
  };
}

test('a session that has filled the lock table is ended, although every catalog cache is cold', async () => {
  const held: pg.Client[] = [];
  const stop = await watchDuring(async () => {
    const attacker = await connect(servers.host, 'direct', main, 'read_only');
    held.push(attacker);
    await expect(attacker.query(FILL)).rejects.toMatchObject(FULL);
    await loginFails().toMatchObject(FULL);
  });
  const ended = new Promise((resolve) => held[0]?.once('end', resolve));
  await ended;
  await eventually(async () => expect(await attempt(targetOf(servers, 'direct', other))).toBe('in'), 3);
  await stop();
});
