import {
  AuthorizationResponseError,
  calculatePKCECodeChallenge,
  generateRandomCodeVerifier,
  generateRandomNonce,
  generateRandomState,
  validateAuthResponse,
} from 'oauth4webapi';
import { z } from 'zod';
import { FAILURES, type Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import { sealForClient, unsealFromClient } from '../crypto/seal.ts';
import { auditEvents } from '../database/schema.ts';
import { SingleUse } from '../rate-limits/limiter-client.ts';
import type { Settings } from '../settings.ts';
import { ResponseForm, type SignedIn, signIn } from './first-factor.ts';
import { type ProviderTokens, tokensForCallback, tokensForCliCode } from './identity-provider.ts';
import { identityOfPerson } from './person.ts';
import { authorizationUrl, discover, signInFailed } from './provider-client.ts';
import type { SignInContext, Tokens } from './sign-in-context.ts';
import { requireOtherWays } from './sign-up.ts';

/** The provider redirects the browser to this path, and the cookie is sent to no other. */
export const CALLBACK_PATH = '/api/v1/auth/idp/callback';

const TTL_SECONDS = 600;

/** What the callback needs from the start of the sign-in; stored by the browser that started it. */
const SignInState = z.object({
  nonce: z.string(),
  verifier: z.string(),
  returnTo: z.string(),
  response: ResponseForm,
  expiresAt: z.coerce.date(),
});
export type SignInState = z.output<typeof SignInState>;

/** Sealed for one state, so that a cookie cannot be used for the sign-in of another tab. */
const sealContext = (state: string) => ['idp_sign_in', state];

/** The name and attributes (RFC 6265) of a cookie. */
interface StateCookie {
  name: string;
  attributes: { path: string; httpOnly: true; sameSite: 'Lax'; secure: boolean; maxAge: number };
}

/**
 * The cookie of one state. `SameSite=Lax` is needed because the redirect comes from the provider's site. Over
 * TLS its name has the prefix `__Secure-`, which plain HTTP cannot set.
 */
export function stateCookie({ BASE_URL }: Settings, state: string): StateCookie {
  const secure = BASE_URL.startsWith('https:');
  return {
    name: `${secure ? '__Secure-' : ''}idp_sign_in_${state}`,
    attributes: { path: CALLBACK_PATH, httpOnly: true, sameSite: 'Lax', secure, maxAge: TTL_SECONDS },
  };
}

/** @returns the value of the cookie */
export async function sealState(
  { CREDENTIAL_KEYS }: Settings,
  state: string,
  started: Omit<SignInState, 'expiresAt'>,
  now: Date,
): Promise<string> {
  const expiresAt = new Date(now.getTime() + TTL_SECONDS * 1000);
  const text = JSON.stringify({ ...started, expiresAt });
  return sealForClient(CREDENTIAL_KEYS, sealContext(state), text);
}

/**
 * @param value of the cookie; undefined when the browser sent none
 * @returns null when this browser did not start the sign-in, or when it has expired
 */
export async function unsealState(
  { CREDENTIAL_KEYS }: Settings,
  state: string,
  value: string | undefined,
  now: Date,
): Promise<SignInState | null> {
  if (value === undefined) return null;
  const text = await unsealFromClient(CREDENTIAL_KEYS, sealContext(state), value);
  const started = text === null ? null : SignInState.parse(JSON.parse(text));
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
 * @returns or IDP_UNAVAILABLE
 */
export async function startAtProvider(
  { settings, now }: SignInContext,
  end: Pick<SignInState, 'returnTo' | 'response'>,
): Promise<Result<StartedSignIn, Failure>> {
  const state = generateRandomState();
  const nonce = generateRandomNonce();
  const verifier = generateRandomCodeVerifier();
  const location = await authorizationUrl(settings, 'gateway', {
    redirect_uri: redirectUri(settings),
    state,
    nonce,
    code_challenge: await calculatePKCECodeChallenge(verifier),
  });
  if (!location.ok) return location;
  const cookie = await sealState(settings, state, { nonce, verifier, ...end }, now());
  return ok({ location: location.value, state, cookie });
}

/**
 * Validates the parameters of an authorization response (RFC 9207 included).
 * @returns or SIGN_IN_FAILED, IDP_UNAVAILABLE
 */
async function validateCallback(
  settings: Settings,
  parameters: URLSearchParams,
  state: string,
): Promise<Result<URLSearchParams, Failure>> {
  const server = await discover(settings);
  if (!server.ok) return server;
  const client = { client_id: settings.IDP_CLIENT_ID };
  try {
    const callback = validateAuthResponse(server.value, client, parameters, state);
    return callback.get('code') ? ok(callback) : fail(signInFailed('there is no code'));
  } catch (error) {
    const isRefusal = error instanceof AuthorizationResponseError;
    return fail(
      signInFailed(
        isRefusal ? `the provider refused: ${error.error.slice(0, 64)}` : (error as Error).message,
      ),
    );
  }
}

/** How a sign-in that this browser started ends, and the step that ends it. */
interface ReturnedSignIn extends Pick<SignInState, 'returnTo' | 'response'> {
  /** @returns or SIGN_IN_FAILED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE */
  complete: () => Promise<Result<Tokens, Failure>>;
}

/**
 * The sign-in that the provider sends the browser back from.
 * @param cookie the value of the cookie of the state in `parameters`
 * @returns or SIGN_IN_FAILED when this browser did not start it
 */
export async function returnFromProvider(
  context: SignInContext,
  parameters: URLSearchParams,
  cookie: string | undefined,
): Promise<Result<ReturnedSignIn, Failure>> {
  const { settings } = context;
  const state = parameters.get('state');
  if (state === null) return fail(signInFailed('there is no state'));
  const started = await unsealState(settings, state, cookie, context.now());
  if (!started) return fail(signInFailed('this browser did not start a sign-in with this state'));
  const complete = () =>
    attemptOnce(context, 'state', state, async () => {
      const callback = await validateCallback(settings, parameters, state);
      if (!callback.ok) return callback;
      const start = { redirectUri: redirectUri(settings), ...started };
      const issued = await tokensForCallback(context, callback.value, start);
      if (!issued.ok) return issued;
      const signedIn = await signInByProvider(context, issued.value);
      return signedIn.ok ? ok(signedIn.value.tokens) : signedIn;
    });
  return ok({ returnTo: started.returnTo, response: started.response, complete });
}

/** Signs in the person that the provider has authenticated. @returns or SIGN_IN_FAILED, KEYS_UNAVAILABLE */
async function signInByProvider(context: SignInContext, tokens: Tokens): Promise<Result<SignedIn, Failure>> {
  const identity = await identityOfPerson(context, { tokens }, context.now());
  if (identity.ok) {
    const other = await requireOtherWays(context, identity.value.email);
    if (!other.ok) return other;
  }
  const signedIn = await signIn(context, { tokens }, { first_factor: 'idp', second_factor: null });
  if (signedIn.ok || signedIn.failure.code !== 'UNAUTHENTICATED') return signedIn;
  return fail(signInFailed(`the provider's access token: ${signedIn.failure.reason}`));
}

/** The path is stored in a cookie, which browsers limit to 4,096 bytes. */
const LENGTH_MAX = 512;

/**
 * Browsers remove tabs and line breaks from addresses and read `\` as `/`, so these could begin a host name.
 */
const STARTS_LIKE_HOST = /^\/[/\\]/;
const CONTROL_CHARACTER = /\p{Cc}/u;

const staysOnOrigin = (path: string) =>
  path.startsWith('/') && !STARTS_LIKE_HOST.test(path) && !CONTROL_CHARACTER.test(path);

/** Whether this is a path on the client's own origin, both as written and percent-decoded. */
function isReturnPath(text: string): boolean {
  try {
    return staysOnOrigin(text) && staysOnOrigin(decodeURIComponent(text));
  } catch {
    // A percent sign that encodes nothing.
    return false;
  }
}

/** The path where a client continues after the sign-in, on its own origin. */
export const ReturnTo = z
  .string()
  .max(LENGTH_MAX)
  .refine(isReturnPath, 'Expected a path on this origin, without a host or control characters')
  .meta({
    description:
      'A path in your application to continue at. The response of the callback returns it as `state`.',
    example: '/projects',
  });

/**
 * Signs in a command line with the authorization code from its loopback address. A provider may invalidate a
 * code only when the verifier is right, so the code is invalidated here.
 * @returns or SIGN_IN_FAILED, TENANT_REQUIRED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function exchangeCliCode(
  context: SignInContext,
  parameters: Record<'code' | 'redirect_uri' | 'code_verifier', string>,
): Promise<Result<{ tokens: ProviderTokens; principal: Principal }, Failure>> {
  const exchange = () => tokensForCliCode(context, parameters);
  const tokens = await attemptOnce(context, 'code', parameters.code, exchange);
  if (!tokens.ok) return tokens;
  const signedIn = await signInByProvider(context, tokens.value);
  if (!signedIn.ok) return signedIn;
  const { principal } = signedIn.value;
  if (!principal) return fail({ code: 'TENANT_REQUIRED' });
  const name = `${context.settings.SERVICE_NAME}.cli.login` as const;
  const event = auditEvent(name, actorWith(context.client, principal), {}, context.now());
  await context.db.insert(auditEvents).values(event);
  return ok({ tokens: tokens.value, principal });
}
