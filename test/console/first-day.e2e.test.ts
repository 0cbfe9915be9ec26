import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { signInOnPage, siteOf } from '../support/console/person.ts';
import { eventually } from '../support/eventually.ts';
import { newOwner } from '../support/sign-in/people.ts';

/** The first day of a person who has a browser and nothing else. */

let browser: Browser;
let visitor: Visitor;
let owner: Awaited<ReturnType<typeof newOwner>>;

beforeAll(async () => {
  browser = await openBrowser();
  owner = await newOwner(siteOf(inject('stack')), `first-day-${Date.now()}@example.org`);
  visitor = await visit(browser, inject('stack').url, { colorScheme: 'light' });
  await signInOnPage(visitor.page, owner.email);
});
afterAll(() => browser?.close());

async function run(sql: string, login: string): Promise<void> {
  const { page } = visitor;
  const editor = page.getByRole('textbox', { name: 'Statements' });
  await editor.click();
  await page.keyboard.press('Control+A');
  // Chromium would keep the look of replaced text by a style of its own, which the policy blocks.
  await page.keyboard.press('Delete');
  await page.keyboard.insertText(sql);
  await page.getByRole('radio', { name: login }).check();
  await page.getByRole('button', { name: 'Run' }).click();
}

test('makes a project, a table with data, a branch, and a change in the branch', async () => {
  const { page } = visitor;
  await page.getByRole('link', { name: 'New project' }).first().click();
  await page.getByLabel('Name', { exact: true }).fill('First day');
  await page.getByRole('button', { name: 'New project' }).click();
  await page.getByRole('link', { name: 'Create the first table' }).click();
  await page.getByText('main has no tables yet.').waitFor();
  await run(
    "create table item (id int primary key, name text); insert into item values (1, 'One'), (2, 'Two'); select * from item",
    'Owner: change the schema',
  );
  await page.getByRole('region', { name: 'Result 3' }).getByText('Two').waitFor();
  // From now on, main is as protected as any other one.
  await page.getByText('Read only here.').waitFor();

  // The text and the history are there after a reload.
  await page.reload();
  await page.getByText('History: 1 text').waitFor();
  await page.getByRole('button', { name: /^create table item/ }).waitFor();

  const [, projectId = ''] = /projects\/([0-9a-f-]+)/.exec(page.url()) ?? [];
  await page.goto(`/projects/${projectId}/create-branch`);
  await page.getByLabel('Name', { exact: true }).fill('pr-1');
  await page.getByRole('button', { name: 'Create branch' }).click();
  await page.getByRole('heading', { name: 'pr-1 is ready' }).waitFor();
  await page.goto(`/projects/${projectId}/branches/pr-1/sql`);
  await run("update item set name = 'Changed' where id = 1; select name from item", 'Read and write');
  await page.getByRole('region', { name: 'Result 2' }).getByText('Changed').waitFor();

  const saved = page.waitForEvent('download');
  await page
    .getByRole('region', { name: 'Result 2' })
    .getByRole('button', { name: 'CSV', exact: true })
    .click();
  expect((await saved).suggestedFilename()).toBe('result.csv');

  const read = async (branch: string) => {
    const path = `/api/v1/projects/${projectId}/branches/${branch}/query`;
    const { body } = await owner.api.call<{ rows: string[][] }>('POST', path, {
      body: { sql: 'select name from item order by id' },
    });
    return body.rows.flat();
  };
  await eventually(async () => expect(await read('pr-1')).toEqual(['Changed', 'Two']));
  expect(await read('main')).toEqual(['One', 'Two']);
  const refused = await owner.api.call('POST', `/api/v1/projects/${projectId}/branches/main/query`, {
    body: { sql: 'create table second (id int)', role: 'owner' },
  });
  expect(refused).toMatchObject({ status: 403, body: { error: 'BRANCH_PROTECTED' } });
  // What the page keeps ends with the session.
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByLabel('E-mail address').waitFor();
  expect(await page.evaluate('JSON.stringify({ ...localStorage })')).not.toContain('create table');
  expect(visitor.problems).toEqual([]);
});
