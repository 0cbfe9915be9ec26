import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { runOperation } from '../../agent/operations/handlers.ts';
import { recoverDatabase } from '../../agent/past/recover.ts';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
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
/** A day has 288 checkpoints, after each of which the changed pages are logged as a whole. */
const TRANSACTIONS = Math.round(200_000 * SCALE);
const CHECKPOINTS = Math.max(8, Math.round(288 * SCALE));
const BISECTIONS = Math.max(1, Math.round(3 * SCALE));

const METHOD = `Two hosts on one machine, each with its data on XFS with reflink in a loopback file and \`fsync = on\`: one archives its WAL and has base \
copies. main has ${ROWS.toLocaleString('en')} rows. Interleaved, ${ROUNDS} rounds after a first one that is discarded: ${WRITERS} sessions change one row in a \
transaction for ${WRITE_MS / 1000} s. By default a base copy is made every six hours; here one is made before these rounds, and then, for the next ones, before each, where the \
other host makes a checkpoint. Then a branch of main is made after a base copy or a checkpoint, and dropped outside of the time. After that the host with a past recovers main ${RECOVERIES} times to a second of the rounds, while \
the sessions write: how long a recovery takes beside its copy of the files, its replay and its copy of the database, and how long the transactions take, each run next to one of \
the same length without a recovery. At the end a day of ${TRANSACTIONS.toLocaleString('en')} transactions with ${CHECKPOINTS} checkpoints is written, some of which are wrong, and \
${BISECTIONS} bisections of it are measured next to one recovery to its end, each with the branches and their checks.`;

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
    copies.push(await timed(() => host.past.copyBase({ fast: true })));
    const writes = await runInterleaved(ROUNDS, {
      'with a past': () => throughput(past),
      without: () => throughput(without),
    });
    const afterCopies = await runInterleaved(ROUNDS, {
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
    const day = await writeDay(past);
    const single: number[] = [];
    const bisections: number[] = [];
    const probes: number[] = [];
    for (let n = 1; n <= BISECTIONS; n += 1) {
      signal.throwIfAborted();
      single.push(await timed(() => wrongAt(past, day.bad)));
      bisections.push(await timed(async () => probes.push(await bisect(past, day, n))));
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
          name: `the same in the ${WRITE_MS / 1000} s after a base copy`,
          measured: medianRatio(afterCopies['with a past'], afterCopies.without),
          limit: null,
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
        {
          name: 'a bisection of a day ÷ one recovery',
          measured: medianRatio(bisections, single),
          limit: 6,
          unit: '×',
        },
        {
          name: 'probes of a bisection',
          measured: Math.max(...probes),
          limit: Math.floor(Math.log2(TRANSACTIONS) + 3),
          unit: 'items',
        },
      ],
      times: {
        Durations: { clone: clones['with a past'], 'clone without': clones.without, 'base copy': copies },
        Recoveries: { whole: durations, 'beside its replay and copies': overheads },
        Bisections: { bisection: bisections, 'one recovery': single },
        'Slowest of a hundred transactions': { 'during a recovery': busy, idle },
      },
      counts: {
        'Transactions of a second': writes,
        'Transactions of a second after a base copy or a checkpoint': afterCopies,
      },
    };
  } finally {
    for (const { servers } of sides) await servers.stop();
    for (const disk of disks) disk.remove();
  }
}

async function clockOf({ servers }: Side): Promise<string> {
  const [row] = await servers.query<{ at: string }>(
    `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at`,
  );
  return row?.at ?? '';
}

const paramsOf = ({ main: { project_id, branch_id } }: Side, at: string) => ({
  job_id: randomUUID(),
  project_id,
  branch_id,
  snapshot_id: randomUUID(),
  at,
  room_bytes: 2 ** 40,
  jobs: 2,
});

const dropSnapshot = ({ servers }: Side, { project_id, snapshot_id }: ReturnType<typeof paramsOf>) =>
  runOperation(servers.host, 'snapshot.drop', { project_id, snapshot_id });

