import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { UnsecuredJWT } from 'jose';
import { validateAuthResponse } from 'oauth4webapi';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { signOwnToken } from '../../../edge/authentication/own-tokens.ts';
import { unwrap } from '../../../edge/errors.ts';
import { readSettings, type Settings } from '../../../edge/settings.ts';
import { authorizationUrl, discover as discoverResult } from '../../../edge/sign-in/provider-client.ts';
import {
  renewTokens as renewTokensResult,
  revokeToken as revokeTokenResult,
  tokensForCallback as tokensForCallbackResult,
  tokensForCliCode as tokensForCliCodeResult,
  tokensForPassword as tokensForPasswordResult,
} from '../../../edge/sign-in/provider-tokens.ts';
import { newSigner } from '../../support/sign-in/provider.ts';

const renewTokens = async (...about: Parameters<typeof renewTokensResult>) =>
  unwrap(await renewTokensResult(...about));
const revokeToken = async (...about: Parameters<typeof revokeTokenResult>) =>
  unwrap(await revokeTokenResult(...about));
const tokensForCallback = async (...about: Parameters<typeof tokensForCallbackResult>) =>
  unwrap(await tokensForCallbackResult(...about));
const tokensForCliCode = async (...about: Parameters<typeof tokensForCliCodeResult>) =>
  unwrap(await tokensForCliCodeResult(...about));
const tokensForPassword = async (...about: Parameters<typeof tokensForPasswordResult>) =>
  unwrap(await tokensForPasswordResult(...about));

const discover = async (...about: Parameters<typeof discoverResult>) =>
  unwrap(await discoverResult(...about));

const KEY = `1:${Buffer.alloc(32, 7).toString('base64')}`;
/** Values that no error may contain, because errors are logged. */
const SECRETS = {
  password: 'pass-word-1',
  code: 'code-1',
  refreshToken: 'refresh-1',
  secret: 'client-secret-1',
};

const signer = newSigner('key-1');

interface RecordedRequest {
  path: string;
  /** Client and secret, separated by a colon. */
  authorization: string;
  form: Record<string, string>;
}

/** Both parts are form-encoded (RFC 6749 section 2.3.1). */
const readBasic = (header = '') =>
  decodeURIComponent(Buffer.from(header.replace(/^Basic /, ''), 'base64').toString());

type Reply = (response: ServerResponse, form: Record<string, string>) => void;

const json =
  (status: number, body: unknown, headers: Record<string, string> = {}): Reply =>
  (response) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(JSON.stringify(body));
  };

