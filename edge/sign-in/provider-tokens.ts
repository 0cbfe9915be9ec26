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
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { identityOf } from '../authentication/authenticate.ts';
import {
  type ClientName,
  type ProviderRequest,
  providerUnavailable,
  requestAs,
  scopesOf,
  unlessRefused,
} from './provider-client.ts';
import type { SignInContext, Tokens } from './sign-in-context.ts';

type ProviderContext = Pick<SignInContext, 'settings' | 'now' | 'waitUntil'>;

export interface ProviderTokens extends Tokens {
  /**
   * Null when the provider does not report it. OAuth has no field for it; `refresh_token_expires_in` is
   * common.
   */
  refreshExpiresAt: Date | null;
}

/**
 * Reads a token response of the provider, whose access token must be valid for the API.
 * @returns or IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
async function readTokens(
  { settings, now: clock, waitUntil }: ProviderContext,
  response: TokenEndpointResponse,
): Promise<Result<ProviderTokens, Failure>> {
  const { access_token: accessToken, refresh_token: refreshToken = null } = response;
  const now = clock();
  const identity = await identityOf(accessToken, { settings, now, waitUntil });
  if (!identity.ok) {
    const { code, reason } = identity.failure;
    if (code !== 'UNAUTHENTICATED') return identity;
    return fail(providerUnavailable(`the provider's access token is not valid: ${reason}`));
  }
  // A token of the gateway would be valid, but the provider has none to issue.
  if (identity.value.issuer !== settings.IDP_URL) {
    return fail(providerUnavailable("the provider's access token is not its own"));
  }
  const seconds = response.refresh_token_expires_in;
  const refreshExpiresAt = typeof seconds === 'number' ? new Date(now.getTime() + seconds * 1000) : null;
  // The claim is authoritative: `expires_in` of the response is optional.
  return ok({ accessToken, refreshToken, accessExpiresAt: identity.value.expiresAt, refreshExpiresAt });
}

/** @returns or SIGN_IN_FAILED when the provider refuses, IDP_UNAVAILABLE, KEYS_UNAVAILABLE */
async function requestTokens(
  context: ProviderContext,
  name: ClientName,
  send: (request: ProviderRequest) => Promise<TokenEndpointResponse>,
): Promise<Result<ProviderTokens, Failure>> {
  const response = await requestAs(context.settings, name, send);
  return response.ok ? readTokens(context, response.value) : response;
}

/**
 * Exchanges the authorization code that a browser returned.
 * @param callback the result of `validateAuthResponse`
 * @param started the redirect URI, verifier and nonce of the same sign-in
 * @returns or SIGN_IN_FAILED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export const tokensForCallback = (
  context: ProviderContext,
  callback: URLSearchParams,
  { redirectUri, verifier, nonce }: { redirectUri: string; verifier: string; nonce: string },
): Promise<Result<ProviderTokens, Failure>> =>
  requestTokens(context, 'gateway', async ({ server, client, authentication, options }) => {
    const response = await authorizationCodeGrantRequest(
      server,
      client,
      authentication,
      callback,
      redirectUri,
      verifier,
      options,
    );
    return processAuthorizationCodeResponse(server, client, response, { expectedNonce: nonce });
  });

/** A grant that `oauth4webapi` has no function for. */
const requestByGrant = (
  context: ProviderContext,
  name: ClientName,
  grant: 'authorization_code' | 'password',
  parameters: Record<string, string>,
): Promise<Result<ProviderTokens, Failure>> =>
  requestTokens(context, name, async ({ server, client, authentication, options }) => {
    const response = await genericTokenEndpointRequest(
      server,
      client,
      authentication,
      grant,
      parameters,
      options,
    );
    return processGenericTokenEndpointResponse(server, client, response);
  });

/**
 * Exchanges the authorization code of a command line, which PKCE alone binds to its requester.
 * @returns or SIGN_IN_FAILED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export const tokensForCliCode = (
  context: ProviderContext,
  parameters: Record<'code' | 'redirect_uri' | 'code_verifier', string>,
): Promise<Result<ProviderTokens, Failure>> =>
  requestByGrant(context, 'cli', 'authorization_code', parameters);

/**
 * Tokens for an e-mail address and its password at the provider (RFC 6749 section 4.3).
 * @returns null when the provider refuses them; or IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export const tokensForPassword = async (
  context: ProviderContext,
  email: string,
  password: string,
): Promise<Result<Tokens | null, Failure>> =>
  unlessRefused(
    await requestByGrant(context, 'gateway', 'password', {
      username: email,
      password,
      scope: scopesOf(context.settings),
    }),
  );

/**
 * The gateway's clients in the order in which a refresh token is tried, because the token does not name its
 * client.
 */
const CLIENTS: readonly ClientName[] = ['gateway', 'cli'];

/**
 * New tokens for a refresh token of the provider.
 * @returns or REFRESH_TOKEN_WRONG, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function renewTokens(
  context: ProviderContext,
  refreshToken: string,
): Promise<Result<Tokens, Failure>> {
  for (const name of CLIENTS) {
    const renewed = unlessRefused(
      await requestTokens(context, name, async ({ server, client, authentication, options }) => {
        const response = await refreshTokenGrantRequest(
          server,
          client,
          authentication,
          refreshToken,
          options,
        );
        return processRefreshTokenResponse(server, client, response);
      }),
    );
    if (!renewed.ok) return renewed;
    // A provider that returns no new refresh token continues to accept this one (RFC 6749 section 6).
    if (renewed.value)
      return ok({ ...renewed.value, refreshToken: renewed.value.refreshToken ?? refreshToken });
  }
  return fail({ code: 'REFRESH_TOKEN_WRONG', reason: 'refused by the provider' });
}

/**
 * Revokes a refresh token at the provider (RFC 7009) if it supports that. An invalid token is not a failure.
 * @returns or IDP_UNAVAILABLE
 */
export async function revokeToken(
  context: ProviderContext,
  refreshToken: string,
): Promise<Result<null, Failure>> {
  // The provider refuses or ignores the client that the token was not issued to.
  for (const name of CLIENTS) {
    const revoked = unlessRefused(
      await requestAs(context.settings, name, async ({ server, client, authentication, options }) => {
        if (!server.revocation_endpoint) return;
        const response = await revocationRequest(server, client, authentication, refreshToken, options);
        await processRevocationResponse(response).catch((error: Error) => {
          // Some providers return this for a token of another client; elsewhere it means a misconfigured
          // client.
          const isOtherClients = error instanceof ResponseBodyError && error.error === 'unauthorized_client';
          if (!isOtherClients) throw error;
        });
      }),
    );
    if (!revoked.ok) return revoked;
  }
  return ok(null);
}