/** Times before and after the transactions. */
interface Day {
  good: string;
  bad: string;
}

/** Changes one row in each transaction of a day, of which some are wrong. */
async function writeDay(side: Side): Promise<Day> {
  const { servers, main } = side;
  const session = await connect(servers.host, 'direct', main, 'owner');
  try {
    await session.query('create table wrong (n int)');
    await session.query(
      `create procedure work(transactions int) language plpgsql as $$
       declare
         chosen int; -- A volatile function in the condition would read the whole table.
       begin
         for i in 1..transactions loop
           chosen := 1 + floor(random() * ${ROWS});
           update account set balance = balance + 1 where id = chosen;
           commit;
         end loop;
       end $$`,
    );
    await session.query('set synchronous_commit = off');
    await servers.host.past.copyBase({ fast: true });
    const good = await clockOf(side);
    for (let part = 1; part <= CHECKPOINTS; part += 1) {
      await session.query(`call work(${Math.floor(TRANSACTIONS / CHECKPOINTS)})`);
      const isWrong = part % Math.floor(CHECKPOINTS / (BISECTIONS + 1)) === 0;
      if (isWrong) await session.query('insert into wrong select count(*) + 1 from wrong');
      await servers.query('checkpoint');
    }
    return { good, bad: await clockOf(side) };
  } finally {
    await session.end();
  }
}

/** Recovers main, as a branch. @returns which wrong transactions it has */
async function wrongAt(side: Side, at: string, bisection_id?: string): Promise<number[]> {
  const { servers, main, project } = side;
  const params = { ...paramsOf(side, at), ...(bisection_id !== undefined && { bisection_id }) };
  const result = await runOperation(servers.host, 'past.recover', params);
  if (!result.recovered) throw new Error(`${at}: ${JSON.stringify(result)}`);
  const name = `${main.database}_br_${params.job_id.slice(0, 8)}`;
  const branch = await project.create(name, snapshotDatabaseName(params.snapshot_id));
  const wrong = await asClient<{ n: number }>(
    servers.host,
    'direct',
    branch,
    'owner',
    'select n from wrong where (select count(*) from account) > 0',
  );
  await project.drop(branch);
  await dropSnapshot(side, params);
  return wrong.map(({ n }) => n);
}

/** Finds the wrong transaction of a number. @returns how many probes that took */
async function bisect(side: Side, { good, bad }: Day, wrong: number): Promise<number> {
  const { host } = side.servers;
  const { project_id, branch_id } = side.main;
  const about = { bisection_id: randomUUID(), project_id };
  await runOperation(host, 'bisect.start', { ...about, branch_id, good, bad });
  let verdict: 'good' | 'bad' | null = null;
  for (let probes = 0; ; probes += 1) {
    const { step }: MethodResult<'bisect.step'> = await runOperation(host, 'bisect.step', {
      ...about,
      verdict,
    });
    if (!step) throw new Error('the bisection has ended');
    if (step.probe === null) {
      await runOperation(host, 'bisect.end', about);
      return probes;
    }
    verdict = (await wrongAt(side, step.probe, about.bisection_id)).includes(wrong) ? 'bad' : 'good';
  }
}

/** Recovers main while its clients write. No transaction may fail. */
async function recoverWhile(side: Side, n: number) {
  const { host } = side.servers;
  const at = await clockOf(side);
  let isOver = false;
  const writing = write(side, () => isOver);
  await sleep(500);
  const params = paramsOf(side, at);
  const steps: Record<string, number> = {};
  const total = await timed(async () => {
    const result = await recoverDatabase(host, params, undefined, async (step) => {
      steps[step] = performance.now();
    });
    if (!result.recovered) throw new Error(`recovery ${n}: ${JSON.stringify(result)}`);
  });
  isOver = true;
  const took = await writing;
  await dropSnapshot(side, params);
  const between = (from: string, to: string) => (steps[to] ?? 0) - (steps[from] ?? 0);
  const announced = between('archived', 'copied') + between('copied', 'replayed') + between('made', 'filled');
  return { at: { total, rest: total - announced }, took };
}
