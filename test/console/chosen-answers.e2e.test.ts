import type { Browser } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect, inject, test } from 'vitest';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { FOLLOWS, type FollowState, stageFollow } from '../support/console/follows.ts';
import { signInOnPage, siteOf } from '../support/console/person.ts';
import { eventually } from '../support/eventually.ts';
import { firstByDay } from '../support/nightly.ts';
import { newOwner } from '../support/sign-in/people.ts';

/**
 * Pages with answers that the tests choose: charts of chosen values, which `pages.e2e.test.ts` examines with
 * those of a host, and the states of Following, for which `test/cli/follow.e2e.test.ts` follows a real source.
 */

let browser: Browser;
let visitor: Visitor;
/** Of the page Monitoring of main. */
let path: string;
let followingPath: string;

beforeAll(async () => {
  browser = await openBrowser();
  const owner = await newOwner(siteOf(inject('stack')), `chosen-${Date.now()}@example.org`);
  const { id } = await owner.api.project('Chosen');
  path = `/projects/${id}/branches/main/monitoring`;
  followingPath = `/projects/${id}/following`;
  visitor = await visit(browser, inject('stack').url, { colorScheme: 'light' });
  await signInOnPage(visitor.page, owner.email);
});
afterAll(() => browser?.close());
// A request that is still changed when the browser is closed would fail.
afterEach(() => visitor.page.unrouteAll({ behavior: 'wait' }));

const COUNTERS = [
  ...['total_connections', 'cpu_seconds', 'transactions_committed', 'transactions_rolled_back'],
  ...['rows_fetched', 'rows_inserted', 'rows_updated', 'rows_deleted'],
];
const GAUGES = ['active_connections', 'cache_hit_ratio', 'database_size_bytes'];

/** Opens the page with this many measurements, one a minute, of which the last is ten minutes old. */
async function open(measurements: number): Promise<void> {
  const { page } = visitor;
  const now = Date.now();
  const values = Array.from({ length: measurements }, (_, n) => ({
    timestamp: new Date(now - (10 + measurements - n) * 60_000).toISOString(),
    value: 10 + n,
  }));
  const series = [...GAUGES, ...COUNTERS].map((metric) => ({ metric, values }));
  await page.route(/\/metrics(?:\?|$)/, async (route) => {
    const response = await route.fetch();
    const json = { ...((await response.json()) as object), end: new Date(now).toISOString(), series };
    await route.fulfill({ response, json });
  });
  // Measurements of the host would be added to them.
  await page.route(/\/metrics\/[a-z]+/, (route) =>
    route.fulfill({ contentType: 'text/event-stream', body: ':\n\n' }),
  );
  await page.goto(`${path}?all=yes`);
  await page.locator('.chart canvas').first().waitFor();
}

interface Drawn {
  /** Pixels of the line or dot of the first series. */
  line: number;
  /** Pixels of its area. */
  area: number;
  /** Columns of the canvas from the first to the last pixel of the line. */
  columns: number;
}

/** What each chart has drawn. */
const READ_CANVASES = `[...document.querySelectorAll('.chart')].map((chart) => {
  const plain = (name) => {
    const probe = document.createElement('i');
    probe.style.color = 'var(' + name + ')';
    chart.append(probe);
    const canvas = document.createElement('canvas');
    const context = canvas.getContext('2d');
    context.fillStyle = getComputedStyle(probe).color;
    probe.remove();
    context.fillRect(0, 0, 1, 1);
    return context.getImageData(0, 0, 1, 1).data;
  };
  const line = plain('--series-1');
  const fill = plain('--series-fill');
  const canvas = chart.querySelector('canvas');
  const { data, width } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const drawn = { line: 0, area: 0, columns: 0 };
  let first = width;
  let last = -1;
  // The parts of a nearly transparent colour are stored with few bits.
  const isLike = (at, color) => [0, 1, 2, 3].every(
    (part) => Math.abs(data[at + part] - color[part]) <= (part < 3 && color[3] < 128 ? 40 : 12));
  for (let at = 0; at < data.length; at += 4) {
    if (isLike(at, line)) {
      drawn.line += 1;
      const column = (at / 4) % width;
      [first, last] = [Math.min(first, column), Math.max(last, column)];
    } else if (isLike(at, fill)) drawn.area += 1;
  }
  return { ...drawn, columns: Math.max(0, last - first + 1) };
})`;
const drawn = () => visitor.page.evaluate(READ_CANVASES) as Promise<Drawn[]>;

test('one measurement is a dot in each chart that it is enough for, and one sentence names the others', async () => {
  await open(1);
  const { page } = visitor;
  expect(await page.locator('.panel').count()).toBe(GAUGES.length);
  await page
    .getByText(
      'Two measurements are needed for CPU, Commits, New connections, Rollbacks, Rows read, Rows inserted, Rows updated, Rows deleted.',
    )
    .waitFor();
  await eventually(async () => {
    for (const chart of await drawn()) {
      expect(chart.line).toBeGreaterThan(20);
      expect(chart.columns).toBeLessThan(20);
    }
  });
});

