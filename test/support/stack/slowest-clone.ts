import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';

const POLL_MS = 5;

/** A `CREATE DATABASE`, as another session sees it. */
export interface SeenClone {
  /** When it was first seen, in milliseconds since 1970; too late by at most one poll. */
  from: number;
  /** How long it was seen running; too short by at most two polls. */
  ms: number;
}

/**
 * The `CREATE DATABASE` that was seen running longest during `action`. Sessions of the platform hide their statements,
 * so a creation is known by the lock of its source, whose mode no other statement takes.
 * @param postgres a session that may see all others
 */
export async function slowestClone(
  postgres: pg.Client,
  action: () => Promise<unknown>,
): Promise<SeenClone | null> {
  /** By the transaction of the creation. */
  const begun = new Map<string, number>();
  let slowest: SeenClone | null = null;
  let over = false;
  const acting = action().finally(() => {
    over = true;
  });
  while (!over) {
    const { rows } = await postgres.query<{ transaction: string; now: number }>(
      `select virtualtransaction as transaction, extract(epoch from clock_timestamp())::float8 * 1000 as now
       from pg_locks where locktype = 'object' and classid = 'pg_database'::regclass and mode = 'ShareLock'`,
    );
    for (const { transaction, now } of rows) {
      const from = begun.get(transaction) ?? now;
      begun.set(transaction, from);
      if (now - from > (slowest?.ms ?? -1)) slowest = { from, ms: now - from };
    }
    await sleep(POLL_MS);
  }
  await acting;
  return slowest;
}
