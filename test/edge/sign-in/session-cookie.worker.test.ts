import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { operationsOf } from '../../../edge/documentation/openapi.ts';
import { Api, type ApiResponse } from '../../support/api.ts';
import { DESCRIPTION } from '../../support/contract.ts';
import { callOperation, type Ids, OPERATIONS } from '../../support/operations.ts';
import { type LoginBody, logIn, PASSWORD, signUp } from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const COOKIE = '__Host-session';
const OWN_PAGE = { Origin: SETTINGS.BASE_URL, 'Sec-Fetch-Site': 'same-origin' };

interface TokenBody {
  access_token: string;
}

let gateway: SignInGateway;
let email: string;
let count = 0;

beforeAll(async () => {
  gateway = await startSignInGateway();
});
afterAll(() => gateway.stop());
beforeEach(() => {
  count += 1;
  email = `page-${count}@example.com`;
});

const anybody = () => new Api(gateway.url, null);
const bearer = (token: string | null) => new Api(gateway.url, token);

/** The value of the session cookie that a response sets; null when it sets none, empty when it clears it. */
function cookieOf({ headers }: ApiResponse<unknown>): string | null {
  const line = headers.getSetCookie().find((set) => set.startsWith(`${COOKIE}=`));
  return line === undefined ? null : (/^[^=]+=([^;]*)/.exec(line)?.[1] ?? null);
}

const sessionOf = (cookie: string | null, headers: Record<string, string> = OWN_PAGE) =>
  anybody().call<TokenBody>('POST', '/api/v1/auth/session', {
    headers: { ...headers, ...(cookie !== null && { Cookie: `${COOKIE}=${cookie}` }) },
  });

/** Signs a new account in as a page does: password, then the set-up of a second factor is skipped. */
async function signInOnPage() {
  await signUp(gateway, email);
  const login = await anybody().post<LoginBody>(
    '/api/v1/auth/login?response=page',
    { email, password: PASSWORD },
    OWN_PAGE,
  );
  expect([login.status, login.body.requires_2fa_setup, cookieOf(login)]).toEqual([200, true, null]);
  const skip = { headers: OWN_PAGE };
  const step = await bearer(login.body.pre_auth_token).call<LoginBody>(
    'POST',
    '/api/v1/auth/2fa/skip?response=page',
    skip,
  );
  expect(step.status).toBe(200);
  return { response: step, access: step.body.access_token, cookie: cookieOf(step) ?? '' };
}

const sessionEvents = async () => {
  const select = "select name from audit_events where actor_email = ? and name like 'session.%'";
  const { results } = await gateway.database.prepare(select).bind(email).all<{ name: string }>();
  return results.map(({ name }) => name);
};

describe('a sign-in with response=page', () => {
  test('puts the refresh token into a cookie of this host that scripts cannot read', async () => {
    const { response, access } = await signInOnPage();
    const [line] = response.headers.getSetCookie();
    expect(line).toMatch(
      /^__Host-session=[^;]{100,}; Max-Age=604800; Path=\/; HttpOnly; Secure; SameSite=Strict$/,
    );
    expect(response.body).toMatchObject({ refresh_token: null, user: { email } });
    expect((await bearer(access).get('/api/v1/projects')).status).toBe(200);
  });

  test('is sealed: the cookie is no refresh token', async () => {
    const { cookie } = await signInOnPage();
    const value = decodeURIComponent(cookie);
    expect(value).not.toContain('eyJ');
    for (const refresh_token of [value, JSON.parse(value).sealed]) {
      // As any token that is not the gateway's, it goes to the provider, which this gateway does not have.
      const response = await anybody().post('/api/v1/auth/refresh', { refresh_token });
      expect([response.status, response.body]).toMatchObject([503, { error: 'IDP_UNAVAILABLE' }]);
    }
  });

  test('without response=page sets no cookie', async () => {
    await signUp(gateway, email);
    const login = await logIn(gateway, email);
    const step = await bearer(login.body.pre_auth_token).post<LoginBody>('/api/v1/auth/2fa/skip', undefined);
    expect([step.body.refresh_token, cookieOf(login), cookieOf(step)]).toEqual([
      expect.any(String),
      null,
      null,
    ]);
  });
});

