import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';

const POLL_MS = 5;

/** A `CREATE DATABASE`, as another session sees it. */
export interface SeenClone {
  /** When it began, in milliseconds since 1970. */
  from: number;
  /** How long it was seen running; too short by at most one poll. */
  ms: number;
}

/**
 * The `CREATE DATABASE` that was seen running longest during `action`.
 * @param postgres a session that may see all others
 */
export async function slowestClone(
  postgres: pg.Client,
  action: () => Promise<unknown>,
): Promise<SeenClone | null> {
  let slowest: SeenClone | null = null;
  let over = false;
  const acting = action().finally(() => {
    over = true;
  });
  while (!over) {
    const { rows } = await postgres.query<SeenClone>(
      `select extract(epoch from query_start)::float8 * 1000 as from,
              extract(epoch from clock_timestamp() - query_start)::float8 * 1000 as ms
       from pg_stat_activity where query like 'CREATE DATABASE%' and state = 'active'`,
    );
    for (const seen of rows) if (seen.ms > (slowest?.ms ?? -1)) slowest = seen;
    await sleep(POLL_MS);
  }
  await acting;
  return slowest;
}
