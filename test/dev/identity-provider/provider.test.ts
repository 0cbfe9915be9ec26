import { createHash, randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import type { Server } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { LOCAL_PASSWORD } from '../../../dev/identity-provider/accounts.ts';
import { openIdProvider } from '../../../dev/identity-provider/provider.ts';
import { freePort } from '../../support/free-port.ts';
import { type KeyDocument, verifyPaseto } from '../../support/verify-paseto.ts';

const GATEWAY = 'http://127.0.0.1:8787';
const CLIENT_SECRET = 'secret of the test';
const LOOPBACK_CLIENT = { id: 'branchgate-cli', redirectUri: 'http://127.0.0.1:49152/auth/callback' };
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
    server = provider.listen(port, '127.0.0.1', resolve);
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

/** The provider is started anew within a test: no connection is kept for later. */
const ONE_OFF = { connection: 'close' };

/** A browser: follows redirects within the provider, keeps its cookies, stops at the client's address. */
class Browser {
  readonly #cookies = new Map<string, string>();

  async open(address: string, form?: Record<string, string>): Promise<{ address: URL; response: Response }> {
    const cookie = [...this.#cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const response = await fetch(address, {
      redirect: 'manual',
      headers: { ...ONE_OFF, cookie },
      ...(form && { method: 'POST', body: new URLSearchParams(form) }),
    });
    for (const line of response.headers.getSetCookie()) {
      const [name = '', value = ''] = line.split(';')[0]?.split('=') ?? [];
      this.#cookies.set(name, value);
    }
    const location = response.headers.get('location');
    if (location === null) return { address: new URL(address), response };
    const next = new URL(location, address);
    return next.origin === issuer ? this.open(next.href) : { address: next, response };
  }
}

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
    state: 'kept',
    ...(challenge && { code_challenge: challenge, code_challenge_method: 'S256' }),
  }).toString();
  return url.href;
}

async function signIn(client: { id: string; redirectUri: string }, email: string) {
  const { verifier, challenge } = pkce();
  const browser = new Browser();
  const form = await browser.open(authorizationUrl(client, challenge));
  const { address } = await browser.open(form.address.href, { email, password: LOCAL_PASSWORD });
  return { address, verifier, code: address.searchParams.get('code') ?? '' };
}

const requestToken = (form: Record<string, string>, authorization?: string) =>
  fetch(`${issuer}/oauth2/token`, {
    method: 'POST',
    headers: { ...ONE_OFF, ...(authorization && { authorization }) },
    body: new URLSearchParams(form),
  });

const keys = async () =>
  (await (await fetch(`${issuer}/v1/keys/paseto-v4-public`, { headers: ONE_OFF })).json()) as KeyDocument;

interface Tokens {
  access_token: string;
  refresh_token: string;
  id_token: string;
  expires_in: number;
}

test('a command-line client signs in with PKCE and gets a PASETO with the claims of spec 2.8', async () => {
  const { address, code, verifier } = await signIn(LOOPBACK_CLIENT, 'linus@example.com');
  expect(`${address.origin}${address.pathname}`).toBe(LOOPBACK_CLIENT.redirectUri);
  expect(address.searchParams.get('state')).toBe('kept');

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

test("the gateway's client has to show its secret", async () => {
  const client = { id: 'branchgate-gateway', redirectUri: `${GATEWAY}/api/v1/auth/idp/callback` };
  const { code, verifier } = await signIn(client, 'ada@example.com');
  const form = {
    grant_type: 'authorization_code',
    redirect_uri: client.redirectUri,
    code,
    code_verifier: verifier,
  };
  expect((await requestToken({ ...form, client_id: client.id })).status).toBe(401);

  const basic = `Basic ${Buffer.from(`${client.id}:${CLIENT_SECRET}`).toString('base64')}`;
  expect((await requestToken(form, basic)).status).toBe(200);
});

test.each([
  ['without PKCE', LOOPBACK_CLIENT, undefined],
  [
    'another path of the loopback address',
    { id: 'branchgate-cli', redirectUri: 'http://127.0.0.1:49152/elsewhere' },
    pkce().challenge,
  ],
])('%s: no code', async (_case, client, challenge) => {
  const { address } = await new Browser().open(authorizationUrl(client, challenge));
  expect(address.searchParams.has('code')).toBe(false);
  expect(address.pathname).not.toMatch(/^\/interaction/);
});

test('a wrong password shows the form again', async () => {
  const browser = new Browser();
  const form = await browser.open(authorizationUrl(LOOPBACK_CLIENT, pkce().challenge));
  const { response } = await browser.open(form.address.href, { email: 'ada@example.com', password: 'guess' });
  expect(response.status).toBe(401);
  expect(await response.text()).toContain('Wrong e-mail or password');
});
