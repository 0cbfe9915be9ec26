import { AxeBuilder } from '@axe-core/playwright';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import type { Change } from '../../client/changes.ts';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { signInOnPage, siteOf } from '../support/console/person.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { newMember, newOwner, type TestPerson } from '../support/sign-in/people.ts';

/** A change of `main` from the plan to the undo, by two people with browsers. */

const RUN = Date.now();
let browser: Browser;
let author: TestPerson;
let visitor: Visitor;
let projectId: string;
let url: string;

beforeAll(async () => {
  browser = await openBrowser();
  const site = siteOf(inject('stack'));
  author = await newOwner(site, `changes-${RUN}@example.org`);
  const { api } = author;
  ({ id: projectId } = await api.project('Changes', { storage_quota_gib: 2 }));
  await api.allow(projectId);
  url = (await api.credentials(projectId, 'main', '?role=owner')).direct_url;
  await query(
    url,
    "create table book (id int primary key, title text); insert into book values (7, 'Seven')",
  );
  await api.branch(projectId, 'pr-7');
  const branch = await api.credentials(projectId, 'pr-7', '?role=owner');
  await query(branch.direct_url, 'alter table book add note text; create index by_title on book (title)');
  visitor = await visit(browser, inject('stack').url);
  visitor.forgive(409);
  await signInOnPage(visitor.page, author.email, `/projects/${projectId}/changes`);
});
afterAll(() => browser?.close());

const details = (page: Page) => page.locator('.jobs details[open]');
const open = async (page: Page) => {
  await page.reload();
  await page.locator('.jobs summary').first().click();
  await details(page).locator('table').waitFor();
};
const act = async (page: Page, name: string, done: string) => {
  await details(page).getByRole('button', { name, exact: true }).click();
  const dialog = page.getByRole('dialog');
  const confirmation = dialog.getByLabel('Type main to confirm');
  if (await confirmation.isVisible()) await confirmation.fill('main');
  await dialog.getByRole('button', { name, exact: true }).click();
  await page.getByText(done).last().waitFor();
};
const actions = (page: Page) => details(page).locator('.row').last().getByRole('button').allTextContents();
const columns = async () =>
  (
    await query<{ name: string }>(
      url,
      "select attname as name from pg_attribute where attrelid = 'book'::regclass and attnum > 0 and not attisdropped",
    )
  ).map(({ name }) => name);

test('a change is planned from a branch, and its rehearsal shows locks, findings and the forecast', async () => {
  const { page } = visitor;
  // A forecast takes a minute of samples, so the page gets one that says more.
  await page.route(/\/changes\/[0-9a-f-]+$/, async (route) => {
    const response = await route.fetch();
    const change = (await response.json()) as Change;
    const wait_ms = { p50: 0, p95: 41_000 };
    if (change.rehearsal)
      change.rehearsal.forecast = [
        {
          schema: 'public',
          name: 'book',
          mode: 'AccessExclusiveLock',
          wait_ms,
          waiting_sessions: 312,
          behind: ['report_daily'],
          rests_on_days: 9,
          worst: { days: 'weekdays', hour: 10, wait_ms },
          quietest: { days: 'weekdays', hour: 4, wait_ms: { p50: 0, p95: 200 } },
        },
      ];
    await route.fulfill({ response, json: change });
  });
  await page.getByText('No changes yet').waitFor();
  await page.getByRole('button', { name: 'Plan change' }).click();
  const dialog = page.getByRole('dialog');
  expect(await dialog.getByRole('button', { name: 'Plan change' }).isDisabled()).toBe(true);
  await dialog.getByLabel('From the schema of').selectOption('pr-7');
  await dialog.getByText('branchgate change create --from pr-7').waitFor();
  await dialog.getByRole('button', { name: 'Plan change' }).click();
  await page.getByText('The change is planned.').last().waitFor();
  await page.locator('.jobs summary', { hasText: '2 statements' }).click();
  await details(page).getByText('Safer: CREATE INDEX CONCURRENTLY.').waitFor();
  expect(await actions(page)).toEqual(['Rehearse', 'Close']);
  await act(page, 'Rehearse', 'The change is rehearsed.');
  await details(page).getByText('AccessExclusiveLock on public.book').first().waitFor();
  await details(page)
    .getByText(/: safe · strong locks held for up to/)
    .waitFor();
  await details(page)
    .getByText(
      /up to 41.0 s \(95 %\) on weekdays at 10:00 UTC behind report_daily, with up to 312 sessions queued/,
    )
    .waitFor();
  const { violations } = await new AxeBuilder({ page }).setLegacyMode(true).analyze();
  expect(violations.map(({ id, nodes }) => [id, nodes.map(({ target }) => target)])).toEqual([]);
  await page.unrouteAll({ behavior: 'wait' });
});