test('measurements are a line with an area below it, and all charts show the values under the cursor', async () => {
  await open(30);
  const { page } = visitor;
  expect(await page.locator('.panel').count()).toBe(GAUGES.length + COUNTERS.length);
  expect(await page.getByText('Two measurements are needed').count()).toBe(0);
  await eventually(async () => {
    for (const chart of await drawn()) {
      expect(chart.columns).toBeGreaterThan(50);
      expect(chart.area).toBeGreaterThan(10 * chart.columns);
    }
  });
  const [first] = await page.locator('.chart .u-over').all();
  const box = await first?.boundingBox();
  if (!first || !box) throw new Error('there is no chart');
  await first.hover({ position: { x: box.width / 2, y: box.height / 2 } });
  const cursors = `[...document.querySelectorAll('.chart .u-cursor-x')].map((cursor) =>
    Math.round(new DOMMatrix(getComputedStyle(cursor).transform).e))`;
  const readings = page.locator('.panel .reading');
  await eventually(async () => {
    const at = (await page.evaluate(cursors)) as number[];
    expect(at).toHaveLength(GAUGES.length + COUNTERS.length);
    // Charts of one row can differ by a pixel of width.
    for (const x of at) expect(Math.abs(x - box.width / 2)).toBeLessThan(5);
    const texts = await readings.allInnerTexts();
    expect(texts).toHaveLength(at.length);
    // Each has a time and a value with its unit.
    for (const text of texts) expect(text).toMatch(/^\d+ \w+, \d\d:\d\d[^\d–]*\d/);
  });
  const ticks = `[...document.querySelectorAll('.chart .u-over')].length`;
  expect(await page.evaluate(ticks)).toBe(GAUGES.length + COUNTERS.length);
  await first.hover({ position: { x: box.width / 4, y: box.height / 2 } });
  await page.mouse.down();
  await page.mouse.move(box.x + (box.width * 3) / 4, box.y + box.height / 2, { steps: 4 });
  await page.mouse.up();
  await page.getByRole('button', { name: 'Show the whole time' }).click();
  await page.getByText('Drag in a chart to zoom.').waitFor();
  await page.getByRole('button', { name: 'Show four charts' }).click();
  await eventually(async () => expect(await page.locator('.panel').count()).toBe(4));
});

async function openFollowing(state: FollowState) {
  const { page } = visitor;
  await stageFollow(page, state);
  await page.goto(followingPath);
  await page.getByRole('heading', { name: 'shop at db.example.com' }).waitFor();
  return page.locator('main');
}

test('where nothing follows, nothing is requested that is not there', async () => {
  const { page, problems } = visitor;
  const requested: string[] = [];
  page.on('request', (request) => requested.push(request.url()));
  await page.goto(followingPath);
  // It is shown when it is known what main follows.
  await page.getByRole('button', { name: 'Check the source' }).waitFor();
  expect(requested.filter((url) => /\/jobs(?:\?|$)/.test(url))).not.toEqual([]);
  expect(requested.filter((url) => url.endsWith('/follow'))).toEqual([]);
  expect(problems).toEqual([]);
});

const BUTTONS = ['Resume', 'Apply the changes', 'Cut over', 'Cancel', 'Stop following', 'Check the source'];

test.each(
  firstByDay<[FollowState, string, string[], RegExp]>(2, [
    ['copying', 'Copying', ['Cancel'], /public\.sale.*Copying.*512,000.*42 %/],
    ['following', 'Following', ['Cut over', 'Stop following'], /at most 228 s.*public\.sale.*Follows/],
    [
      'stopped',
      'Stands still',
      ['Resume', 'Apply the changes', 'Stop following'],
      /Behind the source1 h 30 min.*DROP COLUMN isbn/,
    ],
    ['failed', 'Failed', ['Check the source'], /has not answered in time/],
    ['cut_over', 'Cut over', ['Check the source'], /PostgreSQL17\.2/],
  ]),
)('%s is shown as %s, with what can be done', async (state, badge, buttons, text) => {
  const main = await openFollowing(state);
  await main.locator('.badge', { hasText: badge }).first().waitFor();
  await eventually(async () => expect(await main.textContent()).toMatch(text));
  const shown = await main.getByRole('button').allInnerTexts();
  expect(BUTTONS.filter((name) => shown.includes(name))).toEqual(buttons);
});

test('what was followed before more jobs than are listed is shown', async () => {
  const { page } = visitor;
  await stageFollow(page, 'cut_over', false);
  await page.goto(followingPath);
  await page.getByRole('heading', { name: 'shop at db.example.com' }).waitFor();
  await page.getByRole('button', { name: 'Check the source' }).waitFor();
});

test('the changes of a schema are confirmed with their statements, and applied', async () => {
  const main = await openFollowing('stopped');
  const bodies: unknown[] = [];
  const { page } = visitor;
  await page.route(/\/follow\/resume$/, async (route) => {
    bodies.push(route.request().postDataJSON());
    await page.route(/\/follow$/, (read) => read.fulfill({ json: FOLLOWS.following }));
    await route.fulfill({ json: FOLLOWS.following });
  });
  await main.getByRole('button', { name: 'Apply the changes' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByText('DROP COLUMN isbn').waitFor();
  await dialog.getByRole('button', { name: 'Apply and resume' }).click();
  await main.locator('.badge', { hasText: 'Following' }).first().waitFor();
  expect(bodies).toEqual([{ apply_changes: true }]);
});
