import {
  authorizationCodeGrantRequest,
  genericTokenEndpointRequest,
  processAuthorizationCodeResponse,
  processGenericTokenEndpointResponse,
  processRefreshTokenResponse,
  processRevocationResponse,
  ResponseBodyError,
  refreshTokenGrantRequest,
  revocationRequest,
  type TokenEndpointResponse,
} from 'oauth4webapi';
import { identityOf } from '../authentication/authenticate.ts';
import { readClaims, splitPaseto } from '../authentication/paseto.ts';
import { ApiError } from '../errors.ts';
import {
  type ClientName,
  providerFailure,
  providerRequest,
  providerUnavailable,
  scopesOf,
  unlessRefused,
} from './provider-client.ts';

import type { SignInContext, Tokens } from './sign-in-context.ts';

type ProviderContext = Pick<SignInContext, 'settings' | 'now' | 'waitUntil'>;

export interface ProviderTokens extends Tokens {
  /** Null when the provider does not report it. OAuth has no field for it; `refresh_token_expires_in` is common. */
  refreshExpiresAt: Date | null;
}

/**
 * Reads a token response of the provider, whose access token must be valid for the API.
 * @throws ApiError IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
async function readTokens(
  { settings, now: clock, waitUntil }: ProviderContext,
  response: TokenEndpointResponse,
): Promise<ProviderTokens> {
  const { access_token: accessToken, refresh_token: refreshToken = null } = response;
  const now = clock();
  const accessExpiresAt = await identityOf(accessToken, { settings, now, waitUntil })
    // The claim is authoritative: `expires_in` of the response is optional.
    .then(() => readClaims(splitPaseto(accessToken).message).exp)
    .catch((error: unknown) => {
      const isRejected = error instanceof ApiError && error.failure.code === 'UNAUTHENTICATED';
      throw isRejected
        ? providerUnavailable(`the provider's access token is not valid: ${error.message}`)
        : error;
    });
  const seconds = response.refresh_token_expires_in;
  const refreshExpiresAt = typeof seconds === 'number' ? new Date(now.getTime() + seconds * 1000) : null;
  return { accessToken, refreshToken, accessExpiresAt, refreshExpiresAt };
}

/** @throws ApiError SIGN_IN_FAILED when the provider refuses, IDP_UNAVAILABLE, KEYS_UNAVAILABLE */
async function requestTokens(
  context: ProviderContext,
  request: Promise<Response>,
  read: (response: Response) => Promise<TokenEndpointResponse>,
): Promise<ProviderTokens> {
  const response = await request.then(read).catch((error: Error) => {
    throw providerFailure(error);
  });
  return readTokens(context, response);
}

/**
 * Exchanges the authorization code that a browser returned.
 * @param callback the result of `validateAuthResponse`
 * @param started the redirect URI, verifier and nonce of the same sign-in
 * @throws ApiError SIGN_IN_FAILED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function tokensForCallback(
  context: ProviderContext,
  callback: URLSearchParams,
  { redirectUri, verifier, nonce }: { redirectUri: string; verifier: string; nonce: string },
): Promise<ProviderTokens> {
  const { server, client, authentication, options } = await providerRequest(context.settings, 'gateway');
  return requestTokens(
    context,
    authorizationCodeGrantRequest(server, client, authentication, callback, redirectUri, verifier, options),
    (response) => processAuthorizationCodeResponse(server, client, response, { expectedNonce: nonce }),
  );
}

/**
 * Exchanges the authorization code of a command line, which PKCE alone binds to its requester.
 * @throws ApiError SIGN_IN_FAILED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function tokensForCliCode(
  context: ProviderContext,
  parameters: Record<'code' | 'redirect_uri' | 'code_verifier', string>,
): Promise<ProviderTokens> {
  const { server, client, authentication, options } = await providerRequest(context.settings, 'cli');
  return requestTokens(
    context,
    genericTokenEndpointRequest(server, client, authentication, 'authorization_code', parameters, options),
    (response) => processGenericTokenEndpointResponse(server, client, response),
  );
}

/**
 * Tokens for an e-mail address and its password at the provider (RFC 6749 section 4.3).
 * @returns null when the provider refuses them
 * @throws ApiError IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function tokensForPassword(
  context: ProviderContext,
  email: string,
  password: string,
): Promise<Tokens | null> {
  const { server, client, authentication, options } = await providerRequest(context.settings, 'gateway');
  const parameters = { username: email, password, scope: scopesOf(context.settings) };
  return unlessRefused(
    requestTokens(
      context,
      genericTokenEndpointRequest(server, client, authentication, 'password', parameters, options),
      (response) => processGenericTokenEndpointResponse(server, client, response),
    ),
  );
}

async function renewAs(context: ProviderContext, name: ClientName, refreshToken: string): Promise<Tokens> {
  const { server, client, authentication, options } = await providerRequest(context.settings, name);
  return requestTokens(
    context,
    refreshTokenGrantRequest(server, client, authentication, refreshToken, options),
    (response) => processRefreshTokenResponse(server, client, response),
  );
}

/**
 * New tokens for a refresh token of the provider. Both clients are tried, because the token does not name its client.
 * @throws ApiError REFRESH_TOKEN_WRONG, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function renewTokens(context: ProviderContext, refreshToken: string): Promise<Tokens> {
  const tokens =
    (await unlessRefused(renewAs(context, 'gateway', refreshToken))) ??
    (await unlessRefused(renewAs(context, 'cli', refreshToken)));
  if (!tokens) throw new ApiError('REFRESH_TOKEN_WRONG', undefined, 'refused by the provider');
  // A provider that returns no new refresh token continues to accept this one (RFC 6749 section 6).
  return { ...tokens, refreshToken: tokens.refreshToken ?? refreshToken };
}

async function revokeAs(context: ProviderContext, name: ClientName, refreshToken: string): Promise<void> {
  const { server, client, authentication, options } = await providerRequest(context.settings, name);
  if (!server.revocation_endpoint) return;
  await revocationRequest(server, client, authentication, refreshToken, options)
    .then(processRevocationResponse)
    .catch((error: Error) => {
      // Some providers return this for a token of another client; elsewhere it means a misconfigured client.
      const isOtherClients = error instanceof ResponseBodyError && error.error === 'unauthorized_client';
      if (!isOtherClients) throw providerFailure(error);
    });
}

/**
 * Revokes a refresh token at the provider (RFC 7009) if it supports that. An invalid token is not a failure.
 * @throws ApiError IDP_UNAVAILABLE
 */
export async function revokeToken(context: ProviderContext, refreshToken: string): Promise<void> {
  // The provider refuses or ignores the client that the token was not issued to.
  await unlessRefused(revokeAs(context, 'gateway', refreshToken));
  await unlessRefused(revokeAs(context, 'cli', refreshToken));
}
