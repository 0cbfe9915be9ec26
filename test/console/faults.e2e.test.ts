import type { Browser, Locator, Page, Route } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { signInOnPage, siteOf } from '../support/console/person.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { newOwner } from '../support/sign-in/people.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

/**
 * The states in which a save is refused. None may lose what a person has typed. By day the browser has no
 * network, and one refusal is made up. By night parts of a stack are killed, and its limit is reached.
 */

const WRITES = 30;
const TOKEN_SECONDS = 8;
let own: Stack | undefined;
let browser: Browser;
let visitor: Visitor;
let projectId: string;
let url: string;

beforeAll(async () => {
  if (IS_NIGHTLY)
    own = await startStack({
      env: {
        LIMIT_PUBLIC_PER_MINUTE: '1000',
        LIMIT_WRITES_PER_MINUTE: String(WRITES),
        JWT_ACCESS_TTL_SECONDS: String(TOKEN_SECONDS),
        MEASURE_INTERVAL_SECONDS: '1',
      },
      restarts: false,
    });
  const stack = own ?? inject('stack');
  const owner = await newOwner(siteOf(stack), `faults-${Date.now()}@example.org`);
  const project = await owner.api.project('Faults');
  projectId = project.id;
  await owner.api.allow(projectId);
  url = (await owner.api.credentials(projectId, 'main')).direct_url;
  await query(url, "create table item (id int primary key, name text); insert into item values (1, 'One')");
  browser = await openBrowser();
  visitor = await visit(browser, stack.url);
  visitor.forgive(401, 409, 412, 422, 429, 503, 504);
  await signInOnPage(visitor.page, owner.email, `/projects/${projectId}/branches/main/tables?table=item`);
});

afterAll(async () => {
  await browser?.close();
  await own?.stop();
});

/** The stack whose parts a test ends. */
const ownStack = () => own ?? expect.unreachable();

async function stage(value: string): Promise<void> {
  const { page } = visitor;
  await page.locator('[aria-rowindex="2"] [role=gridcell]').nth(1).dblclick();
  await page.keyboard.press('Control+a');
  await page.keyboard.type(value);
  await page.keyboard.press('Enter');
  await page.getByText('1 changed row, not saved yet').waitFor();
}

/** Tries to save, and leaves the dialog open. */
async function trySave(): Promise<void> {
  const { page } = visitor;
  const save = page.getByRole('button', { name: 'Save 1 row' });
  if ((await save.count()) === 0) await page.getByRole('button', { name: 'Review and save' }).click();
  await page.getByLabel('Type main to confirm').fill('main');
  await save.click();
}

/** The dialog ends with a success only. */
async function saved(): Promise<void> {
  await visitor.page.getByRole('dialog').waitFor({ state: 'detached' });
  await visitor.page.getByText('1 row saved.').last().waitFor();
}

/**
 * Holds requests.
 * @returns a function that lets them go, and waits for what is given before later ones are let through
 */
async function hold(pattern: string): Promise<(settled?: Promise<unknown>) => Promise<void>> {
  const { page } = visitor;
  const held = Promise.withResolvers<void>();
  await page.route(pattern, async (route) => {
    await held.promise;
    // The page may have given it up.
    await route.continue().catch(() => {});
  });
  return async (settled) => {
    held.resolve();
    await settled;
    await page.unroute(pattern);
  };
}

/** Begins a save, and goes back to the rows while it runs. @returns a function that lets it end */
async function holdSave(): Promise<() => Promise<void>> {
  const { page } = visitor;
  const changes = '**/api/v1/**/row-changes';
  const release = await hold(changes);
  const sent = page.waitForRequest(changes);
  await trySave();
  const response = (await sent).response();
  await page.getByRole('button', { name: 'Continue editing' }).click();
  return () => release(response.then((each) => each?.finished()));
}

const stored = async () =>
  (await query<{ name: string }>(url, 'select name from item where id = 1'))[0]?.name;

test.runIf(IS_NIGHTLY)(
  'while the database host is away, the change stays and can be saved afterwards',
  async () => {
    const { page } = visitor;
    await page.getByRole('gridcell', { name: 'One' }).waitFor();
    await stage('host away');
    await ownStack().kill('agent');
    await trySave();
    await page
      .getByRole('dialog')
      .getByText(/database host is currently not connected|did not respond/)
      .waitFor();
    await ownStack().start('agent');
    await ownStack().untilReady();
    await trySave();
    await saved();
    expect(await stored()).toBe('host away');
  },
);

