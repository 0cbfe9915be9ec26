import { mkdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { Page } from 'playwright-core';
import { ROOT } from '../../dev/build/repository.ts';
import type { Api } from '../support/api.ts';
import { openBrowser, visit } from '../support/console/browser.ts';
import { FOLLOWS, type FollowState, stageFollow } from '../support/console/follows.ts';
import { longRows, pagesOf, prepareLongValues, preparePages } from '../support/console/pages.ts';
import { signInOnPage } from '../support/console/person.ts';
import { eventually } from '../support/eventually.ts';
import { newPkce, register, requestFor } from '../support/oauth/client-app.ts';
import { deliveredMails } from '../support/sign-in/mails.ts';
import { newOwner } from '../support/sign-in/people.ts';
import { startStack, UNLIMITED } from '../support/stack/stack.ts';

const WIDTHS = { desktop: 1280, phone: 390 };
/** Until what a page reads after its first text is there. */
const SETTLED_MS = 1_500;
const SCHEMES = ['light', 'dark'] as const;

/** The pages that the documents show, at the width of a desktop. */
const DOCUMENTED = ['branches', 'connect', 'difference', 'monitoring', 'tables'];
const IMAGES = join(ROOT, 'docs/images');

const { values, positionals } = parseArgs({ options: { docs: { type: 'boolean' } }, allowPositionals: true });
const folder = positionals[0] ?? join(tmpdir(), 'branchgate-screenshots');

/** @param isWhole as long as the page is, as only people look at it */
async function shoot(page: Page, path: string, isWhole: boolean): Promise<void> {
  await page.screenshot({ path, fullPage: isWhole, animations: 'disabled' });
}

/** Both widths, in light and in dark. @param wait resolves once a page shows what it is to show */
async function shootAll(
  page: Page,
  pages: readonly (readonly [name: string, path: string, text: string | RegExp])[],
  state: string,
  wait: (text: string | RegExp) => Promise<void>,
): Promise<void> {
  for (const [name, path, text] of pages) {
    const file = `${name.replaceAll(' ', '-')}${state}`;
    for (const scheme of SCHEMES)
      for (const [device, width] of Object.entries(WIDTHS)) {
        await page.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
        await page.setViewportSize({ width, height: 800 });
        await page.goto(path);
        await wait(text);
        // Streams stay open, so the network is never idle.
        await page.waitForTimeout(SETTLED_MS);
        await shoot(page, join(folder, `${file}-${device}-${scheme}.png`), true);
        if (values.docs && state === '' && device === 'desktop' && DOCUMENTED.includes(name))
          await shoot(page, join(IMAGES, `${file}-${scheme}.png`), false);
      }
  }
}

/** A change of main that was rehearsed, with a finding, a danger and another change of main since. */
async function prepareChange(api: Api, projectId: string): Promise<void> {
  const path = `/api/v1/projects/${projectId}/changes`;
  const sql = `create index by_name on item (name);
    create index concurrently by_price on item (price);
    alter table item alter note set default 'none';
    delete from vacant`;
  const { body: planned } = await api.post<{ id: string }>(path, { from: 'changed', sql });
  await api.post(`${path}/${planned.id}/rehearse`, {});
  await eventually(async () => {
    const { body } = await api.get<{ state: string }>(`${path}/${planned.id}`);
    if (body.state !== 'rehearsed') throw new Error(`the change is ${body.state}`);
  });
}

/** Every page of the console: with data, with long values, and while the host is away. */
async function main(): Promise<void> {
  mkdirSync(folder, { recursive: true });
  const stack = await startStack({ env: { ...UNLIMITED, MEASURE_INTERVAL_SECONDS: '5' }, restarts: false });
  const browser = await openBrowser();
  try {
    const site = { url: stack.url, mails: () => deliveredMails(stack) };
    const owner = await newOwner(site, 'ada@example.org');
    const { projectId, url } = await preparePages(owner.api);
    const { page } = await visit(browser, stack.url);
    await page.goto('/sign-in');
    await page.getByLabel('E-mail address').waitFor();
    await shoot(page, join(folder, 'sign-in-desktop-light.png'), true);
    await signInOnPage(page, owner.email);
    const states = Object.keys(FOLLOWS) as FollowState[];
    for (const state of states) {
      await stageFollow(page, state);
      for (const [device, width] of Object.entries(WIDTHS)) {
        await page.setViewportSize({ width, height: 800 });
        await page.goto(`/projects/${projectId}/following`);
        await page.getByRole('heading', { name: 'shop at db.example.com' }).waitFor();
        await page.waitForTimeout(SETTLED_MS);
        await shoot(page, join(folder, `following-${state}-${device}.png`), true);
      }
    }
    await page.unrouteAll({ behavior: 'wait' });
    const client = { client_name: 'Coding agent', redirect_uris: ['http://127.0.0.1:49152/callback'] };
    const { body: registered } = await register(stack.url, client);
    const request = requestFor(stack.url, registered.client_id, newPkce(), client.redirect_uris[0]);
    const asked = Buffer.from(JSON.stringify(request)).toString('base64url');
    const consent = ['consent', `/authorize?request=${asked}`, 'Sign in Coding agent'] as const;
    const loaded = (text: string | RegExp) =>
      page.locator('main').getByText(new RegExp(text)).first().waitFor();
    await shootAll(page, [...pagesOf(projectId), consent], '', loaded);

    await prepareChange(owner.api, projectId);
    const change = ['a change', `/projects/${projectId}/changes`, ''] as const;
    await shootAll(page, [change], '', async () => {
      await page.locator('.jobs summary').first().click();
      await page.locator('.jobs details[open] table').waitFor();
    });

    const heading = () => page.locator('h1').first().waitFor();
    await prepareLongValues(owner.api, projectId, url);
    const inProject = pagesOf(projectId).filter(([, path]) => path === '/' || path.startsWith('/projects/'));
    await shootAll(page, [...inProject, longRows(projectId)], '-long', heading);

    await stack.kill('agent');
    await shootAll(page, inProject, '-away', heading);
    console.log(`The screenshots are in ${folder}.`);
  } finally {
    await browser.close();
    await stack.stop();
  }
}

await main();
