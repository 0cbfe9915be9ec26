import { createHash, randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { LOCAL_PASSWORD } from '../../../dev/identity-provider/accounts.ts';
import { withKeys } from '../../../dev/identity-provider/key-ring.ts';
import { openIdProvider } from '../../../dev/identity-provider/provider.ts';
import { freePort } from '../../support/free-port.ts';
import { Browser } from '../../support/sign-in/browser.ts';
import { type KeyDocument, verifyPaseto } from '../../support/sign-in/verify-paseto.ts';

const GATEWAY = 'http://127.0.0.1:8787';
const CLIENT_SECRET = 'secret of the test';
const LOOPBACK_CLIENT = { id: 'branchgate-cli', redirectUri: 'http://127.0.0.1:49152/auth/callback' };
const GATEWAY_CLIENT = { id: 'branchgate-gateway', redirectUri: `${GATEWAY}/api/v1/auth/idp/callback` };
const BASIC = `Basic ${Buffer.from(`${GATEWAY_CLIENT.id}:${CLIENT_SECRET}`).toString('base64')}`;
const SCOPE = 'openid email branchgate:read branchgate:write';

let stateDir: string;
let issuer: string;
let server: Server;

async function start() {
  const port = Number(new URL(issuer).port);
  const provider = await openIdProvider({
    issuer,
    stateDir,
    gatewayUrl: GATEWAY,
    clientSecret: CLIENT_SECRET,
    serviceName: 'branchgate',
  });
  await new Promise<void>((resolve) => {
    server = createServer(withKeys(stateDir, provider.callback())).listen(port, '127.0.0.1', resolve);
  });
}

const stop = () => {
  server.closeAllConnections();
  return new Promise((resolve) => server.close(resolve));
};

beforeAll(async () => {
  stateDir = mkdtempSync(join(tmpdir(), 'branchgate-idp-'));
  issuer = `http://127.0.0.1:${await freePort()}`;
  await start();
});

afterAll(async () => {
  await stop();
  rmSync(stateDir, { recursive: true });
});

/** A test restarts the provider, so connections are not reused. */
const NO_KEEP_ALIVE = { connection: 'close' };

/** A browser that stops at the address of the client. */
const newBrowser = () => new Browser(({ origin }) => origin === issuer);

const pkce = () => {
  const verifier = randomBytes(32).toString('base64url');
  return { verifier, challenge: createHash('sha256').update(verifier).digest('base64url') };
};

function authorizationUrl(client: { id: string; redirectUri: string }, challenge?: string) {
  const url = new URL('/oauth2/authorize', issuer);
  url.search = new URLSearchParams({
    client_id: client.id,
    response_type: 'code',
    redirect_uri: client.redirectUri,
    scope: SCOPE,
    state: 'state',
    ...(challenge && { code_challenge: challenge, code_challenge_method: 'S256' }),
  }).toString();
  return url.href;
}

async function signIn(client: { id: string; redirectUri: string }, email: string) {
  const { verifier, challenge } = pkce();
  const { address } = await newBrowser().signIn(authorizationUrl(client, challenge), email);
  return { address, verifier, code: address.searchParams.get('code') ?? '' };
}

const post = (path: string, form: Record<string, string>, authorization?: string) =>
  fetch(`${issuer}${path}`, {
    method: 'POST',
    headers: { ...NO_KEEP_ALIVE, ...(authorization && { authorization }) },
    body: new URLSearchParams(form),
  });

const requestToken = (form: Record<string, string>, authorization?: string) =>
  post('/oauth2/token', form, authorization);

const keys = async () =>
  (await (
    await fetch(`${issuer}/v1/keys/paseto-v4-public`, { headers: NO_KEEP_ALIVE })
  ).json()) as KeyDocument;

interface Tokens {
  access_token: string;
  refresh_token: string;
  id_token: string;
  expires_in: number;
}

test('a command-line client signs in with PKCE and gets a PASETO with the claims of specification 2.8', async () => {
  const { address, code, verifier } = await signIn(LOOPBACK_CLIENT, 'linus@example.com');
  expect(`${address.origin}${address.pathname}`).toBe(LOOPBACK_CLIENT.redirectUri);
  expect(address.searchParams.get('state')).toBe('state');

  const response = await requestToken({
    grant_type: 'authorization_code',
    client_id: LOOPBACK_CLIENT.id,
    redirect_uri: LOOPBACK_CLIENT.redirectUri,
    code,
    code_verifier: verifier,
  });
  const tokens = (await response.json()) as Tokens;
  expect(response.status, JSON.stringify(tokens)).toBe(200);
  expect(tokens.expires_in).toBe(3600);
  const { claims, footer } = await verifyPaseto(tokens.access_token, await keys());
  expect(footer).toEqual({ kid: expect.any(String), alg: 'v4.public', typ: 'paseto' });
  expect(claims).toEqual({
    gid: expect.stringMatching(/^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}$/),
    email: 'linus@example.com',
    role: 'developer',
    scp: ['branchgate:read', 'branchgate:write'],
    iat: expect.stringMatching(/Z$/),
    nbf: expect.stringMatching(/Z$/),
    exp: expect.stringMatching(/Z$/),
    ctx: { tenant_id: 'acme' },
  });

  await stop();
  await start();
  const refreshed = await requestToken({
    grant_type: 'refresh_token',
    client_id: LOOPBACK_CLIENT.id,
    refresh_token: tokens.refresh_token,
  });
  const after = (await refreshed.json()) as Tokens;
  expect(refreshed.status, JSON.stringify(after)).toBe(200);
  expect((await verifyPaseto(after.access_token, await keys())).claims.email).toBe('linus@example.com');
});

