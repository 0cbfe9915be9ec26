import {
  AuthorizationResponseError,
  calculatePKCECodeChallenge,
  generateRandomCodeVerifier,
  generateRandomNonce,
  generateRandomState,
  validateAuthResponse,
} from 'oauth4webapi';
import { ApiError } from '../../errors.ts';
import type { Settings } from '../../settings.ts';
import { type SignedIn, signIn } from '../sessions/complete-sign-in.ts';
import type { Tokens } from '../sessions/sessions.ts';
import type { SignInContext } from '../sign-in-context.ts';
import { tokensForCallback } from './identity-provider.ts';
import { authorizationUrl, discover } from './provider-client.ts';
import { signInFailed } from './provider-failure.ts';
import { CALLBACK_PATH, type SignInState, sealState, unsealState } from './sign-in-state.ts';
import { attemptOnce } from './single-attempt.ts';

const redirectUri = ({ BASE_URL }: Settings) => BASE_URL + CALLBACK_PATH;

interface StartedSignIn {
  /** The address that the browser is redirected to. */
  location: string;
  state: string;
  /** The value of the cookie of this state. */
  cookie: string;
}

/**
 * Starts a sign-in in a browser.
 * @throws ApiError IDP_UNAVAILABLE
 */
export async function startAtProvider(
  { settings, now }: SignInContext,
  end: Pick<SignInState, 'returnTo' | 'response'>,
): Promise<StartedSignIn> {
  const state = generateRandomState();
  const nonce = generateRandomNonce();
  const verifier = generateRandomCodeVerifier();
  const location = await authorizationUrl(settings, 'gateway', {
    redirect_uri: redirectUri(settings),
    state,
    nonce,
    code_challenge: await calculatePKCECodeChallenge(verifier),
  });
  const cookie = await sealState(settings, state, { nonce, verifier, ...end }, now());
  return { location, state, cookie };
}

/** Validates the parameters of an authorization response (RFC 9207 included). */
async function validateCallback(settings: Settings, parameters: URLSearchParams, state: string) {
  const server = await discover(settings);
  try {
    const callback = validateAuthResponse(server, { client_id: settings.IDP_CLIENT_ID }, parameters, state);
    if (callback.get('code')) return callback;
  } catch (error) {
    const isRefusal = error instanceof AuthorizationResponseError;
    throw signInFailed(
      isRefusal ? `the provider refused: ${error.error.slice(0, 64)}` : (error as Error).message,
    );
  }
  throw signInFailed('there is no code');
}

/** How a sign-in that this browser started ends, and the step that ends it. */
interface ReturnedSignIn extends Pick<SignInState, 'returnTo' | 'response'> {
  /** @throws ApiError SIGN_IN_FAILED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE */
  complete: () => Promise<Tokens>;
}

/**
 * The sign-in that the provider sends the browser back from.
 * @param cookie the value of the cookie of the state in `parameters`
 * @throws ApiError SIGN_IN_FAILED when this browser did not start it
 */
export async function returnFromProvider(
  context: SignInContext,
  parameters: URLSearchParams,
  cookie: string | undefined,
): Promise<ReturnedSignIn> {
  const { settings } = context;
  const state = parameters.get('state');
  if (state === null) throw signInFailed('there is no state');
  const started = await unsealState(settings, state, cookie, context.now());
  if (!started) throw signInFailed('this browser did not start a sign-in with this state');
  const complete = () =>
    attemptOnce(context, 'state', state, async () => {
      const callback = await validateCallback(settings, parameters, state);
      const issued = await tokensForCallback(context, callback, {
        redirectUri: redirectUri(settings),
        ...started,
      });
      return (await signInByProvider(context, issued)).tokens;
    });
  return { returnTo: started.returnTo, response: started.response, complete };
}

/** Signs in the person that the provider has authenticated. @throws ApiError SIGN_IN_FAILED, KEYS_UNAVAILABLE */
export const signInByProvider = (context: SignInContext, tokens: Tokens): Promise<SignedIn> =>
  signIn(context, { tokens }, { first_factor: 'idp', second_factor: null }).catch((error: unknown) => {
    const isRejected = error instanceof ApiError && error.failure.code === 'UNAUTHENTICATED';
    throw isRejected ? signInFailed(`the provider's access token: ${error.message}`) : error;
  });
