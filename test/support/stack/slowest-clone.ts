import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';

const POLL_MS = 5;

/**
 * The longest time that a `CREATE DATABASE` was seen running during `action`, in milliseconds. It is too
 * short by at most one poll.
 * @param postgres a session that may see all others
 */
export async function slowestClone(postgres: pg.Client, action: () => Promise<unknown>): Promise<number> {
  let slowest = 0;
  let over = false;
  const acting = action().finally(() => {
    over = true;
  });
  while (!over) {
    const { rows } = await postgres.query<{ ms: number }>(
      `select extract(epoch from clock_timestamp() - query_start)::float8 * 1000 as ms
       from pg_stat_activity where query like 'CREATE DATABASE%' and state = 'active'`,
    );
    slowest = Math.max(slowest, ...rows.map(({ ms }) => ms));
    await sleep(POLL_MS);
  }
  await acting;
  return slowest;
}
