import { spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api } from '../support/api.ts';
import { CommandLine } from '../support/command-line.ts';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { siteOf } from '../support/console/person.ts';
import { eventually } from '../support/eventually.ts';
import { firstByDay } from '../support/nightly.ts';
import { Browsing } from '../support/sign-in/browsing.ts';
import { DRESSES, type DressName, startDressedProvider } from '../support/sign-in/dressed-provider.ts';
import { newOwner, type TestPerson } from '../support/sign-in/people.ts';

const RUN = Date.now();
const { url, devDir } = inject('stack');
const platform = new Api(url, gatewaySecrets(devFolder(devDir)).PLATFORM_SECRET);

let browser: Browser;

beforeAll(async () => {
  browser = await openBrowser();
});
afterAll(() => browser?.close());

/** The operator verifies the domain, as a TXT record would. */
async function verify(by: TestPerson, id: string, domain: string): Promise<void> {
  const { body: me } = await by.api.get('/api/v1/me');
  const path = `/platform/v1/tenants/${me.tenant_id}/identity-providers/${id}/domains/${domain}/verify`;
  expect((await platform.call('POST', path)).status).toBe(200);
}

/** Signs in on the page by the provider of the address. */
async function signInByCompany(email: string, company: string): Promise<Visitor> {
  const person = await visit(browser, url);
  await person.page.goto('/sign-in?return_to=%2Faccount');
  await person.page.getByLabel('E-mail address').fill(email);
  await person.page.getByRole('button', { name: 'Continue', exact: true }).click();
  await person.page.getByRole('link', { name: `Continue with ${company}` }).click();
  await person.page.getByRole('button', { name: 'Sign out' }).waitFor();
  expect(new URL(person.page.url()).pathname).toBe('/account');
  await person.page.getByText(email).first().waitFor();
  return person;
}

/** Signs in with `branchgate login`, whose address a browser opens. @returns the person */
async function signedInInTerminal(email: string) {
  const cli = await CommandLine.open({});
  const words = [...cli.words, 'login', '--no-browser', '--email', email, url];
  const terminal = spawn('script', ['-qefc', words.map((word) => `'${word}'`).join(' '), '/dev/null'], {
    env: { ...cli.environment, CI: '' },
    cwd: cli.folder,
    stdio: ['pipe', 'pipe', 'ignore'],
  });
  const ended = once(terminal, 'close');
  let screen = '';
  terminal.stdout.setEncoding('utf8').on('data', (text: string) => {
    screen += text;
  });
  const address = await eventually(async () => {
    const found = /^(http\S+\/sso\/\S+)\r?$/m.exec(screen)?.[1];
    if (!found) throw new Error(`no address in: ${screen}`);
    return found;
  }, 60);
  const { response } = await new Browsing().go(address);
  expect(await response.text()).toContain('Signed in. Return to the terminal.');
  expect((await ended)[0]).toBe(0);
  return cli.json('whoami');
}

test.each(firstByDay(1, Object.keys(DRESSES) as DressName[]))(
  'people of a provider that behaves as %s sign in on the page and in a terminal',
  async (name) => {
    const domain = `${name}-${RUN}.example`;
    const founder = await newOwner(siteOf(inject('stack')), `founder@${domain}`);
    const dressed = await startDressedProvider(name);
    try {
      const wanted = { ...dressed.settings, name, domains: [domain] };
      const { body } = await founder.api.post<{ id: string; redirect_uri: string }>(
        '/api/v1/identity-providers',
        wanted,
      );
      await dressed.register(body.redirect_uri);
      await verify(founder, body.id, domain);
      const person = await signInByCompany(`ada@${domain}`, name);
      await person.page.reload();
      await person.page.getByText(`ada@${domain}`).first().waitFor();
      await person.context.close();
      expect(await signedInInTerminal(`cli@${domain}`)).toMatchObject({
        email: `cli@${domain}`,
        role: 'viewer',
      });
    } finally {
      await dressed.stop();
    }
  },
);
