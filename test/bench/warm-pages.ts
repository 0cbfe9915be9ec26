import { startHostWithProject } from '../support/host/host-project.ts';
import { Browser } from '../support/host/host-rows.ts';
import type { Report } from './report.ts';
import { median, runInterleaved, timed } from './rounds.ts';

const ROWS = 100_000;
const PAGE = 50;
const ROUNDS = 15;
/** A sample is the median of this many sequential pages. */
const PAGES = 9;
const LIMIT = 0.5;
/** Longer than a session takes to be reset. Milliseconds. */
const PAUSE = 20;

const METHOD = `One table of ${ROWS.toLocaleString('en')} rows of eight columns with a primary key, data in the page \
cache; the first page of ${PAGE} rows, as the agent returns it to the gateway. The cases alternate in ${ROUNDS} rounds; \
a sample is the median of ${PAGES} sequential pages, ${PAUSE} ms apart. "cold": the agent closes its kept session before \
each page. "warm": it uses the session of the page before ([0041](../decisions/0041-changes-selections-and-queries.md)).`;

/** @param signal aborts it */
export async function measureWarmPages(signal: AbortSignal): Promise<Report> {
  const { servers, main } = await startHostWithProject(
    'db_bench_prod',
    `CREATE TABLE item (id bigint PRIMARY KEY, name text NOT NULL, price numeric, made timestamptz NOT NULL,
       tags text[], more jsonb, kind text, stock int)`,
  );
  try {
    const browser = new Browser(servers.host, main);
    await browser.owner(
      `INSERT INTO item SELECT n, 'item ' || n, n % 1000, timestamptz '2026-01-01' + n * interval '1 second',
         '{a,b}', '{"n": 1}', 'kind ' || n % 7, n % 100 FROM generate_series(1, ${ROWS}) AS n`,
    );
    await browser.owner('VACUUM ANALYZE item');
    const sample = (prepare: () => Promise<void>) => async () => {
      const times: number[] = [];
      for (let page = 0; page < PAGES; page += 1) {
        signal.throwIfAborted();
        await new Promise((resolve) => setTimeout(resolve, PAUSE));
        await prepare();
        times.push(await timed(() => browser.page('item', 0, PAGE)));
      }
      return median(times);
    };
    const times = await runInterleaved(ROUNDS, {
      warm: sample(async () => {}),
      cold: sample(() => servers.host.rows.kept.close()),
    });
    const [server] = await servers.query<{ server_version: string }>('SHOW server_version');
    return {
      title: 'A page of rows in a kept session',
      method: METHOD,
      setting: { PostgreSQL: server?.server_version ?? '' },
      goals: [
        { name: 'warm ÷ cold', measured: median(times.warm) / median(times.cold), limit: LIMIT, unit: '×' },
      ],
      times: { [`${ROWS.toLocaleString('en')} rows`]: times },
    };
  } finally {
    await servers.stop();
  }
}
