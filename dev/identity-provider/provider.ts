import { join } from 'node:path';
import { type KoaContextWithOIDC, Provider } from 'oidc-provider';
import { accessToken, SCOPES, scopeNames } from './access-token.ts';
import { accountOf } from './accounts.ts';
import { loginForm } from './login-form.ts';
import { PASSWORD_GRANT, passwordGrant } from './password-grant.ts';
import { providerSecrets } from './provider-secrets.ts';
import { fileStorage } from './storage.ts';

const HOUR = 3600;
const DAY = 24 * HOUR;

export interface ProviderSettings {
  issuer: string;
  stateDir: string;
  /** The origin of the redirect URI of the gateway's client. */
  gatewayUrl: string;
  /** The secret of the gateway's client. */
  clientSecret: string;
  serviceName: string;
}

/**
 * An OpenID provider with the two clients of the service. `branchgate-gateway` has a secret and may send
 * passwords. `branchgate-cli` is public and redirects to any port of a loopback address (RFC 8252). Both must
 * use PKCE.
 */
export async function openIdProvider(settings: ProviderSettings): Promise<Provider> {
  const { issuer, stateDir, gatewayUrl, clientSecret, serviceName } = settings;
  const secrets = await providerSecrets(stateDir);
  const grantTypes = ['authorization_code', 'refresh_token'];
  const grants = { grant_types: grantTypes, response_types: ['code' as const] };
  const provider = new Provider(issuer, {
    adapter: fileStorage(join(stateDir, 'sessions.sqlite')),
    clients: [
      {
        ...grants,
        grant_types: [...grantTypes, PASSWORD_GRANT],
        client_id: 'branchgate-gateway',
        client_secret: clientSecret,
        redirect_uris: [`${gatewayUrl}/api/v1/auth/idp/callback`],
      },
      {
        ...grants,
        client_id: 'branchgate-cli',
        application_type: 'native',
        token_endpoint_auth_method: 'none',
        redirect_uris: ['http://127.0.0.1/auth/callback', 'http://localhost/auth/callback'],
      },
    ],
    scopes: ['openid', 'profile', 'email', 'offline_access', ...scopeNames(SCOPES, serviceName)],
    claims: { openid: ['sub'], profile: ['name'], email: ['email'] },
    conformIdTokenClaims: false,
    jwks: { keys: [secrets.id_token_key] },
    cookies: { keys: [secrets.cookie_key] },
    pkce: { required: () => true },
    features: {
      devInteractions: { enabled: false },
      revocation: {
        enabled: true,
        allowedPolicy: (_ctx, client, token) => token.clientId === client.clientId,
      },
    },
    routes: {
      authorization: '/oauth2/authorize',
      token: '/oauth2/token',
      userinfo: '/oauth2/userinfo',
      revocation: '/oauth2/revoke',
    },
    interactions: { url: (_ctx, interaction) => `/interaction/${interaction.uid}` },
    ttl: {
      AccessToken: HOUR,
      IdToken: HOUR,
      RefreshToken: 14 * DAY,
      Session: 14 * DAY,
      Grant: 14 * DAY,
      Interaction: HOUR,
    },
    // Each sign-in has its own grant, so that the next one in the same browser does not invalidate its
    // tokens.
    expiresWithSession: async () => false,
    issueRefreshToken: async (_ctx, client) => client.grantTypeAllowed('refresh_token'),
    findAccount: (_ctx, sub) => {
      const account = accountOf(sub);
      return account && { accountId: sub, claims: () => ({ sub, email: account.email, name: account.name }) };
    },
    loadExistingGrant: async (ctx) => {
      const { provider, client, session, params } = ctx.oidc;
      const grant = new provider.Grant({ accountId: session?.accountId, clientId: client?.clientId });
      grant.addOIDCScope(String(params?.scope ?? ''));
      await grant.save();
      return grant;
    },
  });

  provider.registerGrantType(PASSWORD_GRANT, passwordGrant, ['username', 'password', 'scope']);
  provider.use(loginForm(provider));
  // The library issues access tokens as opaque strings or JWTs. This middleware replaces the token in the
  // response of the token endpoint by a PASETO of the same grant.
  provider.use(async (ctx, next) => {
    await next();
    const { oidc } = ctx as Partial<KoaContextWithOIDC>;
    const token = oidc?.route === 'token' ? oidc.entities.AccessToken : undefined;
    const account = token && accountOf(token.accountId);
    if (!account) return;
    const own = new Set(scopeNames(SCOPES, serviceName));
    const issuedAt = new Date();
    const paseto = await accessToken(stateDir, {
      ...account,
      scopes: [...token.scopes].filter((scope) => own.has(scope)),
      issuedAt,
      expiresAt: new Date(issuedAt.getTime() + token.expiration * 1000),
    });
    const refreshToken = oidc?.entities.RefreshToken;
    ctx.body = {
      ...(ctx.body as object),
      access_token: paseto,
      ...(refreshToken && { refresh_token_expires_in: refreshToken.remainingTTL }),
    };
  });

  return provider;
}
