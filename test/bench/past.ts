import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { runOperation } from '../../agent/operations/handlers.ts';
import { recoverDatabase } from '../../agent/past/recover.ts';
import { startHost, type TestHost } from '../support/host/host.ts';
import { asClient, type Branch, connect, Project } from '../support/host/host-project.ts';
import { mountXfs } from '../support/stack/xfs.ts';
import type { Report } from './report.ts';
import { median, medianRatio, runInterleaved, timed } from './rounds.ts';

const DISK_BYTES = 16 * 2 ** 30;
/** For a quick check of the benchmark itself. */
const SCALE = Number(process.env.BENCH_PAST_SCALE ?? 1);
const ROWS = Math.round(1_000_000 * SCALE);
const ROUNDS = Math.max(2, Math.round(7 * SCALE));
const WRITE_MS = Math.max(1_000, 10_000 * SCALE);
const WRITERS = 4;
const RECOVERIES = Math.max(2, Math.round(5 * SCALE));

const METHOD = `Two hosts on one machine, each with its data on XFS with reflink in a loopback file and \`fsync = on\`: one archives its WAL and makes a \
base copy before each round, the other a checkpoint. main has ${ROWS.toLocaleString('en')} rows. Interleaved, ${ROUNDS} rounds after a first one that is \
discarded: ${WRITERS} sessions change one row in a transaction for ${WRITE_MS / 1000} s; then a branch of main is made, and dropped outside of the time. \
After that the host with a past recovers main ${RECOVERIES} times to a second of the rounds, while the sessions write: how long a recovery takes beside its copy of the files, \
its replay and its copy of the database, and how long the transactions take, each run next to one of the same length without a recovery.`;

interface Side {
  servers: TestHost;
  project: Project;
  main: Branch;
  writers: pg.Client[];
}

async function startSide(data: string, settings: Record<string, string>): Promise<Side> {
  const servers = await startHost({ dataDir: data, settings });
  await servers.query('alter system set fsync = on');
  await servers.query('select pg_reload_conf()');
  const project = new Project(servers.host);
  const main = await project.create('db_bench_prod', null);
  const run = (sql: string) => asClient(servers.host, 'direct', main, 'owner', sql);
  await run('create table account (id int primary key, balance int not null, filler text not null)');
  await run(
    `insert into account select n, 0, repeat(md5(n::text), 2) from generate_series(1, ${ROWS}) n; grant all on account to public`,
  );
  await run('vacuum analyze account');
  const writers: pg.Client[] = [];
  return { servers, project, main, writers };
}

const open = async ({ servers, main, writers }: Side) => {
  for (let n = 0; n < WRITERS; n += 1) writers.push(await connect(servers.host, 'direct', main, 'owner'));
};
const close = async ({ writers }: Side) => {
  await Promise.all(writers.splice(0).map((writer) => writer.end()));
};

/** Writes until `isOver`. @returns milliseconds of each transaction @throws the failure of one */
async function write(side: Side, isOver: () => boolean): Promise<number[]> {
  await open(side);
  const all: number[] = [];
  const writeAs = async (writer: pg.Client) => {
    while (!isOver()) {
      const id = 1 + Math.floor(Math.random() * ROWS);
      all.push(await timed(() => writer.query(`update account set balance = balance + 1 where id = ${id}`)));
    }
  };
  try {
    await Promise.all(side.writers.map(writeAs));
  } finally {
    await close(side);
  }
  return all;
}

const during = (milliseconds: number) => {
  const until = performance.now() + milliseconds;
  return () => performance.now() > until;
};

/** Transactions of a second. */
const throughput = async (side: Side) => (await write(side, during(WRITE_MS))).length / (WRITE_MS / 1000);

let made = 0;
async function clone({ project, main }: Side): Promise<number> {
  made += 1;
  let branch: Branch | null = null;
  const took = await timed(async () => {
    branch = await project.create(`${main.database}_br_${made}`, main.database);
  });
  if (branch) await project.drop(branch);
  return took;
}

const p99 = (values: readonly number[]) =>
  values.toSorted((a, b) => a - b)[Math.floor(values.length * 0.99)] ?? Number.NaN;

