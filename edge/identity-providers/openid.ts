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
import { refusedKey } from '../../shared/foreign-json.ts';
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
  const request = await requestOf(provider, settings);
  const { server, client, authentication, options } = request;
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
  if (refusedKey(idToken) !== null) throw new Misconfigured('the ID token has a name that is not allowed');
  const isComplete = idToken.email !== undefined && hasRoleClaim(provider, idToken);
  const more = isComplete ? null : await userInfo(request, tokens.access_token, idToken.sub);
  return { claims: { ...more, ...idToken }, refreshToken: tokens.refresh_token ?? null };
}

const hasRoleClaim = ({ roleClaim }: ProviderRow, claims: Claims) =>
  roleClaim === null || Object.hasOwn(claims, roleClaim);

/**
 * Some providers put the address or the groups into the response of this endpoint only.
 * @returns null if the provider has no such endpoint
 */
async function userInfo(
  { server, client, options }: Awaited<ReturnType<typeof requestOf>>,
  accessToken: string,
  subject: string,
): Promise<Claims | null> {
  if (!server.userinfo_endpoint) return null;
  const answer = await userInfoRequest(server, client, accessToken, options);
  return processUserInfoResponse(server, client, subject, answer);
}

/** A renewal that the provider allows. */
export interface Confirmed {
  /** To be used next. */
  refreshToken: string;
  /** Null if the provider says nothing about the person, or the role does not depend on it. */
  claims: Claims | null;
}

/**
 * Asks the provider whether a person may continue, with the refresh token of the sign-in.
 * @param subject the new ID token, if there is one, must be about
 * @returns null if the provider refuses; or IDP_UNAVAILABLE, SSO_MISCONFIGURED
 */
export async function confirmByOpenId(
  provider: ProviderRow,
  settings: Settings,
  refreshToken: string,
  subject: string | null,
): Promise<Result<Confirmed | null, Failure>> {
  try {
    const request = await requestOf(provider, settings);
    const { server, client, authentication, options } = request;
    const response = await refreshTokenGrantRequest(server, client, authentication, refreshToken, options);
    const tokens = await processRefreshTokenResponse(server, client, response);
    const idToken = getValidatedIdTokenClaims(tokens);
    if (idToken) {
      if (refusedKey(idToken) !== null) return ok(null);
      await validateApplicationLevelSignature(server, response, options);
      if (idToken.sub !== subject) return ok(null);
    }
    return ok({
      refreshToken: tokens.refresh_token ?? refreshToken,
      claims: await presentClaims(tokens.access_token, idToken),
    });

    async function presentClaims(accessToken: string, idToken: Claims | undefined): Promise<Claims | null> {
      if (provider.roleClaim === null || subject === null) return null;
      if (idToken && hasRoleClaim(provider, idToken)) return idToken;
      // The new refresh token must not be lost with a response of another endpoint.
      const more = await userInfo(request, accessToken, subject).catch(() => null);
      return idToken || more ? { ...more, ...idToken } : null;
    }
  } catch (error) {
    const failure = providerFailure(error);
    return failure.code === 'SIGN_IN_FAILED' ? ok(null) : { ok: false, failure };
  }
}