test('while the host is away, a page says it once, and continues by itself', async () => {
  const { page } = visitor;
  await page.getByRole('gridcell', { name: 'One' }).waitFor();
  let isAway = true;
  let refusals = 0;
  await page.route(/\/api\/v1\/.*\/tables/, (route) => {
    if (!isAway) return route.continue();
    refusals += 1;
    return route.fulfill({
      status: 503,
      json: { error: 'HOST_UNAVAILABLE', message: 'The host is away.', request_id: 'x' },
    });
  });
  await page.route('**/usage', async (route) => {
    const response = await route.fetch();
    await route.fulfill({
      response,
      json: { ...(await response.json()), ...(isAway && { host_connected: false }) },
    });
  });
  await page.reload();
  await page.getByText('has not reached the database host since').waitFor();
  // The page has shown the first failure once it asks again.
  await eventually(async () => expect(refusals).toBeGreaterThan(1));
  expect(await page.getByRole('alert').count()).toBe(0);
  expect(await page.getByText('The host is away.').count()).toBe(0);
  isAway = false;
  await page.getByRole('gridcell', { name: 'One' }).waitFor();
  await page.getByText('has not reached the database host since').waitFor({ state: 'detached' });
  await page.unrouteAll({ behavior: 'wait' });
});

test('while the gateway is away, the page says so and keeps the change', async () => {
  const { page, context } = visitor;
  await stage('away');
  await (own ? own.kill('gateway') : context.setOffline(true));
  await trySave();
  await page.getByText('your unsaved changes stay here').waitFor();
  await (own ? own.start('gateway') : context.setOffline(false));
  await own?.untilReady();
  await trySave();
  await saved();
  expect(await stored()).toBe('away');
});

test.runIf(IS_NIGHTLY)('a saved row can be changed again before it is read again', async () => {
  const release = await hold('**/api/v1/**/tables/item/rows*');
  for (const value of ['once', 'twice']) {
    await stage(value);
    await trySave();
    await saved();
  }
  expect(await stored()).toBe('twice');
  await release();
});

test('what is typed while a save runs stays, and can be saved afterwards', async () => {
  const { page } = visitor;
  await stage('sent');
  const release = await holdSave();
  await stage('typed meanwhile');
  await release();
  expect(await stored()).toBe('sent');
  await page.getByRole('gridcell', { name: 'typed meanwhile' }).waitFor();
  await trySave();
  await saved();
  expect(await stored()).toBe('typed meanwhile');
});

test.runIf(IS_NIGHTLY)('a cell that is edited while a new row is saved stays that cell', async () => {
  const { page } = visitor;
  await page.getByRole('button', { name: 'Add row' }).click();
  await page.keyboard.type('2');
  await page.keyboard.press('Enter');
  const release = await holdSave();
  // The new row is the first one.
  await page.locator('[aria-rowindex="3"] [role=gridcell]').nth(1).dblclick();
  await page.keyboard.press('Control+a');
  await page.keyboard.type('of row 1');
  await release();
  await page.getByText('1 row saved.').last().waitFor();
  await page.locator('[aria-rowindex="3"] [role=gridcell]').first().getByText('2').waitFor();
  await page.keyboard.press('Enter');
  await trySave();
  await saved();
  expect(await query(url, 'select id, name from item order by id')).toEqual([
    { id: 1, name: 'of row 1' },
    { id: 2, name: null },
  ]);
});

test.runIf(IS_NIGHTLY)('an expired token is renewed without a word', async () => {
  const { page } = visitor;
  await stage('renewed');
  await page.waitForTimeout((TOKEN_SECONDS + 1) * 1000);
  await trySave();
  await saved();
  expect(await stored()).toBe('renewed');
});

test.runIf(IS_NIGHTLY)('measurements appear by themselves', async () => {
  const { page } = visitor;
  await page.getByRole('link', { name: 'Monitoring' }).click();
  await page.getByRole('figure').filter({ hasText: 'Size' }).getByText(/MiB/).first().waitFor();
  await page.getByRole('figure').filter({ hasText: 'New connections' }).waitFor();
  await page.getByRole('link', { name: 'Tables' }).click();
});

/** Refuses a request as the gateway does over its limit. */
const refuse = (seconds: number) => (route: Route) => {
  const body = { error: 'RATE_LIMITED', message: 'Too many requests', retry_after: seconds };
  return route.fulfill({ status: 429, headers: { 'Retry-After': String(seconds) }, json: body });
};

