import { setTimeout as sleep } from 'node:timers/promises';
import type { Attack, Attacker } from '../attack.ts';

const MORE_THAN_THE_TABLE_HOLDS = 60_000;
/** More than LOCKS_PER_SESSION. */
const MANY_TABLES = 6_000;

/** Takes locks until the server has no room for more, holds them, and takes what others release. */
async function fillLockTable({ connect, repeat, goesOn, count }: Attacker, take: string): Promise<void> {
  await repeat(async () => {
    const session = await connect('direct');
    try {
      for (let round = 0; goesOn(); round++) {
        await session.query(take.replaceAll('$round', String(round))).then(
          () => count('rounds'),
          (error: { code?: string }) => count(`refused with ${error.code}`),
        );
        await sleep(100);
        // Fails when the session was ended, which is what `repeat` has to know.
        await session.query('select 1');
      }
    } finally {
      void session.end().catch(() => {});
    }
  });
}

/** Locks of a session survive the statement that found no more room. */
export const advisoryLocks: Attack = {
  row: 1,
  login: 'read_only',
  run: (attacker) =>
    fillLockTable(
      attacker,
      `select count(pg_advisory_lock($round, n)) from generate_series(1, ${MORE_THAN_THE_TABLE_HOLDS}) as n`,
    ),
  revocation: 'rule',
  blockedFor: 'locks',
};

/** Every lock on a table, until the end of the transaction. */
export const tableLocks: Attack = {
  row: 1,
  login: 'owner',
  setUp: `do $do$ begin
    for n in 1..${MANY_TABLES} loop
      execute format('create table t_%s ()', n);
      if n % 500 = 0 then commit; end if;
    end loop;
  end $do$`,
  run: ({ connect, repeat }) =>
    repeat(async () => {
      const session = await connect('direct');
      try {
        await session.query(
          `do $do$ begin
             for n in 1..${MANY_TABLES} loop execute format('lock table t_%s', n); end loop;
             perform pg_sleep(10);
           end $do$`,
        );
      } finally {
        void session.end().catch(() => {});
      }
    }),
  revocation: null,
  blockedFor: 'locks',
};
