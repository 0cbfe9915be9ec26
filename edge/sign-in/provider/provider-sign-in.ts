import {
  AuthorizationResponseError,
  calculatePKCECodeChallenge,
  generateRandomCodeVerifier,
  generateRandomNonce,
  generateRandomState,
  validateAuthResponse,
} from 'oauth4webapi';
import type { AppContext } from '../../app-env.ts';
import { ApiError } from '../../errors.ts';
import { useOnce } from '../../rate-limits/single-use.ts';
import { readSettings } from '../../settings.ts';
import { type SignedIn, signIn } from '../sessions/complete-sign-in.ts';
import type { Tokens } from '../sessions/sessions.ts';
import { tokensOfCallback } from './identity-provider.ts';
import { authorizationUrl, discover } from './provider-client.ts';
import { signInFailed } from './provider-failure.ts';
import { CALLBACK_PATH, forgetState, readState, storeState } from './sign-in-state.ts';

const redirectUri = (c: AppContext) => readSettings(c.env).BASE_URL + CALLBACK_PATH;

/**
 * Begins a sign-in of the browser that asks.
 * @returns where it is to go
 * @throws ApiError IDP_UNAVAILABLE
 */
export async function startAtProvider(c: AppContext, returnTo: string): Promise<string> {
  const state = generateRandomState();
  const nonce = generateRandomNonce();
  const verifier = generateRandomCodeVerifier();
  const address = await authorizationUrl(c, 'gateway', {
    redirect_uri: redirectUri(c),
    state,
    nonce,
    code_challenge: await calculatePKCECodeChallenge(verifier),
  });
  await storeState(c, state, { nonce, verifier, returnTo });
  return address;
}

/** The parameters that the provider sends back, once they are known to be its answer (RFC 9207 too). */
async function readCallback(c: AppContext, parameters: URLSearchParams, state: string) {
  const settings = readSettings(c.env);
  const server = await discover(settings);
  try {
    const callback = validateAuthResponse(server, { client_id: settings.IDP_CLIENT_ID }, parameters, state);
    if (callback.get('code')) return callback;
  } catch (error) {
    const isAnswer = error instanceof AuthorizationResponseError;
    throw signInFailed(isAnswer ? `the provider says ${error.error.slice(0, 64)}` : (error as Error).message);
  }
  throw signInFailed('there is no code');
}

/**
 * Ends the sign-in that this browser began.
 * @throws ApiError SIGN_IN_FAILED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function completeAtProvider(
  c: AppContext,
  parameters: URLSearchParams,
): Promise<{ tokens: Tokens; returnTo: string }> {
  const state = parameters.get('state');
  if (state === null) throw signInFailed('there is no state');
  const begun = await readState(c, state);
  if (!begun) throw signInFailed('this browser did not begin with this state');
  const tokens = await useOnce(c, 'state', state, async () => {
    const callback = await readCallback(c, parameters, state);
    const given = await tokensOfCallback(c, callback, { redirectUri: redirectUri(c), ...begun });
    return (await signInByProvider(c, given)).tokens;
  });
  forgetState(c, state);
  return { tokens, returnTo: begun.returnTo };
}

/** Signs in whom the provider has vouched for. @throws ApiError SIGN_IN_FAILED, KEYS_UNAVAILABLE */
export const signInByProvider = (c: AppContext, tokens: Tokens): Promise<SignedIn> =>
  signIn(c, { tokens }, { first_factor: 'idp', second_factor: null }).catch((error: unknown) => {
    const isRejected = error instanceof ApiError && error.failure.code === 'UNAUTHENTICATED';
    throw isRejected ? signInFailed(`the provider's access token: ${error.message}`) : error;
  });
