import { z } from 'zod';
import { sealForClient, unsealFromClient } from '../../credentials/seal.ts';
import type { Settings } from '../../settings.ts';
import { ResponseForm } from '../sessions/response-form.ts';

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
 * The cookie of one state. `SameSite=Lax` is needed because the redirect comes from the provider's site. Over TLS its
 * name has the prefix `__Secure-`, which plain HTTP cannot set.
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