test('the author asks somebody else, who approves it; then it is applied and undone', async () => {
  const { page } = visitor;
  await page.goto(`/projects/${projectId}/settings`);
  await page.getByLabel('Approvals that a change needs').selectOption('1');
  await page.getByRole('form', { name: 'Changes of main' }).getByRole('button', { name: 'Save' }).click();
  await page.getByText('Changes of main: saved.').last().waitFor();
  await page.goto(`/projects/${projectId}/changes`);
  await open(page);
  await details(page).getByText('1 approval needed · ask another member').waitFor();
  expect(await actions(page)).toEqual(['Apply to main', 'Rehearse', 'Close']);
  await act(page, 'Apply to main', 'The change lacks an approval of its present plan.');
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();

  const site = siteOf(inject('stack'));
  const other = await newMember(author, site, `approves-${RUN}@example.org`, 'admin');
  const theirs = await visit(browser, inject('stack').url);
  await signInOnPage(theirs.page, other.email, `/projects/${projectId}/changes`);
  await open(theirs.page);
  await act(theirs.page, 'Approve', 'The change is approved.');
  expect(theirs.problems).toEqual([]);
  await theirs.context.close();

  await open(page);
  await details(page).getByText(`1 approval needed · ${other.email}`).waitFor();
  await act(page, 'Apply to main', 'The change is applied.');
  expect(await columns()).toEqual(['id', 'title', 'note']);
  await details(page).getByText('applied', { exact: true }).nth(1).waitFor();
  await query(url, "insert into book values (8, 'Eight', 'lost by the undo')");
  await details(page).getByRole('link', { name: 'What an undo would lose' }).click();
  await page.getByRole('heading', { name: /^Difference/ }).waitFor();
  const { safety_snapshot_id: safety } = (
    await author.api.get<{ changes: Change[] }>(`/api/v1/projects/${projectId}/changes`)
  ).body.changes[0] ?? { safety_snapshot_id: null };
  await page.getByRole('row', { name: /book/ }).waitFor();
  await eventually(async () => expect(await page.getByLabel('Compare with').inputValue()).toBe(safety));
  await page.goto(`/projects/${projectId}/changes`);
  await open(page);
  expect(await actions(page)).toEqual(['Undo']);
  await act(page, 'Undo', 'The change is undone.');
  expect(await columns()).toEqual(['id', 'title']);
  expect(await query(url, 'select id from book')).toEqual([{ id: 7 }]);
});

test('a change that is stale can only be rehearsed again, and one that is due later says when', async () => {
  const { page } = visitor;
  await page.getByRole('button', { name: 'Plan change' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel(/^SQL/).fill('create index concurrently later on book (title)');
  await dialog.getByRole('button', { name: 'Plan change' }).click();
  await page.getByText('The change is planned.').last().waitFor();
  await open(page);
  await details(page).getByText('If interrupted: An invalid index can be left').waitFor();
  await act(page, 'Rehearse', 'The change is rehearsed.');
  await query(url, 'create table shelf (id int)');
  await open(page);
  await details(page).getByText('The schema of main has changed since the plan.').waitFor();
  expect(await actions(page)).toEqual(['Rehearse', 'Close']);
  await act(page, 'Rehearse', 'The change is rehearsed.');
  await author.api.patch(`/api/v1/projects/${projectId}`, { change_approvals: 0 });

  await open(page);
  await details(page).getByRole('button', { name: 'Apply to main' }).click();
  await dialog.getByLabel('Type main to confirm').fill('main');
  const tomorrow = new Date(Date.now() + 86_400_000).toISOString().slice(0, 16);
  await dialog.getByLabel(/^When/).fill(tomorrow);
  await dialog.getByRole('button', { name: 'Apply to main' }).click();
  await page.getByText('The change is scheduled.').last().waitFor();
  await open(page);
  await details(page).getByText('The change is due').waitFor();
  await act(page, 'Close', 'The change is closed.');
  expect(visitor.problems).toEqual([]);
});
