import type { Browser } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect, inject, test } from 'vitest';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { signInOnPage, siteOf } from '../support/console/person.ts';
import { eventually } from '../support/eventually.ts';
import { newOwner } from '../support/sign-in/people.ts';

/** Charts of chosen values. `pages.e2e.test.ts` examines the page with those of a host. */

let browser: Browser;
let visitor: Visitor;
let path: string;

beforeAll(async () => {
  browser = await openBrowser();
  const owner = await newOwner(siteOf(inject('stack')), `charts-${Date.now()}@example.org`);
  const { id } = await owner.api.project('Charts');
  path = `/projects/${id}/branches/main/monitoring`;
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
  await page.goto(path);
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
  const [line, fill] = [plain('--series-1'), plain('--series-fill')];
  const canvas = chart.querySelector('canvas');
  const { data, width } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const drawn = { line: 0, area: 0, columns: 0 };
  let [first, last] = [width, -1];
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
      'Two measurements are needed for New connections, CPU, Commits, Rollbacks, Rows read, Rows inserted, Rows updated, Rows deleted.',
    )
    .waitFor();
  await eventually(async () => {
    for (const chart of await drawn()) {
      expect(chart.line).toBeGreaterThan(20);
      expect(chart.columns).toBeLessThan(20);
    }
  });
});

test('measurements are a line with an area below it', async () => {
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
});

test('all charts show the values of the time under the cursor', async () => {
  await open(30);
  const { page } = visitor;
  const [first] = await page.locator('.chart .u-over').all();
  const box = await first?.boundingBox();
  if (!first || !box) throw new Error('there is no chart');
  await first.hover({ position: { x: box.width / 2, y: box.height / 2 } });
  const cursors = `[...document.querySelectorAll('.chart .u-cursor-x')].map((cursor) =>
    Math.round(new DOMMatrix(getComputedStyle(cursor).transform).e))`;
  const values = `[...document.querySelectorAll('.chart .u-legend')].map((legend) => legend.textContent)`;
  await eventually(async () => {
    const at = (await page.evaluate(cursors)) as number[];
    expect(at).toHaveLength(GAUGES.length + COUNTERS.length);
    // Charts of one row can differ by a pixel of width.
    for (const x of at) expect(Math.abs(x - box.width / 2)).toBeLessThan(5);
    for (const text of (await page.evaluate(values)) as string[]) expect(text).toMatch(/\d/);
  });
});
