import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { beforeAll, describe, expect, inject, onTestFinished, test } from 'vitest';
import { Api } from '../support/api.ts';
import { checkResponse } from '../support/contract.ts';
import { Browser, type Page } from '../support/sign-in/browser.ts';
import { readStackFile } from '../support/stack/started-stack.ts';

const ADA = 'ada@example.com';
/** An account that belongs to no organization. */
const NO_TENANT = 'alan@example.com';
const LOGIN = '/api/v1/auth/idp/login';
const CALLBACK = '/api/v1/auth/idp/callback';
const START = '/api/v1/auth/cli/start';
const EXCHANGE = '/api/v1/auth/cli/exchange';

const { url, devDir } = inject('stack');
const nobody = new Api(url, null);
let idpUrl: string;

beforeAll(() => {
  idpUrl = readStackFile(devDir).idp_url;
});

const isCallback = ({ origin, pathname }: URL) => origin === url && pathname === CALLBACK;

/** Follows the redirects of gateway and provider, and stops before the callback. */
const newBrowser = () => new Browser((address) => !isCallback(address));

const startAddress = (returnTo = '/') => `${url}${LOGIN}?return_to=${encodeURIComponent(returnTo)}`;

/** Signs in at the provider's form. @returns the address of the callback, which is not requested yet */
async function signInAtProvider(browser: Browser, returnTo?: string, email = ADA): Promise<URL> {
  const { address } = await browser.signIn(startAddress(returnTo), email);
  expect(isCallback(address)).toBe(true);
  return address;
}

async function read({ address, response }: Page) {
  const bodyText = await response.text();
  const { status, headers } = response;
  checkResponse({ method: 'GET', path: address.pathname + address.search, status, headers, bodyText });
  expect(headers.get('cache-control')).toBe('no-store');
  return { status, body: JSON.parse(bodyText) as Record<string, string> };
}

const FAILED = { status: 400, body: { error: 'SIGN_IN_FAILED' } };

