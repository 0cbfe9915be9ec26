import type { Browser } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect, inject, test } from 'vitest';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { FOLLOWS, type FollowState, stageFollow } from '../support/console/follows.ts';
import { signInOnPage, siteOf } from '../support/console/person.ts';
import { eventually } from '../support/eventually.ts';
import { newOwner } from '../support/sign-in/people.ts';

/** The states of the page Following. `test/cli/follow.e2e.test.ts` follows a real source. */

let browser: Browser;
let visitor: Visitor;
let path: string;
beforeAll(async () => {
  browser = await openBrowser();
  const owner = await newOwner(siteOf(inject('stack')), `following-${Date.now()}@example.org`);
  const { id } = await owner.api.project('Following');
  path = `/projects/${id}/following`;
  visitor = await visit(browser, inject('stack').url, { colorScheme: 'light' });
  await signInOnPage(visitor.page, owner.email);
});
afterAll(() => browser?.close());
// A request that is still changed when the browser is closed would fail.
afterEach(() => visitor.page.unrouteAll({ behavior: 'wait' }));

async function open(state: FollowState) {
  const { page } = visitor;
  await stageFollow(page, state);
  await page.goto(path);
  await page.getByRole('heading', { name: 'shop at db.example.com' }).waitFor();
  return page.locator('main');
}

test('where nothing follows, nothing is requested that is not there', async () => {
  const { page, problems } = visitor;
  const requested: string[] = [];
  page.on('request', (request) => requested.push(request.url()));
  await page.goto(path);
  // It is shown when it is known what main follows.
  await page.getByRole('button', { name: 'Check the source' }).waitFor();
  expect(requested.filter((url) => /\/jobs(?:\?|$)/.test(url))).not.toEqual([]);
  expect(requested.filter((url) => url.endsWith('/follow'))).toEqual([]);
  expect(problems).toEqual([]);
});

const BUTTONS = ['Resume', 'Apply the changes', 'Cut over', 'Cancel', 'Stop following', 'Check the source'];

test.each<[FollowState, string, string[], RegExp]>([
  ['copying', 'Copying', ['Cancel'], /public\.sale.*Copying.*512,000.*42 %/],
  ['following', 'Following', ['Cut over', 'Stop following'], /at most 228 s.*public\.sale.*Follows/],
  [
    'stopped',
    'Stands still',
    ['Resume', 'Apply the changes', 'Stop following'],
    /Behind the source1 h 30 min.*DROP COLUMN isbn/,
  ],
  ['cut_over', 'Cut over', ['Check the source'], /PostgreSQL17\.2/],
  ['failed', 'Failed', ['Check the source'], /has not answered in time/],
])('%s is shown as %s, with what can be done', async (state, badge, buttons, text) => {
  const main = await open(state);
  await main.locator('.badge', { hasText: badge }).first().waitFor();
  await eventually(async () => expect(await main.textContent()).toMatch(text));
  const shown = await main.getByRole('button').allInnerTexts();
  expect(BUTTONS.filter((name) => shown.includes(name))).toEqual(buttons);
});

test('what was followed before more jobs than are listed is shown', async () => {
  const { page } = visitor;
  await stageFollow(page, 'cut_over', false);
  await page.goto(path);
  await page.getByRole('heading', { name: 'shop at db.example.com' }).waitFor();
  await page.getByRole('button', { name: 'Check the source' }).waitFor();
});

test('the changes of a schema are confirmed with their statements, and applied', async () => {
  const main = await open('stopped');
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
