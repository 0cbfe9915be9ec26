import { join } from 'node:path';
import pg from 'pg';
import { startHost, type TestHost } from '../support/host/host.ts';
import { asClient, type Branch, Project } from '../support/host/host-project.ts';
import { mountXfs } from '../support/stack/xfs.ts';
import { endSessions, makeBareClone } from './bare-clone.ts';
import type { Report } from './report.ts';
import { median, runInterleaved } from './rounds.ts';

const DISK_BYTES = 12 * 2 ** 30;
const PROJECTS = 16;
/** Of each project per round, in sequence. */
const BRANCHES = 2;
const MEGABYTES = 20;
const ROWS_PER_MB = 7_500;
const ROUNDS = 7;
const LIMIT = 0.4;

const METHOD = `PostgreSQL's data on XFS with reflink in a loopback file, with its own durability. ${PROJECTS} projects with a main of about \
${MEGABYTES + 8} MB, without clients. In each, concurrently, ${BRANCHES} branches are made in sequence: by the operations that the gateway \
calls (logins and rules concurrently with the clone, then its publication and its proof), and by \`CREATE DATABASE … STRATEGY FILE_COPY\` with \
\`file_copy_method = clone\` in one open session each. The agent's code runs in the process that measures, and there is no gateway: in production it \
runs elsewhere. [Creation throughput](creation-throughput.md) has it on the same processors. Interleaved, ${ROUNDS} rounds after a first one that is discarded; medians are compared.`;

interface Source {
  project: Project;
  main: Branch;
  session: pg.Client;
}

/**
 * Measures branches per second that a database host makes by itself, compared with bare clones.
 * @param signal aborts it
 */
export async function measureHostThroughput(signal: AbortSignal): Promise<Report> {
  const disk = mountXfs(DISK_BYTES);
  try {
    const servers = await startHost({ dataDir: join(disk.folder, 'data') });
    try {
      await servers.query('ALTER SYSTEM SET fsync = on');
      await servers.query('SELECT pg_reload_conf()');
      return await measure(servers, signal);
    } finally {
      await servers.stop();
    }
  } finally {
    disk.remove();
  }
}

async function measure(servers: TestHost, signal: AbortSignal): Promise<Report> {
  const sources: Source[] = [];
  for (let n = 1; n <= PROJECTS; n++) sources.push(await openSource(servers, `db_source${n}_prod`));
  let round = 0;
  const rate = async (make: (source: Source, name: string) => Promise<() => Promise<unknown>>) => {
    signal.throwIfAborted();
    round += 1;
    for (const { session, main } of sources) await endSessions(session, main.database);
    const drops: (() => Promise<unknown>)[] = [];
    const started = performance.now();
    await Promise.all(
      sources.map(async (source) => {
        for (let n = 1; n <= BRANCHES; n++)
          drops.push(await make(source, `${source.main.database}_br_${round}-${n}`));
      }),
    );
    const ms = performance.now() - started;
    for (const drop of drops) await drop();
    return (PROJECTS * BRANCHES * 1_000) / ms;
  };
  try {
    const rates = await runInterleaved(ROUNDS, {
      'bare clones': () =>
        rate(async ({ session, main }, name) => {
          await makeBareClone(session, main.database, name);
          return () => session.query(`drop database "${name}"`);
        }),
      branches: () =>
        rate(async ({ project, main }, name) => {
          const branch = await project.create(name, main.database);
          return () => project.drop(branch);
        }),
    });
    return {
      title: 'Creation throughput of a host by itself',
      method: METHOD,
      goals: [
        {
          name: 'branches ÷ bare clones, at rest, without a gateway on the host',
          measured: median(rates.branches) / median(rates['bare clones']),
          limit: LIMIT,
          atLeast: true,
          unit: '×',
        },
      ],
      counts: { 'Created per second': rates },
    };
  } finally {
    for (const { session } of sources) await session.end();
  }
}

async function openSource({ host, settings }: TestHost, database: string): Promise<Source> {
  const project = new Project(host);
  const main = await project.create(database, null);
  const rows = MEGABYTES * ROWS_PER_MB;
  await asClient(
    host,
    'direct',
    main,
    'owner',
    `create table item as select n, repeat('x', 100) as text from generate_series(1, ${rows}) n`,
  );
  // Otherwise autovacuum would run during the measurement.
  await asClient(host, 'direct', main, 'owner', 'vacuum (freeze, analyze) item');
  const session = new pg.Client({
    host: settings.POSTGRES_SOCKET_DIR,
    port: Number(settings.POSTGRES_PORT),
    user: 'branchgate',
    database: 'branchgate',
  });
  await session.connect();
  await session.query('set file_copy_method = clone');
  return { project, main, session };
}