describe('the web sign-in', () => {
  test('goes through the form of the provider and returns tokens that the API accepts', async () => {
    const browser = newBrowser();
    const address = await signInAtProvider(browser, '/projects?tab=branches');
    const [cookie] = browser.cookies.filter(({ path }) => path === CALLBACK);
    expect(cookie?.name).toBe(`idp_sign_in_${address.searchParams.get('state')}`);
    expect(cookie?.value).not.toContain('projects');

    const { status, body } = await read(await browser.open(address.href));
    expect({ status, body }).toEqual({
      status: 200,
      body: {
        access_token: expect.stringMatching(/^v4\.public\./),
        refresh_token: expect.any(String),
        token_type: 'bearer',
        expires_in: expect.any(Number),
        state: '/projects?tab=branches',
      },
    });
    expect(Number(body.expires_in)).toBeGreaterThan(3500);
    expect(browser.cookies.filter(({ path }) => path === CALLBACK)).toEqual([]);
    const ada = new Api(url, body.access_token ?? '');
    expect((await ada.get('/api/v1/projects')).status).toBe(200);
    const { body: audit } = await ada.get('/api/v1/audit-events?name=sign_in.succeeded&limit=1');
    expect(audit).toMatchObject({
      audit_events: [{ actor_email: ADA, metadata: { first_factor: 'idp', second_factor: null } }],
    });
  });

  test('sends the parameters of the specification, with state, nonce and PKCE', async () => {
    const response = await fetch(startAddress(), { redirect: 'manual' });
    expect(response.status).toBe(302);
    expect(response.headers.get('cache-control')).toBe('no-store');
    expect(response.headers.get('set-cookie')).toMatch(
      /^idp_sign_in_[\w-]{43}=[^;]+; Max-Age=600; Path=\/api\/v1\/auth\/idp\/callback; HttpOnly; SameSite=Lax$/,
    );
    const { origin, pathname, searchParams } = new URL(response.headers.get('location') ?? '');
    expect(origin + pathname).toBe(`${idpUrl}/oauth2/authorize`);
    expect(Object.fromEntries(searchParams)).toEqual({
      response_type: 'code',
      client_id: 'branchgate-gateway',
      redirect_uri: url + CALLBACK,
      scope: 'openid profile email branchgate:read branchgate:write',
      state: expect.stringMatching(/^[\w-]{43}$/),
      nonce: expect.stringMatching(/^[\w-]{43}$/),
      code_challenge: expect.stringMatching(/^[\w-]{43}$/),
      code_challenge_method: 'S256',
    });
  });

  test.each([
    'https://evil.example',
    '//evil.example',
    '/\\evil.example',
    '/%09/evil.example',
    '/\t/evil.example',
    '/%5Cevil.example',
    '/%2Fevil.example',
    '/\r\nLocation: //evil.example',
    '/%0d%0aLocation:%20//evil.example',
    '/%zz',
    '',
  ])('return_to %j → 422 and no redirect', async (returnTo) => {
    const { status, headers, body } = await nobody.get(`${LOGIN}?return_to=${encodeURIComponent(returnTo)}`);
    expect({ status, body }).toMatchObject({ status: 422, body: { details: [{ path: 'return_to' }] } });
    expect([headers.get('location'), headers.get('set-cookie')]).toEqual([null, null]);
  });

  test('is completed separately in two tabs of a browser', async () => {
    const browser = newBrowser();
    const first = await signInAtProvider(browser, '/first');
    // The browser has a session at the provider, so no form is shown.
    const { address: second } = await browser.open(startAddress('/second'));
    expect((await read(await browser.open(second.href))).body.state).toBe('/second');
    expect((await read(await browser.open(first.href))).body.state).toBe('/first');
  });

  test('without a state, with another one, or from another browser → 400, and the right browser can complete it', async () => {
    const browser = newBrowser();
    const address = await signInAtProvider(browser);
    const without = new URL(address);
    without.searchParams.delete('state');
    expect(await read(await browser.open(without.href))).toMatchObject(FAILED);
    const another = new URL(address);
    another.searchParams.set('state', 'a'.repeat(43));
    expect(await read(await browser.open(another.href))).toMatchObject(FAILED);
    expect(await read(await newBrowser().open(address.href))).toMatchObject(FAILED);

    const thief = newBrowser();
    const own = await signInAtProvider(thief);
    const mixed = new URL(address);
    mixed.searchParams.set('state', own.searchParams.get('state') ?? '');
    // The victim's code with the thief's state and cookie fails PKCE.
    expect(await read(await thief.open(mixed.href))).toMatchObject(FAILED);
    expect((await read(await browser.open(address.href))).status).toBe(200);
  });

  test('a cookie is valid for its own state only', async () => {
    const browser = newBrowser();
    const address = await signInAtProvider(browser);
    const state = address.searchParams.get('state') ?? '';
    const cookie = browser.cookies.find(({ name }) => name.endsWith(state))?.value;
    const other = 'b'.repeat(43);
    address.searchParams.set('state', other);
    const response = await fetch(address, { headers: { cookie: `idp_sign_in_${other}=${cookie}` } });
    expect(await read({ address, response })).toMatchObject(FAILED);
  });

  test('a state and its code are valid once, even with the cookie', async () => {
    const browser = newBrowser();
    const address = await signInAtProvider(browser);
    const headers = { cookie: browser.cookies.map(({ name, value }) => `${name}=${value}`).join('; ') };
    const fetched = await Promise.all([0, 1].map(() => fetch(address, { headers })));
    const results = await Promise.all(fetched.map((response) => read({ address, response })));
    expect(results.map(({ status }) => status).sort()).toEqual([200, 400]);
    expect(await read({ address, response: await fetch(address, { headers }) })).toMatchObject(FAILED);
  });

  test('a refusal of the provider → 400 without its message, and the state is used up', async () => {
    const browser = newBrowser();
    const granted = await signInAtProvider(browser);
    const refused = new URL(granted);
    refused.search = new URLSearchParams({
      error: 'access_denied',
      error_description: 'the resource owner said no',
      session_state: 's',
      scope: 'openid',
      iss: idpUrl,
      state: granted.searchParams.get('state') ?? '',
    }).toString();
    const { status, body } = await read(await browser.open(refused.href));
    expect({ status, body }).toMatchObject(FAILED);
    expect(JSON.stringify(body)).not.toMatch(/denied|said no/);
    expect(await read(await browser.open(granted.href))).toMatchObject(FAILED);
  });

  test.each([
    ['another issuer', { iss: 'https://evil.example' }],
    ['no issuer', { iss: null }],
    ['no code', { code: null }],
    ['an empty code', { code: '' }],
    ['an unknown code', { code: 'unknown' }],
  ])('a callback with %s → 400', async (_case, change) => {
    const browser = newBrowser();
    const address = await signInAtProvider(browser);
    for (const [name, value] of Object.entries(change)) {
      if (value === null) address.searchParams.delete(name);
      else address.searchParams.set(name, value);
    }
    expect(await read(await browser.open(address.href))).toMatchObject(FAILED);
  });

  test.each(['access_token=a', 'code=a&code=b'])('a callback with %s → 422', async (query) => {
    expect((await nobody.get(`${CALLBACK}?${query}`)).status).toBe(422);
  });

  test('returns tokens to a user without a tenant, too', async () => {
    const browser = newBrowser();
    const address = await signInAtProvider(browser, '/', NO_TENANT);
    const { status, body } = await read(await browser.open(address.href));
    expect(status).toBe(200);
    const response = await new Api(url, body.access_token ?? '').get('/api/v1/projects');
    expect(response).toMatchObject({ status: 403, body: { error: 'TENANT_REQUIRED' } });
  });
});

