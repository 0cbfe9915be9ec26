import { openBrowser, visit } from '../support/console/browser.ts';
import { signInOnPage } from '../support/console/person.ts';
import { query } from '../support/database.ts';
import { percentile } from '../support/percentile.ts';
import { deliveredMails } from '../support/sign-in/mails.ts';
import { newOwner } from '../support/sign-in/people.ts';
import { startStack, UNLIMITED } from '../support/stack/stack.ts';
import type { Report } from './report.ts';

const ROWS = 10_000;
const COLUMNS = 12;
const FRAMES = 400;
const STEP_PIXELS = 97;
const LIMIT_MS = 16;

const METHOD = `The grid of rows of the console, with ${ROWS.toLocaleString('en')} rows of ${COLUMNS} columns, at 1,440 × 900 pixels in \
headless Chromium, which draws without a graphics card. A step scrolls by ${STEP_PIXELS} pixels, which brings three rows into view, \
${FRAMES} times. Measured is the processor time of the page's main thread from one step until two frames later, as the browser \
counts it (\`TaskDuration\` in thread ticks). Rows that were not read yet are drawn as placeholders.`;

const SCROLLS = `new Promise((resolve) => {
  document.querySelector('[role=grid]').scrollTop += ${STEP_PIXELS};
  requestAnimationFrame(() => requestAnimationFrame(resolve));
})`;

export async function measureConsoleGrid(): Promise<Report> {
  const stack = await startStack({ env: UNLIMITED, restarts: false });
  const browser = await openBrowser();
  try {
    const site = { url: stack.url, mails: () => deliveredMails(stack) };
    const owner = await newOwner(site, 'grid@example.org');
    const { id } = await owner.api.project('Grid');
    await owner.api.allow(id);
    const { direct_url: url } = await owner.api.credentials(id, 'main');
    const columns = Array.from(
      { length: COLUMNS - 1 },
      (_, index) => `md5((n * ${index + 1})::text) as c${index}`,
    );
    await query(
      url,
      `create table item as select n, ${columns.join(', ')} from generate_series(1, ${ROWS}) n`,
    );
    await query(url, 'alter table item add primary key (n)');
    await query(url, 'analyze item');
    const { page, context } = await visit(browser, stack.url, { viewport: { width: 1440, height: 900 } });
    await signInOnPage(page, owner.email, `/projects/${id}/branches/main/tables?table=item`);
    await page.getByRole('gridcell', { name: '1', exact: true }).waitFor();

    const protocol = await context.newCDPSession(page);
    await protocol.send('Performance.enable', { timeDomain: 'threadTicks' });
    const workMs = async () => {
      const { metrics } = await protocol.send('Performance.getMetrics');
      return 1000 * (metrics.find(({ name }) => name === 'TaskDuration')?.value ?? Number.NaN);
    };
    const frames: number[] = [];
    for (let before = await workMs(); frames.length < FRAMES; ) {
      await page.evaluate(SCROLLS);
      const now = await workMs();
      frames.push(now - before);
      before = now;
    }
    return {
      title: 'Scrolling in the console',
      method: METHOD,
      setting: { Chromium: browser.version() },
      goals: [{ name: 'p95 of a step', measured: percentile(frames, 0.95), limit: LIMIT_MS, unit: 'ms' }],
      times: { 'Processor time of a step': { grid: frames } },
    };
  } finally {
    await browser.close();
    await stack.stop();
  }
}
