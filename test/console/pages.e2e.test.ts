import { readFileSync } from 'node:fs';
import { AxeBuilder } from '@axe-core/playwright';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { Api } from '../support/api.ts';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { longRows, pagesOf, prepareLongValues, preparePages } from '../support/console/pages.ts';
import { signInOnPage, siteOf } from '../support/console/person.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { firstByDay, IS_NIGHTLY } from '../support/nightly.ts';
import { newOwner, type TestPerson } from '../support/sign-in/people.ts';

const RUN = Date.now();
let browser: Browser;
let visitor: Visitor;
let owner: TestPerson;
let projectId: string;
let url: string;

beforeAll(async () => {
  browser = await openBrowser();
  owner = await newOwner(siteOf(inject('stack')), `pages-${RUN}@example.org`);
  ({ projectId, url } = await preparePages(owner.api));
  // React Aria has texts in this language, which the build leaves out.
  visitor = await visit(browser, inject('stack').url, { locale: 'de-DE' });
  await signInOnPage(visitor.page, owner.email);
});

afterAll(async () => {
  await browser?.close();
});

const inProject = (path: string) => `/projects/${projectId}${path}`;

/** The paths name the project that is made before the tests. */
const PAGES = pagesOf('{project}');

/** @param rules those that can differ from a page that was examined before; default: all */
async function violations(visited: Visitor, rules?: string[]) {
  const axe = new AxeBuilder({ page: visited.page }).setLegacyMode(true);
  const { violations: found } = await (rules ? axe.withRules(rules) : axe).analyze();
  return found.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(' ')).join(', ')}`);
}

/** By day, this page is examined in light, and those are loaded that no other test of the console opens. */
const EXAMINED_BY_DAY = 'branches';
const LOADED_BY_DAY = [
  EXAMINED_BY_DAY,
  ...['a table without a key', 'masking', 'sharing', 'difference', 'jobs', 'trusts', 'members'],
];
const OPENED = PAGES.filter(([name]) => IS_NIGHTLY || LOADED_BY_DAY.includes(name));

test.each(OPENED)('%s is accessible, in light and in dark', async (name, path, text) => {
  const { page } = visitor;
  await page.emulateMedia({ colorScheme: 'light' });
  await page.goto(path.replace('{project}', projectId));
  const pattern = typeof text === 'string' ? new RegExp(text) : text;
  await page.locator('main').getByText(pattern).first().waitFor();
  if (!IS_NIGHTLY && name !== EXAMINED_BY_DAY) return;
  expect(await violations(visitor)).toEqual([]);
  if (!IS_NIGHTLY) return;
  await page.emulateMedia({ colorScheme: 'dark' });
  expect(await violations(visitor, ['color-contrast'])).toEqual([]);
});

test.runIf(IS_NIGHTLY)('the sign-in is accessible in each of its ways', async () => {
  const signedOut = await visit(browser, inject('stack').url);
  for (const way of firstByDay(1, ['sign_up', 'email', 'mail', 'reset_start'])) {
    await signedOut.page.goto(`/sign-in?way=${way}`);
    await signedOut.page.getByLabel('E-mail address').waitFor();
    expect(await violations(signedOut)).toEqual([]);
  }
  // A plain sign-in has no steps.
  await signedOut.page.goto('/sign-in');
  await signedOut.page.getByLabel('E-mail address').waitFor();
  expect(await signedOut.page.getByRole('list', { name: 'Steps of the sign-in' }).count()).toBe(0);
  expect(signedOut.problems).toEqual([]);
  await signedOut.context.close();
});

test.runIf(IS_NIGHTLY)('dialogs and menus are accessible', async () => {
  const { page } = visitor;
  await page.emulateMedia({ colorScheme: 'light' });
  await page.goto(inProject(''));
  await page.getByRole('button', { name: 'Actions of main' }).click();
  await page.getByRole('menuitem', { name: 'Tables' }).waitFor();
  expect(await violations(visitor)).toEqual([]);
  await page.keyboard.press('Escape');
  const dialogs = [
    ['/keys', 'New key'],
    [inProject('/snapshots'), 'Take snapshot'],
    [inProject('/deleted-branches'), 'Restore gone'],
    [inProject(''), 'Search and commands'],
  ] as const;
  for (const [path, name] of firstByDay(1, dialogs)) {
    await page.goto(path);
    await page.getByRole('button', { name }).click();
    await page.getByRole('dialog').waitFor();
    expect(await violations(visitor)).toEqual([]);
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
  }
});

/** Actions with the button that leads to them, and their command. */
const ACTIONS: readonly [() => string, string | null, string][] = [
  [() => '/keys', 'New key', 'branchgate key create NAME --role viewer --read-only --days 30 --project'],
  [() => inProject('/trusts'), 'New trust', 'branchgate trust github OWNER/REPOSITORY --role operator'],
  [() => inProject('/settings'), null, 'branchgate project update Pages --quota'],
  [() => inProject('/snapshots'), null, '--snapshot-every never'],
  [() => inProject('/masking'), null, 'branchgate masking suggest --project'],
  [() => inProject('/branches/main/tables?table=item'), null, 'branchgate rows item --branch main'],
  [() => inProject('/branches/main/sql'), null, 'branchgate query --branch main'],
];

test.each(firstByDay(1, ACTIONS))('an action shows its command: %s %s', async (path, name, command) => {
  const { page } = visitor;
  await page.goto(path());
  if (name !== null) await page.getByRole('button', { name }).click();
  await page.getByText(command).waitFor();
});

test('the SQL page runs several statements, and says which login a refused one takes', async () => {
  const { page } = visitor;
  await owner.api.branch(projectId, 'script');
  const arrive = Promise.withResolvers<void>();
  await page.route(/\/branches\/script\/tables(?:\?|$)/, async (route) => {
    await arrive.promise;
    await route.continue();
  });
  await page.goto(inProject('/branches/script/sql'));
  const type = async (sql: string) => {
    const editor = page.getByRole('textbox', { name: 'Statements' });
    await editor.click();
    await page.keyboard.press('Control+A');
    // Chromium would keep the look of replaced text by a style of its own, which the policy blocks.
    await page.keyboard.press('Delete');
    await page.keyboard.insertText(sql);
  };
  const run = () => page.getByRole('button', { name: 'Run' }).click();
  const made =
    "create table made (id int); insert into made values (7); select id, 'x' as made_column from made";
  await type(made.slice(0, 20));
  const tables = page.waitForResponse(/\/branches\/script\/tables(?:\?|$)/);
  arrive.resolve();
  await (await tables).finished();
  await page.unrouteAll({ behavior: 'wait' });
  // The tables have arrived, and the cursor is where it was.
  await page.keyboard.insertText(made.slice(20));
  await run();
  await page.getByText('This is statement 1. Choose “Owner: change the schema”.').waitFor();
  await page.getByRole('radio', { name: 'Owner: change the schema' }).check();
  await run();
  await page.getByRole('region', { name: 'Result 3' }).getByText('made_column').waitFor();
  await page.getByText('3 statements in one transaction').waitFor();
  await page.getByText('branchgate query --branch script').waitFor();
  await eventually(async () =>
    expect(await page.locator('.cli code').first().textContent()).toContain('--owner'),
  );
  await page.goto(inProject('/branches/main/sql'));
  await type('create table made (id int)');
  await run();
  await page.getByText('Queries do not change main.').waitFor();
  await page.getByRole('button', { name: 'Try on a copy' }).click();
  await page.getByRole('region', { name: 'Trial' }).getByText('public.made').waitFor();
});

test.runIf(IS_NIGHTLY)('a long URL is cut and copied whole, and a phone shows no command', async () => {
  const { page } = visitor;
  await page.goto(inProject('/branches/main/connect'));
  const command = page.getByText('branchgate connection-string main --project Pages');
  await command.waitFor();
  await page.setViewportSize({ width: 390, height: 800 });
  try {
    await command.waitFor({ state: 'hidden' });
    await page.getByRole('button', { name: 'Show connection' }).click();
    await page.locator('.cli code').first().waitFor();
    const look = `(() => {
      const code = document.querySelector('.cli code');
      return [code.scrollWidth > code.clientWidth, getComputedStyle(code).textOverflow];
    })()`;
    expect(await page.evaluate(look)).toEqual([true, 'ellipsis']);
    await page.getByRole('button', { name: 'Copy Pooled' }).click();
    const { database_url: pooled } = await owner.api.credentials(projectId, 'main');
    const verified = pooled.replace('sslmode=require', 'sslmode=verify-full&sslrootcert=branchgate-ca.pem');
    await eventually(async () =>
      expect(await page.evaluate('navigator.clipboard.readText()')).toBe(verified),
    );
  } finally {
    await page.setViewportSize({ width: 1280, height: 800 });
  }
});

test.runIf(IS_NIGHTLY)(
  'a key is for one project, also if the projects arrive after its dialog was opened',
  async () => {
    const { page } = visitor;
    const list = /\/api\/v1\/projects(?:\?|$)/;
    const opened = Promise.withResolvers<void>();
    await page.route(list, async (route) => {
      await opened.promise;
      await route.continue();
    });
    await page.goto('/keys');
    await page.getByRole('button', { name: 'New key' }).click();
    await page.getByRole('dialog').waitFor();
    opened.resolve();
    await page.getByText('--days 30 --project Pages').waitFor();
    await page.unrouteAll({ behavior: 'wait' });
  },
);

test.runIf(IS_NIGHTLY)('a block of a branch is marked in its charts', async () => {
  const { page } = visitor;
  const list = /\/branches(?:\?|$)/;
  await page.route(list, async (route) => {
    const response = await route.fetch();
    const { branches, ...rest } = await response.json();
    const blocked = { reason: 'disk', until: new Date(Date.now() + 60_000).toISOString() };
    const json = { ...rest, branches: branches.map((branch: object) => ({ ...branch, blocked })) };
    await route.fulfill({ response, json });
  });
  await page.goto(inProject('/branches/main/monitoring'));
  const marks = page.getByRole('list', { name: 'Marks in the charts' });
  await marks.getByText('Blocked: disk').waitFor();
  await marks.getByText('Created').waitFor();
  await page.unrouteAll({ behavior: 'wait' });
});

test.runIf(IS_NIGHTLY)(
  'passwords of no login cannot be rotated, and no command for it is shown',
  async () => {
    const { page } = visitor;
    await page.goto(inProject('/branches/changed/connect'));
    await page.getByRole('button', { name: 'Rotate passwords' }).click();
    const dialog = page.getByRole('dialog');
    const rotate = dialog.getByRole('button', { name: 'Rotate passwords' });
    const command = dialog.getByText('branchgate credentials rotate');
    for (const login of ['Owner', 'Read and write']) await dialog.getByLabel(login).uncheck();
    await command.waitFor();
    await eventually(async () => expect(await rotate.isEnabled()).toBe(true));
    await dialog.getByLabel('Read only').uncheck();
    await command.waitFor({ state: 'detached' });
    await eventually(async () => expect(await rotate.isDisabled()).toBe(true));
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
  },
);

test('a branch is made of a snapshot, protected, reset, deleted, restored and dropped', async () => {
  const { page } = visitor;
  const act = async (name: string, what: string) => {
    await page.getByRole('button', { name: `Actions of ${name}` }).click();
    await page.getByRole('menuitem', { name: what }).click();
  };
  const inDialog = page.getByRole('dialog');
  const confirm = (name: string) => inDialog.getByRole('button', { name, exact: true }).click();
  const says = (text: string) => page.getByText(text).last().waitFor();
  await page.goto(inProject('/snapshots'));
  await act('before · main', 'New branch from this');
  await page.getByLabel('Name', { exact: true }).fill('of-snapshot');
  await page.getByRole('button', { name: 'Create branch' }).click();
  await says('of-snapshot is ready');

  await page.goto(inProject(''));
  await act('of-snapshot', 'Settings of PostgreSQL');
  await inDialog.getByLabel('statement_timeout').fill('30s');
  await inDialog.getByText('branchgate branch update of-snapshot --setting statement_timeout=30s').waitFor();
  await confirm('Save');
  await says('New sessions of of-snapshot begin with these settings.');
  await act('of-snapshot', 'Settings of PostgreSQL');
  await eventually(async () =>
    expect(await inDialog.getByLabel('statement_timeout').inputValue()).toBe('30s'),
  );
  await confirm('Cancel');
  await act('of-snapshot', 'Rename');
  await inDialog.getByLabel('Name').fill('renamed');
  await inDialog.getByText('branchgate branch rename of-snapshot renamed').waitFor();
  await confirm('Rename');
  await says('of-snapshot is now renamed.');
  await act('renamed', 'Rename');
  await inDialog.getByLabel('Name').fill('of-snapshot');
  await confirm('Rename');
  await says('renamed is now of-snapshot.');
  await act('of-snapshot', 'Protect');
  await inDialog.getByText('branchgate branch protect of-snapshot').waitFor();
  await confirm('Protect');
  await says('of-snapshot is protected.');
  await act('of-snapshot', 'Reset');
  const reset = inDialog.getByRole('button', { name: 'Reset' });
  await eventually(async () => expect(await reset.isDisabled()).toBe(true));
  await inDialog.getByLabel('To the content of').selectOption({ index: 1 });
  await inDialog.getByLabel('Type of-snapshot to confirm').fill('of-snapshot');
  await confirm('Reset');
  await says('of-snapshot is reset. What it held is the snapshot “Before a reset · of-snapshot');
  await act('of-snapshot', 'End protection');
  await confirm('End protection');
  await says('of-snapshot is no longer protected.');
  await act('of-snapshot', 'Delete');
  await confirm('Delete');
  await says('1 branch is being deleted.');

  await page.getByRole('link', { name: /can be restored/ }).click();
  await page.getByRole('button', { name: 'Restore of-snapshot' }).click();
  await inDialog.getByLabel('Name').fill('back-again');
  await confirm('Restore');
  await says('back-again is back.');
  await page.getByRole('button', { name: 'Drop gone now' }).click();
  await inDialog.getByLabel('Type gone to confirm').fill('gone');
  await confirm('Drop now');
  await says('Nothing to restore');
  await page.goto(inProject('/snapshots'));
  await page.getByText('Before a reset').waitFor();
});

test.runIf(IS_NIGHTLY)(
  'a difference shows rows before and after, and statements for the schema',
  async () => {
    const { page } = visitor;
    await page.goto(inProject('/branches/changed/difference'));
    await page.getByRole('button', { name: 'Show the rows of item that differ' }).click();
    const changed = page.getByRole('listitem').filter({ hasText: 'Changed' });
    await eventually(async () =>
      expect(await changed.getByRole('row', { name: /^name/ }).textContent()).toMatch(/item 1.*renamed/),
    );
    await page.getByRole('listitem').filter({ hasText: 'Deleted' }).getByText('item 2').waitFor();
    await page.getByRole('button', { name: 'Schema' }).click();
    await page.getByText(/ALTER TABLE .*pair.* ADD COLUMN .*more/).waitFor();

    // The owner and the grants of a new table are those of the roles that every project has.
    const { direct_url: ofBranch } = await owner.api.credentials(projectId, 'changed');
    await query(ofBranch, 'create table extra (n int)');
    const path = `/api/v1/projects/${projectId}/branches/changed/diff?schema=true`;
    const { body } = await owner.api.get<{ schema: { statements: string[] } }>(path);
    expect(body.schema.statements).toContainEqual(expect.stringMatching(/ OWNER TO |GRANT /));
    await page.reload();
    await page.getByRole('button', { name: 'Schema' }).click();
    const statements = page.locator('.snippet', { hasText: 'CREATE TABLE' });
    await statements.waitFor();
    expect(await statements.textContent()).not.toMatch(/ OWNER TO |GRANT /);
  },
);

test.runIf(IS_NIGHTLY)(
  'the list of branches has rows of 36 px, below one line with their number, their storage and the host',
  async () => {
    const { page } = visitor;
    await page.goto(inProject(''));
    await page.locator('.branch-item').first().waitFor();
    const heights = `[...document.querySelectorAll('.branch-item')].map((row) => Math.round(row.getBoundingClientRect().height))`;
    expect(new Set((await page.evaluate(heights)) as number[])).toEqual(new Set([36]));
    await page.getByText('Connected', { exact: true }).waitFor();
    const line = `[...document.querySelectorAll('dl.in-line > div')].map((fact) => [
    fact.querySelector('dt').textContent, Math.round(fact.getBoundingClientRect().top)])`;
    const facts = (await page.evaluate(line)) as [string, number][];
    expect(facts.map(([name]) => name)).toEqual(['Branches', 'Storage', 'Database host']);
    expect(new Set(facts.map(([, top]) => top)).size).toBe(1);
  },
);

test.runIf(IS_NIGHTLY)('the axis of a chart is the chosen span, with marks that do not repeat', async () => {
  const { page } = visitor;
  await page.addInitScript(`(() => {
    window.drawn = [];
    const draw = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
      window.drawn.push(text);
      return draw.call(this, text, ...more);
    };
  })()`);
  for (const [range, minutes] of [
    ['1h', 60],
    ['6h', 360],
  ] as const) {
    await page.goto(inProject(`/branches/main/monitoring?range=${range}`));
    const labels = await eventually(async () => {
      const drawn = (await page.evaluate('window.drawn')) as string[];
      expect(drawn.length).toBeGreaterThan(5);
      return drawn.filter((text) => text !== '');
    }, 90);
    expect(labels.filter((label, index) => label === labels[index - 1])).toEqual([]);
    const clocks = labels
      .filter((label) => /^\d\d:\d\d$/.test(label))
      .map((label) => {
        const [hours = 0, mins = 0] = label.split(':').map(Number);
        return hours * 60 + mins;
      });
    const steps = clocks.slice(1).map((at, index) => (at - (clocks[index] ?? 0) + 1440) % 1440);
    const [step = 0] = steps;
    // As many equal marks as fit into the span, whatever was measured in it.
    const ofOneChart = steps.findIndex((each) => each !== step);
    const covered = step * (ofOneChart < 0 ? steps.length : ofOneChart);
    expect(covered + 2 * step).toBeGreaterThan(minutes);
    expect(covered).toBeLessThanOrEqual(minutes);
  }
});

test('changes that others make appear by themselves, without polling', async () => {
  const { page } = visitor;
  const stream = page.waitForResponse((response) => response.url().endsWith('/events'));
  await page.goto(inProject('/network-rules'));
  await stream;
  let readAt = Date.now();
  page.on('request', () => {
    readAt = Date.now();
  });
  await eventually(async () => expect(Date.now() - readAt).toBeGreaterThan(2_000));
  await owner.api.post(`/api/v1/projects/${projectId}/network-rules`, { cidr: '198.51.100.7/32' });
  // Pages without events read the rules every 30 seconds.
  await page.getByRole('cell', { name: '198.51.100.7/32', exact: true }).waitFor({ timeout: 25_000 });
});

/** Saves the staged changes of main by keyboard, which the page refuses until its name is typed. */
async function saveOnMain(rows: string): Promise<void> {
  const { page } = visitor;
  await page.getByRole('button', { name: 'Review and save' }).click();
  const save = page.getByRole('button', { name: `Save ${rows}` });
  await page.locator('input:focus').and(page.getByLabel('Type main to confirm')).waitFor();
  await page.keyboard.type('mai');
  await page.keyboard.press('Enter');
  await eventually(async () => expect(await save.isDisabled()).toBe(true));
  await page.keyboard.type('n');
  await eventually(async () => expect(await save.isEnabled()).toBe(true));
  await page.keyboard.press('Enter');
  await page.getByText(`${rows} saved.`).waitFor();
}

test.runIf(IS_NIGHTLY)(
  'on a small screen the rows have most of the page, until a person inspects a cell',
  async () => {
    const { page } = visitor;
    await page.goto(inProject('/branches/main/tables'));
    const grid = page.getByRole('grid');
    const width = async () => (await grid.boundingBox())?.width ?? 0;
    // The schema `archive` comes before `public` in the alphabet.
    await page
      .getByRole('navigation', { name: 'Tables' })
      .getByRole('heading')
      .first()
      .getByText('public')
      .waitFor();
    await page.getByRole('link', { name: 'vacant' }).click();
    await page.getByText('No rows').waitFor();
    await page.getByRole('link', { name: 'item' }).click();
    await page.getByRole('gridcell', { name: 'item 1', exact: true }).waitFor();
    await eventually(async () => expect(await width()).toBeGreaterThan(780));
    await page.getByRole('button', { name: 'Inspect cell' }).click();
    await page.getByRole('complementary', { name: 'Active cell' }).waitFor();
    await eventually(async () => expect(await width()).toBeLessThan(780));
    await page.getByLabel('Value to compare with').fill('0');
    await page.getByRole('button', { name: 'Filter', exact: true }).click();
    await page.getByText('No rows match the filters.').waitFor();
  },
);

test.runIf(IS_NIGHTLY)('the width that a person gives to a column stays', async () => {
  const { page } = visitor;
  const head = page.getByRole('columnheader', { name: /^name/ });
  const width = async () => Math.round((await head.boundingBox())?.width ?? 0);
  await page.goto(inProject('/branches/main/tables?table=item'));
  await head.waitFor();
  const before = await width();
  const edge = (await head.boundingBox()) ?? { x: 0, y: 0, width: 0 };
  await page.mouse.move(edge.x + edge.width - 1, edge.y + 10);
  await page.mouse.down();
  await page.mouse.move(edge.x + edge.width + 79, edge.y + 10);
  await page.mouse.up();
  await eventually(async () => expect(await width()).toBe(before + 80));
  await page.reload();
  await head.waitFor();
  await eventually(async () => expect(await width()).toBe(before + 80));
  await page.getByRole('grid').focus();
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('Alt+Shift+ArrowLeft');
  await eventually(async () => expect(await width()).toBe(before + 64));
});

const COLUMNS = ['id', 'name', 'note', 'price', 'data', 'doc', 'on_sale'];

test.runIf(IS_NIGHTLY)('every value goes through the editor unchanged or as it was typed', async () => {
  const { page } = visitor;
  await page.goto(inProject('/branches/main/tables?table=item'));
  const set = async (row: number, column: string, value: string | null) => {
    await page.getByRole('grid').focus();
    await page.keyboard.press('Control+Home');
    for (let step = 1; step < row; step += 1) await page.keyboard.press('ArrowDown');
    for (const name of COLUMNS) {
      if (name === column) break;
      await page.keyboard.press('ArrowRight');
    }
    const panel = page.getByRole('complementary', { name: 'Active cell' });
    await panel.getByRole('heading', { name: column, exact: true }).waitFor();
    if (value === null) return panel.getByRole('button', { name: 'Set NULL' }).click();
    if (value === '') return panel.getByRole('button', { name: 'Set empty text' }).click();
    await panel.getByRole('textbox').fill(value);
    return panel.getByRole('button', { name: 'Stage' }).click();
  };
  await page.getByRole('gridcell', { name: 'item 1', exact: true }).waitFor();
  await page.getByRole('button', { name: 'Inspect cell' }).click();
  await set(1, 'name', '');
  await set(1, 'note', 'a\nb');
  await set(2, 'price', '12345678901234567890.123456789');
  await set(2, 'data', 'AQID');
  await set(3, 'doc', '{"big": 12345678901234567890}');
  await set(3, 'note', null);
  await set(4, 'id', '9007199254740993');
  await saveOnMain('4 rows');
  expect(
    await query(
      url,
      `select id::text, name, note, price::text, encode(data, 'hex') as data, doc::text from item
       where id in (1, 2, 3, 9007199254740993) order by id`,
    ),
  ).toEqual([
    { id: '1', name: '', note: 'a\nb', price: '1.10', data: '00ff', doc: '{"a": 1}' },
    {
      id: '2',
      name: 'item 2',
      note: 'text',
      price: '12345678901234567890.123456789',
      data: '010203',
      doc: '{"a": 1}',
    },
    {
      id: '3',
      name: 'item 3',
      note: null,
      price: '3.30',
      data: '00ff',
      doc: '{"big": 12345678901234567890}',
    },
    { id: '9007199254740993', name: 'item 4', note: null, price: '4.40', data: '00ff', doc: '{"a": 1}' },
  ]);
});

test('rows with a composite key are added, changed and deleted in one transaction', async () => {
  const { page } = visitor;
  await page.goto(inProject('/branches/main/tables?table=pair'));
  await page.getByRole('gridcell', { name: 'old' }).dblclick();
  await page.keyboard.type('new');
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Add row' }).click();
  for (const value of ['2', 'y', 'added']) {
    await page.keyboard.type(value);
    await page.keyboard.press('Tab');
  }
  await saveOnMain('2 rows');
  expect(await query(url, 'select * from pair order by a')).toEqual([
    { a: 1, b: 'x', value: 'new' },
    { a: 2, b: 'y', value: 'added' },
  ]);
  await page.getByRole('gridcell', { name: 'added' }).click();
  await page.getByRole('button', { name: 'Delete row' }).click();
  await saveOnMain('1 row');
  expect(await query(url, 'select a from pair')).toEqual([{ a: 1 }]);
});

test('the audit log and its export have the events of the chosen actors only', async () => {
  const { page } = visitor;
  const { body: key } = await owner.api.post<{ id: string; key: string }>('/api/v1/api-keys', {
    name: 'robot',
    role: 'admin',
    scopes: ['branchgate:write'],
    expires_in_days: 1,
  });
  const robot = new Api(inject('stack').url, key.key);
  await robot.post(`/api/v1/projects/${projectId}/network-rules`, { cidr: '198.51.100.9/32' });
  const events = page.getByRole('table').locator('.event-name');
  const onlyOfRobot = () =>
    eventually(async () => expect(await events.allTextContents()).toEqual(['network_rule.created']));
  await page.goto('/audit');
  await page.getByRole('button', { name: 'project.created' }).waitFor();
  await page.getByLabel('Kind of actor').selectOption('API key');
  await onlyOfRobot();
  await page.getByText('branchgate audit list --actor-type key').waitFor();
  const ofRobot = page.getByRole('row').filter({ hasText: 'network_rule.created' });
  expect(await ofRobot.getByRole('link', { name: 'Pages' }).getAttribute('href')).toContain(projectId);

  await page.getByLabel('Kind of actor').selectOption('Every kind');
  await page.getByRole('button', { name: 'project.created' }).waitFor();
  await page.getByLabel('Actor', { exact: true }).fill('robot');
  await onlyOfRobot();
  const download = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Export as CSV' }).click();
  const [head, ...lines] = readFileSync(await (await download).path(), 'utf8').split('\r\n');
  expect(head).toContain('actor_id');
  expect(lines).toEqual([expect.stringContaining(`"key","${key.id}"`)]);
});

test.runIf(IS_NIGHTLY)('two tenants see nothing of each other', async () => {
  const other = await newOwner(siteOf(inject('stack')), `other-${RUN}@example.org`);
  const signedOut = await visit(browser, inject('stack').url);
  signedOut.forgive(404);
  await signInOnPage(signedOut.page, other.email);
  await signedOut.page.getByText('No projects yet').waitFor();
  await signedOut.page.goto(inProject('/branches/main/tables'));
  await signedOut.page.getByText('No project was found.').first().waitFor();
  expect(await signedOut.page.content()).not.toContain('item 1');
  expect(signedOut.problems).toEqual([]);
  await signedOut.context.close();
});

test.runIf(IS_NIGHTLY)('a person of the identity provider signs in and comes back to the page', async () => {
  const guest = await visit(browser, inject('stack').url);
  await guest.page.goto('/sign-in?return_to=%2Faccount');
  await guest.page.getByRole('link', { name: 'Continue with your identity provider' }).click();
  await guest.page.getByLabel(/mail/i).fill('ada@example.com');
  await guest.page.getByLabel(/password/i).fill('branchgate');
  await guest.page.getByRole('button', { name: 'Sign in' }).click();
  await guest.page.getByText('manages your password and your sessions').waitFor();
  expect(new URL(guest.page.url()).pathname).toBe('/account');
  await guest.page.reload();
  await guest.page.getByText('ada@example.com').first().waitFor();
  await guest.context.close();
});

test.runIf(IS_NIGHTLY)(
  'a name that another project has is warned about, and the deletion of a leased branch is called final',
  async () => {
    const { page } = visitor;
    await page.goto('/new');
    await page.getByLabel('Name', { exact: true }).fill('Pages');
    await page.getByText('Another project has this name.').waitFor();
    await owner.api.branch(projectId, 'leased', { lease_seconds: 300 });
    await page.goto(inProject(''));
    await page.getByRole('button', { name: 'Actions of leased' }).click();
    await page.getByRole('menuitem', { name: 'Delete' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByText('The database and everything in it is dropped, and cannot be restored.').waitFor();
    expect(await page.evaluate('document.activeElement.textContent')).toBe('Cancel');
    await dialog.getByRole('button', { name: 'Delete', exact: true }).click();
    await page.getByText('1 branch is being deleted.').last().waitFor();
  },
);

test('the page of a new branch says what it counts, and the storage page from when the sizes are', async () => {
  const { page } = visitor;
  await page.goto(inProject('/create-branch'));
  const counts =
    /The branch counts [\d.]+ MiB against the quota, of which [\d.]+ MiB of [\d.]+ MiB are used\./;
  await page.getByText(counts).waitFor();
  await page.goto(inProject('/storage'));
  await page.getByText(/^Sizes as of (?:now|\d+ s ago)/).waitFor();
});

/** Controls beyond the edge of the window that nobody can scroll to. Cut texts say so by an ellipsis. */
const OUT_OF_REACH = `[...document.querySelectorAll('main :is(a, button, input, select, textarea)')].flatMap((control) => {
  if (!control.checkVisibility() || control.getBoundingClientRect().right <= innerWidth + 1) return [];
  for (let around = control; around; around = around.parentElement) {
    const { overflowX, textOverflow } = getComputedStyle(around);
    if (['auto', 'scroll'].includes(overflowX) || textOverflow === 'ellipsis') return [];
  }
  return [control.outerHTML.slice(0, 200)];
})`;

test.runIf(IS_NIGHTLY)('with the longest names, every control is within the width of a phone', async () => {
  const { page } = visitor;
  const long = await preparePages(owner.api);
  await prepareLongValues(owner.api, long.projectId, long.url);
  await page.setViewportSize({ width: 390, height: 800 });
  try {
    for (const [name, path] of [...pagesOf(long.projectId), longRows(long.projectId)]) {
      await page.goto(path);
      await page.locator('main h1, main h2').first().waitFor();
      await eventually(async () => expect(await page.locator('main .skeleton').count()).toBe(0));
      expect([name, await page.evaluate(OUT_OF_REACH)]).toEqual([name, []]);
    }
  } finally {
    await page.setViewportSize({ width: 1280, height: 800 });
  }
});

/** On a busy machine the comparison of a page that was left still runs when another page asks for one. */
const WHILE_ANOTHER_RUNS = / 429 .*\/diff[/?]/;
/** Statements that a test has refused. */
const REFUSED_STATEMENTS = / 422 .*\/query$/;

test('nothing was reported in the meantime', () => {
  const isExpected = (problem: string) =>
    [WHILE_ANOTHER_RUNS, REFUSED_STATEMENTS].some((form) => form.test(problem));
  expect(visitor.problems.filter((problem) => !isExpected(problem))).toEqual([]);
});