describe('the web sign-in of a page', () => {
  const startPage = (returnTo: string) => `${startAddress(returnTo)}&response=page`;
  /** Follows the redirects of the provider and stops at those to the gateway. */
  const newPageBrowser = () => new Browser(({ origin }) => origin !== url);
  const sessionOf = (cookies: Browser['cookies']) =>
    nobody.call<{ access_token: string }>('POST', '/api/v1/auth/session', {
      headers: { Origin: url, Cookie: cookies.map(({ name, value }) => `${name}=${value}`).join('; ') },
    });

  test('ends on the page with the cookie of a session, which the provider renews', async () => {
    const browser = newPageBrowser();
    const { address } = await browser.signIn(startPage('/projects?tab=rules#top'), ADA);
    const page = await browser.open(address.href);
    expect([page.response.status, page.address.href]).toEqual([302, `${url}/projects?tab=rules#top`]);
    expect(page.response.headers.getSetCookie()).toContainEqual(
      expect.stringMatching(
        /^__Host-session=[^;]+; Max-Age=604800; Path=\/; HttpOnly; Secure; SameSite=Strict$/,
      ),
    );
    const sessions = browser.cookies.filter(({ path }) => path === '/');

    // A provider may treat the second use of a refresh token as theft, so it sees one.
    const tabs = await Promise.all([0, 1, 2].map(() => sessionOf(sessions)));
    expect(tabs.map(({ status }) => status).sort()).toEqual([200, 429, 429]);
    const renewed = tabs.find(({ status }) => status === 200);
    const ada = new Api(url, renewed?.body.access_token ?? '');
    expect((await ada.get('/api/v1/me')).body).toMatchObject({ email: ADA });

    const cookieOf = (response: typeof renewed) => {
      const [, name = '', value = ''] =
        /^([^=]+)=([^;]+)/.exec(response?.headers.getSetCookie()[0] ?? '') ?? [];
      return [{ name, value, path: '/' }];
    };
    const next = await sessionOf(cookieOf(renewed));
    const last = cookieOf(next);
    const headers = { Cookie: last.map(({ name, value }) => `${name}=${value}`).join('; ') };
    expect((await ada.call('POST', '/api/v1/auth/logout', { headers })).status).toBe(204);
    // Revoked at the provider, too.
    expect([next.status, (await sessionOf(last)).status]).toEqual([200, 204]);
  });

  test('that the provider refused ends on the page with the code of the failure', async () => {
    const browser = newPageBrowser();
    await browser.open(startPage('/.//evil.example?a=1'));
    const [state] = browser.cookies.filter(({ path }) => path === CALLBACK);
    const refused = new URL(url + CALLBACK);
    refused.searchParams.set('error', 'access_denied');
    refused.searchParams.set('state', state?.name.replace('idp_sign_in_', '') ?? '');
    refused.searchParams.set('iss', idpUrl);
    const page = await browser.open(refused.href);
    expect([page.response.status, page.address.href]).toEqual([
      302,
      `${url}//evil.example?a=1&sign_in_error=SIGN_IN_FAILED`,
    ]);
    expect(browser.cookies.filter(({ path }) => path === '/')).toEqual([]);
  });
});

