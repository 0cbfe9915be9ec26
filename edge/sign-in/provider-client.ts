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
import type { Failure, FailureCode } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Settings } from '../settings.ts';

/**
 * The provider refuses the gateway and not the person: one of the two is misconfigured (RFC 6749 section
 * 5.2).
 */
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
/** The tolerance for access tokens (specification 2.8). */
const CLOCK_SKEW_SECONDS = 30;

/** The gateway's two clients at the provider: one for browsers and passwords, one for command lines. */
export type ClientName = 'gateway' | 'cli';

/** The arguments that every request to the provider takes. */
export interface ProviderRequest {
  server: AuthorizationServer;
  client: Client;
  authentication: ClientAuth;
  options: { signal: () => AbortSignal; [allowInsecureRequests]: boolean };
}

const discoveries = new WeakMap<Settings, { server: AuthorizationServer; expiresAt: number }>();

const requestOptions = (issuer: URL): ProviderRequest['options'] => ({
  signal: () => AbortSignal.timeout(RESPONSE_TIMEOUT_MS),
  // An operator who configures a provider with http accepts http for its endpoints too.
  [allowInsecureRequests]: issuer.protocol === 'http:',
});

/** Responses of a provider that offers no discovery. */
const NOT_OFFERED: readonly number[] = [404, 410];

/** The endpoints of a provider without discovery (specification 4.1). */
const byPath = (issuer: string): AuthorizationServer => ({
  issuer,
  authorization_endpoint: `${issuer}/oauth2/authorize`,
  token_endpoint: `${issuer}/oauth2/token`,
});

/**
 * The provider's metadata (OpenID Connect Discovery 1.0), cached for an hour; the paths of the specification if it
 * offers no discovery.
 * @returns or NO_IDENTITY_PROVIDER, IDP_UNAVAILABLE
 */
export async function discover(settings: Settings): Promise<Result<AuthorizationServer, Failure>> {
  const cached = discoveries.get(settings);
  if (cached && Date.now() < cached.expiresAt) return ok(cached.server);
  if (settings.IDP_URL === undefined) return fail({ code: 'NO_IDENTITY_PROVIDER' });
  const issuer = new URL(settings.IDP_URL);
  try {
    const response = await discoveryRequest(issuer, requestOptions(issuer));
    if (NOT_OFFERED.includes(response.status)) return ok(byPath(settings.IDP_URL));
    const server = await processDiscoveryResponse(issuer, response);
    discoveries.set(settings, { server, expiresAt: Date.now() + DISCOVERY_TTL_MS });
    return ok(server);
  } catch (error) {
    return fail(providerUnavailable((error as Error).message));
  }
}

const clientIdOf = (name: ClientName, { IDP_CLIENT_ID, IDP_CLI_CLIENT_ID }: Settings) =>
  name === 'cli' ? IDP_CLI_CLIENT_ID : IDP_CLIENT_ID;

/**
 * Makes a request to the provider as one of the gateway's clients.
 * @returns or SIGN_IN_FAILED when the provider refuses, NO_IDENTITY_PROVIDER, IDP_UNAVAILABLE
 * @throws Error when the gateway or the provider is misconfigured
 */
export async function requestAs<T>(
  settings: Settings,
  name: ClientName,
  send: (request: ProviderRequest) => Promise<T>,
): Promise<Result<T, Failure>> {
  const server = await discover(settings);
  if (!server.ok) return server;
  const secret = name === 'gateway' ? settings.IDP_CLIENT_SECRET : undefined;
  const request = {
    server: server.value,
    client: { client_id: clientIdOf(name, settings), [clockTolerance]: CLOCK_SKEW_SECONDS },
    authentication: secret === undefined ? None() : ClientSecretBasic(secret),
    options: requestOptions(new URL(server.value.issuer)),
  };
  return send(request).then(ok, (error: Error) => fail(providerFailure(error)));
}

/** The scopes that a sign-in requests (specification 4.1), separated by spaces. */
export const scopesOf = ({ SERVICE_NAME }: Settings) =>
  `openid profile email ${SERVICE_NAME}:read ${SERVICE_NAME}:write`;

/** The provider's page where a person signs in. @returns or NO_IDENTITY_PROVIDER, IDP_UNAVAILABLE */
export async function authorizationUrl(
  settings: Settings,
  name: ClientName,
  parameters: Record<'redirect_uri' | 'state' | 'code_challenge', string> & { nonce?: string },
): Promise<Result<string, Failure>> {
  const server = await discover(settings);
  if (!server.ok) return server;
  const { authorization_endpoint } = server.value;
  if (!authorization_endpoint) return fail(providerUnavailable('the provider has no authorization endpoint'));
  const url = new URL(authorization_endpoint);
  const query = {
    response_type: 'code',
    client_id: clientIdOf(name, settings),
    scope: scopesOf(settings),
    code_challenge_method: 'S256',
    ...parameters,
  };
  for (const [parameter, value] of Object.entries(query)) url.searchParams.set(parameter, value);
  return ok(url.href);
}

export const providerUnavailable = (reason: string): Failure => ({ code: 'IDP_UNAVAILABLE', reason });

/** @param reason for the log only; it must not contain anything that the person entered */
export const signInFailed = (reason: string): Failure => ({ code: 'SIGN_IN_FAILED', reason });

/**
 * Maps a failed request to the provider to SIGN_IN_FAILED or IDP_UNAVAILABLE.
 * @throws Error when the provider refuses the gateway and not the person
 */
function providerFailure(error: Error): Failure {
  if (error instanceof ResponseBodyError) {
    const reason = `the provider responded with ${error.status} ${error.error}`;
    if (CONFIGURATION_ERRORS.has(error.error)) throw new Error(reason);
    const isUnavailable = TEMPORARY_ERRORS.has(error.error) || error.status === TOO_MANY_REQUESTS;
    return isUnavailable ? providerUnavailable(reason) : signInFailed(reason);
  }
  if (error instanceof WWWAuthenticateChallengeError && error.status < 500) {
    throw new Error(`the provider responded with ${error.status} and requires other client credentials`);
  }
  if (error instanceof OperationProcessingError && ID_TOKEN_MISMATCHES.has(error.code ?? '')) {
    return signInFailed(error.message);
  }
  // A failed connection, a timeout, an unexpected status or an unreadable response.
  return providerUnavailable(error.message);
}

const REFUSALS: readonly FailureCode[] = ['SIGN_IN_FAILED', 'NO_IDENTITY_PROVIDER'];

/** Null when the provider refused, or when there is none. */
export const unlessRefused = <T>(outcome: Result<T, Failure>): Result<T | null, Failure> =>
  !outcome.ok && REFUSALS.includes(outcome.failure.code) ? ok(null) : outcome;
