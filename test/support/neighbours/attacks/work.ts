import { setTimeout as sleep } from 'node:timers/promises';
import type { Attack } from '../attack.ts';

/** Rows of a sort that takes about 400 MB when `work_mem` allows it. */
const SORTED_ROWS = 2_000_000;
const SHORT_MS = 8_000;
/** Milliseconds: the stack of the test sets TRANSACTION_SECONDS to 5, and checks add some. */
const OLDEST_TRANSACTION_MS = 8_000;

export const memory: Attack = {
  row: 8,
  login: 'read_only',
  durationMs: SHORT_MS,
  run: ({ connect, repeat, count }) =>
    repeat(async () => {
      const session = await connect('direct');
      try {
        await session.query("set work_mem = '2GB'");
        await session.query(
          `select count(*) from (
             select repeat(md5(n::text), 4) as text from generate_series(1, ${SORTED_ROWS}) as n order by text offset 1
           ) as sorted`,
        );
        count('sorts');
      } finally {
        void session.end().catch(() => {});
      }
    }, 1_000),
  boundsLatency: true,
  revocation: 'deletion',
};

/** Each transaction takes an id; the cluster stops when two thousand million are in use. */
export const transactionIds: Attack = {
  row: 9,
  login: 'read_only',
  durationMs: SHORT_MS,
  run: ({ connect, repeat, goesOn, count }) =>
    repeat(async () => {
      const session = await connect('direct');
      try {
        while (goesOn()) {
          await session.query(
            'do $do$ begin for n in 1..20000 loop perform pg_current_xact_id(); commit; end loop; end $do$',
          );
          count('ids', 20_000);
        }
      } finally {
        void session.end().catch(() => {});
      }
    }),
  boundsLatency: true,
  revocation: null,
  blockedFor: 'transaction_ids',
};

/**
 * An open transaction with an id keeps every database from cleaning up after it. Tenants can unset timeouts.
 */
export const oldTransaction: Attack = {
  row: 9,
  login: 'read_only',
  durationMs: 12_000,
  run: async ({ connect, repeat, goesOn, count }) => {
    let longest = 0;
    await repeat(async () => {
      const session = await connect('direct');
      try {
        await session.query('set idle_in_transaction_session_timeout = 0; set transaction_timeout = 0');
        await session.query('begin; select pg_current_xact_id()');
        const begun = performance.now();
        try {
          while (goesOn()) {
            await session.query('select 1');
            await sleep(100);
          }
        } finally {
          const age = Math.round(performance.now() - begun);
          if (age > longest) count('oldest transaction, ms', age - longest);
          longest = Math.max(longest, age);
        }
      } finally {
        void session.end().catch(() => {});
      }
    });
  },
  revocation: null,
  most: { 'oldest transaction, ms': OLDEST_TRANSACTION_MS },
};

/** The process of the client ends a second later; the statement would run on for minutes. */
export const abandonedStatements: Attack = {
  row: 10,
  login: 'read_only',
  durationMs: 1_000,
  run: async ({ connect, goesOn }) => {
    for (const port of ['direct', 'pooled'] as const) {
      const session = await connect(port);
      void session
        .query('select count(*) from generate_series(1, 40000) as a, generate_series(1, 50000) as b')
        .catch(() => {});
    }
    while (goesOn()) await sleep(50);
  },
  revocation: null,
};