test.runIf(IS_NIGHTLY)('when the gateway refuses to be read, all pages wait as long as it says', async () => {
  const { page } = visitor;
  const seconds = 3;
  let refusedAt = 0;
  const refuseNow = (route: Route) => {
    refusedAt = Date.now();
    return refuse(seconds)(route);
  };
  await page.route('**/api/v1/**/network-rules*', refuseNow, { times: 1 });
  await page.getByRole('link', { name: 'Network rules' }).click();
  await page.getByText(/The page continues in \d second/).waitFor();
  const read = page.waitForRequest('**/api/v1/**/snapshots*');
  await page.getByRole('link', { name: 'Snapshots' }).click();
  await read;
  expect(Date.now() - refusedAt).toBeGreaterThanOrEqual(seconds * 1000);
  await page.getByText('No snapshots').waitFor();
  await page.getByRole('link', { name: 'Tables' }).click();
});

async function changeQuota(gib: string): Promise<void> {
  const { page } = visitor;
  await page.getByRole('link', { name: 'Settings' }).click();
  await page.getByLabel('Storage quota in GiB').fill(gib);
  // The message of an earlier change may still be shown.
  const changed = page.waitForResponse(
    (response) => response.request().method() === 'PATCH' && response.ok(),
  );
  await page.getByRole('form', { name: 'Limits' }).getByRole('button', { name: 'Save' }).click();
  await changed;
  await page.getByRole('link', { name: 'Tables' }).click();
}

test('over the storage quota, the page says what to do and keeps the change', async () => {
  const { page } = visitor;
  await page.locator('[aria-rowindex="2"] [role=gridcell]').first().waitFor();
  await stage('blocked');
  await changeQuota('0.001');
  await trySave();
  await page.getByRole('dialog').getByText('used up its storage quota').waitFor();
  await page.getByRole('button', { name: 'Continue editing' }).click();
  await changeQuota('0.25');
  await page.getByText('1 changed row, not saved yet').waitFor();
  await trySave();
  await saved();
  expect(await stored()).toBe('blocked');
});

test.runIf(IS_NIGHTLY)(
  'a masking policy that somebody else has changed is not overwritten, and says what to do',
  async () => {
    await query(
      url,
      "create table customer (id int primary key, email text); insert into customer values (1, 'ada@example.com')",
    );
    const page = await visitor.context.newPage();
    await page.setViewportSize({ width: 1280, height: 800 });
    await page.goto(`/projects/${projectId}/masking`);
    const uncovered = page.getByRole('region', { name: 'Not covered' });
    await uncovered.getByText('public.customer.email').waitFor();
    const topOf = async (locator: Locator) => (await locator.boundingBox())?.y ?? Number.NaN;
    expect(await topOf(uncovered)).toBeLessThan(await topOf(page.getByLabel('Columns without a rule')));
    const save = page.getByRole('button', { name: 'Save policy' });
    expect(await save.isDisabled()).toBe(true);

    await page.keyboard.press('a');
    await page.getByText('Every column of main that looks personal has a rule.').waitFor();
    await page.getByRole('navigation', { name: 'Tables' }).getByText('customer').click();
    await page.getByRole('button', { name: 'Preview' }).click();
    const side = (name: string) => page.getByRole('table', { name });
    await side('Before').getByText('ada@example.com').waitFor();
    await eventually(async () => expect(await side('After').textContent()).toMatch(/[a-z]{20}@example\.com/));
    const before = await side('Before').boundingBox();
    const after = await side('After').boundingBox();
    expect(before?.y).toBe(after?.y);
    expect(before?.x).toBeLessThan(after?.x ?? 0);

    const theirs = { rules: [{ table: 'item', column: 'name', with: 'hash' }], unlisted: 'keep' };
    // A token of the beginning has expired.
    const ofApi = <T = { rules: object[] }>(method: string, body?: object, resource = 'masking') =>
      page.evaluate<T>(`(async () => {
      const session = await (await fetch('/api/v1/auth/session', { method: 'POST' })).json();
      const headers = { Authorization: 'Bearer ' + session.access_token, 'Content-Type': 'application/json' };
      const body = ${JSON.stringify(body)};
      const request = { method: '${method}', headers, ...(body && { body: JSON.stringify(body) }) };
      return (await fetch('/api/v1/projects/${projectId}/${resource}', request)).json();
    })()`);
    expect(await ofApi('PUT', theirs)).toMatchObject({ version: 1 });
    await save.click();
    await page.getByText('The masking policy has changed since you read it.').waitFor();
    await page.getByText('Somebody else has made version 1 of the policy.').waitFor();
    const email = page.getByLabel('email (text)');
    await eventually(async () => expect(await email.inputValue()).toBe('email'));
    await page.getByRole('button', { name: 'Discard my changes' }).click();
    await uncovered.getByText('public.customer.email').waitFor();
    await eventually(async () => expect(await email.inputValue()).toBe(''));
    await page.keyboard.press('a');
    await save.click();
    await page.getByText('The policy has version 2.').waitFor();
    expect((await ofApi('GET')).rules).toEqual([
      ...theirs.rules,
      { table: 'public.customer', column: 'email', with: 'email' },
    ]);

    // A migration on a branch, before it is run on main.
    const wanted = { branch_name: 'migrated', include: ['credentials'] };
    const { credentials } = await ofApi<{ credentials: { direct_url: string } }>('POST', wanted, 'branches');
    await query(credentials.direct_url, 'alter table customer add email2 text');
    await page.reload();
    await page.getByText('Every column of main that looks personal has a rule.').waitFor();
    await page.getByLabel('Compared with').selectOption('migrated');
    await uncovered.getByText('public.customer.email2').waitFor();
    await page.getByText('branchgate masking check migrated').waitFor();
    await page.keyboard.press('a');
    await page.getByText('Every column of migrated that looks personal has a rule.').waitFor();
    await eventually(async () => expect(await save.isEnabled()).toBe(true));

    // Who gives members masked data only has to say what becomes of the passwords that they have.
    await page.goto(`/projects/${projectId}/settings`);
    await page.getByLabel('Give members masked data only').check();
    const ofData = page.getByRole('form', { name: 'Data' });
    await ofData.getByRole('button', { name: 'Save', exact: true }).click();
    const passwords = page.getByLabel('Passwords that members have already');
    expect(await page.locator('select:invalid').count()).toBe(1);
    await passwords.selectOption('all_but_main');
    await page.getByText('--masked-only on --rotate-credentials all_but_main').waitFor();
    await ofData.getByRole('button', { name: 'Save', exact: true }).click();
    await page.getByText('Branches with new passwords: 1. The passwords of main were not replaced').waitFor();
    await page.close();
  },
);

