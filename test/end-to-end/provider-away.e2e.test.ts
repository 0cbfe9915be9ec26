import { afterAll, beforeAll, expect, test } from 'vitest';
import { accessToken, SCOPES, scopeNames } from '../../dev/identity-provider/access-token.ts';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { Api } from '../support/api.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { Browser } from '../support/sign-in/browser.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

const LOGIN = '/api/v1/auth/idp/login';
const CALLBACK = '/api/v1/auth/idp/callback';
const START = '/api/v1/auth/cli/start';
const EXCHANGE = '/api/v1/auth/cli/exchange';

/** RFC 7636 appendix B. */
const VERIFIER = 'dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk';
const CHALLENGE = 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM';
const redirect_uri = 'http://127.0.0.1:49152/auth/callback';

const UNAVAILABLE = { status: 503, body: { error: 'IDP_UNAVAILABLE' } };

let stack: Stack;
let nobody: Api;

beforeAll(async () => {
  stack = await startStack({ restarts: false });
  nobody = new Api(stack.url, null);
});

afterAll(() => stack.stop());

const startCli = () =>
  nobody.post<{ authorization_url: string }>(START, {
    redirect_uri,
    state: 'state',
    code_challenge: CHALLENGE,
    code_challenge_method: 'S256',
  });

test.runIf(IS_NIGHTLY)(
  'while the provider is unavailable nothing is used up, and sign-ins continue afterwards',
  async () => {
    await stack.kill('idp');
    // Its metadata is not cached yet.
    expect(await nobody.get(LOGIN)).toMatchObject(UNAVAILABLE);
    expect(await startCli()).toMatchObject(UNAVAILABLE);

    await stack.start('idp');
    const browser = new Browser(({ pathname }) => pathname !== CALLBACK);
    const { address } = await browser.signIn(stack.url + LOGIN, 'ada@example.com');
    const cookie = browser.cookies.map(({ name, value }) => `${name}=${value}`).join('; ');
    const callBack = () => nobody.get(address.pathname + address.search, { headers: { cookie } });
    const cli = new Browser(({ origin }) => origin !== new URL(redirect_uri).origin);
    const signedIn = await cli.signIn((await startCli()).body.authorization_url, 'ada@example.com');
    const exchange = () =>
      nobody.post(EXCHANGE, {
        code: signedIn.address.searchParams.get('code'),
        redirect_uri,
        code_verifier: VERIFIER,
      });

    await stack.kill('idp');
    expect(await callBack()).toMatchObject(UNAVAILABLE);
    expect(await exchange()).toMatchObject(UNAVAILABLE);
    const refused = await callBack();
    expect([refused.headers.get('retry-after'), refused.headers.get('set-cookie')]).toEqual(['5', null]);

    await stack.start('idp');
    expect((await callBack()).status).toBe(200);
    expect((await exchange()).status).toBe(200);
    expect((await callBack()).status).toBe(400);
    expect((await exchange()).status).toBe(400);
  },
);

test.runIf(IS_NIGHTLY)(
  'a user whose newer token names another tenant is not signed in with an older token',
  async () => {
    const email = 'linus@example.com';
    const issuedAt = new Date(Date.now() + 20_000);
    const newer = await accessToken(devFolder(stack.devDir).identityProvider, {
      email,
      tenant: 'elsewhere',
      role: 'developer',
      scopes: scopeNames(SCOPES),
      issuedAt,
      expiresAt: new Date(issuedAt.getTime() + 60_000),
    });
    expect((await new Api(stack.url, newer).get('/api/v1/projects')).status).toBe(200);
    const browser = new Browser(() => true);
    const { response } = await browser.signIn(stack.url + LOGIN, email);
    expect([response.status, await response.json()]).toMatchObject([400, { error: 'SIGN_IN_FAILED' }]);
  },
);
