import { spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api } from '../support/api.ts';
import { CommandLine } from '../support/command-line.ts';
import { openBrowser, type Visitor, visit } from '../support/console/browser.ts';
import { signInOnPage, siteOf } from '../support/console/person.ts';
import { eventually } from '../support/eventually.ts';
import { firstByDay, IS_NIGHTLY } from '../support/nightly.ts';
import { Browsing } from '../support/sign-in/browsing.ts';
import { DRESSES, type DressName, startDressedProvider } from '../support/sign-in/dressed-provider.ts';
import { startGitHub } from '../support/sign-in/github.ts';
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

/** A provider of a known kind, or GitHub, whose people are those of a domain. */
interface Site {
  settings: object;
  register: (redirectUri: string) => Promise<void>;
  /** Whom GitHub has a session of. */
  become: (email: string) => void;
  stop: () => Promise<void>;
}

async function siteWith(name: DressName | 'github'): Promise<Site> {
  if (name !== 'github') {
    const dressed = await startDressedProvider(name);
    return { ...dressed, become: () => {} };
  }
  const github = await startGitHub(inject('stack').gitHubPort);
  const { clientId: client_id, secret: client_secret, stop } = github;
  const mapping = { role_claim: 'teams', roles: { 'acme/platform': 'admin' } };
  return {
    settings: { kind: 'github', client_id, client_secret, ...mapping },
    register: async () => {},
    become: (email) => {
      const emails = [{ email, primary: true, verified: true }];
      // A number and a login of its own for each address.
      const id = 1 + ([...email].reduce((sum, letter) => sum * 31 + letter.charCodeAt(0), 7) % 1_000_003);
      github.person = { id, login: `login-${id}`, emails, teams: [] };
    },
    stop,
  };
}

test.each(firstByDay(1, ['github', ...(Object.keys(DRESSES) as DressName[])] as const))(
  'people of a provider that behaves as %s sign in on the page and in a terminal',
  async (name) => {
    const domain = `${name}-${RUN}.example`;
    const founder = await newOwner(siteOf(inject('stack')), `founder@${domain}`);
    const provider = await siteWith(name);
    try {
      const wanted = { ...provider.settings, name, domains: [domain] };
      const { body } = await founder.api.post<{ id: string; redirect_uri: string }>(
        '/api/v1/identity-providers',
        wanted,
      );
      await provider.register(body.redirect_uri);
      await verify(founder, body.id, domain);
      provider.become(`ada@${domain}`);
      const person = await signInByCompany(`ada@${domain}`, name);
      await person.page.reload();
      await person.page.getByText(`ada@${domain}`).first().waitFor();
      await person.context.close();
      provider.become(`cli@${domain}`);
      expect(await signedInInTerminal(`cli@${domain}`)).toMatchObject({
        email: `cli@${domain}`,
        role: 'viewer',
      });
    } finally {
      await provider.stop();
    }
  },
);