/** Measures what recoveries need, and what they and their base copies cost others. @param signal aborts it */
export async function measurePast(signal: AbortSignal): Promise<Report> {
  const disks = [mountXfs(DISK_BYTES), mountXfs(DISK_BYTES)] as const;
  const sides: Side[] = [];
  try {
    const past = await startSide(join(disks[0].folder, 'data'), {
      RECOVERY_WINDOW_HOURS: '24',
      PAST_DISK_PERCENT: '90',
    });
    sides.push(past);
    const without = await startSide(join(disks[1].folder, 'data'), {});
    sides.push(without);
    const { host } = past.servers;
    const copies: number[] = [];
    const withCopy = async (measure: () => Promise<number>) => {
      signal.throwIfAborted();
      copies.push(await timed(() => host.past.copyBase({ fast: true })));
      return measure();
    };
    // A base copy makes one, after which each page is logged as a whole once.
    const afterCheckpoint = async (measure: () => Promise<number>) => {
      await without.servers.query('checkpoint');
      return measure();
    };
    const writes = await runInterleaved(ROUNDS, {
      'with a past': () => withCopy(() => throughput(past)),
      without: () => afterCheckpoint(() => throughput(without)),
    });
    const clones = await runInterleaved(ROUNDS, {
      'with a past': () => withCopy(() => clone(past)),
      without: () => afterCheckpoint(() => clone(without)),
    });

    const overheads: number[] = [];
    const durations: number[] = [];
    const idle: number[] = [];
    const busy: number[] = [];
    for (let n = 0; n < RECOVERIES; n += 1) {
      signal.throwIfAborted();
      const { at, took } = await recoverWhile(past, n);
      overheads.push(at.rest);
      durations.push(at.total);
      busy.push(p99(took));
      idle.push(p99(await write(past, during(at.total))));
    }
    return {
      title: 'Any second of the past',
      method: METHOD,
      goals: [
        {
          name: 'transactions with archive and base copies ÷ without',
          measured: medianRatio(writes['with a past'], writes.without),
          limit: 0.9,
          atLeast: true,
          unit: '×',
        },
        {
          name: 'clones with base copies ÷ without',
          measured: medianRatio(clones['with a past'], clones.without),
          limit: 1.3,
          unit: '×',
        },
        {
          name: 'a recovery beside its replay and copies',
          measured: median(overheads),
          limit: 10_000,
          unit: 'ms',
        },
        {
          name: 'p99 of transactions of main during a recovery ÷ idle',
          measured: medianRatio(busy, idle),
          limit: 2.5,
          unit: '×',
        },
      ],
      times: {
        Durations: { clone: clones['with a past'], 'clone without': clones.without, 'base copy': copies },
        Recoveries: { whole: durations, 'beside its replay and copies': overheads },
        'Slowest of a hundred transactions': { 'during a recovery': busy, idle },
      },
      counts: { 'Transactions of a second': writes },
    };
  } finally {
    for (const { servers } of sides) await servers.stop();
    for (const disk of disks) disk.remove();
  }
}

/** Recovers main while its clients write. No transaction may fail. */
async function recoverWhile(side: Side, n: number) {
  const { servers, main } = side;
  const { host } = servers;
  const [row] = await servers.query<{ at: string }>(
    `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at`,
  );
  let isOver = false;
  const writing = write(side, () => isOver);
  await sleep(500);
  const params = {
    job_id: randomUUID(),
    project_id: main.project_id,
    branch_id: main.branch_id,
    snapshot_id: randomUUID(),
    at: row?.at ?? '',
    room_bytes: 2 ** 40,
    jobs: 2,
  };
  const steps: Record<string, number> = {};
  const total = await timed(async () => {
    const result = await recoverDatabase(host, params, undefined, async (step) => {
      steps[step] = performance.now();
    });
    if (!result.recovered) throw new Error(`recovery ${n}: ${JSON.stringify(result)}`);
  });
  isOver = true;
  const took = await writing;
  await runOperation(host, 'snapshot.drop', {
    project_id: params.project_id,
    snapshot_id: params.snapshot_id,
  });
  const between = (from: string, to: string) => (steps[to] ?? 0) - (steps[from] ?? 0);
  const announced = between('archived', 'copied') + between('copied', 'replayed') + between('made', 'filled');
  return { at: { total, rest: total - announced }, took };
}
