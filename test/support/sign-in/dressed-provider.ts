import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { exportJWK, generateKeyPair } from 'jose';
import { Provider } from 'oidc-provider';

/** How a known provider differs from the others. */
interface Dress {
  /** The path of its issuer. */
  path: string;
  algorithm: 'RS256' | 'ES256';
  /** Claims by scope. */
  claims: Record<string, string[]>;
  /** Whether the ID token has no more than the subject, and the rest is at `userinfo`. */
  isThin: boolean;
  givesRefreshTokens: boolean;
  /** What it says about a person, whose address is the account. */
  describe: (email: string, isAdmin: boolean) => Record<string, unknown>;
  /** The provider of the gateway. */
  mapping: { role_claim?: string; roles?: Record<string, string> };
}

const DIRECTORY = '5d5e7e3a-0f5c-4d0e-9c1e-3c2f1f6f7a10';
const ADMINS = '8b0d4f7e-6f43-4a40-8f0b-7a7f5f0c5b11';

/** The claims, scopes and discovery of known providers, as their documentation has them. */
export const DRESSES = {
  entra: {
    path: `/${DIRECTORY}/v2.0`,
    algorithm: 'RS256',
    claims: {
      openid: ['sub', 'tid', 'oid', 'groups'],
      profile: ['preferred_username', 'name'],
      email: ['email'],
    },
    isThin: false,
    givesRefreshTokens: true,
    describe: (email, isAdmin) => ({
      tid: DIRECTORY,
      oid: randomUUID(),
      preferred_username: email,
      email,
      groups: [randomUUID(), ...(isAdmin ? [ADMINS] : [])],
    }),
    mapping: { role_claim: 'groups', roles: { [ADMINS]: 'admin' } },
  },
  google: {
    path: '',
    algorithm: 'RS256',
    claims: { openid: ['sub', 'hd'], profile: ['name'], email: ['email', 'email_verified'] },
    isThin: false,
    givesRefreshTokens: false,
    describe: (email) => ({ hd: email.split('@')[1], email, email_verified: true }),
    mapping: {},
  },
  okta: {
    path: '',
    algorithm: 'RS256',
    claims: {
      openid: ['sub'],
      profile: ['preferred_username'],
      email: ['email', 'email_verified'],
      groups: ['groups'],
    },
    isThin: true,
    givesRefreshTokens: true,
    describe: (email, isAdmin) => ({
      preferred_username: email,
      email,
      email_verified: true,
      groups: ['Everyone', ...(isAdmin ? ['platform-admins'] : [])],
    }),
    mapping: { role_claim: 'groups', roles: { 'platform-admins': 'admin' } },
  },
  keycloak: {
    path: '/realms/acme',
    algorithm: 'ES256',
    claims: { openid: ['sub', 'realm_access'], profile: ['name'], email: ['email', 'email_verified'] },
    isThin: false,
    givesRefreshTokens: true,
    describe: (email, isAdmin) => ({
      email,
      email_verified: true,
      realm_access: { roles: ['offline_access', ...(isAdmin ? ['gateway-admin'] : [])] },
    }),
    mapping: { role_claim: 'realm_access.roles', roles: { 'gateway-admin': 'admin' } },
  },
} as const satisfies Record<string, Dress>;
export type DressName = keyof typeof DRESSES;

/** Addresses with this part are administrators at the provider. */
const ADMIN = /^admin/;

const CLIENT = { client_id: 'gateway', client_secret: 'a secret of the client' };
/** Of another tenant, at the same provider. */
export const OTHER_CLIENT = { client_id: 'other', client_secret: 'a secret of the other client' };

/**
 * An OpenID provider that behaves as a known one. It signs in whom the gateway hints at, without a page, as a
 * provider does that has a session of the person.
 */
export async function startDressedProvider(name: DressName) {
  const dress: Dress = DRESSES[name];
  let handle: (request: IncomingMessage, response: ServerResponse) => unknown = (_, response) =>
    response.writeHead(503).end();
  const server = createServer((request, response) => {
    const { url = '' } = request;
    if (!url.startsWith(dress.path)) return response.writeHead(404).end();
    // As a router does that mounts the provider at a path.
    Object.assign(request, { originalUrl: url, url: url.slice(dress.path.length) || '/' });
    return handle(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}${dress.path}`;
  return {
    /** What the gateway has to know about it. */
    settings: { ...CLIENT, issuer, ...dress.mapping, default_role: 'viewer' },
    /**
     * Starts it, once the gateway has said where it redirects to.
     * @param other where `OTHER_CLIENT` is redirected to
     */
    register: async (redirectUri: string, other?: string) => {
      const clients = [{ ...CLIENT, redirect_uris: [redirectUri] }];
      if (other !== undefined) clients.push({ ...OTHER_CLIENT, redirect_uris: [other] });
      const provider = await providerFor(dress, issuer, clients);
      handle = provider.callback();
    },
    /** Responds with 503 to everything. */
    leave: () => {
      handle = (_, response) => response.writeHead(503).end();
    },
    stop: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

async function providerFor(
  dress: Dress,
  issuer: string,
  clients: { client_id: string; client_secret: string; redirect_uris: string[] }[],
): Promise<Provider> {
  const { privateKey } = await generateKeyPair(dress.algorithm, { extractable: true });
  const key = { ...(await exportJWK(privateKey)), kid: randomUUID(), use: 'sig', alg: dress.algorithm };
  const grants = ['authorization_code', ...(dress.givesRefreshTokens ? ['refresh_token'] : [])];
  const provider = new Provider(issuer, {
    clients: clients.map((client) => ({
      ...client,
      response_types: ['code'],
      grant_types: grants,
      id_token_signed_response_alg: dress.algorithm,
    })),
    scopes: ['openid', ...(dress.givesRefreshTokens ? ['offline_access'] : [])],
    claims: dress.claims,
    conformIdTokenClaims: dress.isThin,
    jwks: { keys: [key] },
    cookies: { keys: [randomUUID()] },
    pkce: { required: () => true },
    features: { devInteractions: { enabled: false } },
    enabledJWA: { idTokenSigningAlgValues: [dress.algorithm] },
    interactions: { url: (_ctx, interaction) => `${dress.path}/interaction/${interaction.uid}` },
    issueRefreshToken: async () => dress.givesRefreshTokens,
    findAccount: (_ctx, sub) => ({
      accountId: sub,
      claims: () => ({ sub, ...dress.describe(sub, ADMIN.test(sub)) }),
    }),
    loadExistingGrant: async (ctx) => {
      const { provider: own, client, session, params } = ctx.oidc;
      const grant = new own.Grant({ accountId: session?.accountId, clientId: client?.clientId });
      grant.addOIDCScope(String(params?.scope ?? ''));
      await grant.save();
      return grant;
    },
  });
  provider.use(async (ctx, next) => {
    if (!ctx.path.startsWith('/interaction/')) return next();
    const { params } = await provider.interactionDetails(ctx.req, ctx.res);
    const accountId = String(params.login_hint);
    const location = await provider.interactionResult(ctx.req, ctx.res, { login: { accountId } });
    ctx.redirect(location);
  });
  return provider;
}