/** A command line that listens on a loopback address for its code (RFC 8252 section 7.3). */
async function commandLine() {
  const server = createServer((request, response) => {
    requested.push(new URL(request.url ?? '', redirect_uri));
    response.end('You can close this window.');
  });
  const requested: URL[] = [];
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  const redirect_uri = `http://127.0.0.1:${(server.address() as AddressInfo).port}/auth/callback`;
  const code_verifier = randomBytes(32).toString('base64url');
  const start = {
    redirect_uri,
    state: randomBytes(8).toString('hex'),
    code_challenge: createHash('sha256').update(code_verifier).digest('base64url'),
    code_challenge_method: 'S256',
  };
  return { start, requested, exchange: { redirect_uri, code_verifier } };
}

/** Signs in with a browser. @returns the body of the exchange */
async function codeFor(line: Awaited<ReturnType<typeof commandLine>>, email = ADA) {
  const { status, body } = await nobody.post<Record<string, string>>(START, line.start);
  expect(status, JSON.stringify(body)).toBe(200);
  const page = await new Browser(() => true).signIn(body.authorization_url ?? '', email);
  expect(await page.response.text()).toBe('You can close this window.');
  const parameters = line.requested.at(-1)?.searchParams;
  expect(parameters?.get('state')).toBe(line.start.state);
  return { ...line.exchange, code: parameters?.get('code') ?? '' };
}