test.runIf(IS_NIGHTLY)('an owner sets up, requires and deletes a provider on the page', async () => {
  const domain = `forms-${RUN}.example`;
  // An administrator at the provider.
  const owner = await newOwner(siteOf(inject('stack')), `admin@${domain}`);
  const provider = await startDressedProvider('keycloak');
  const { page, problems, forgive, context } = await visit(browser, url);
  const button = (name: string) => page.getByRole('button', { name, exact: true });
  const dialog = page.getByRole('dialog');
  const inDialog = (name: string) => dialog.getByRole('button', { name, exact: true });
  const fill = (label: string, text: string) => dialog.getByLabel(label).fill(text);
  try {
    await signInOnPage(page, owner.email, '/company');
    await page.getByRole('heading', { name: 'No identity provider' }).waitFor();

    await button('Add provider').click();
    await dialog.getByLabel('Provider', { exact: true }).selectOption({ label: 'Keycloak' });
    await dialog.getByText('Create an OpenID Connect client with client authentication.').waitFor();
    await fill('Name', 'Acme');
    await fill('Issuer', 'http://127.0.0.1:9/nowhere');
    await fill('Client ID', provider.settings.client_id);
    await fill('Client secret', provider.settings.client_secret);
    await fill('E-mail domains', domain);
    await fill('Claim with the groups or roles', 'realm_access.roles');
    await inDialog('Add a value').click();
    const value = dialog.getByRole('textbox', { name: 'Value 1' });
    await value.fill('gateway-admin');
    await dialog.getByRole('combobox', { name: 'Role 1' }).selectOption('owner');
    // A refused form stays as it is.
    await fill('E-mail domains', 'no domain');
    forgive(422);
    await inDialog('Add provider').click();
    await dialog
      .getByRole('alert')
      .getByText(/domain/)
      .first()
      .waitFor();
    await eventually(async () => expect(await value.inputValue()).toBe('gateway-admin'));
    await fill('E-mail domains', domain);
    await fill('Issuer', provider.settings.issuer);
    await inDialog('Add provider').click();
    await page.getByRole('heading', { name: 'Acme' }).waitFor();
    expect(await page.content()).not.toContain(provider.settings.client_secret);

    await button('Copy the redirect address').click();
    const redirectUri = await page.evaluate<string>('navigator.clipboard.readText()');
    await provider.register(redirectUri);
    const findings = page.getByRole('list', { name: 'Findings of the test' });
    await button('Test').click();
    await findings.getByText(`not verified yet: ${domain}`).waitFor();
    const id = /sso\/([^/]+)\/callback$/.exec(redirectUri)?.[1] ?? '';
    await verify(owner, id, domain);
    await page.reload();
    await page.getByText('verified', { exact: true }).waitFor();
    await button('Test').click();
    await findings.getByText(`verified: ${domain}`).waitFor();
    expect(await findings.getByText('The discovery document is of').count()).toBe(1);

    await button('Make a token').click();
    await inDialog('Make a token').click();
    await button('Copy the SCIM token').click();
    const token = await page.evaluate<string>('navigator.clipboard.readText()');
    expect((await new Api(url, token).get('/scim/v2/Users')).status).toBe(200);
    await page.reload();
    await button('Replace the token').waitFor();
    expect(await page.content()).not.toContain(token);

    forgive(409);
    await button('Require the provider').click();
    await inDialog('Require the provider').click();
    await dialog
      .getByRole('alert')
      .getByText(/^Nobody has signed in as you/)
      .waitFor();
    await inDialog('Cancel').click();
    await (await signInByCompany(owner.email, 'Acme')).context.close();
    await button('Require the provider').click();
    await inDialog('Require the provider').click();
    await button('Copy the recovery code').click();
    const code = await page.evaluate<string>('navigator.clipboard.readText()');
    expect(code).toMatch(/^\w{4}(-\w{4}){3}$/);
    await page.reload();
    await button('Allow other ways').waitFor();
    expect(await page.content()).not.toContain(code);

    await button('Delete').click();
    await fill('Type Acme to confirm', 'Acme');
    await inDialog('Delete provider').click();
    await page.getByRole('heading', { name: 'No identity provider' }).waitFor();
    expect((await new Api(url, token).get('/scim/v2/Users')).status).toBe(401);
    expect(problems).toEqual([]);
  } finally {
    await context.close();
    await provider.stop();
  }
});

test('an address that was entered once is not asked for again', async () => {
  const { page, context } = await visit(browser, url);
  const address = `once-${RUN}@example.org`;
  for (const way of ['Sign in with a code', 'Forgot password?']) {
    await page.goto('/sign-in');
    await page.getByLabel('E-mail address').fill(address);
    await page.getByRole('button', { name: 'Continue', exact: true }).click();
    await page.getByRole('button', { name: way, exact: true }).click();
    await page.getByRole('button', { name: 'Send a code', exact: true }).waitFor();
    await eventually(async () => expect(await page.getByLabel('E-mail address').inputValue()).toBe(address));
  }
  await context.close();
});