/** Immediately before a save, because the limit allows another request every few seconds. */
async function reachLimit(page: Page): Promise<void> {
  const path = `/api/v1/projects/${projectId}/network-rules`;
  await page.evaluate(`(async () => {
    const refusal = async () => {
      // A token of a minute ago has expired.
      const session = await (await fetch('/api/v1/auth/session', { method: 'POST' })).json();
      const headers = { Authorization: 'Bearer ' + session.access_token, 'Content-Type': 'application/json' };
      const send = () => fetch('${path}', { method: 'POST', headers, body: '{}' });
      for (let sent = 0; sent <= 2 * ${WRITES}; sent += 1) {
        const response = await send();
        if (response.status === 429) return response;
      }
    };
    // The save must come before the end of the minute.
    const seconds = Number((await refusal()).headers.get('Retry-After'));
    if (seconds > 20) return;
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    await refusal();
  })()`);
}

test('over the limit of requests, the page says when to try again and keeps the change', async () => {
  const { page } = visitor;
  await stage('limited');
  await page.getByRole('button', { name: 'Review and save' }).click();
  await (own ? reachLimit(page) : page.route('**/api/v1/**/row-changes', refuse(20), { times: 1 }));
  await trySave();
  await page.getByText(/Too many requests in this minute. Try again in \d+ second/).waitFor();
  await page.getByRole('button', { name: 'Continue editing' }).click();
  await page.getByRole('gridcell', { name: 'limited' }).waitFor();
  await page.getByText('1 changed row, not saved yet').waitFor();
});

test('a session that ended elsewhere leads to the sign-in and back to the staged change', async () => {
  const { page } = visitor;
  await page.context().clearCookies();
  await page.reload();
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  const staged = await page.evaluate<string>('JSON.stringify({ ...sessionStorage })');
  expect(staged).toContain('limited');
});

test('nothing but the failures that the test caused was reported', () => {
  expect(
    visitor.problems.filter(
      (problem) => !/ERR_CONNECTION|ERR_INCOMPLETE_CHUNKED|ERR_INTERNET_DISCONNECTED/.test(problem),
    ),
  ).toEqual([]);
});
