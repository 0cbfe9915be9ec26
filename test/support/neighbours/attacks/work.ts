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

/** A function that sleeps where no login of a tenant calls it. Each analysis of a table has a worker of its own. */
export const sleepingAutovacuum: Attack = {
  row: '2.1',
  login: 'owner',
  setUp: `create function slow(n integer) returns integer immutable language plpgsql as $do$ begin
      if session_user !~ '^u_' then perform pg_sleep(3600); end if;
      return n;
    end $do$;
    do $do$ begin
      for n in 1..5 loop
        execute format('create table t_%s (n integer); create index on t_%s (slow(n));', n, n);
        execute format('insert into t_%s select generate_series(1, 500)', n);
      end loop;
    end $do$`,
  durationMs: 60_000,
  run: async ({ goesOn }) => {
    while (goesOn()) await sleep(100);
  },
  boundsLatency: true,
  revocation: null,
  blockedFor: 'autovacuum',
};

const HOLDERS = 40;

/** Each transaction that locks the row makes a list of all that hold it. */
export const multixactMembers: Attack = {
  row: '2.6',
  login: 'read_write',
  setUp: 'create table shared_row (id integer primary key); insert into shared_row values (1)',
  durationMs: 30_000,
  run: async ({ connect, goesOn, count }) => {
    const lock = 'select from shared_row where id = 1 for share';
    for (let n = 0; n < HOLDERS; n++) {
      const holder = await connect('direct');
      await holder.query(`begin; ${lock}`);
    }
    const looping = await connect('direct');
    while (goesOn()) {
      await looping.query(
        `do $do$ begin for n in 1..2000 loop perform from shared_row where id = 1 for share; commit; end loop; end $do$`,
      );
      count('members', 2_000 * (HOLDERS + 1));
    }
  },
  boundsLatency: true,
  revocation: null,
  blockedFor: 'transaction_ids',
  // What PostgreSQL has in memory, a burst of ten seconds, and what is taken until the sessions end.
  most: { members: 1_000_000 },
};

/** What would keep WAL, follow the changes of others or run code in their sessions. */
const REFUSED = [
  "select pg_create_physical_replication_slot('kept', true)",
  "select pg_create_logical_replication_slot('kept', 'pgoutput')",
  'create publication every for all tables',
  'create publication every for tables in schema public',
  "create subscription kept connection '' publication p with (connect = false)",
  `create function no() returns event_trigger language plpgsql as 'begin raise exception $$no$$; end';
   create event trigger no on ddl_command_start execute function no()`,
  "alter system set synchronous_standby_names = ''",
  'select pg_wal_replay_pause()',
  'select pg_switch_wal()',
];

/**
 * Tables, rewrites and publications, each under an ACCESS EXCLUSIVE lock that a standby takes too. Subtransactions beyond
 * the cache of PostgreSQL make the standby look for each id.
 */
export const schemaChanges: Attack = {
  row: '3.3',
  login: 'owner',
  run: ({ connect, repeat, goesOn, count }) =>
    repeat(async () => {
      const session = await connect('direct');
      try {
        for (const statement of REFUSED)
          await session.query(statement).then(
            () => count('allowed'),
            () => count('refused'),
          );
        while (goesOn()) {
          const name = `t_${Math.random().toString(36).slice(2)}`;
          await session.query(
            `begin;
             create table ${name} (id integer primary key, a text, b text);
             insert into ${name} select n, n, n from generate_series(1, 500) as n;
             do $do$ begin
               for n in 1..100 loop
                 begin update ${name} set a = 'b' where id = n; exception when others then null; end;
               end loop;
             end $do$;
             create publication p_${name} for table ${name};
             create index on ${name} (a); create index on ${name} (b);
             alter table ${name} alter id type bigint, replica identity full;
             commit;
             drop publication p_${name}; drop table ${name}`,
          );
          count('schema changes');
        }
      } finally {
        void session.end().catch(() => {});
      }
    }),
  boundsLatency: true,
  revocation: null,
  least: { 'schema changes': 10, refused: REFUSED.length },
  most: { allowed: 0 },
};

/** Small tables take little space, and each has files. */
export const manyTables = {
  row: '2.7',
  login: 'owner',
  durationMs: 20_000,
  run: ({ connect, repeat, goesOn, count }) =>
    repeat(async () => {
      const session = await connect('direct');
      try {
        while (goesOn()) {
          const name = `t_${Math.random().toString(36).slice(2)}`;
          await session.query(
            `do $do$ begin
               for n in 1..100 loop execute format('create table ${name}_%s (n integer)', n); end loop;
             end $do$`,
          );
          count('tables', 100);
        }
      } finally {
        void session.end().catch(() => {});
      }
    }),
  revocation: null,
  blockedFor: 'files',
} satisfies Attack;

/** The same, far below the limit of a project, where each file takes one of few inodes. */
export const fewInodes: Attack = {
  ...manyTables,
  durationMs: 40_000,
  blockedFor: 'disk',
  needsSmallVolume: true,
};
