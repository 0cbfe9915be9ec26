import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { signInOnPage, siteOf } from '../support/console/person.ts';
import { eventually } from '../support/eventually.ts';
import { newMember, newOwner } from '../support/sign-in/people.ts';

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
  // The list says who has made a branch.
  const colleague = `colleague-${Date.now()}@example.org`;
  const other = await newMember(owner, siteOf(inject('stack')), colleague, 'admin');
  await other.api.branch(projectId, 'theirs');
  await page.goto(`/projects/${projectId}`);
  await page.getByRole('row', { name: /^pr-1/ }).getByText('by you').waitFor();
  await page
    .getByRole('row', { name: /^theirs/ })
    .getByText(`by ${colleague}`)
    .waitFor();
  await page.goto(`/projects/${projectId}/branches/pr-1/sql`);
  await run("update item set name = 'Changed' where id = 1; select name from item", 'Read and write');
  await page.getByRole('region', { name: 'Result 2' }).getByText('Changed').waitFor();
  await page.getByRole('button', { name: 'Format' }).click();
  expect(await page.locator('.cm-line').allTextContents()).toEqual([
    'update item',
    "set name = 'Changed'",
    'where id = 1;',
    '',
    'select name',
    'from item',
  ]);
  await page.getByRole('button', { name: 'Run' }).click();

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
  // A browser asks for a second factor once, and then signs in.
  await signInOnPage(page, owner.email);
  expect(visitor.problems).toEqual([]);
});

test('loads CSV files: into an empty main, and into a table of a branch, and saves one', async () => {
  const problems = visitor.problems.length;
  visitor = await visit(browser, inject('stack').url, { colorScheme: 'dark' });
  const { page } = visitor;
  await signInOnPage(page, owner.email);
  const project = await owner.api.project('Files');
  const path = `/projects/${project.id}/branches`;
  const upload = async (name: string, text: string) =>
    page.getByLabel('CSV file').setInputFiles({ name, mimeType: 'text/csv', buffer: Buffer.from(text) });
  const inDialog = page.getByRole('dialog');
  await page.goto(`${path}/main/tables`);
  await page.getByRole('button', { name: 'Import a CSV file' }).click();
  await upload(
    'Book List.csv',
    'id,title,price,added,seen\n1,"One, two",9.50,2026-01-31,2026-01-31 12:00:05Z\n2,,,,\n',
  );
  await eventually(async () =>
    expect(await inDialog.getByLabel('Name of the table').inputValue()).toBe('book_list'),
  );
  await inDialog.getByRole('cell', { name: 'numeric' }).waitFor();
  await inDialog.getByRole('button', { name: 'Import', exact: true }).click();
  await page.getByText('2 rows imported into book_list.').last().waitFor();
  await page.getByRole('gridcell', { name: 'One, two' }).waitFor();
  // Its rows can be read in main, and no other file makes a table there.
  expect(await page.getByRole('button', { name: 'Import CSV' }).count()).toBe(0);

  await owner.api.branch(project.id, 'pr-1');
  await page.goto(`${path}/pr-1/tables`);
  const bar = page.getByRole('region', { name: 'book_list' });
  const act = (what: string) => bar.getByRole('button', { name: what }).click();
  await act('Import CSV');
  await upload('more.csv', 'id,nothing\n3,x\n');
  await inDialog.getByText('The table has no column “nothing”.').waitFor();
  await upload('more.csv', 'id,title\n3,Three\n3,Twice\n');
  await inDialog.getByRole('button', { name: 'Import', exact: true }).click();
  await inDialog.getByText('duplicate key value').waitFor();
  await upload('more.csv', 'id,title\n3,Three\n4,Four\n');
  await inDialog.getByRole('button', { name: 'Import', exact: true }).click();
  await page.getByText('2 rows imported into book_list.').last().waitFor();
  await act('Count');
  await page.getByText('4 rows.').last().waitFor();

  // A date has the picker of the browser, which gives its value in the form of PostgreSQL.
  await page.getByRole('gridcell', { name: '2026-01-31', exact: true }).dblclick();
  await page.getByLabel('Value of added').fill('2026-02-01');
  await page.keyboard.press('Enter');
  await page.getByText('1 changed row, not saved yet').waitFor();
  await page.getByRole('gridcell', { name: '2026-02-01' }).waitFor();
  // One with a zone is picked in UTC, as it is shown.
  await page.getByRole('gridcell', { name: '2026-01-31 12:00:05+00' }).dblclick();
  const picker = page.getByLabel('Value of seen, in UTC');
  await eventually(async () => expect(await picker.inputValue()).toBe('2026-01-31T12:00:05'));
  await picker.fill('2026-01-31T13:30:05');
  await page.keyboard.press('Enter');
  await page.getByRole('gridcell', { name: '2026-01-31 13:30:05+00' }).waitFor();

  await page.getByRole('columnheader', { name: /^title/ }).click({ position: { x: 100, y: 38 } });
  await page
    .getByRole('columnheader', { name: /^title/ })
    .and(page.locator('[aria-sort=ascending]'))
    .waitFor();
  const saved = page.waitForEvent('download');
  await act('Export CSV');
  const file = await (await saved).createReadStream();
  const lines = (await file.toArray()).join('').split('\r\n');
  expect(lines).toEqual([
    '"id","title","price","added","seen"',
    '"4","Four",,,',
    '"1","One, two","9.50","2026-01-31","2026-01-31 12:00:05+00"',
    '"3","Three",,,',
    '"2",,,,',
  ]);
  expect(problems).toBe(0);
  expect(visitor.problems.filter((problem) => !problem.includes('422') && !problem.includes('409'))).toEqual(
    [],
  );
});
