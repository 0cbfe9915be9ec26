import { AuthorizationResponseError, validateAuthResponse } from 'oauth4webapi';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import { auditEvents } from '../database/schema.ts';
import type { Settings } from '../settings.ts';
import { attemptOnce, type BrowserProvider } from './browser-sign-in.ts';
import { type SignedIn, signIn } from './first-factor.ts';
import { identityOfPerson } from './person.ts';
import { authorizationUrl, discover, signInFailed } from './provider-client.ts';
import { type ProviderTokens, tokensForCallback, tokensForCliCode } from './provider-tokens.ts';
import type { SignInContext, Tokens } from './sign-in-context.ts';
import { requireOtherWays } from './sign-up.ts';

/** The provider redirects the browser to this path, and the cookie is sent to no other. */
export const CALLBACK_PATH = '/api/v1/auth/idp/callback';

const redirectUri = ({ BASE_URL }: Settings) => BASE_URL + CALLBACK_PATH;

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

/** The provider of the gateway, for a sign-in in a browser. */
export const gatewayProvider = (context: SignInContext): BrowserProvider<Tokens> => {
  const { settings } = context;
  return {
    kind: 'idp_sign_in',
    id: null,
    callbackPath: CALLBACK_PATH,
    authorizationUrl: ({ state, nonce, challenge }) =>
      authorizationUrl(settings, 'gateway', {
        redirect_uri: redirectUri(settings),
        state,
        nonce,
        code_challenge: challenge,
      }),
    complete: async (parameters, { state, nonce, verifier }) => {
      const callback = await validateCallback(settings, parameters, state);
      if (!callback.ok) return callback;
      const start = { redirectUri: redirectUri(settings), nonce, verifier };
      const issued = await tokensForCallback(context, callback.value, start);
      if (!issued.ok) return issued;
      const signedIn = await signInByProvider(context, issued.value);
      return signedIn.ok ? ok(signedIn.value.tokens) : signedIn;
    },
  };
};

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
const LENGTH_MAX = 2048;
const bytesOf = (path: string) => new TextEncoder().encode(JSON.stringify(path)).length;

/**
 * Browsers remove tabs and line breaks from addresses and read `\` as `/`, so these could begin a host name.
 */
const STARTS_LIKE_HOST = /^\/[/\\]/;
const CONTROL_CHARACTER = /\p{Cc}/u;

const staysOnOrigin = (path: string) =>
  path.startsWith('/') && !STARTS_LIKE_HOST.test(path) && !CONTROL_CHARACTER.test(path);

/** Returns whether this is a path on the client's own origin, both as written and percent-decoded. */
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
  .refine((path) => bytesOf(path) <= LENGTH_MAX, `Expected at most ${LENGTH_MAX} bytes`)
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
