import { AxeBuilder } from '@axe-core/playwright';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { siteOf } from '../support/console/person.ts';
import { eventually } from '../support/eventually.ts';
import { startStockClient } from '../support/oauth/stock-client.ts';
import { newOwner, type TestPerson } from '../support/sign-in/people.ts';
import { PASSWORD } from '../support/sign-in/sign-in.ts';

/** A person signs in an agent, whose client is the SDK of the Model Context Protocol, with a browser. */

const RUN = Date.now();
const { url } = inject('stack');
const REFUSED_WITHIN_MS = 10_000;

let browser: Browser;
let owner: TestPerson;
let visitor: Visitor;
let agent: Awaited<ReturnType<typeof startStockClient>>;

beforeAll(async () => {
  browser = await openBrowser();
  owner = await newOwner(siteOf(inject('stack')), `agents-${RUN}@example.org`);
  await owner.api.project('Shop');
  visitor = await visit(browser, url);
  agent = await startStockClient('Test agent');
});
afterAll(async () => {
  await agent?.stop();
  await browser?.close();
});

const button = (name: string) => visitor.page.getByRole('button', { name, exact: true });
const asks = () => visitor.page.getByRole('heading', { name: 'Sign in Test agent?' }).waitFor();

/** Has the client ask for a sign-in. @returns the address that it opens */
async function asked(): Promise<string> {
  const before = agent.opened.length;
  await expect(agent.connect(url)).rejects.toThrow(/unauthorized/i);
  expect(agent.opened.length).toBe(before + 1);
  return agent.opened.at(-1)?.href ?? '';
}

const result = async (called: ReturnType<Awaited<ReturnType<typeof agent.connect>>['callTool']>) => {
  const { isError, structuredContent, content } = await called;
  return { isError, structuredContent, text: JSON.stringify(content) };
};

/** The only project is chosen once the projects are loaded. */
const choosesShop = () =>
  visitor.page
    .getByLabel('Project')
    .locator('option:checked', { hasText: 'Shop' })
    .waitFor({ state: 'attached' });

test('signs in, is limited to its branches, is signed out and is refused', async () => {
  const { page, problems, forgive } = visitor;
  await page.goto(await asked());
  // Not signed in: the page leads back here.
  await page.getByLabel('E-mail address').fill(owner.email);
  await button('Continue').click();
  await page.getByLabel('Password').fill(PASSWORD);
  await button('Sign in').click();
  await button('Not now').click();
  await asks();
  const { host } = new URL(agent.redirectUrl);
  await page.getByText(`a program on this computer is signed in: ${host}`).waitFor();
  await eventually(async () =>
    expect(await page.getByLabel('Only branches that match').inputValue()).toBe('agent-*'),
  );
  await choosesShop();
  const axe = await new AxeBuilder({ page }).setLegacyMode(true).analyze();
  expect(axe.violations.map(({ id, nodes }) => `${id} ${nodes.map(({ target }) => target)}`)).toEqual([]);
  const headers = (await page.request.get('/authorize')).headers();
  expect(headers['content-security-policy']).toContain("frame-ancestors 'none'");

  // Nothing happens without a click.
  await page.reload();
  await asks();
  await choosesShop();
  expect(agent.returned).toEqual([]);
  await button('Allow').click();
  await page.getByText('Return to the program.').waitFor();
  await agent.finish(url);
  const client = await agent.connect(url);
  const call = (name: string, args: Record<string, unknown> = {}) =>
    result(client.callTool({ name, arguments: args }));
  expect(await call('create_branch', { name: 'agent-1' })).toMatchObject({
    structuredContent: { branch_name: 'agent-1' },
  });
  expect(await call('query', { branch: 'agent-1', sql: 'select 1 as one' })).toMatchObject({
    structuredContent: { rows: [[1]] },
  });
  for (const args of [{ name: 'other' }, { name: 'xagent-1' }])
    expect(await call('create_branch', args)).toMatchObject({ isError: true, text: /NOT_FOUND/ });
  expect(await call('get_connection', { branch: 'main' })).toMatchObject({ isError: true });

  // The next sign-in asks again, and a refusal reaches the client.
  const other = await startStockClient('Test agent');
  await expect(other.connect(url)).rejects.toThrow(/unauthorized/i);
  await page.goto(other.opened[0]?.href ?? '');
  await asks();
  await button('Refuse').click();
  await page.getByText('Return to the program.').waitFor();
  expect(Object.fromEntries(other.returned[0] ?? [])).toMatchObject({ error: 'access_denied', iss: url });
  await other.stop();

  await page.goto('/account');
  await page.getByRole('button', { name: 'Sign out Test agent' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Sign out', exact: true }).click();
  await page.getByText('The agent is signed out.').waitFor();
  const since = Date.now();
  await eventually(async () => {
    await expect(call('query', { branch: 'agent-1', sql: 'select 1 as one' })).rejects.toThrow();
  }, 30);
  expect(Date.now() - since).toBeLessThan(REFUSED_WITHIN_MS + 5_000);
  const names = await owner.api.get<{ audit_events: { name: string; actor_type: string }[] }>(
    '/api/v1/audit-events?limit=100',
  );
  expect(names.body.audit_events).toEqual(
    expect.arrayContaining([
      expect.objectContaining({ name: 'oauth_grant.revoked', actor_type: 'user' }),
      expect.objectContaining({ name: 'branch.created', actor_type: 'grant' }),
      expect.objectContaining({ name: 'oauth_grant.created', actor_type: 'user' }),
    ]),
  );
  forgive(401);
  expect(problems.filter((problem) => !problem.includes('other origin: http://127.0.0.1:'))).toEqual([]);
});

test('a request that somebody has changed shows what is wrong, and goes nowhere', async () => {
  const { page, forgive } = visitor;
  forgive(400);
  const address = new URL(await asked());
  address.searchParams.set('redirect_uri', 'https://evil.example/callback');
  const refused = await page.goto(address.href);
  expect(refused?.status()).toBe(400);
  const request = { ...Object.fromEntries(address.searchParams) };
  await page.goto(`/authorize?request=${Buffer.from(JSON.stringify(request)).toString('base64url')}`);
  await page.getByRole('alert').waitFor();
  expect(await button('Allow').count()).toBe(0);
  await page.goto('/authorize?request=nothing');
  await page.getByRole('alert').waitFor();
});
