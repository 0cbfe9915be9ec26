import { execFileSync } from 'node:child_process';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { Secret, TOTP } from 'otpauth';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { Keyboard } from '../support/console/keyboard.ts';
import { siteOf } from '../support/console/person.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { mailTo, PASSWORD, readCode } from '../support/sign-in/sign-in.ts';
import { temporaryFolder } from '../support/stack/stack.ts';

/** The whole flow of a person who has no mouse. */

const EMAIL = `flow-${Date.now()}@example.org`;
let browser: Browser;
let visitor: Visitor;
let keys: Keyboard;
/** The authenticator app. */
let app: TOTP;
/** The direct URL of the branch, as a person copied it. */
let url: string;

beforeAll(async () => {
  browser = await openBrowser();
  visitor = await visit(browser, inject('stack').url);
  keys = new Keyboard(visitor.page);
});

afterAll(async () => {
  await browser?.close();
});

const clipboard = () => visitor.page.evaluate<string>('navigator.clipboard.readText()');
const stored = () =>
  visitor.page.evaluate<string>(
    'JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])',
  );
const button = (name: string) => visitor.page.getByRole('button', { name, exact: true });
const heading = (name: string) => visitor.page.getByRole('heading', { name }).waitFor();
const says = (text: string | RegExp) => visitor.page.getByText(text).last().waitFor();

test('a person signs up and protects the account with an app', async () => {
  const { page } = visitor;
  await page.goto('/sign-in');
  await keys.use(button('Create an account'));
  await keys.fill(page.getByLabel('Your name'), 'Ada Lovelace');
  await keys.fill(page.getByLabel('E-mail address'), EMAIL);
  await keys.fill(page.getByLabel('Password'), PASSWORD);
  await keys.press('Enter');
  await heading('Enter the mailed code');
  await keys.type(readCode(await mailTo(siteOf(inject('stack')), EMAIL)));
  await keys.press('Enter');
  await heading('No projects yet');

  await keys.go('sign out');
  await keys.fill(page.getByLabel('E-mail address'), EMAIL);
  await keys.press('Enter');
  await keys.fill(page.getByLabel('Password'), PASSWORD);
  await keys.press('Enter');
  await keys.use(button('Set up a second factor'));
  await page.getByRole('img', { name: 'QR code' }).waitFor();
  const secret = (await page.locator('.secret code').textContent()) ?? '';
  app = new TOTP({ secret: Secret.fromBase32(secret.replaceAll(' ', '')) });
  await keys.fill(page.getByLabel('Code to confirm'), app.generate());
  await keys.press('Enter');
  await page.locator('.codes li').first().waitFor();
  expect(await page.locator('.codes li').count()).toBe(10);
  await keys.use(button('I have stored them'));
  await heading('No projects yet');
});

test.runIf(IS_NIGHTLY)('replaces the recovery codes, which ends the earlier session only', async () => {
  const { page } = visitor;
  await keys.go('your account');
  await keys.use(page.getByRole('link', { name: 'Set up, or replace recovery codes' }));
  // The page before has a heading and a field of the same names.
  await heading('Confirm that it is you');
  await keys.fill(page.getByLabel('Current password'), PASSWORD);
  await keys.press('Enter');
  await says('You get ten new recovery codes');
  // The code of this half minute was used above.
  await keys.type(app.generate({ timestamp: Date.now() + 30_000 }));
  await keys.press('Enter');
  await page.locator('.codes li').first().waitFor();
  await keys.use(button('I have stored them'));
  await says('Your account is protected');
  await page.getByText('This one').waitFor();
  await page.reload();
  await heading('Your account');
});

test('creates a project and lets this address connect', async () => {
  const { page } = visitor;
  await keys.go('new project');
  await keys.fill(page.getByLabel('Name', { exact: true }), `Shop ${EMAIL}`);
  await keys.use(button('New project'));
  await page.getByRole('row', { name: /^main/ }).waitFor();

  await keys.go('connect');
  await keys.use(button('Show connection'));
  await says('No network rule lets your address');
  await keys.use(button('Allow 127.0.0.1/32'));
  await says('You can connect from here.');
  expect(await page.locator('.cli code').first().textContent()).toContain('••••••••');
});

