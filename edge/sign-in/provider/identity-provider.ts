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
import type { AppContext } from '../../app-env.ts';
import { identityOf } from '../../authentication/authenticate.ts';
import { readClaims } from '../../authentication/claims.ts';
import { splitPaseto } from '../../authentication/paseto-form.ts';
import { ApiError } from '../../errors.ts';
import { readSettings } from '../../settings.ts';
import type { Tokens } from '../sessions/sessions.ts';
import { type ClientName, partyOf, scopesOf } from './provider-client.ts';
import { providerFailure, providerUnavailable, unlessRefused } from './provider-failure.ts';

export interface ProviderTokens extends Tokens {
  /** Null when the provider does not say: OAuth has no field for it, `refresh_token_expires_in` is a common one. */
  refreshExpiresAt: Date | null;
}

/**
 * What of the provider's answer a person goes on with. Its access token must be one that the API takes.
 * @throws ApiError IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
async function tokensOf(c: AppContext, answer: TokenEndpointResponse): Promise<ProviderTokens> {
  const { access_token: accessToken, refresh_token: refreshToken = null } = answer;
  const now = new Date();
  const waitUntil = (work: Promise<unknown>) => c.executionCtx.waitUntil(work);
  const accessExpiresAt = await identityOf(accessToken, { settings: readSettings(c.env), now, waitUntil })
    // The token's own word; `expires_in` beside it may be left out.
    .then(() => readClaims(splitPaseto(accessToken).message).exp)
    .catch((error: unknown) => {
      const isRejected = error instanceof ApiError && error.failure.code === 'UNAUTHENTICATED';
      throw isRejected
        ? providerUnavailable(`the provider's access token is not taken: ${error.message}`)
        : error;
    });
  const seconds = answer.refresh_token_expires_in;
  const refreshExpiresAt = typeof seconds === 'number' ? new Date(now.getTime() + seconds * 1000) : null;
  return { accessToken, refreshToken, accessExpiresAt, refreshExpiresAt };
}

/** @throws ApiError SIGN_IN_FAILED when the provider refuses, IDP_UNAVAILABLE, KEYS_UNAVAILABLE */
async function grant(
  c: AppContext,
  request: Promise<Response>,
  read: (response: Response) => Promise<TokenEndpointResponse>,
): Promise<ProviderTokens> {
  const answer = await request.then(read).catch((error: Error) => {
    throw providerFailure(error);
  });
  return tokensOf(c, answer);
}

/**
 * Tokens for the code that came back to a browser.
 * @param callback as `validateAuthResponse` gives it
 * @param redirectUri the one that was asked with, and the verifier and nonce of the same sign-in
 * @throws ApiError SIGN_IN_FAILED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function tokensOfCallback(
  c: AppContext,
  callback: URLSearchParams,
  { redirectUri, verifier, nonce }: { redirectUri: string; verifier: string; nonce: string },
): Promise<ProviderTokens> {
  const { server, client, authentication, options } = await partyOf(c, 'gateway');
  return grant(
    c,
    authorizationCodeGrantRequest(server, client, authentication, callback, redirectUri, verifier, options),
    (response) => processAuthorizationCodeResponse(server, client, response, { expectedNonce: nonce }),
  );
}

/**
 * Tokens for the code that a command line got; PKCE alone binds it to who asked.
 * @throws ApiError SIGN_IN_FAILED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function tokensOfCliCode(
  c: AppContext,
  parameters: Record<'code' | 'redirect_uri' | 'code_verifier', string>,
): Promise<ProviderTokens> {
  const { server, client, authentication, options } = await partyOf(c, 'cli');
  return grant(
    c,
    genericTokenEndpointRequest(server, client, authentication, 'authorization_code', parameters, options),
    (response) => processGenericTokenEndpointResponse(server, client, response),
  );
}

/**
 * Tokens for an address and its password at the provider (RFC 6749 section 4.3); null when it refuses them.
 * @throws ApiError IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function passwordTokens(c: AppContext, email: string, password: string): Promise<Tokens | null> {
  const { server, client, authentication, options } = await partyOf(c, 'gateway');
  const parameters = { username: email, password, scope: scopesOf(readSettings(c.env)) };
  return unlessRefused(
    grant(
      c,
      genericTokenEndpointRequest(server, client, authentication, 'password', parameters, options),
      (response) => processGenericTokenEndpointResponse(server, client, response),
    ),
  );
}

async function renewedBy(c: AppContext, name: ClientName, refreshToken: string): Promise<Tokens> {
  const { server, client, authentication, options } = await partyOf(c, name);
  return grant(
    c,
    refreshTokenGrantRequest(server, client, authentication, refreshToken, options),
    (response) => processRefreshTokenResponse(server, client, response),
  );
}

/**
 * New tokens for a refresh token of the provider, which does not say whose client got it.
 * @throws ApiError REFRESH_TOKEN_WRONG, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function renewTokens(c: AppContext, refreshToken: string): Promise<Tokens> {
  const tokens =
    (await unlessRefused(renewedBy(c, 'gateway', refreshToken))) ??
    (await unlessRefused(renewedBy(c, 'cli', refreshToken)));
  if (!tokens) throw new ApiError('REFRESH_TOKEN_WRONG', undefined, 'refused by the provider');
  // Who gives no other one takes this one again (RFC 6749 section 6).
  return { ...tokens, refreshToken: tokens.refreshToken ?? refreshToken };
}

async function revokedBy(c: AppContext, name: ClientName, refreshToken: string): Promise<void> {
  const { server, client, authentication, options } = await partyOf(c, name);
  if (!server.revocation_endpoint) return;
  await revocationRequest(server, client, authentication, refreshToken, options)
    .then(processRevocationResponse)
    .catch((error: Error) => {
      // Some say so of a token of another client, where it would be our fault anywhere else.
      const isOthers = error instanceof ResponseBodyError && error.error === 'unauthorized_client';
      if (!isOthers) throw providerFailure(error);
    });
}

/**
 * Ends a refresh token at the provider (RFC 7009), where that can be done. One that is no longer good is no failure.
 * @throws ApiError IDP_UNAVAILABLE
 */
export async function revokeToken(c: AppContext, refreshToken: string): Promise<void> {
  // The client it was not given to is refused or passed over, as the provider likes.
  await unlessRefused(revokedBy(c, 'gateway', refreshToken));
  await unlessRefused(revokedBy(c, 'cli', refreshToken));
}
