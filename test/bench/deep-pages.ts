import { setTimeout as sleep } from 'node:timers/promises';
import { PageMarks } from '../../agent/rows/page-marks.ts';
import { Walks } from '../../agent/rows/walks.ts';
import { startHostWithProject } from '../support/host/host-project.ts';
import { Browser } from '../support/host/host-rows.ts';
import type { Goal, Report } from './report.ts';
import { byTurns, median, timed } from './rounds.ts';

const ROWS = 1_000_000;
const PAGE = 50;
const DEEP = ROWS - PAGE;
const ROUNDS = 15;
/** What a reader looks at the first page before going on. */
const LOOK_MS = 500;
const LIMIT = 2;

const METHOD = `One table of ${ROWS.toLocaleString('en')} rows with a primary key, vacuumed, data in the page cache; \
pages of ${PAGE} rows, as the agent answers the gateway. By turns in ${ROUNDS} rounds: the page at 0 and that at \
${DEEP.toLocaleString('en')}. Before each the agent forgets all it knows of the table, and answers the page at 0. \
"First visit" comes ${LOOK_MS} ms after that answer, "at once" with no pause at all, "later visit" after the first one.`;

/** @param signal ends it */
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
    const { rows } = servers.host;
    const forget = async () => {
      signal.throwIfAborted();
      await rows.walks.close();
      Object.assign(rows, { marks: new PageMarks(), walks: new Walks() });
    };
    const first = () => timed(() => browser.page('item', 0, PAGE));
    const deep = () =>
      timed(async () => {
        const { rows: found } = await browser.page('item', DEEP, PAGE);
        if (found[0]?.id !== String(DEEP + 1)) throw new Error('this is another page');
      });
    const firstVisit = async (lookMs: number) => {
      await forget();
      await first();
      await sleep(lookMs);
      return deep();
    };
    const times = await byTurns(ROUNDS, {
      'page at 0': async () => {
        await forget();
        return first();
      },
      'first visit': () => firstVisit(LOOK_MS),
      'later visit': () => firstVisit(LOOK_MS).then(deep),
      'at once': () => firstVisit(0),
    });
    const ratio = (name: Exclude<keyof typeof times, 'page at 0'>, limit: number | null): Goal => ({
      name: `${name} ÷ page at 0`,
      measured: median(times[name]) / median(times['page at 0']),
      limit,
      unit: '×',
    });
    const [server] = await servers.query<{ server_version: string }>('SHOW server_version');
    return {
      title: 'Pages deep in a table',
      method: METHOD,
      setting: { PostgreSQL: server?.server_version ?? '' },
      goals: [ratio('first visit', LIMIT), ratio('later visit', LIMIT), ratio('at once', null)],
      times: { [`${ROWS.toLocaleString('en')} rows`]: times },
    };
  } finally {
    await servers.stop();
  }
}
