import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { query } from '../support/database.ts';
import { Follower } from '../support/host/follower.ts';
import type { Report } from './report.ts';
import { addSample, type Series, timed } from './rounds.ts';

const ROUNDS = 3;
const LAG_SAMPLES = 20;
const LOAD_MS = 5_000;
/** Concurrent transactions of two tenants, in rows of 100 bytes. The first has a gigabyte. */
const LARGE_ROWS = [7_000_000, 2_000_000] as const;

const METHOD = `A PostgreSQL 18 server as the source and a host without its gateway, both on this machine, in memory. Two clients make \
transfers of four statements in a loop at the source. **Lag:** what \`follow.status\` says of it, against the age of the newest of ten \
heartbeats a second that is applied, ${LAG_SAMPLES} times. **Cut-over:** \`refused_ms\` of a cut-over after ${LOAD_MS / 1000} s of that load, \
${ROUNDS} times. **Three tenants:** two follow databases in which transactions of ${LARGE_ROWS.map((rows) => rows / 1e6).join(' and ')} million rows begin together; the age of \
the newest applied heartbeat of the third one, each 100 ms from then until both are applied.`;

const BEAT = `create table beat (id int primary key, at timestamptz not null); insert into beat values (1, clock_timestamp())`;
const BEAT_AGE = 'select extract(epoch from clock_timestamp() - at)::float8 * 1000 as ms from beat';

/** Writes ten heartbeats a second while `action` runs. */
async function withBeats<T>(url: string, action: () => Promise<T>): Promise<T> {
  let isOver = false;
  const beating = (async () => {
    const client = new pg.Client({ connectionString: url, ssl: { rejectUnauthorized: false } });
    client.on('error', () => {});
    await client.connect();
    while (!isOver) {
      await client.query('update beat set at = clock_timestamp()').catch(() => {});
      await sleep(100);
    }
    await client.end().catch(() => {});
  })();
  try {
    return await action();
  } finally {
    isOver = true;
    await beating;
  }
}

async function measureLag(follower: Follower): Promise<number[]> {
  await follower.renew();
  await follower.source.run(`set role app; ${BEAT}`);
  await follower.begin();
  const errors: number[] = [];
  await withBeats(follower.source.url(), () =>
    follower.underLoad(async () => {
      await sleep(2_000);
      for (let n = 0; n < LAG_SAMPLES; n += 1) {
        const { lag_seconds } = await follower.status();
        const [age] = await follower.here(BEAT_AGE);
        errors.push(Math.abs(Number(age?.ms) - (lag_seconds ?? Number.NaN) * 1000));
        await sleep(200);
      }
    }),
  );
  await follower.end();
  return errors;
}

/** Milliseconds for which writes were refused. */
async function measureCutOver(follower: Follower, counts: Series): Promise<number> {
  await follower.renew();
  await follower.begin();
  const count = async () => Number((await follower.source.run<{ n: number }>('select n from counter'))[0]?.n);
  const cutover = { ...follower.ids, job_id: randomUUID(), writes_refused: false };
  const { cut_over, findings } = await follower.underLoad(async () => {
    const before = await count();
    const ms = await timed(() => sleep(LOAD_MS));
    addSample(counts, 'transactions a second', ((await count()) - before) / (ms / 1000));
    return follower.run('follow.cutover', cutover);
  });
  if (!cut_over) throw new Error(JSON.stringify(findings));
  await follower.source.run(
    'begin read write; alter database shop reset default_transaction_read_only; commit',
  );
  await follower.expectNothingLeft();
  return cut_over.refused_ms;
}

/** Ages of the third tenant's newest heartbeat, and how long the large transactions took until they were applied. */
async function measureNeighbour(follower: Follower): Promise<{ ages: number[]; ms: number; bytes: number }> {
  await follower.renew();
  const urlOf = (name: string) => follower.source.url().replace(/\/shop$/, `/${name}`);
  const url = urlOf('other');
  for (const name of ['other', 'second'])
    await follower.source.run(`create database ${name} owner app`).catch(() => {});
  await query(url, `drop table if exists beat; ${BEAT}`);
  const large = [
    { url: follower.source.url(), follower },
    { url: urlOf('second'), follower: await follower.neighbour() },
  ];
  for (const { url: of } of large)
    await query(of, 'drop table if exists large; create table large (id int primary key, text text)');
  const other = await follower.neighbour();
  for (const { url: source_url, follower: of } of [...large, { url, follower: other }])
    await of.begin({ source_url });
  const ages: number[] = [];
  const ms = await withBeats(url, async () => {
    await sleep(1_000);
    let isApplied = false;
    const watching = (async () => {
      while (!isApplied) {
        ages.push(Number((await other.here(BEAT_AGE))[0]?.ms));
        await sleep(100);
      }
    })();
    const took = await timed(() =>
      Promise.all(
        large.map(async ({ url: of, follower: one }, n) => {
          const rows = `select n, repeat(md5(n::text), 3) from generate_series(1, ${LARGE_ROWS[n]}) n`;
          await query(of, `insert into large ${rows}`);
          while ((await one.here('select from large limit 1')).length === 0) await sleep(200);
        }),
      ),
    );
    isApplied = true;
    await watching;
    return took;
  });
  let bytes = 0;
  for (const [n, { follower: one }] of large.entries()) {
    const [found] = await one.here(
      "select count(*)::int as rows, pg_total_relation_size('large')::float8 as bytes from large",
    );
    if (!found || found.rows !== LARGE_ROWS[n])
      throw new Error(`${found?.rows} of ${LARGE_ROWS[n]} rows have arrived`);
    bytes = Math.max(bytes, Number(found.bytes));
  }
  for (const one of [other, large[1]?.follower]) {
    if (!one) continue;
    await one.run('follow.stop', { ...one.ids, source_url: null, ...one.follow });
    await one.project.drop(one.main);
  }
  await follower.end();
  return { ages, ms, bytes };
}

/** Measures following and its cut-over. */
export async function measureFollowing(): Promise<Report> {
  const follower = await Follower.start();
  const counts: Series = {};
  try {
    const errors = await measureLag(follower);
    const refused: number[] = [];
    for (let n = 0; n < ROUNDS; n += 1) refused.push(await measureCutOver(follower, counts));
    const { ages, ms, bytes } = await measureNeighbour(follower);
    addSample(counts, 'MB of the larger transaction here', bytes / 2 ** 20);
    return {
      title: 'Following',
      method: METHOD,
      goals: [
        { name: 'error of the lag, at most', measured: Math.max(...errors), limit: 1_000, unit: 'ms' },
        {
          name: 'writes refused by a cut-over, at most',
          measured: Math.max(...refused),
          limit: 5_000,
          unit: 'ms',
        },
        {
          name: 'lag of a tenant while two others have large transactions, at most',
          measured: Math.max(...ages),
          limit: 10_000,
          unit: 'ms',
        },
      ],
      times: {
        Following: {
          'error of the lag': errors,
          'refused writes': refused,
          'lag of the third tenant': ages,
          'large transactions, until both are applied': [ms],
        },
      },
      counts: { Load: counts },
    };
  } finally {
    await follower.stop();
  }
}
