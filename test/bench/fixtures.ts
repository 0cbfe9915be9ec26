import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { branchPerFile, branchSetup } from '../../vitest/fixture.ts';
import { Api } from '../support/api.ts';
import { connect } from '../support/database.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import type { Stack } from '../support/stack/stack.ts';
import { connectToClone, untilSparesAreReady } from './bare-clone.ts';
import { processorMs } from './processor-time.ts';
import type { Report } from './report.ts';
import { addSample, medianRatio, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 8 * 2 ** 30;

interface Size {
  files: number;
  migrations: number;
  workers: number;
  rounds: number;
}

const FULL: Size = { files: 20, migrations: 30, workers: 4, rounds: 5 };
const LIMIT = 5;
/** Of the rows that each migration inserts. */
const SEEDED_ROWS = 500;

const methodOf = ({ files, migrations, workers, rounds }: Size) =>
  `PostgreSQL's data on XFS with reflink in a loopback file, everything else as \`npm start\` runs it, all on this machine. \
Interleaved, ${rounds} rounds after a first one that is discarded: ${files} test files in ${workers} workers, each file with a \
database of its own, one query, and the end of the database. On one side a file creates an empty database of the same server and \
replays ${migrations} migrations in it, each in a transaction of its own over one connection; a migration makes a table with an \
index and a foreign key, changes the table before it, and inserts ${SEEDED_ROWS} rows. On the other side a file takes a branch \
of the migrated branch with \`branchPerFile()\`, whose set-up keeps ${files} spares; they are ready, as after a pause of some seconds between \
two runs. The processor time of all files is that of the kernel, with the spares that are made meanwhile; the client is the process with the four workers. The set-up, which migrates once and is the same for every run with these \
migrations, is shown apart. The limit applies to the median of the ratios in each round.`;

/** The statements of one migration. */
function migration(n: number): string {
  const seed = `insert into t_${n} (note) select 'row ' || i from generate_series(1, ${SEEDED_ROWS}) i`;
  const first = `create table t_${n} (id bigint generated always as identity primary key, note text not null);
    create index on t_${n} (note); ${seed}`;
  if (n === 1) return first;
  return `${first};
    alter table t_${n} add column former bigint references t_${n - 1};
    alter table t_${n - 1} add column changed_by_${n} timestamptz not null default now()`;
}

const migrationsOf = (size: Size) => Array.from({ length: size.migrations }, (_, n) => migration(n + 1));

async function replay(client: pg.Client, migrations: readonly string[]): Promise<void> {
  for (const statements of migrations) {
    await client.query('begin');
    await client.query(statements);
    await client.query('commit');
  }
}

const oneTest = (client: pg.Client) => client.query('select count(*) from t_1');

/** Runs every file in the next free worker. */
async function inWorkers({ files, workers }: Size, file: (n: number) => Promise<unknown>): Promise<void> {
  let next = 0;
  const worker = async () => {
    for (let n = next++; n < files; n = next++) await file(n);
  };
  await Promise.all(Array.from({ length: workers }, worker));
}

async function measure(stack: Stack, size: Size): Promise<Report> {
  const token = await stack.token();
  const project = await new Api(stack.url, token).project('Fixtures');
  const migrations = migrationsOf(size);
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-migrations-'));
  migrations.forEach((text, n) => {
    writeFileSync(join(folder, `${n}.sql`), text);
  });
  Object.assign(process.env, { BRANCHGATE_TOKEN: token });
  const setUp = branchSetup({
    url: stack.url,
    project: project.id,
    workers: 1,
    migrations: [`${folder}/*.sql`],
    spares: size.files,
    async migrate({ direct_url }) {
      const client = await connect(direct_url);
      await replay(client, migrations).finally(() => client.end());
    },
  });
  const admin = await connectToClone(stack);
  let tearDown = async () => {};
  try {
    const setUpMs = await timed(async () => {
      tearDown = await setUp();
    });
    const parts: Series = {};
    const processor: Series = {};
    const look = (): Record<string, number> => {
      const { gateway, agent, postgres, pgbouncer } = stack.state.pids;
      const { user, system } = process.cpuUsage();
      return {
        workerd: processorMs(gateway ?? 0),
        'the agent': processorMs(agent ?? 0),
        PostgreSQL: processorMs(postgres ?? 0),
        PgBouncer: processorMs(pgbouncer ?? 0),
        client: (user + system) / 1000,
      };
    };
    const times = await runInterleaved(
      size.rounds,
      {
        'migrations replayed for each file': () =>
          timed(() => inWorkers(size, (n) => replayedFile(stack, admin, migrations, n))),
        'a branch for each file': async () => {
          await untilSparesAreReady(admin, size.files);
          const before = look();
          const ms = await timed(() => inWorkers(size, () => branchedFile(parts)));
          for (const [name, spent] of Object.entries(look()))
            addSample(processor, name, (spent - (before[name] ?? 0)) / size.files);
          return ms;
        },
      },
      parts,
      processor,
    );
    const ratio = medianRatio(times['migrations replayed for each file'], times['a branch for each file']);
    return {
      title: 'Test files with a database of their own',
      method: methodOf(size),
      setting: await serverVersions(stack),
      goals: [{ name: 'migrations ÷ branches', measured: ratio, limit: LIMIT, atLeast: true, unit: '×' }],
      times: {
        'All files': times,
        'Parts of one file with a branch': parts,
        'Processor time of one file with a branch': processor,
        'Once for all runs': { 'set-up': [setUpMs] },
      },
    };
  } finally {
    await tearDown();
    await admin.end();
    rmSync(folder, { recursive: true });
  }
}

async function replayedFile(stack: Stack, admin: pg.Client, migrations: readonly string[], n: number) {
  const database = `replayed_${n}`;
  await admin.query(`create database ${database}`);
  const client = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate', database);
  await replay(client, migrations);
  await oneTest(client);
  await client.end();
  await admin.query(`drop database ${database}`);
}

async function branchedFile(parts: Series): Promise<void> {
  const start = performance.now();
  const branch = await branchPerFile();
  const created = performance.now();
  const client = new pg.Client(branch.direct);
  await client.connect();
  await oneTest(client);
  await client.end();
  const tested = performance.now();
  await branch.end();
  addSample(parts, 'creation', created - start);
  addSample(parts, 'session with one query', tested - created);
  addSample(parts, 'deletion', performance.now() - tested);
}

/** Compares test files that replay migrations with files that take branches. @param signal aborts it */
export const measureFixtures = (signal: AbortSignal, size: Size = FULL): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, (stack) => measure(stack, size), {
    LIMIT_READS_PER_MINUTE: '1000000',
    LIMIT_WRITES_PER_MINUTE: '1000000',
  });
