import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { NOTHING_USED } from '../../agent/measurement/counters.ts';
import { Meter } from '../../agent/measurement/meter.ts';
import { inDatabase } from '../../agent/postgres/connect.ts';
import { startHost, type TestHost } from '../support/host.ts';
import { describeMachine } from './machine.ts';
import type { Report } from './report.ts';
import { byTurns, median, timed } from './rounds.ts';

const DATABASES = 200;
const ACTIVE = DATABASES / 20;
const ROUNDS = 30;
const TABLES_EACH = 50;

const METHOD = `One host with ${DATABASES} branches of ${TABLES_EACH} tables each, in PostgreSQL and PgBouncer with the \
product's configuration, data in the page cache. Before each round a client writes to ${ACTIVE} of them (5 %), each \
time to others. Measured by turns in ${ROUNDS} rounds: one measurement as the agent makes it, from its first statement \
until it is written down; and \`pg_database_size\` of all branches in one statement, in a session that is open.`;

/** @param signal ends it */
export async function measureMeasurement(signal: AbortSignal): Promise<Report> {
  const machine = describeMachine();
  const servers = await startHost();
  const meter = new Meter(servers.settings, { keeps: true });
  const session = await servers.connect();
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
    let sized = 0;
    let statements = 0;
    const times = await byTurns(ROUNDS, {
      'one measurement': async () => {
        await write();
        const counted = countStatements();
        const ms = await timed(async () => {
          ({ sized } = await meter.measure());
        });
        statements = counted();
        return ms;
      },
      'sizes of all': () =>
        timed(() =>
          session.query('SELECT datname, pg_database_size(oid) FROM pg_database WHERE datname = ANY ($1)', [
            databases,
          ]),
        ),
    });
    const { rows } = await session.query('SHOW server_version');
    return {
      title: 'Measurement',
      method: METHOD,
      setting: {
        ...machine,
        PostgreSQL: rows[0].server_version,
        'databases sized in a measurement': String(sized),
        'statements in a measurement, one of them to the pooler': String(statements),
      },
      goals: [
        {
          name: 'one measurement ÷ sizes of all',
          measured: median(times['one measurement']) / median(times['sizes of all']),
          limit: 0.15,
          unit: '×',
        },
        { name: 'one measurement', measured: median(times['one measurement']), limit: null, unit: 'ms' },
      ],
      times: { [`${DATABASES} databases`]: times },
    };
  } finally {
    await Promise.all([meter.close(), session.end()]);
    await servers.stop();
  }
}

/** Databases that the agent takes for branches of ten projects. */
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
        [projects[n % 10], name, JSON.stringify(NOTHING_USED)],
      );
    }
    return [template, ...rest];
  } finally {
    await session.end();
  }
}

/** @returns how many statements this process has sent since; to be called once */
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
