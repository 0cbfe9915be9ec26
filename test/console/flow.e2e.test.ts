import { execFileSync } from 'node:child_process';
import { Secret, TOTP } from 'otpauth';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { signUpOnPage, siteOf } from '../support/console/person.ts';
import { query } from '../support/database.ts';
import { PASSWORD } from '../support/sign-in/sign-in.ts';

const EMAIL = `flow-${Date.now()}@example.org`;
let browser: Browser;
let visitor: Visitor;
/** The direct URL of the branch, as a person copied it. */
let url: string;
let project: string;

beforeAll(async () => {
  browser = await openBrowser();
  visitor = await visit(browser, inject('stack').url);
});

afterAll(async () => {
  await browser?.close();
});

const clipboard = () => visitor.page.evaluate<string>('navigator.clipboard.readText()');
const stored = () =>
  visitor.page.evaluate<string>(
    'JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])',
  );

test('a person signs up and protects the account with an app', async () => {
  const { page } = visitor;
  await signUpOnPage(page, siteOf(inject('stack')), EMAIL);
  await page.getByRole('heading', { name: 'No projects yet' }).waitFor();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByLabel('E-mail address').fill(EMAIL);
  await page.getByLabel('Password').fill(PASSWORD);
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  await page.getByRole('img', { name: 'QR code' }).waitFor();
  const secret = (await page.locator('.secret code').textContent()) ?? '';
  const totp = new TOTP({ secret: Secret.fromBase32(secret.replaceAll(' ', '')) });
  await page.getByLabel('Code to confirm').fill(totp.generate());
  await page.getByRole('button', { name: 'Turn on' }).click();
  await page.locator('.codes li').first().waitFor();
  expect(await page.locator('.codes li').count()).toBe(10);
  await page.getByRole('button', { name: 'I have stored them' }).click();
  await page.getByRole('heading', { name: 'No projects yet' }).waitFor();
});

test('creates a project and lets this address connect', async () => {
  const { page } = visitor;
  await page.getByRole('link', { name: 'New project' }).first().click();
  await page.getByLabel('Name', { exact: true }).fill(`Shop ${EMAIL}`);
  await page.getByRole('button', { name: 'New project' }).click();
  await page.getByRole('row', { name: /^main/ }).waitFor();
  project = new URL(page.url()).pathname;

  await page.getByRole('link', { name: 'Connect', exact: true }).click();
  await page.getByRole('button', { name: 'Show connection' }).click();
  await page.getByText('No network rule lets your address').waitFor();
  await page.getByRole('button', { name: 'Allow 127.0.0.1/32' }).click();
  await page.getByText('You can connect from here.').waitFor();
  expect(await page.locator('.cli code').first().textContent()).toContain('••••••••');
});

test('creates a branch and connects with the copied command', async () => {
  const { page } = visitor;
  await page.getByRole('link', { name: 'Branches' }).click();
  await page.getByRole('row', { name: /^main/ }).waitFor();
  await page.getByRole('link', { name: /New branch/ }).click();
  await page.getByLabel('Name', { exact: true }).fill('pr-1');
  await page.getByRole('button', { name: 'Create branch' }).click();
  await page.getByRole('heading', { name: 'pr-1 is ready' }).waitFor();
  expect(await page.locator('.steps li[data-state=succeeded]').count()).toBeGreaterThan(2);

  await page.getByRole('button', { name: 'Copy psql' }).click();
  const command = await clipboard();
  url = /"(.*)"/.exec(command)?.[1] ?? '';
  const sql = `create table item (id int primary key, name text, price numeric);
    insert into item values (1, 'One', 1.5), (2, 'Two', 2.5), (3, null, null)`;
  execFileSync('sh', ['-c', `${command} -q -v ON_ERROR_STOP=1`], { input: sql });
});

test('edits a cell with the keyboard alone', async () => {
  const { page } = visitor;
  await page.goto(`${project}/branches/pr-1/tables`);
  await page.getByRole('gridcell', { name: 'Two' }).waitFor();
  await page.getByRole('grid').focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowRight');
  await page.keyboard.type('Second');
  await page.keyboard.press('Enter');
  await page.getByText('1 changed row, not saved yet').waitFor();
  await page.keyboard.press('Control+s');
  await page.getByRole('button', { name: 'Save 1 row' }).waitFor();
  await page.keyboard.press('Enter');
  await page.getByText('1 row saved.').waitFor();
  expect(await query(url, 'select name from item where id = 2')).toEqual([{ name: 'Second' }]);
});

test('a change that somebody made in the meantime is shown and not overwritten', async () => {
  const { page, forgive } = visitor;
  forgive(409);
  await query(url, "update item set name = 'Theirs' where id = 1");
  await page.getByRole('gridcell', { name: 'One' }).dblclick();
  await page.keyboard.type('Mine');
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByRole('button', { name: 'Save 1 row' }).click();
  await page.getByText('1 row changed in the meantime').waitFor();
  const conflict = page.getByRole('dialog').getByRole('row', { name: /^name/ });
  expect(await conflict.textContent()).toMatch(/One.*Mine.*Theirs/);
  expect(await query(url, 'select name from item where id = 1')).toEqual([{ name: 'Theirs' }]);

  await page.getByRole('button', { name: 'Keep mine' }).click();
  await page.getByRole('button', { name: 'Save 1 row' }).click();
  await page.getByText('1 row saved.').last().waitFor();
  expect(await query(url, 'select name from item where id = 1')).toEqual([{ name: 'Mine' }]);
});

test('staged changes survive a reload, and so does the session', async () => {
  const { page } = visitor;
  await page.getByRole('gridcell', { name: 'Second' }).dblclick();
  await page.keyboard.type('Staged');
  await page.keyboard.press('Enter');
  await page.reload();
  await page.getByRole('gridcell', { name: 'Staged' }).waitFor();
  await page.getByText('1 changed row, not saved yet').waitFor();
  expect(await stored()).not.toMatch(/eyJ|v4\.public|bg_/);
  await page.getByRole('button', { name: 'Discard' }).click();
  expect(await query(url, 'select name from item where id = 2')).toEqual([{ name: 'Second' }]);
});

test('extends and deletes a branch with single keys, which the audit log shows', async () => {
  const { page } = visitor;
  await page.goto(project);
  await page.getByRole('row', { name: /^pr-1/ }).focus();
  await page.keyboard.press('e');
  await page.getByRole('dialog').getByLabel('1 month').check();
  await page.getByRole('dialog').getByRole('button', { name: 'Extend' }).click();
  await page.getByText('1 branch extended.').waitFor();
  await page.getByText(/Expires in 29 d/).waitFor();

  await page.getByRole('row', { name: /^pr-1/ }).focus();
  await page.keyboard.press('d');
  await page.getByRole('dialog', { name: 'Delete this branch?' }).waitFor();
  await page.keyboard.press('Enter');
  await page.getByText('1 branch is being deleted.').waitFor();

  await page.getByRole('link', { name: 'Audit log' }).click();
  for (const name of ['branch.deleted', 'branch.lifespan.changed', 'branch.created', 'project.created']) {
    await page.getByRole('button', { name, exact: true }).first().waitFor();
  }
});

test('the session ends with the sign-out', async () => {
  const { page } = visitor;
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  await page.goto('/');
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  expect(new URL(page.url()).pathname).toBe('/sign-in');
});

test('nothing was reported in the meantime', () => {
  expect(visitor.problems).toEqual([]);
});
