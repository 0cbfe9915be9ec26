import type { Page } from 'playwright-core';
import type { Schemas } from '../../../client/client.ts';

type Follow = Schemas['Follow'];

const SOURCE = { host: 'db.example.com', port: 5432, database: 'shop', version: '17.2' };
const NOTHING_KNOWN = { lag_bytes: null, lag_seconds: null, slot_bytes: null, problem: null };
const table = (name: string, state: Follow['tables'][number]['state'], rows: number, percent: number) => ({
  schema: 'public',
  table: name,
  state,
  rows,
  percent,
});
const FOLLOWED = [table('book', 'following', 48_211, 100), table('sale', 'following', 1_204_377, 100)];

/** What main follows, in each state that its page shows. */
export const FOLLOWS = {
  copying: {
    state: 'copying',
    source: SOURCE,
    ...NOTHING_KNOWN,
    tables: [
      table('book', 'copied', 48_211, 100),
      table('sale', 'copying', 512_000, 42),
      table('visit', 'waiting', 0, 0),
    ],
  },
  following: {
    state: 'following',
    source: SOURCE,
    problem: null,
    tables: FOLLOWED,
    lag_bytes: 12_288,
    lag_seconds: 0.4,
    slot_bytes: 50_331_648,
  },
  stopped: {
    state: 'stopped',
    source: SOURCE,
    tables: FOLLOWED,
    lag_bytes: 734_003_200,
    lag_seconds: 5_405.5,
    slot_bytes: 734_003_200,
    problem: {
      code: 'schema',
      message:
        'The schema of the source has changed by more than an addition. Resume with apply_changes to run the statements here, or undo the change at the source and resume.',
      table: null,
      statement:
        'ALTER TABLE public.book DROP COLUMN isbn;\nALTER TABLE public.sale ALTER COLUMN amount TYPE bigint;',
    },
  },
  cut_over: {
    state: 'cut_over',
    source: SOURCE,
    ...NOTHING_KNOWN,
    tables: FOLLOWED.map((followed) => ({ ...followed, state: 'copied' as const })),
  },
  failed: {
    state: 'failed',
    source: SOURCE,
    tables: [],
    ...NOTHING_KNOWN,
    problem: {
      code: 'SOURCE_UNSUITABLE',
      message: 'The source has not answered in time.',
      table: null,
      statement: null,
    },
  },
} as const satisfies Record<string, unknown>;
export type FollowState = keyof typeof FOLLOWS;

/**
 * Lets the page have this record, a job that shows that there is one, and a day of lag.
 * @param isListed whether the job is among those that are listed
 */
export async function stageFollow(page: Page, state: FollowState, isListed = true): Promise<void> {
  await page.unrouteAll({ behavior: 'wait' });
  await page.route(/\/follow$/, (route) =>
    route.request().method() === 'GET' ? route.fulfill({ json: FOLLOWS[state] }) : route.fallback(),
  );
  await page.route(/\/jobs(?:\?|$)/, async (route) => {
    const response = await route.fetch();
    const { jobs } = (await response.json()) as { jobs: { kind: string }[] };
    const isOver = state !== 'copying';
    const start = {
      ...jobs[0],
      id: '11111111-1111-4111-8111-111111111111',
      kind: 'follow.start',
      error: null,
      warnings: [],
      status: isOver ? 'succeeded' : 'running',
      steps: ['close', 'copy', 'swap', 'follow', 'open', 'discard'].map((name, n) => ({
        name,
        status: isOver || n === 0 ? 'succeeded' : n === 1 ? 'running' : 'pending',
        started_at: isOver || n < 2 ? new Date().toISOString() : null,
        finished_at: isOver || n === 0 ? new Date().toISOString() : null,
        ...(n === 1 && { percent: 42 }),
      })),
    };
    const json = isListed
      ? { jobs: [start, ...jobs], next_cursor: null }
      : { jobs: jobs.filter(({ kind }) => !kind.startsWith('follow.')), next_cursor: 'older' };
    await route.fulfill({ response, json });
  });
  await page.route(/\/metrics(?:\?|$)/, async (route) => {
    const response = await route.fetch();
    const now = Date.now();
    const values = Array.from({ length: 240 }, (_, n) => ({
      timestamp: new Date(now - (240 - n) * 300_000).toISOString(),
      value: n > 180 && n < 200 ? (n - 180) * 12 : 0.3,
    }));
    const json = {
      ...((await response.json()) as object),
      series: [{ metric: 'following_lag_seconds', values }],
    };
    await route.fulfill({ response, json: { ...json, end: new Date(now).toISOString() } });
  });
}
