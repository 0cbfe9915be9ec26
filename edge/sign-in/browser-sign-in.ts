import {
  calculatePKCECodeChallenge,
  generateRandomCodeVerifier,
  generateRandomNonce,
  generateRandomState,
} from 'oauth4webapi';
import { z } from 'zod';
import { FAILURES, type Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { sealForClient, unsealFromClient } from '../crypto/seal.ts';
import type { SignInStart } from '../identity-providers/openid.ts';
import { SingleUse } from '../rate-limits/limiter-client.ts';
import type { Settings } from '../settings.ts';
import { ResponseForm } from './first-factor.ts';
import { signInFailed } from './provider-client.ts';
import type { SignInContext } from './sign-in-context.ts';

/**
 * A sign-in by redirects of a browser, at the gateway's own provider or that of a company. The start of a sign-in is
 * sealed in a cookie of the browser that began it, for one provider and one state. A cookie of another tab, another
 * provider or another browser is of no use, and a state is valid once.
 */

/** The two kinds of provider: what differs between them. */
export interface BrowserProvider<T> {
  /** The prefix of its cookies, and a part of what they are sealed for. */
  kind: 'idp_sign_in' | 'sso_sign_in';
  /** The provider of a company; null: that of the gateway. */
  id: string | null;
  /** The provider redirects the browser to this path, and the cookie is sent to no other. */
  callbackPath: string;
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

const TTL_SECONDS = 600;

/** A command line that waits for a code on a loopback address (RFC 8252 section 7.3). */
export const CliRequest = z.object({
  redirectUri: z.string(),
  state: z.string(),
  challenge: z.string(),
  expiresAt: z.coerce.date(),
});
export type CliRequest = z.output<typeof CliRequest>;

/** What the callback needs from the start of the sign-in. */
const StartedSignIn = z.object({
  nonce: z.string(),
  verifier: z.string(),
  returnTo: z.string(),
  response: ResponseForm,
  cli: CliRequest.nullable(),
  expiresAt: z.coerce.date(),
});
export type StartedSignIn = z.output<typeof StartedSignIn>;

type Sealed = Pick<BrowserProvider<unknown>, 'kind' | 'id'>;

const sealContext = ({ kind, id }: Sealed, state: string) => [kind, ...(id === null ? [] : [id]), state];

/** When a sign-in that begins now has expired. */
export const expiryOfSignIn = (now: Date): Date => new Date(now.getTime() + TTL_SECONDS * 1000);

/**
 * The name and attributes (RFC 6265) of the cookie of one state. `SameSite=Lax` is needed because the redirect comes from
 * the provider's site. Over TLS its name has the prefix `__Secure-`, which plain HTTP cannot set.
 * @param state as a client sends it, so characters that no name of a cookie has are left out
 */
export function stateCookie(
  { BASE_URL }: Settings,
  { kind, callbackPath }: Pick<BrowserProvider<unknown>, 'kind' | 'callbackPath'>,
  state: string,
) {
  const secure = BASE_URL.startsWith('https:');
  return {
    name: `${secure ? '__Secure-' : ''}${kind}_${state.replaceAll(/[^\w-]/g, '').slice(0, 64)}`,
    attributes: {
      path: callbackPath,
      httpOnly: true,
      sameSite: 'Lax' as const,
      secure,
      maxAge: TTL_SECONDS,
    },
  };
}

/** @returns the value of the cookie */
export const sealState = (
  { CREDENTIAL_KEYS }: Settings,
  provider: Sealed,
  state: string,
  started: Omit<StartedSignIn, 'expiresAt'>,
  now: Date,
): Promise<string> =>
  sealForClient(
    CREDENTIAL_KEYS,
    sealContext(provider, state),
    JSON.stringify({ ...started, expiresAt: expiryOfSignIn(now) }),
  );

/**
 * @param value of the cookie; undefined when the browser sent none
 * @returns null when this browser did not start the sign-in, or when it has expired
 */
export async function unsealState(
  { CREDENTIAL_KEYS }: Settings,
  provider: Sealed,
  state: string,
  value: string | undefined,
  now: Date,
): Promise<StartedSignIn | null> {
  if (value === undefined) return null;
  const text = await unsealFromClient(CREDENTIAL_KEYS, sealContext(provider, state), value);
  const started = text === null ? null : StartedSignIn.parse(JSON.parse(text));
  return started && started.expiresAt > now ? started : null;
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
