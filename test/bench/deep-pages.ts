import { PageMarks } from '../../agent/rows/pages.ts';
import { startHostWithProject } from '../support/host/host-project.ts';
import { Browser } from '../support/host/host-rows.ts';
import type { Goal, Report } from './report.ts';
import { median, runInterleaved, timed } from './rounds.ts';

const ROWS = 1_000_000;
const PAGE = 50;
const DEEP = ROWS - PAGE;
const ROUNDS = 15;
const LIMIT = 2;

const METHOD = `One table of ${ROWS.toLocaleString('en')} rows with a primary key, vacuumed, data in the page cache; \
pages of ${PAGE} rows, as the agent returns them to the gateway. The cases alternate in ${ROUNDS} rounds. Before each \
case the agent forgets its marks of the table and reads the page at 0. The "first jump" is the page at \
${DEEP.toLocaleString('en')} right after that; it reads the index from its start. The "next jump" is the page before \
it, which begins at a mark.`;

/** @param signal aborts it */
export async function measureDeepPages(signal: AbortSignal): Promise<Report> {
  const { servers, main } = await startHostWithProject(
    'db_bench_prod',
    'CREATE TABLE item (id bigint PRIMARY KEY, name text NOT NULL, price numeric, made timestamptz NOT NULL)',
  );
  try {
    const browser = new Browser(servers.host, main);
    await browser.owner(
      `INSERT INTO item SELECT n, 'item ' || n, n % 1000, timestamptz '2026-01-01' + n * interval '1 second'
       FROM generate_series(1, ${ROWS}) AS n`,
    );
    await browser.owner('VACUUM ANALYZE item');
    const page = (offset: number) =>
      timed(async () => {
        const { rows } = await browser.page('item', offset, PAGE);
        if (rows[0]?.id !== String(offset + 1)) throw new Error('this is another page');
      });
    const pageAtZero = () => {
      signal.throwIfAborted();
      servers.host.rows.marks = new PageMarks();
      return page(0);
    };
    const firstJump = async () => {
      await pageAtZero();
      return page(DEEP);
    };
    const nextJump = async () => {
      await firstJump();
      return page(DEEP - PAGE);
    };
    const times = await runInterleaved(ROUNDS, {
      'page at 0': pageAtZero,
      'first jump': firstJump,
      'next jump': nextJump,
    });
    const ratio = (name: Exclude<keyof typeof times, 'page at 0'>, limit: number | null): Goal => ({
      name: `${name} ÷ page at 0`,
      measured: median(times[name]) / median(times['page at 0']),
      limit,
      unit: '×',
    });
    const [server] = await servers.query<{ server_version: string }>('SHOW server_version');
    return {
      title: 'Deep pages of a table',
      method: METHOD,
      setting: { PostgreSQL: server?.server_version ?? '' },
      goals: [ratio('first jump', null), ratio('next jump', LIMIT)],
      times: { [`${ROWS.toLocaleString('en')} rows`]: times },
    };
  } finally {
    await servers.stop();
  }
}
