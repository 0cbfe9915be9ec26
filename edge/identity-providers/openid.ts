import {
  type AuthorizationServer,
  authorizationCodeGrantRequest,
  type Client,
  type ClientAuth,
  ClientSecretBasic,
  ClientSecretPost,
  clockTolerance,
  discoveryRequest,
  getValidatedIdTokenClaims,
  processAuthorizationCodeResponse,
  processDiscoveryResponse,
  processRefreshTokenResponse,
  processUserInfoResponse,
  refreshTokenGrantRequest,
  userInfoRequest,
  validateApplicationLevelSignature,
  validateAuthResponse,
} from 'oauth4webapi';
import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import type { ProviderRow } from '../database/company-schema.ts';
import type { Settings } from '../settings.ts';
import type { Claims } from './claims.ts';
import { clientSecretOf, redirectUriOf } from './provider.ts';
import { Misconfigured, providerFailure, providerOptions, withProvider } from './provider-fetch.ts';

/** Asymmetric ones, so that a client secret or a public key never verifies a token; not `none`. */
const ALGORITHMS = [
  'RS256',
  'PS256',
  'ES256',
  'ES384',
  'ES512',
  'RS384',
  'RS512',
  'PS384',
  'PS512',
  'EdDSA',
  'Ed25519',
];
const CLOCK_SKEW_SECONDS = 30;
/** Requested where the provider offers them: a refresh token, and the claim of groups. */
const OPTIONAL_SCOPES = ['offline_access', 'groups'];

/**
 * The provider's metadata (OpenID Connect Discovery 1.0). It is read for every step, so that a key or an
 * endpoint that the provider has withdrawn is not used again.
 * @throws Error
 */
export async function discoverProvider(
  provider: ProviderRow,
  settings: Settings,
): Promise<AuthorizationServer> {
  const issuer = new URL(provider.issuer);
  const response = await discoveryRequest(issuer, providerOptions(settings));
  const server = await processDiscoveryResponse(issuer, response);
  const offered = server.id_token_signing_alg_values_supported ?? ['RS256'];
  const algorithms = offered.filter((algorithm) => ALGORITHMS.includes(algorithm));
  if (algorithms.length === 0)
    throw new Misconfigured(`the provider signs with ${offered.join(', ')}, of which none is accepted`);
  return { ...server, id_token_signing_alg_values_supported: algorithms };
}

interface Request {
  server: AuthorizationServer;
  client: Client;
  authentication: ClientAuth;
  options: ReturnType<typeof providerOptions>;
}

async function requestOf(provider: ProviderRow, settings: Settings): Promise<Request> {
  const [server, secret] = await Promise.all([
    discoverProvider(provider, settings),
    clientSecretOf(settings, provider),
  ]);
  const methods = server.token_endpoint_auth_methods_supported ?? ['client_secret_basic'];
  return {
    server,
    client: { client_id: provider.clientId, [clockTolerance]: CLOCK_SKEW_SECONDS },
    authentication: methods.includes('client_secret_basic')
      ? ClientSecretBasic(secret)
      : ClientSecretPost(secret),
    options: providerOptions(settings),
  };
}

/** What the start of a sign-in chose, and its end checks. */
export interface SignInStart {
  state: string;
  nonce: string;
  /** PKCE (RFC 7636). */
  verifier: string;
}

/** The address of the provider's page. @returns or IDP_UNAVAILABLE, SSO_MISCONFIGURED */
export async function openIdAuthorizationUrl(
  provider: ProviderRow,
  settings: Settings,
  { state, nonce, challenge, hint }: { state: string; nonce: string; challenge: string; hint?: string },
): Promise<Result<string, Failure>> {
  return withProvider(
    discoverProvider(provider, settings).then((server) => {
      if (!server.authorization_endpoint) throw new Misconfigured('there is no authorization endpoint');
      const url = new URL(server.authorization_endpoint);
      const offered = server.scopes_supported ?? [];
      const scopes = [
        'openid',
        'email',
        'profile',
        ...OPTIONAL_SCOPES.filter((scope) => offered.includes(scope)),
      ];
      const query = {
        response_type: 'code',
        client_id: provider.clientId,
        redirect_uri: redirectUriOf(settings, provider.id),
        scope: scopes.join(' '),
        state,
        nonce,
        code_challenge: challenge,
        code_challenge_method: 'S256',
        ...(hint !== undefined && { login_hint: hint }),
      };
      for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
      return url.href;
    }),
  );
}

export interface Authenticated {
  claims: Claims;
  refreshToken: string | null;
}

/**
 * Exchanges the code of an authorization response, and verifies the ID token: its issuer, audience, nonce,
 * expiry, algorithm and signature.
 * @returns or SIGN_IN_FAILED, IDP_UNAVAILABLE, SSO_MISCONFIGURED
 */
export const authenticateByOpenId = (
  provider: ProviderRow,
  settings: Settings,
  parameters: URLSearchParams,
  start: SignInStart,
): Promise<Result<Authenticated, Failure>> =>
  withProvider(authenticate(provider, settings, parameters, start));

async function authenticate(
  provider: ProviderRow,
  settings: Settings,
  parameters: URLSearchParams,
  { state, nonce, verifier }: SignInStart,
): Promise<Authenticated> {
  const { server, client, authentication, options } = await requestOf(provider, settings);
  // `state`, and `iss` if the provider sends it or says that it does (RFC 9207).
  const callback = validateAuthResponse(server, client, parameters, state);
  const response = await authorizationCodeGrantRequest(
    server,
    client,
    authentication,
    callback,
    redirectUriOf(settings, provider.id),
    verifier,
    options,
  );
  const expected = { expectedNonce: nonce, requireIdToken: true };
  const tokens = await processAuthorizationCodeResponse(server, client, response, expected);
  await validateApplicationLevelSignature(server, response, options);
  const idToken = getValidatedIdTokenClaims(tokens);
  if (!idToken) throw new Misconfigured('there is no ID token');
  const claims = { ...(await userInfo()), ...idToken };
  return { claims, refreshToken: tokens.refresh_token ?? null };

  /** Some providers put the address or the groups into the response of this endpoint only. */
  async function userInfo(): Promise<Claims> {
    const isComplete =
      idToken?.email !== undefined &&
      (provider.roleClaim === null || idToken[provider.roleClaim] !== undefined);
    if (isComplete || !server.userinfo_endpoint || !idToken) return {};
    const answer = await userInfoRequest(server, client, tokens.access_token, options);
    return processUserInfoResponse(server, client, idToken.sub, answer);
  }
}

/**
 * Asks the provider whether a person may continue, with the refresh token of the sign-in.
 * @param subject the new ID token, if there is one, must be about
 * @returns the refresh token to use next; null if the provider refuses; or IDP_UNAVAILABLE, SSO_MISCONFIGURED
 */
export async function confirmByOpenId(
  provider: ProviderRow,
  settings: Settings,
  refreshToken: string,
  subject: string | null,
): Promise<Result<string | null, Failure>> {
  try {
    const { server, client, authentication, options } = await requestOf(provider, settings);
    const response = await refreshTokenGrantRequest(server, client, authentication, refreshToken, options);
    const tokens = await processRefreshTokenResponse(server, client, response);
    const idToken = getValidatedIdTokenClaims(tokens);
    if (idToken) {
      await validateApplicationLevelSignature(server, response, options);
      if (idToken.sub !== subject) return ok(null);
    }
    return ok(tokens.refresh_token ?? refreshToken);
  } catch (error) {
    const failure = providerFailure(error);
    return failure.code === 'SIGN_IN_FAILED' ? ok(null) : { ok: false, failure };
  }
}