test('creates a branch and connects with the copied command', async () => {
  const { page } = visitor;
  await keys.go('branches');
  await page.getByRole('row', { name: /^main/ }).waitFor();
  // The list of first steps checks itself.
  const firstSteps = page.getByRole('region', { name: 'First steps' }).getByRole('listitem');
  const done = () => firstSteps.evaluateAll((items) => items.map((item) => item.getAttribute('data-state')));
  await eventually(async () => expect(await done()).toEqual(['queued', 'succeeded', 'queued', 'queued']));
  await keys.press('c');
  await heading('Create branch');
  await keys.fill(page.getByLabel('Name', { exact: true }), 'pr-1');
  await keys.press('Enter');
  await heading('pr-1 is ready');
  await page.locator('.steps li[data-state=succeeded]').nth(2).waitFor();

  // The command verifies the host by the file that the page offers.
  const folder = temporaryFolder();
  const [authority] = await Promise.all([
    page.waitForEvent('download'),
    keys.use(page.getByRole('link', { name: 'Download branchgate-ca.pem' })),
  ]);
  await authority.saveAs(join(folder, authority.suggestedFilename()));
  await keys.use(button('Copy psql'));
  const command = await eventually(async () => {
    const copied = await clipboard();
    expect(copied).toMatch(/^psql/);
    return copied;
  });
  url = /"(.*)\?/.exec(command)?.[1] ?? '';
  const sql = `create table item (id int primary key, name text, price numeric);
    insert into item values (1, 'One', 1.5), (2, 'Two', 2.5), (3, null, null)`;
  execFileSync('sh', ['-c', `${command} -q -v ON_ERROR_STOP=1`], { cwd: folder, input: sql });
  rmSync(folder, { recursive: true });
});

test('edits a cell', async () => {
  const { page } = visitor;
  await keys.go('pr-1 tables');
  await page.getByRole('gridcell', { name: 'Two' }).waitFor();
  await keys.reach(page.getByRole('grid'));
  await keys.press('ArrowDown', 'ArrowRight');
  await keys.type('Second');
  await keys.press('Enter');
  await says('1 changed row, not saved yet');
  await keys.press('Control+s');
  await keys.focused(button('Save 1 row'));
  await keys.press('Enter');
  await says('1 row saved.');
  expect(await query(url, 'select name from item where id = 2')).toEqual([{ name: 'Second' }]);
});

test('a change that somebody made in the meantime is shown and not overwritten', async () => {
  const { page, forgive } = visitor;
  forgive(409);
  await query(url, "update item set name = 'Theirs' where id = 1");
  await keys.reach(page.getByRole('grid'));
  await keys.press('Control+Home', 'ArrowRight');
  await keys.type('Mine');
  await keys.press('Enter', 'Control+s');
  await keys.focused(button('Save 1 row'));
  await keys.press('Enter');
  await says('1 row changed in the meantime');
  const conflict = page.getByRole('dialog').getByRole('row', { name: /^name/ });
  expect(await conflict.textContent()).toMatch(/One.*Mine.*Theirs/);
  expect(await query(url, 'select name from item where id = 1')).toEqual([{ name: 'Theirs' }]);

  await keys.use(button('Keep mine'));
  await keys.use(button('Save 1 row'));
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  // The focus returns to where the work goes on.
  await page.locator('[role=grid]:focus').waitFor();
  expect(await query(url, 'select name from item where id = 1')).toEqual([{ name: 'Mine' }]);
});

test('staged changes survive a reload, and so does the session', async () => {
  const { page } = visitor;
  await keys.reach(page.getByRole('grid'));
  await keys.press('Control+Home', 'ArrowDown', 'ArrowRight');
  await keys.type('Staged');
  await keys.press('Enter');
  await says('1 changed row, not saved yet');
  await page.reload();
  await page.getByRole('gridcell', { name: 'Staged' }).waitFor();
  await says('1 changed row, not saved yet');
  expect(await stored()).not.toMatch(/eyJ|v4\.public|bg_/);
  await keys.use(button('Discard'));
  expect(await query(url, 'select name from item where id = 2')).toEqual([{ name: 'Second' }]);
});

test('extends and deletes a branch with single keys, which the audit log shows', async () => {
  const { page } = visitor;
  await keys.go('branches');
  const main = page.getByRole('row', { name: /^main/ });
  await keys.reach(main);
  await keys.press('ArrowDown', 'e');
  await page.getByRole('dialog', { name: 'Extend this branch' }).waitFor();
  await keys.reach(page.getByRole('dialog').getByLabel('7 days'));
  await keys.press('ArrowRight', 'Enter');
  await says('1 branch extended.');
  await says(/Expires in 29 d/);

  await keys.press('d');
  const deletion = page.getByRole('dialog', { name: 'Delete this branch?' });
  // One Enter too many deletes nothing.
  await keys.focused(deletion.getByRole('button', { name: 'Cancel' }));
  await keys.use(deletion.getByRole('button', { name: /^Delete/ }));
  await says('1 branch is being deleted.');
  await page.getByRole('link', { name: '1 deleted branch can be restored.' }).waitFor();

  await keys.go('audit log');
  for (const name of ['branch.deleted', 'branch.lifespan.changed', 'branch.created', 'project.created'])
    await button(name).first().waitFor();
});

test('the session ends with the sign-out', async () => {
  const { page } = visitor;
  await keys.use(button('Sign out'));
  await heading('Sign in');
  await page.goto('/');
  await heading('Sign in');
  expect(new URL(page.url()).pathname).toBe('/sign-in');
});

test('nothing was reported in the meantime', () => {
  expect(visitor.problems).toEqual([]);
});