describe('the sign-in of a command line', () => {
  test('returns tokens that the API accepts, and is audited', async () => {
    const line = await commandLine();
    const started = await nobody.post<Record<string, string>>(START, line.start);
    expect(started).toMatchObject({ status: 200, body: expect.anything() });
    expect(started.headers.get('cache-control')).toBe('no-store');
    expect(started.body).toEqual({
      authorization_url: expect.stringMatching(new RegExp(`^${idpUrl}/oauth2/authorize\\?`)),
      client_id: 'branchgate-cli',
      scopes: 'openid profile email branchgate:read branchgate:write',
    });

    const { status, headers, body } = await nobody.post<Record<string, unknown>>(
      EXCHANGE,
      await codeFor(line),
    );
    expect({ status, body }).toEqual({
      status: 200,
      body: {
        access_token: expect.stringMatching(/^v4\.public\./),
        refresh_token: expect.any(String),
        token_type: 'bearer',
        expires_in: expect.any(Number),
        expires_at: expect.stringMatching(/Z$/),
        refresh_token_expires_at: expect.stringMatching(/Z$/),
        client_id: 'branchgate-cli',
        user: { id: expect.any(String), email: ADA, role: 'owner' },
      },
    });
    expect(headers.get('cache-control')).toBe('no-store');
    const seconds = (Date.parse(String(body.expires_at)) - Date.now()) / 1000;
    expect(Math.abs(seconds - Number(body.expires_in))).toBeLessThan(60);
    const weeks = Date.parse(String(body.refresh_token_expires_at)) - Date.now();
    expect(Math.round(weeks / 86_400_000)).toBe(14);

    const ada = new Api(url, String(body.access_token));
    expect((await ada.get('/api/v1/projects')).status).toBe(200);
    const { body: audit } = await ada.get('/api/v1/audit-events?name=branchgate.cli.login&limit=1');
    expect(audit).toMatchObject({
      audit_events: [
        {
          name: 'branchgate.cli.login',
          actor_id: (body.user as { id: string }).id,
          actor_email: ADA,
          tenant_id: 'acme',
          project_id: null,
          request_id: headers.get('x-request-id'),
        },
      ],
    });
  });

  test.each([
    ['redirect_uri', 'http://localhost.evil.example/auth/callback'],
    ['redirect_uri', 'http://127.0.0.1@evil.example/auth/callback'],
    ['redirect_uri', 'https://127.0.0.1:49152/auth/callback'],
    ['redirect_uri', 'http://127.0.0.1:49152/elsewhere'],
    ['redirect_uri', 'http://127.0.0.1:49152/auth/callback#fragment'],
    ['code_challenge_method', 'plain'],
    ['code_challenge', 'short'],
    ['state', ''],
    ['scope', 'openid'],
  ])('%s %j → 422', async (field, value) => {
    const { start } = await commandLine();
    const { status, body } = await nobody.post(START, { ...start, [field]: value });
    expect({ status, body }).toMatchObject({ status: 422, body: { details: [{ path: field }] } });
  });

  test('without a method → 422; `plain` is not assumed', async () => {
    const { code_challenge_method: _, ...start } = (await commandLine()).start;
    expect((await nobody.post(START, start)).status).toBe(422);
  });

  test.each([
    ['redirect_uri', 'http://localhost.evil.example/auth/callback'],
    ['code_verifier', 'short'],
    ['code', ''],
  ])('an exchange with %s %j → 422', async (field, value) => {
    const { exchange } = await commandLine();
    const response = await nobody.post(EXCHANGE, { ...exchange, code: 'a', [field]: value });
    expect(response).toMatchObject({ status: 422, body: { details: [{ path: field }] } });
  });

  test('a code is valid once, even for concurrent exchanges', async () => {
    const exchange = await codeFor(await commandLine());
    const responses = await Promise.all([0, 1, 2, 3].map(() => nobody.post(EXCHANGE, exchange)));
    expect(responses.map(({ status }) => status).sort()).toEqual([200, 400, 400, 400]);
    expect(await nobody.post(EXCHANGE, exchange)).toMatchObject(FAILED);
  });

  test('a wrong verifier invalidates the code', async () => {
    const exchange = await codeFor(await commandLine());
    const wrong = { ...exchange, code_verifier: randomBytes(32).toString('base64url') };
    expect(await nobody.post(EXCHANGE, wrong)).toMatchObject(FAILED);
    expect(await nobody.post(EXCHANGE, exchange)).toMatchObject(FAILED);
  });

  test('a code is bound to the port of its redirect', async () => {
    const exchange = await codeFor(await commandLine());
    const { redirect_uri } = (await commandLine()).exchange;
    expect(await nobody.post(EXCHANGE, { ...exchange, redirect_uri })).toMatchObject(FAILED);
  });

  test('a code of the web sign-in is refused for a command line', async () => {
    const address = await signInAtProvider(newBrowser());
    const { exchange } = await commandLine();
    const code = address.searchParams.get('code') ?? '';
    expect(await nobody.post(EXCHANGE, { ...exchange, code })).toMatchObject(FAILED);
  });

  test('requires a tenant', async () => {
    const exchange = await codeFor(await commandLine(), NO_TENANT);
    const response = await nobody.post(EXCHANGE, exchange);
    expect(response).toMatchObject({ status: 403, body: { error: 'TENANT_REQUIRED' } });
    expect(response.body).not.toHaveProperty('access_token');
  });
});
