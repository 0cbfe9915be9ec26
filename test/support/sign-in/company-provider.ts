import { createHash, generateKeyPairSync, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type JWTPayload, SignJWT, UnsecuredJWT } from 'jose';
import { Api } from '../api.ts';
import { PLATFORM_SECRET } from '../worker/worker.ts';
import { newOwner, type TestPerson } from './people.ts';
import type { SignInSite } from './sign-in.ts';

const keyPair = () => generateKeyPairSync('ec', { namedCurve: 'P-256' });

/** What a provider says about a person who signs in. */
export interface ProviderPerson extends Record<string, unknown> {
  sub: string;
}

interface Grant {
  person: ProviderPerson;
  nonce: string;
  challenge: string;
  redirectUri: string;
}

/** A change of what the provider sends; each forgery makes one thing wrong. */
export interface Forgery {
  claims?: (claims: JWTPayload) => JWTPayload;
  /** The ID token instead of the one that the provider signs. */
  token?: (claims: JWTPayload) => Promise<string>;
}

/** An OpenID Connect provider on a local port with real keys, which a test lets lie. */
export async function startCompanyProvider() {
  const pair = keyPair();
  const kid = randomUUID();
  const grants = new Map<string, Grant>();
  const refreshTokens = new Map<string, ProviderPerson>();
  const provider = {
    url: '',
    clientId: 'gateway',
    secret: 'secret of the gateway',
    kid,
    keys: [] as object[],
    privateKey: pair.privateKey,
    /** Responds to nothing but with this status. */
    status: 200,
    forgery: {} as Forgery,
    givesRefreshTokens: false,
    /** People whose refresh tokens are refused. */
    disabled: new Set<string>(),
    /** What an ID token says at a renewal, by subject; without it the provider sends none. */
    present: new Map<string, ProviderPerson>(),
    refreshes: 0,
    configuration: {} as Record<string, unknown>,
    /** Signs in at the address of the gateway's redirect. @returns the address that the browser goes to */
    authorize: (location: string, person: ProviderPerson): URL => {
      const { searchParams: query } = new URL(location);
      const code = randomUUID();
      grants.set(code, {
        person,
        nonce: query.get('nonce') ?? '',
        challenge: query.get('code_challenge') ?? '',
        redirectUri: query.get('redirect_uri') ?? '',
      });
      const back = new URL(query.get('redirect_uri') ?? '');
      back.searchParams.set('code', code);
      back.searchParams.set('state', query.get('state') ?? '');
      back.searchParams.set('iss', provider.url);
      return back;
    },
    sign: (claims: JWTPayload, header: Record<string, unknown> = {}, key = pair.privateKey) =>
      new SignJWT(claims).setProtectedHeader({ alg: 'ES256', kid, typ: 'JWT', ...header }).sign(key),
    unsigned: async (claims: JWTPayload) => new UnsecuredJWT(claims).encode(),
    otherKey: keyPair().privateKey,
    stop: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };

  const idToken = async ({ person, nonce }: Pick<Grant, 'person'> & Partial<Grant>) => {
    const now = Math.floor(Date.now() / 1000);
    const base = { iss: provider.url, aud: provider.clientId, iat: now, exp: now + 300, nonce, ...person };
    const claims = provider.forgery.claims?.(base) ?? base;
    return provider.forgery.token?.(claims) ?? provider.sign(claims);
  };

  async function token(form: URLSearchParams): Promise<[status: number, body: object]> {
    if (form.get('grant_type') === 'refresh_token') {
      provider.refreshes += 1;
      const person = refreshTokens.get(form.get('refresh_token') ?? '');
      if (!person || provider.disabled.has(person.sub)) return [400, { error: 'invalid_grant' }];
      const present = provider.present.get(person.sub);
      const id_token = present && (await idToken({ person: present }));
      return [200, { access_token: 'at', token_type: 'bearer', id_token }];
    }
    const code = form.get('code') ?? '';
    const grant = grants.get(code);
    grants.delete(code);
    const challenge = createHash('sha256')
      .update(form.get('code_verifier') ?? '')
      .digest('base64url');
    if (!grant || challenge !== grant.challenge || form.get('redirect_uri') !== grant.redirectUri)
      return [400, { error: 'invalid_grant' }];
    const refresh_token = randomUUID();
    if (provider.givesRefreshTokens) refreshTokens.set(refresh_token, grant.person);
    return [
      200,
      {
        access_token: 'at',
        token_type: 'bearer',
        id_token: await idToken(grant),
        ...(provider.givesRefreshTokens && { refresh_token }),
      },
    ];
  }

  const server = createServer(async (request, response) => {
    let text = '';
    for await (const chunk of request.setEncoding('utf8')) text += chunk;
    const send = (status: number, body: unknown) =>
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    if (provider.status !== 200) return send(provider.status, { error: 'server_error' });
    if (request.url === '/keys') return send(200, { keys: provider.keys });
    if (request.url === '/token') return send(...(await token(new URLSearchParams(text))));
    return send(200, provider.configuration);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  provider.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  provider.keys = [{ ...pair.publicKey.export({ format: 'jwk' }), kid, use: 'sig', alg: 'ES256' }];
  provider.configuration = {
    issuer: provider.url,
    authorization_endpoint: `${provider.url}/authorize`,
    token_endpoint: `${provider.url}/token`,
    jwks_uri: `${provider.url}/keys`,
    id_token_signing_alg_values_supported: ['ES256', 'none'],
    authorization_response_iss_parameter_supported: true,
  };
  return provider;
}

export type CompanyProvider = Awaited<ReturnType<typeof startCompanyProvider>>;

/** A company whose people sign in with its own provider. */
export interface Company {
  owner: TestPerson;
  provider: CompanyProvider;
  id: string;
  domain: string;
  tenantId: string;
}

/** A tenant with a provider of its own, whose domain the operator has verified. The caller stops the provider. */
export async function addCompany(site: SignInSite, domain: string): Promise<Company> {
  const owner = await newOwner(site, `owner@${domain}`);
  const provider = await startCompanyProvider();
  const created = await owner.api.post<{ id: string }>('/api/v1/identity-providers', {
    name: domain,
    issuer: provider.url,
    client_id: provider.clientId,
    client_secret: provider.secret,
    domains: [domain],
    default_role: 'viewer',
    role_claim: 'groups',
    roles: { owners: 'owner', admins: 'admin' },
  });
  const body = JSON.stringify(created.body);
  if (created.status !== 201 || body.includes(provider.secret)) throw new Error(`${created.status} ${body}`);
  const { tenant_id } = (await owner.api.get<{ tenant_id: string }>('/api/v1/me')).body;
  const path = `/platform/v1/tenants/${tenant_id}/identity-providers/${created.body.id}/domains/${domain}/verify`;
  const { status } = await new Api(site.url, PLATFORM_SECRET).call('POST', path);
  if (status !== 200) throw new Error(`verification of ${domain}: ${status}`);
  return { owner, provider, id: created.body.id, domain, tenantId: tenant_id };
}

/** Begins a sign-in as a browser does. @returns where the browser is sent, and the cookie that it keeps */
export async function startAtCompany(
  { url }: Pick<SignInSite, 'url'>,
  { id }: Pick<Company, 'id'>,
  query = '',
): Promise<{ location: string; cookie: string }> {
  const response = await fetch(`${url}/api/v1/auth/sso/${id}/start${query}`, { redirect: 'manual' });
  if (response.status !== 302) throw new Error(`start: ${response.status}`);
  const [cookie = ''] = response.headers.getSetCookie().map((line) => line.split(';')[0] ?? '');
  return { location: response.headers.get('location') ?? '', cookie };
}

/** Follows the redirect of the provider to the gateway's callback. */
export function returnToGateway(
  { url }: Pick<SignInSite, 'url'>,
  address: URL | string,
  cookie: string,
): Promise<Response> {
  const { pathname, search } = new URL(address);
  return fetch(`${url}${pathname}${search}`, { redirect: 'manual', headers: { cookie } });
}
