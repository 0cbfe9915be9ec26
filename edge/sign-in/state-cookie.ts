import { z } from 'zod';
import { sealForClient, unsealFromClient } from '../crypto/seal.ts';
import type { Settings } from '../settings.ts';
import { ResponseForm } from './first-factor.ts';

/**
 * The cookie in which a browser keeps the start of its sign-in, for one provider and one state. A cookie of another tab,
 * another provider or another browser is of no use.
 */

/** The two kinds of providers: that of the gateway, and those of companies. */
export interface CookieProvider {
  /** The prefix of its cookies, and a part of what they are sealed for. */
  kind: 'idp_sign_in' | 'sso_sign_in';
  /** The provider of a company; null: that of the gateway. */
  id: string | null;
  /** The provider redirects the browser to this path, and the cookie is sent to no other. */
  callbackPath: string;
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

/** Values from the start of the sign-in that the callback needs. */
const StartedSignIn = z.object({
  nonce: z.string(),
  verifier: z.string(),
  returnTo: z.string(),
  response: ResponseForm,
  cli: CliRequest.nullable(),
  expiresAt: z.coerce.date(),
});
export type StartedSignIn = z.output<typeof StartedSignIn>;

type Sealed = Pick<CookieProvider, 'kind' | 'id'>;

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
  { kind, callbackPath }: Pick<CookieProvider, 'kind' | 'callbackPath'>,
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
