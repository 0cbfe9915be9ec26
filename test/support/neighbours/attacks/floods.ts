import { setTimeout as sleep } from 'node:timers/promises';
import { type Attack, type Attacker, FLOOD_BYTES, MIB } from '../attack.ts';

const CHUNK_BYTES = 10 * MIB;

/** Runs a statement that writes one chunk until all of the flood is written. */
async function flood({ connect, repeat, goesOn, count }: Attacker, chunk: string): Promise<void> {
  let written = 0;
  await repeat(async () => {
    if (written >= FLOOD_BYTES) return sleep(200);
    const session = await connect('direct');
    try {
      while (goesOn() && written < FLOOD_BYTES) {
        await session.query(chunk);
        written += CHUNK_BYTES;
        count('chunks');
      }
    } finally {
      void session.end().catch(() => {});
    }
  });
}

const LINE_BYTES = 8_000;

/** Messages of RAISE LOG go to the server's log alone. */
export const serverLog: Attack = {
  row: 2,
  login: 'read_only',
  run: (attacker) =>
    flood(
      attacker,
      `do $do$ begin
         for n in 1..${Math.floor(CHUNK_BYTES / LINE_BYTES)} loop raise log '%', repeat('x', ${LINE_BYTES}); end loop;
       end $do$`,
    ),
  boundsLatency: true,
  revocation: 'rotation',
  growth: { log: 4 * MIB },
};

/** Errors are logged with their statements, also without RAISE. */
export const failedStatements: Attack = {
  row: 2,
  login: 'read_only',
  run: async (attacker) => {
    let left = FLOOD_BYTES / MIB;
    await attacker.repeat(async () => {
      const session = await attacker.connect('direct');
      try {
        while (attacker.goesOn() && left > 0) {
          left -= 1;
          await session.query(`select 1 / 0 /* ${'x'.repeat(MIB)} */`).catch((error: { code?: string }) => {
            if (error.code !== '22012') throw error;
            attacker.count('statements');
          });
        }
        while (attacker.goesOn()) await sleep(200);
      } finally {
        void session.end().catch(() => {});
      }
    });
  },
  boundsLatency: true,
  revocation: 'rule',
  growth: { log: 4 * MIB },
};

/** A sort writes rows that do not fit into `work_mem` to files. */
export const temporaryFiles: Attack = {
  row: 2,
  login: 'read_only',
  run: ({ connect, repeat }) =>
    repeat(async () => {
      const session = await connect('direct');
      try {
        await session.query("set work_mem = '64kB'");
        await session.query(
          `select count(*) from (
             select repeat(md5(n::text), 30) as text from generate_series(1, ${Math.floor(FLOOD_BYTES / 1_000)}) as n
             order by text offset 1
           ) as sorted`,
        );
      } finally {
        void session.end().catch(() => {});
      }
    }),
  boundsLatency: true,
  revocation: 'rotation',
  // The stack of the test sets TEMP_FILE_LIMIT_MB to 100.
  growth: { 'temporary files': 120 * MIB },
};

/**
 * The queue is kept from the oldest listener on that is in a transaction. A full queue stops NOTIFY on the
 * whole host.
 */
export const notifications: Attack = {
  row: 2,
  login: 'read_only',
  run: async (attacker) => {
    const listen = attacker.repeat(async () => {
      const listener = await attacker.connect('direct');
      try {
        await listener.query('listen flood');
        await listener.query('begin');
        while (attacker.goesOn()) {
          await listener.query('select 1');
          await sleep(200);
        }
      } finally {
        void listener.end().catch(() => {});
      }
    });
    await sleep(300);
    const notify = flood(
      attacker,
      `select count(pg_notify('flood', n || repeat('x', 7900))) from generate_series(1, ${Math.floor(CHUNK_BYTES / 7_900)}) as n`,
    );
    await Promise.all([listen, notify]);
  },
  revocation: 'deletion',
  // A second and a half at 80 MB/s; half of the queue, from which sessions of all tenants may be ended, is far more.
  growth: { notifications: 120 * MIB },
};

/** Messages to logical decoding need no right to any table. */
export const writeAheadLog: Attack = {
  row: 2,
  login: 'read_only',
  run: (attacker) =>
    flood(
      attacker,
      `select count(pg_logical_emit_message(false, 'x', repeat('x', ${MIB}))) from generate_series(1, ${CHUNK_BYTES / MIB})`,
    ),
  boundsLatency: true,
  revocation: 'rule',
  growth: { wal: 60 * MIB },
};

/** Rows of 10 MiB. A standby repeats each of them before the commits of others that come later. */
export const hugeRows: Attack = {
  row: '3.1',
  login: 'read_write',
  setUp: 'create table huge (data text); alter table huge alter data set storage external',
  run: (attacker) => flood(attacker, `insert into huge values (repeat('x', ${CHUNK_BYTES}))`),
  boundsLatency: true,
  revocation: null,
  least: { chunks: 5 },
};

/**
 * Rows that are not compressed. The volume is as small as the test makes it: nothing else bounds this attack.
 */
export const fullVolume: Attack = {
  row: 2,
  login: 'read_write',
  setUp: 'create table filled (data text); alter table filled alter data set storage external',
  durationMs: 20_000,
  run: ({ connect, repeat, goesOn, count }) =>
    repeat(async () => {
      const session = await connect('pooled');
      try {
        while (goesOn()) {
          await session.query(
            `insert into filled select repeat('x', 8000) from generate_series(1, ${Math.floor(CHUNK_BYTES / 8_000)})`,
          );
          count('chunks');
        }
      } finally {
        void session.end().catch(() => {});
      }
    }),
  revocation: null,
  blockedFor: 'disk',
  needsSmallVolume: true,
};