describe('the exchange of the cookie', () => {
  test('gives an access token and the next cookie, and no refresh token', async () => {
    const { cookie } = await signInOnPage();
    const response = await sessionOf(cookie);
    expect(response.body).toEqual({
      access_token: expect.any(String),
      token_type: 'bearer',
      expires_in: expect.any(Number),
    });
    expect(response.headers.get('Cache-Control')).toBe('no-store');
    const next = cookieOf(response);
    expect(next).not.toBe(cookie);
    const { body } = await sessionOf(next);
    expect((await bearer(body.access_token).get('/api/v1/me')).body).toMatchObject({ email });
  });

  test('by five tabs with the same cookie keeps each of them signed in', async () => {
    const { cookie } = await signInOnPage();
    const tabs = await Promise.all(Array.from({ length: 5 }, () => sessionOf(cookie)));
    expect(tabs.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200]);
    // The browser stores one of the cookies, whichever comes last.
    for (const tab of tabs) expect((await sessionOf(cookieOf(tab))).status).toBe(200);
    expect(await sessionEvents()).toEqual([]);
  });

  test.each([
    ['none', null, null],
    ['an empty one', '', ''],
    ['nonsense', 'x', ''],
    [
      'a forged one',
      encodeURIComponent(JSON.stringify({ keyId: '1', sealed: btoa('0123456789'.repeat(9)) })),
      '',
    ],
  ])('with %s signs nobody in', async (_, cookie, left) => {
    const response = await sessionOf(cookie);
    expect([response.status, response.body, cookieOf(response)]).toEqual([204, null, left]);
  });

  test('ends with the sign-out, which clears the cookie', async () => {
    const { access, cookie } = await signInOnPage();
    const { headers: _, ...signedOut } = await bearer(access)
      .call('POST', '/api/v1/auth/logout', { headers: { Cookie: `${COOKIE}=${cookie}` } })
      .then((response) => ({ ...response, cookie: cookieOf(response) }));
    expect(signedOut).toEqual({ status: 204, body: null, cookie: '' });
    const response = await sessionOf(cookie);
    expect([response.status, cookieOf(response)]).toEqual([204, '']);
    expect(await sessionEvents()).toEqual(['session.ended']);
  });
});

describe('a request that no page of this origin has made is refused', () => {
  const elsewhere: [string, Record<string, string>][] = [
    ['no origin', {}],
    ['an opaque origin', { Origin: 'null' }],
    ['another origin', { Origin: 'https://evil.example' }],
    ['another port', { Origin: `${SETTINGS.BASE_URL}:8080` }],
    ['another scheme', { Origin: SETTINGS.BASE_URL.replace('http', 'https') }],
    ['another site', { ...OWN_PAGE, 'Sec-Fetch-Site': 'cross-site' }],
    ['another origin of this site', { ...OWN_PAGE, 'Sec-Fetch-Site': 'same-site' }],
    ['a user who typed the address', { ...OWN_PAGE, 'Sec-Fetch-Site': 'none' }],
  ];

  test.each(elsewhere)('%s', async (_, headers) => {
    const { cookie } = await signInOnPage();
    const response = await sessionOf(cookie, headers);
    expect([response.status, response.body, cookieOf(response)]).toMatchObject([
      403,
      { error: 'CROSS_ORIGIN_REQUEST' },
      null,
    ]);
    // The cookie was not used up.
    expect((await sessionOf(cookie)).status).toBe(200);
  });

  const steps = operationsOf(DESCRIPTION)
    .filter(
      ({ method, parameters }) => method === 'post' && parameters.some(({ name }) => name === 'response'),
    )
    .map(({ id }) => id);

  test('by each step of a sign-in that can set the cookie', async () => {
    expect(steps.length).toBe(9);
    await signUp(gateway, email);
    const { body: login } = await logIn(gateway, email);
    for (const operation of OPERATIONS.filter(({ id }) => steps.includes(id))) {
      const api = operation.access === 'pre_auth' ? bearer(login.pre_auth_token) : anybody();
      const asPage = { ...operation, query: { response: 'page' } };
      const { status, body } = await callOperation(api, asPage, {} satisfies Ids);
      expect([operation.id, status, body]).toMatchObject([
        operation.id,
        403,
        { error: 'CROSS_ORIGIN_REQUEST' },
      ]);
    }
    // No step was taken, so the pre-auth token is still valid.
    const skip = await bearer(login.pre_auth_token).post<LoginBody>('/api/v1/auth/2fa/skip', undefined);
    expect(skip.status).toBe(200);
  });
});
