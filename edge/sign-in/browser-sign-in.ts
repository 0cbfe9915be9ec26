import {
  calculatePKCECodeChallenge,
  generateRandomCodeVerifier,
  generateRandomNonce,
  generateRandomState,
} from 'oauth4webapi';
import { FAILURES, type Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { SignInStart } from '../identity-providers/openid.ts';
import { SingleUse } from '../rate-limits/limiter-client.ts';
import { signInFailed } from './provider-client.ts';
import type { SignInContext } from './sign-in-context.ts';
import {
  type CookieProvider,
  type StartedSignIn,
  sealState,
  stateCookie,
  unsealState,
} from './state-cookie.ts';

/**
 * A sign-in by redirects of a browser, at the gateway's own provider or that of a company. The start of a sign-in is in a
 * sealed cookie of the browser that began it, and a state is valid once.
 */

/** The differences between the two kinds of providers. */
export interface BrowserProvider<T> extends CookieProvider {
  /** @returns the address of its page; or the failures of a provider that is away or misconfigured */
  authorizationUrl: (parameters: {
    state: string;
    nonce: string;
    challenge: string;
    hint?: string;
  }) => Promise<Result<string, Failure>>;
  /** Validates the authorization response (RFC 9207 included), and signs in the person. */
  complete: (parameters: URLSearchParams, start: SignInStart) => Promise<Result<T, Failure>>;
}

const UNAVAILABLE = 503;

/**
 * Runs a sign-in with a state or an authorization code that is valid once, whether the sign-in succeeds or
 * fails: an attacker can guess one PKCE verifier for it. It stays valid only if the sign-in failed because
 * the provider or its keys are unavailable.
 * @returns or SIGN_IN_FAILED when it was used before, LIMITER_UNAVAILABLE, and the failures of `attempt`
 */
export async function attemptOnce<T>(
  { env }: SignInContext,
  kind: 'state' | 'code',
  value: string,
  attempt: () => Promise<Result<T, Failure>>,
): Promise<Result<T, Failure>> {
  const singleUse = new SingleUse(env, kind, value);
  const isFirst = await singleUse.consume();
  if (!isFirst.ok) return isFirst;
  if (!isFirst.value) return fail(signInFailed(`the ${kind} was used before`));
  const attempted = await attempt();
  if (!attempted.ok && FAILURES[attempted.failure.code].status === UNAVAILABLE) await singleUse.refund();
  return attempted;
}

/** How a sign-in ends. */
interface End extends Pick<StartedSignIn, 'returnTo' | 'response' | 'cli'> {
  /** The address that the person entered, for the provider's page. */
  hint?: string | undefined;
}

/** Starts a sign-in. @returns where the browser is redirected to, and its cookie; or the failures of the provider */
export async function startSignIn(
  { settings, now }: SignInContext,
  provider: BrowserProvider<unknown>,
  { hint, ...end }: End,
): Promise<Result<{ location: string; cookie: ReturnType<typeof stateCookie>; value: string }, Failure>> {
  const state = generateRandomState();
  const nonce = generateRandomNonce();
  const verifier = generateRandomCodeVerifier();
  const challenge = await calculatePKCECodeChallenge(verifier);
  const location = await provider.authorizationUrl({
    state,
    nonce,
    challenge,
    ...(hint !== undefined && { hint }),
  });
  if (!location.ok) return location;
  const value = await sealState(settings, provider, state, { nonce, verifier, ...end }, now());
  return ok({ location: location.value, cookie: stateCookie(settings, provider, state), value });
}

/** How a sign-in that this browser started ends, and the step that ends it. */
export interface ReturnedSignIn<T> extends Pick<StartedSignIn, 'returnTo' | 'response' | 'cli'> {
  /** @returns or SIGN_IN_FAILED, and the failures of the provider */
  complete: () => Promise<Result<T, Failure>>;
}

/**
 * The sign-in that a provider sends the browser back from.
 * @param value of the cookie of the state in `parameters`
 * @returns or SIGN_IN_FAILED when this browser did not start it at this provider
 */
export async function returnFrom<T>(
  context: SignInContext,
  provider: BrowserProvider<T>,
  parameters: URLSearchParams,
  value: string | undefined,
): Promise<Result<ReturnedSignIn<T>, Failure>> {
  const state = parameters.get('state');
  if (state === null) return fail(signInFailed('there is no state'));
  const started = await unsealState(context.settings, provider, state, value, context.now());
  if (!started) return fail(signInFailed('this browser did not start a sign-in with this state'));
  const { returnTo, response, cli } = started;
  const complete = () =>
    attemptOnce(context, 'state', state, () => provider.complete(parameters, { state, ...started }));
  return ok({ returnTo, response, cli, complete });
}