/** An identity provider with scripted responses. */
async function scriptedProvider() {
  const provider = {
    url: '',
    requests: [] as RecordedRequest[],
    discovery: (() => {}) as Reply,
    token: json(500, {}),
    stop: () => {
      server.closeAllConnections();
      server.close();
    },
  };
  const server = createServer(async (request, response) => {
    const path = request.url ?? '';
    const form = Object.fromEntries(new URLSearchParams(await text(request)));
    provider.requests.push({ path, authorization: readBasic(request.headers.authorization), form });
    if (path.endsWith('openid-configuration')) provider.discovery(response, form);
    else if (path === '/keys') json(200, { keys: [signer.entry] })(response, form);
    else provider.token(response, form);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  provider.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  provider.discovery = json(200, metadata(provider.url));
  return provider;
}

const metadata = (issuer: string) => ({
  issuer,
  authorization_endpoint: `${issuer}/authorize`,
  token_endpoint: `${issuer}/token`,
  revocation_endpoint: `${issuer}/revoke`,
  id_token_signing_alg_values_supported: ['none'],
});

/** The time of each test. */
const NOW = new Date();

const inAnHour = () => new Date(Date.now() + 3_600_000);

const claims = () => ({
  gid: 'gid-1',
  email: 'ada@example.com',
  role: 'owner',
  exp: inAnHour().toISOString(),
});

const granted = async (more: Record<string, unknown> = {}): Promise<Reply> =>
  json(200, { access_token: await signer.token(claims()), token_type: 'Bearer', ...more });

let provider: Awaited<ReturnType<typeof scriptedProvider>>;
let settings: Settings;
let context: Parameters<typeof renewTokens>[0];

beforeEach(async () => {
  provider = await scriptedProvider();
  settings = readSettings({
    BASE_URL: 'http://127.0.0.1:8787',
    IDP_URL: provider.url,
    BASE_IDP_KEY_ENDPOINT: `${provider.url}/keys`,
    IDP_CLIENT_SECRET: SECRETS.secret,
    CREDENTIAL_KEYS: KEY,
    JWT_KEYS: KEY,
    PLATFORM_SECRET: 'p'.repeat(32),
  });
  context = { settings, now: () => NOW, waitUntil: () => {} };
});

afterEach(() => {
  vi.restoreAllMocks();
  provider.stop();
});

const requestsTo = (path: string) => provider.requests.filter((request) => request.path === path);

const byPassword = () => tokensForPassword(context, 'ada@example.com', SECRETS.password);
const byCliCode = () =>
  tokensForCliCode(context, {
    code: SECRETS.code,
    redirect_uri: 'http://127.0.0.1:1/auth/callback',
    code_verifier: 'v'.repeat(43),
  });
const byCallback = async (nonce = 'nonce-1') => {
  const server = await discover(settings);
  const parameters = new URLSearchParams({ code: SECRETS.code, state: 'state-1' });
  const callback = validateAuthResponse(server, { client_id: 'branchgate-gateway' }, parameters, 'state-1');
  return tokensForCallback(context, callback, {
    redirectUri: 'http://127.0.0.1:8787/callback',
    verifier: 'v'.repeat(43),
    nonce,
  });
};

const idToken = (nonce: string | undefined, aud = 'branchgate-gateway', exp = inAnHour()) =>
  new UnsecuredJWT({ nonce })
    .setIssuer(provider.url)
    .setAudience(aud)
    .setSubject('ada')
    .setIssuedAt()
    .setExpirationTime(exp)
    .encode();

const ownToken = () => {
  const claims = { sub: 'a', email: 'ada@example.com', role: 'owner', scp: [], tenant_id: 't' };
  const lifetime = { issuedAt: new Date(), expiresAt: inAnHour() };
  return signOwnToken(settings, 'access', { ...claims, sid: crypto.randomUUID() }, lifetime);
};

/** The code of the failure, or 'error' for an internal one. Its message must not contain a secret. */
async function failureOf(work: Promise<unknown>): Promise<string> {
  const error = await work.then(
    () => new Error('no failure'),
    (reason) => reason,
  );
  for (const secret of Object.values(SECRETS)) expect(error.message).not.toContain(secret);
  expect(error.message).not.toBe('no failure');
  return error.failure?.code ?? 'error';
}

describe('a refusal', () => {
  test.each([
    [400, 'invalid_grant'],
    [403, 'mfa_required'],
    [400, 'invalid_request'],
  ])('%i %s is reported as a failure of the credentials', async (status, error) => {
    provider.token = json(status, { error });
    expect(await byPassword()).toBeNull();
    expect(await failureOf(byCliCode())).toBe('SIGN_IN_FAILED');
    expect(await failureOf(byCallback())).toBe('SIGN_IN_FAILED');
    expect(await failureOf(renewTokens(context, SECRETS.refreshToken))).toBe('REFRESH_TOKEN_WRONG');
    await revokeToken(context, SECRETS.refreshToken);
  });

  test.each([
    ['invalid_client', {}],
    ['invalid_client', { 'www-authenticate': 'Basic realm="idp"' }],
    ['unauthorized_client', {}],
    ['unsupported_grant_type', {}],
  ])('%s is reported as an internal error', async (error, headers) => {
    provider.token = json(401, { error }, headers as Record<string, string>);
    expect(await failureOf(byPassword())).toBe('error');
    expect(await failureOf(byCliCode())).toBe('error');
    expect(await failureOf(renewTokens(context, SECRETS.refreshToken))).toBe('error');
  });
});

const html: Reply = (response) => response.writeHead(200, { 'content-type': 'text/html' }).end('<h1>Hello');

test.each<[string, Reply]>([
  ['500', json(500, { error: 'server_error' })],
  ['502 with a challenge', json(502, {}, { 'www-authenticate': 'Basic realm="proxy"' })],
  ['429', json(429, { error: 'slow_down' })],
  ['temporarily_unavailable', json(400, { error: 'temporarily_unavailable' })],
  ['a redirect', json(302, {}, { location: '/elsewhere' })],
  ['a page', html],
  ['404 with a page', (response) => response.writeHead(404, { 'content-type': 'text/html' }).end('<h1>')],
  ['no token', json(200, { token_type: 'Bearer' })],
  ['an array', json(200, [])],
  ['a cut connection', (response) => response.destroy()],
])('%s instead of tokens is IDP_UNAVAILABLE', async (_case, reply) => {
  provider.token = reply;
  expect(await failureOf(byPassword())).toBe('IDP_UNAVAILABLE');
  expect(await failureOf(byCliCode())).toBe('IDP_UNAVAILABLE');
  expect(await failureOf(byCallback())).toBe('IDP_UNAVAILABLE');
  expect(await failureOf(renewTokens(context, SECRETS.refreshToken))).toBe('IDP_UNAVAILABLE');
});

test('requests to the provider have a timeout', async () => {
  const timeout = vi.spyOn(AbortSignal, 'timeout');
  await discover(settings);
  expect(timeout).toHaveBeenLastCalledWith(10_000);
  timeout.mockImplementation(() => {
    const abort = new AbortController();
    setTimeout(() => abort.abort(new DOMException('too late', 'TimeoutError')), 20);
    return abort.signal;
  });
  provider.token = () => {};
  expect(await failureOf(byPassword())).toBe('IDP_UNAVAILABLE');
});

describe('discovery', () => {
  test('is requested once', async () => {
    provider.token = await granted();
    await byPassword();
    await byCliCode();
    expect(requestsTo('/.well-known/openid-configuration')).toHaveLength(1);
  });

  test.each<[string, (url: string) => Reply]>([
    ['a failure', () => json(500, {})],
    ['a page', () => html],
    ['of another issuer', () => json(200, metadata('https://evil.example'))],
  ])('%s is IDP_UNAVAILABLE and not cached', async (_case, reply) => {
    provider.token = await granted();
    provider.discovery = reply(provider.url);
    expect(await failureOf(byPassword())).toBe('IDP_UNAVAILABLE');
    provider.discovery = json(200, metadata(provider.url));
    expect(await byPassword()).toMatchObject({ refreshToken: null });
  });

  test.each([404, 410])('that is not offered (%i) leaves the paths of the specification', async (status) => {
    provider.token = await granted();
    provider.discovery = json(status, {});
    const parameters = { redirect_uri: 'https://api.example.com/x', state: 's', code_challenge: 'c' };
    const location = new URL(unwrap(await authorizationUrl(settings, 'gateway', parameters)));
    expect(location.origin + location.pathname).toBe(`${provider.url}/oauth2/authorize`);
    expect(Object.fromEntries(location.searchParams)).toMatchObject(parameters);
    expect(await byPassword()).toMatchObject({ refreshToken: null });
    expect(requestsTo('/oauth2/token')).toHaveLength(1);
    // From the next sign-in on, the provider's own document counts.
    provider.discovery = json(200, metadata(provider.url));
    await byPassword();
    expect(requestsTo('/token')).toHaveLength(1);
  });
});

describe('the access token', () => {
  const other = newSigner('key-1');
  test.each<[string, () => string | Promise<string>]>([
    ['opaque', () => 'opaque'],
    ['a JWT', () => new UnsecuredJWT({ email: 'ada@example.com' }).encode()],
    ["the gateway's own", ownToken],
    ['signed by another key', () => other.token(claims())],
    ['expired', () => signer.token({ ...claims(), exp: new Date(0).toISOString() })],
    ['without a user', () => signer.token({ exp: inAnHour().toISOString() })],
  ])('that is %s is refused', async (_case, make) => {
    provider.token = await granted({ access_token: await make() });
    expect(await failureOf(byPassword())).toBe('IDP_UNAVAILABLE');
    expect(await failureOf(renewTokens(context, SECRETS.refreshToken))).toBe('IDP_UNAVAILABLE');
  });

  test('determines the expiry, not `expires_in`', async () => {
    const exp = new Date(Date.now() + 60_000);
    const access_token = await signer.token({ ...claims(), exp: exp.toISOString() });
    provider.token = await granted({ access_token, expires_in: 9999 });
    expect(await byPassword()).toMatchObject({ accessToken: access_token, accessExpiresAt: exp });
  });
});

test('the lifetime of a refresh token is reported if the provider reports it', async () => {
  provider.token = await granted({ refresh_token: 'r', refresh_token_expires_in: 60 });
  const { refreshToken, refreshExpiresAt } = await byCliCode();
  expect(refreshToken).toBe('r');
  expect(refreshExpiresAt).toEqual(new Date(NOW.getTime() + 60_000));
  provider.token = await granted({ refresh_token: 'r' });
  expect((await byCliCode()).refreshExpiresAt).toBeNull();
});

describe('the ID token of a web sign-in', () => {
  test('of this sign-in is accepted', async () => {
    provider.token = await granted({ id_token: idToken('nonce-1') });
    expect(await byCallback()).toMatchObject({ refreshToken: null });
  });

  test.each<[string, () => string]>([
    ['with another nonce', () => idToken('nonce-2')],
    ['for another client', () => idToken('nonce-1', 'branchgate-cli')],
    ['that has expired', () => idToken('nonce-1', 'branchgate-gateway', new Date(0))],
  ])('%s fails the sign-in', async (_case, make) => {
    provider.token = await granted({ id_token: make() });
    expect(await failureOf(byCallback())).toBe('SIGN_IN_FAILED');
  });

  test.each<[string, () => Record<string, string>]>([
    ['without a nonce', () => ({ id_token: idToken(undefined) })],
    ['that is missing', () => ({})],
  ])('%s is IDP_UNAVAILABLE', async (_case, make) => {
    provider.token = await granted(make());
    expect(await failureOf(byCallback())).toBe('IDP_UNAVAILABLE');
  });
});

test("only the gateway's client sends a secret, and only in the header", async () => {
  provider.token = await granted();
  await byPassword();
  await byCliCode();
  expect(requestsTo('/token')).toEqual([
    {
      path: '/token',
      authorization: `branchgate-gateway:${SECRETS.secret}`,
      form: {
        grant_type: 'password',
        username: 'ada@example.com',
        password: SECRETS.password,
        scope: 'openid profile email branchgate:read branchgate:write',
      },
    },
    {
      path: '/token',
      authorization: '',
      form: {
        grant_type: 'authorization_code',
        client_id: 'branchgate-cli',
        code: SECRETS.code,
        redirect_uri: 'http://127.0.0.1:1/auth/callback',
        code_verifier: 'v'.repeat(43),
      },
    },
  ]);
});

/** Responds to one client and refuses the other. */
const onlyFor =
  (name: 'gateway' | 'cli', reply: Reply): Reply =>
  (response, form) => {
    const requester = form.client_id === 'branchgate-cli' ? 'cli' : 'gateway';
    const selected = requester === name ? reply : json(400, { error: 'invalid_grant' });
    selected(response, form);
  };

describe('a refresh token', () => {
  test.each(['gateway', 'cli'] as const)('of the client %s is renewed', async (name) => {
    provider.token = onlyFor(name, await granted({ refresh_token: 'next' }));
    expect(await renewTokens(context, SECRETS.refreshToken)).toMatchObject({ refreshToken: 'next' });
  });

  test('that is not replaced is returned', async () => {
    provider.token = await granted();
    expect(await renewTokens(context, SECRETS.refreshToken)).toMatchObject({
      refreshToken: SECRETS.refreshToken,
    });
  });

  test('is not reported as wrong when the request of the second client failed', async () => {
    const refuseThenFail: Reply = (response, form) =>
      (form.client_id ? json(500, {}) : json(400, { error: 'invalid_grant' }))(response, form);
    provider.token = refuseThenFail;
    expect(await failureOf(renewTokens(context, SECRETS.refreshToken))).toBe('IDP_UNAVAILABLE');
  });

  test('is revoked for both clients', async () => {
    provider.token = (response) => response.end();
    await revokeToken(context, SECRETS.refreshToken);
    expect(requestsTo('/revoke').map(({ form }) => form)).toEqual([
      { token: SECRETS.refreshToken },
      { token: SECRETS.refreshToken, client_id: 'branchgate-cli' },
    ]);
    provider.token = json(503, {});
    expect(await failureOf(revokeToken(context, SECRETS.refreshToken))).toBe('IDP_UNAVAILABLE');
  });

  test.each(['invalid_grant', 'unauthorized_client'])(
    'is revoked for its client when the other client gets %s',
    async (error) => {
      provider.token = (response, form) =>
        form.client_id ? response.end() : json(400, { error })(response, form);
      await revokeToken(context, SECRETS.refreshToken);
      expect(requestsTo('/revoke')).toHaveLength(2);
    },
  );

  test('is not revoked when the provider has no revocation endpoint', async () => {
    const { revocation_endpoint: _, ...rest } = metadata(provider.url);
    provider.discovery = json(200, rest);
    await revokeToken(context, SECRETS.refreshToken);
    expect(requestsTo('/revoke')).toEqual([]);
  });
});
