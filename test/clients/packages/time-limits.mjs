/**
 * What the suites of node-postgres, knex, kysely and pg-boss do to end their own statements, and to open many
 * connections, on the branch of DIRECT_URL. Prints one JSON object per case, with the error of one that failed.
 */
import knex from 'knex';
import { Kysely, PostgresDialect, sql } from 'kysely';
import pg from 'pg';

const connectionString = process.env.DIRECT_URL;
const LONG = 60;
const SHORT_MS = 300;
const WAIT_MS = 10_000;

/** Of a statement that was cancelled. */
const QUERY_CANCELED = '57014';

const client = async (options = {}) => {
  const opened = new pg.Client({ connectionString, ...options });
  opened.on('error', () => {});
  await opened.connect();
  return opened;
};

/** Waits until no session of this login runs the marked statement. */
async function endsOnServer(mark) {
  const observer = await client();
  try {
    for (const until = Date.now() + WAIT_MS; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
      const { rows } = await observer.query(
        "select pid from pg_stat_activity where state = 'active' and pid <> pg_backend_pid() and query like $1",
        [`%${mark}%`],
      );
      if (rows.length === 0) return;
      if (Date.now() > until) throw new Error(`${mark} still runs`);
    }
  } finally {
    await observer.end();
  }
}

const rejects = async (work, isExpected) => {
  const error = await work.then(
    () => new Error('it did not fail'),
    (failure) => failure,
  );
  if (!isExpected(error)) throw error;
};

const CASES = {
  async 'pg: cancels a statement from another connection'() {
    const running = await client();
    const other = await client();
    const { rows } = await running.query('select pg_backend_pid() as pid');
    const ended = rejects(running.query(`select pg_sleep(${LONG})`), ({ code }) => code === QUERY_CANCELED);
    const cancelled = await other.query('select pg_cancel_backend($1) as done', [rows[0].pid]);
    if (cancelled.rows[0].done !== true) throw new Error('it was not cancelled');
    await ended;
    await Promise.all([running.end(), other.end()]);
  },
  async 'pg: ends a connection of its own, whose client notices'() {
    const victim = await client();
    const other = await client();
    const { rows } = await victim.query('select pg_backend_pid() as pid');
    const ended = new Promise((resolve) => victim.once('end', resolve));
    await other.query('select pg_terminate_backend($1)', [rows[0].pid]);
    await ended;
    await other.end();
  },
  async 'pg: a query timeout of the client'() {
    const limited = await client({ query_timeout: SHORT_MS });
    await rejects(limited.query('select pg_sleep(2)'), ({ message }) => /timeout/i.test(message));
    await limited.end();
  },
  async 'pg: a statement timeout of the server'() {
    const limited = await client({ statement_timeout: SHORT_MS });
    await rejects(limited.query(`select pg_sleep(${LONG})`), ({ code }) => code === QUERY_CANCELED);
    await limited.end();
  },
  async 'pg: 300 connections, one after the other'() {
    for (let n = 0; n < 300; n++) await (await client()).end();
  },
  async 'knex: a timeout that cancels'() {
    const db = knex({ client: 'pg', connection: connectionString, pool: { min: 0, max: 1 } });
    const work = db.raw(`select pg_sleep(${LONG}) /* knex */`).timeout(SHORT_MS, { cancel: true });
    await rejects(work, ({ name }) => name === 'KnexTimeoutError');
    await endsOnServer('/* knex */');
    await db.raw('select 1');
    await db.destroy();
  },
  async 'knex: a timeout that cancels in a transaction'() {
    const db = knex({ client: 'pg', connection: connectionString, pool: { min: 0, max: 2 } });
    const work = db.transaction((trx) =>
      trx.raw(`select pg_sleep(${LONG}) /* knex 2 */`).timeout(SHORT_MS, { cancel: true }),
    );
    await rejects(work, ({ name }) => name === 'KnexTimeoutError');
    await endsOnServer('/* knex 2 */');
    await db.destroy();
  },
  ...Object.fromEntries(
    ['cancel query', 'kill session'].map((inflightQueryAbortStrategy) => [
      `kysely: ${inflightQueryAbortStrategy}`,
      async () => {
        const pool = new pg.Pool({ connectionString, max: 2 });
        pool.on('error', () => {});
        const db = new Kysely({ dialect: new PostgresDialect({ pool }) });
        const mark = `/* ${inflightQueryAbortStrategy} */`;
        const statement = sql`select pg_sleep(${sql.lit(LONG)}) ${sql.raw(mark)}`;
        const signal = AbortSignal.timeout(SHORT_MS);
        await rejects(
          statement.execute(db, { signal, inflightQueryAbortStrategy }),
          (error) => error.message !== 'it did not fail',
        );
        await endsOnServer(mark);
        await sql`select 1`.execute(db);
        await db.destroy();
      },
    ]),
  ),
  async 'pg-boss: cancels a statement that it finds by its comment'() {
    const running = await client();
    const other = await client();
    const ended = rejects(
      running.query(`/* boss 7 */ select pg_sleep(${LONG})`),
      ({ code }) => code === QUERY_CANCELED,
    );
    for (let found = 0; found === 0; ) {
      const { rowCount } = await other.query(
        "select pg_cancel_backend(pid) from pg_stat_activity where state = 'active' and query like '/* boss 7 */%'",
      );
      found = rowCount;
    }
    await ended;
    await Promise.all([running.end(), other.end()]);
  },
};

for (const [name, run] of Object.entries(CASES)) {
  const result = await run().then(
    () => 'ok',
    (error) => String(error.message),
  );
  console.log(JSON.stringify({ case: name, result }));
}
