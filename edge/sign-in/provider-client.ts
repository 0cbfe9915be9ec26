import {
  type AuthorizationServer,
  allowInsecureRequests,
  type Client,
  type ClientAuth,
  ClientSecretBasic,
  clockTolerance,
  discoveryRequest,
  None,
  OperationProcessingError,
  processDiscoveryResponse,
  ResponseBodyError,
  WWWAuthenticateChallengeError,
} from 'oauth4webapi';
import { ApiError } from '../errors.ts';
import type { Settings } from '../settings.ts';

/** The provider refuses the gateway and not the person: one of the two is misconfigured (RFC 6749 section 5.2). */
const CONFIGURATION_ERRORS = new Set(['invalid_client', 'unauthorized_client', 'unsupported_grant_type']);
/** The provider is temporarily unavailable (RFC 6749 section 4.1.2.1). */
const TEMPORARY_ERRORS = new Set(['server_error', 'temporarily_unavailable']);
/** The ID token is well-formed but belongs to another sign-in. */
const ID_TOKEN_MISMATCHES = new Set([
  'OAUTH_JWT_CLAIM_COMPARISON_FAILED',
  'OAUTH_JWT_TIMESTAMP_CHECK_FAILED',
]);
const TOO_MANY_REQUESTS = 429;

const DISCOVERY_TTL_MS = 3_600_000;
const RESPONSE_TIMEOUT_MS = 10_000;
/** As for access tokens (specification 2.8). */
const CLOCK_SKEW_SECONDS = 30;

/** The gateway's two clients at the provider: one for browsers and passwords, one for command lines. */
export type ClientName = 'gateway' | 'cli';

/** The arguments that every request to the provider takes. */
interface ProviderRequest {
  server: AuthorizationServer;
  client: Client;
  authentication: ClientAuth;
  options: { signal: () => AbortSignal; [allowInsecureRequests]: boolean };
}

const discoveries = new WeakMap<Settings, { server: AuthorizationServer; expiresAt: number }>();

const requestOptions = ({ IDP_URL }: Settings): ProviderRequest['options'] => ({
  signal: () => AbortSignal.timeout(RESPONSE_TIMEOUT_MS),
  // An operator who configures a provider with http accepts http for its endpoints too.
  [allowInsecureRequests]: IDP_URL.startsWith('http:'),
});

/** The provider's metadata (OpenID Connect Discovery 1.0), cached for an hour. @throws ApiError IDP_UNAVAILABLE */
export async function discover(settings: Settings): Promise<AuthorizationServer> {
  const cached = discoveries.get(settings);
  if (cached && Date.now() < cached.expiresAt) return cached.server;
  const issuer = new URL(settings.IDP_URL);
  const server = await discoveryRequest(issuer, requestOptions(settings))
    .then((response) => processDiscoveryResponse(issuer, response))
    .catch((error: Error) => {
      throw providerUnavailable(error.message);
    });
  discoveries.set(settings, { server, expiresAt: Date.now() + DISCOVERY_TTL_MS });
  return server;
}

const clientIdOf = (name: ClientName, { IDP_CLIENT_ID, IDP_CLI_CLIENT_ID }: Settings) =>
  name === 'cli' ? IDP_CLI_CLIENT_ID : IDP_CLIENT_ID;

/** @throws ApiError IDP_UNAVAILABLE */
export async function providerRequest(settings: Settings, name: ClientName): Promise<ProviderRequest> {
  const secret = name === 'gateway' ? settings.IDP_CLIENT_SECRET : undefined;
  return {
    server: await discover(settings),
    client: { client_id: clientIdOf(name, settings), [clockTolerance]: CLOCK_SKEW_SECONDS },
    authentication: secret === undefined ? None() : ClientSecretBasic(secret),
    options: requestOptions(settings),
  };
}

/** The scopes that a sign-in requests (specification 4.1), separated by spaces. */
export const scopesOf = ({ SERVICE_NAME }: Settings) =>
  `openid profile email ${SERVICE_NAME}:read ${SERVICE_NAME}:write`;

/** The provider's page where a person signs in. @throws ApiError IDP_UNAVAILABLE */
export async function authorizationUrl(
  settings: Settings,
  name: ClientName,
  parameters: Record<'redirect_uri' | 'state' | 'code_challenge', string> & { nonce?: string },
): Promise<string> {
  const { authorization_endpoint } = await discover(settings);
  if (!authorization_endpoint) throw providerUnavailable('the provider has no authorization endpoint');
  const url = new URL(authorization_endpoint);
  const query = {
    response_type: 'code',
    client_id: clientIdOf(name, settings),
    scope: scopesOf(settings),
    code_challenge_method: 'S256',
    ...parameters,
  };
  for (const [parameter, value] of Object.entries(query)) url.searchParams.set(parameter, value);
  return url.href;
}

export const providerUnavailable = (reason: string) => new ApiError('IDP_UNAVAILABLE', undefined, reason);

/** Maps a failed request to the provider to SIGN_IN_FAILED, IDP_UNAVAILABLE or an internal error. */
export function providerFailure(error: Error): Error {
  if (error instanceof ResponseBodyError) {
    const reason = `the provider responded with ${error.status} ${error.error}`;
    if (CONFIGURATION_ERRORS.has(error.error)) return new Error(reason);
    const isUnavailable = TEMPORARY_ERRORS.has(error.error) || error.status === TOO_MANY_REQUESTS;
    return isUnavailable ? providerUnavailable(reason) : signInFailed(reason);
  }
  if (error instanceof WWWAuthenticateChallengeError && error.status < 500) {
    return new Error(`the provider responded with ${error.status} and requires other client credentials`);
  }
  if (error instanceof OperationProcessingError && ID_TOKEN_MISMATCHES.has(error.code ?? '')) {
    return signInFailed(error.message);
  }
  // A failed connection, a timeout, an unexpected status or an unreadable response.
  return providerUnavailable(error.message);
}

/** Null when the provider refused. */
export const unlessRefused = <T>(work: Promise<T>): Promise<T | null> =>
  work.catch((error: unknown) => {
    if (error instanceof ApiError && error.failure.code === 'SIGN_IN_FAILED') return null;
    throw error;
  });

/** @param reason for the log only; it must not contain anything that the person entered */
export const signInFailed = (reason: string) => new ApiError('SIGN_IN_FAILED', undefined, reason);
