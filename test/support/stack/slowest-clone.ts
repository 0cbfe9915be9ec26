import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';

const LOOK_EVERY_MS = 5;

/**
 * Longest that a `CREATE DATABASE` was seen at work while `action` ran, in milliseconds: too short by one look
 * at most.
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
    await sleep(LOOK_EVERY_MS);
  }
  await acting;
  return slowest;
}