test("the gateway's client must send its secret", async () => {
  const client = GATEWAY_CLIENT;
  const { code, verifier } = await signIn(client, 'ada@example.com');
  const form = {
    grant_type: 'authorization_code',
    redirect_uri: client.redirectUri,
    code,
    code_verifier: verifier,
  };
  expect((await requestToken({ ...form, client_id: client.id })).status).toBe(401);

  expect((await requestToken(form, BASIC)).status).toBe(200);
});

test.each([
  ['without PKCE', LOOPBACK_CLIENT, undefined],
  [
    'another path of the loopback address',
    { id: 'branchgate-cli', redirectUri: 'http://127.0.0.1:49152/elsewhere' },
    pkce().challenge,
  ],
])('%s: no code', async (_case, client, challenge) => {
  const { address } = await newBrowser().open(authorizationUrl(client, challenge));
  expect(address.searchParams.has('code')).toBe(false);
  expect(address.pathname).not.toMatch(/^\/interaction/);
});

test('a wrong password shows the form again', async () => {
  const address = authorizationUrl(LOOPBACK_CLIENT, pkce().challenge);
  const { response } = await newBrowser().signIn(address, 'ada@example.com', 'guess');
  expect(response.status).toBe(401);
  expect(await response.text()).toContain('Wrong e-mail or password');
});

const PASSWORD = {
  grant_type: 'password',
  username: 'grace@example.com',
  password: LOCAL_PASSWORD,
  scope: SCOPE,
};
const refresh = (refresh_token: string) =>
  requestToken({ grant_type: 'refresh_token', refresh_token }, BASIC);

test("the gateway's client gets tokens for a password, which are renewed until they are revoked", async () => {
  const response = await requestToken(PASSWORD, BASIC);
  const tokens = (await response.json()) as Tokens;
  expect(response.status, JSON.stringify(tokens)).toBe(200);
  const { claims } = await verifyPaseto(tokens.access_token, await keys());
  expect(claims).toMatchObject({
    email: 'grace@example.com',
    scp: ['branchgate:read', 'branchgate:write'],
    ctx: { tenant_id: 'acme' },
  });

  const { refresh_token } = tokens;
  // The token of another client is not revoked.
  await post('/oauth2/revoke', { token: refresh_token, client_id: LOOPBACK_CLIENT.id });
  expect((await refresh(refresh_token)).status).toBe(200);
  expect((await post('/oauth2/revoke', { token: refresh_token }, BASIC)).status).toBe(200);
  expect((await refresh(refresh_token)).status).toBe(400);
});

test.each([
  ['a wrong password', { password: 'guess' }, 'invalid_grant'],
  ['an unknown address', { username: 'nobody@example.com' }, 'invalid_grant'],
  ['no password', { password: '' }, 'invalid_grant'],
])('%s gets no tokens', async (_case, wrong, error) => {
  const response = await requestToken({ ...PASSWORD, ...wrong }, BASIC);
  expect([response.status, await response.json()]).toMatchObject([400, { error }]);
});

test('a public client cannot use the password grant', async () => {
  const response = await requestToken({ ...PASSWORD, client_id: LOOPBACK_CLIENT.id });
  expect(response.status).toBe(400);
  expect(await response.json()).not.toHaveProperty('access_token');
});
