import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { ZERO_TOTALS } from '../../agent/measurement/counters.ts';
import { Meter } from '../../agent/measurement/meter.ts';
import { inDatabase } from '../../agent/postgres/connect.ts';
import { freePort } from '../support/free-port.ts';
import { startHost, type TestHost } from '../support/host/host.ts';
import { Exporter, exporterHindrance, exporterVersion } from './postgres-exporter.ts';
import type { Goal, Report } from './report.ts';
import { median, runInterleaved, timed } from './rounds.ts';

const DATABASES = 200;
const ACTIVE = DATABASES / 20;
const ROUNDS = 30;
const TABLES_EACH = 50;
const LIMIT = 0.15;

const OWN = 'one measurement';
const SIZES = 'sizes of all';
const SCRAPE = 'scrape of the exporter';

const METHOD = `One host with ${DATABASES} branches of ${TABLES_EACH} tables each, in PostgreSQL and PgBouncer with the product's \
configuration, data in the page cache. Before each round a client writes to ${ACTIVE} of them (5 %), to different ones \
each time. Measured, interleaved in ${ROUNDS} rounds: one measurement as the agent makes it, from its first statement \
until it is stored; \`pg_database_size\` of all branches in one statement, in an open session; and a scrape of \
Debian's \`prometheus-postgres-exporter\` with its default collectors, over HTTP on the same machine, with one open \
session. The metrics are not identical. Both report size, transactions, rows, blocks and sessions of every database. \
The agent adds CPU time, clients of the pooler and logins without the host's own, and stores totals that continue \
after restarts. The exporter adds locks, activity by state, conflicts and all settings of the server; its collector of \
checkpoints fails on PostgreSQL 18, immediately. It sizes every database at each scrape. The agent sizes those with \
changes, and finds a change that left no trace in the statistics within 120 measurements.`;

/** @param signal aborts it */
export async function measureMeasurement(signal: AbortSignal): Promise<Report> {
  const servers = await startHost();
  const meter = new Meter(servers.settings, { stores: true });
  const session = await servers.connect();
  const missing = exporterHindrance();
  const exporter = missing ? null : new Exporter(await freePort());
  try {
    const databases = await makeBranches(servers, signal);
    let round = 0;
    const write = async () => {
      signal.throwIfAborted();
      round += 1;
      for (let n = 0; n < ACTIVE; n++) {
        const name = databases[(round * ACTIVE + n) % DATABASES] ?? '';
        await inDatabase(servers.settings, name, (client) =>
          client.query("UPDATE t7 SET payload = 'y' WHERE id < 50"),
        );
      }
    };
    await meter.measure();
    await exporter?.start(servers.settings);
    let sized = 0;
    let statements = 0;
    const times = await runInterleaved<string>(ROUNDS, {
      [OWN]: async () => {
        await write();
        const counted = countStatements();
        const ms = await timed(async () => {
          ({ sized } = await meter.measure());
        });
        statements = counted();
        return ms;
      },
      [SIZES]: () =>
        timed(() =>
          session.query('SELECT datname, pg_database_size(oid) FROM pg_database WHERE datname = ANY ($1)', [
            databases,
          ]),
        ),
      ...(exporter && { [SCRAPE]: () => timed(() => scrapeSizes(exporter)) }),
    });
    const own = median(times[OWN] ?? []);
    const { rows } = await session.query('SHOW server_version');
    return {
      title: 'Measurement',
      method: METHOD,
      setting: {
        PostgreSQL: rows[0].server_version,
        'prometheus-postgres-exporter': missing ?? exporterVersion(),
        'databases sized in a measurement': String(sized),
        'statements in a measurement, one of them to the pooler': String(statements),
      },
      goals: [
        ...Object.keys(times)
          .filter((name) => name !== OWN)
          .map(
            (name): Goal => ({
              name: `${OWN} ÷ ${name}`,
              measured: own / median(times[name] ?? []),
              limit: LIMIT,
              unit: '×',
            }),
          ),
        { name: OWN, measured: own, limit: null, unit: 'ms' },
      ],
      times: { [`${DATABASES} databases`]: times },
    };
  } finally {
    await Promise.all([meter.close(), session.end(), exporter?.stop()]);
    await servers.stop();
  }
}

/** @throws Error when a size is missing, because the comparison would be unfair */
async function scrapeSizes(exporter: Exporter): Promise<void> {
  const metrics = await exporter.scrape();
  const sizes = [...metrics.matchAll(/^pg_database_size_bytes\{datname="db_bench_/gm)];
  if (sizes.length !== DATABASES) throw new Error(`the exporter reported ${sizes.length} sizes`);
}

/** Creates databases that the agent treats as branches of ten projects. */
async function makeBranches(servers: TestHost, signal: AbortSignal): Promise<string[]> {
  const [template = '', ...rest] = Array.from({ length: DATABASES }, (_, n) => `db_bench_prod_br_b${n}`);
  const session = await servers.connect();
  try {
    await session.query(`CREATE DATABASE ${template} TEMPLATE template0`);
    await inDatabase(servers.settings, template, async (made) => {
      for (let n = 0; n < TABLES_EACH; n++) {
        await made.query(`CREATE TABLE t${n} (id integer PRIMARY KEY, payload text)`);
        await made.query(`INSERT INTO t${n} SELECT i, repeat('x', 100) FROM generate_series(1, 100) AS i`);
      }
    });
    for (const name of rest) {
      signal.throwIfAborted();
      await session.query(`CREATE DATABASE ${name} TEMPLATE ${template}`);
    }
    const projects = Array.from({ length: 10 }, () => randomUUID());
    for (const [n, name] of [template, ...rest].entries()) {
      await session.query(
        `WITH made AS (INSERT INTO branch (branch_id, project_id, job_id, database)
           VALUES (gen_random_uuid(), $1, gen_random_uuid(), $2) RETURNING branch_id)
         INSERT INTO branch_usage (branch_id, totals) SELECT branch_id, $3 FROM made`,
        [projects[n % 10], name, JSON.stringify(ZERO_TOTALS)],
      );
    }
    return [template, ...rest];
  } finally {
    await session.end();
  }
}

/** @returns a function that stops counting and returns the statements this process has sent since */
function countStatements(): () => number {
  const { query } = pg.Client.prototype;
  let count = 0;
  pg.Client.prototype.query = function (this: pg.Client, ...given: unknown[]) {
    count += 1;
    return Reflect.apply(query, this, given);
  } as typeof query;
  return () => {
    pg.Client.prototype.query = query;
    return count;
  };
}
