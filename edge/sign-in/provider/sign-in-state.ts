import { deleteCookie, getCookie, setCookie } from 'hono/cookie';
import type { CookieOptions } from 'hono/utils/cookie';
import { z } from 'zod';
import type { AppContext } from '../../app-env.ts';
import { seal, unseal } from '../../credentials/seal.ts';
import { readSettings, type Settings } from '../../settings.ts';

/** Of the web sign-in: the provider sends the browser back to it, and the cookie goes nowhere else. */
export const CALLBACK_PATH = '/api/v1/auth/idp/callback';

const HOLDS_SECONDS = 600;

/** What a sign-in at the provider began with, kept by the browser that began it. */
const Begun = z.object({
  nonce: z.string(),
  verifier: z.string(),
  returnTo: z.string(),
  expiresAt: z.coerce.date(),
});
type Begun = z.output<typeof Begun>;

const SealedCookie = z.object({ keyId: z.string(), sealed: z.string() });

/** Sealed for one state, and named after it: two tabs have a cookie each, and neither is good for the other. */
const placeOf = (state: string) => ['idp_sign_in', state];
const nameOf = (state: string) => `idp_sign_in_${state}`;

const isSecure = ({ BASE_URL }: Settings) => BASE_URL.startsWith('https:');

/** `Lax`, because the browser comes from the provider's site. The prefix keeps plain HTTP from setting the cookie. */
const optionsOf = (settings: Settings): CookieOptions => ({
  path: CALLBACK_PATH,
  httpOnly: true,
  sameSite: 'Lax',
  ...(isSecure(settings) && { prefix: 'secure', secure: true }),
});

export async function storeState(
  c: AppContext,
  state: string,
  begun: Omit<Begun, 'expiresAt'>,
): Promise<void> {
  const settings = readSettings(c.env);
  const expiresAt = new Date(Date.now() + HOLDS_SECONDS * 1000);
  const text = JSON.stringify({ ...begun, expiresAt });
  const sealed = await seal(settings.CREDENTIAL_KEYS, placeOf(state), text);
  setCookie(c, nameOf(state), JSON.stringify(sealed), { ...optionsOf(settings), maxAge: HOLDS_SECONDS });
}

/** What this browser began under this state; null for another browser, or when it is too long ago. */
export async function readState(c: AppContext, state: string): Promise<Begun | null> {
  const settings = readSettings(c.env);
  const cookie = getCookie(c, nameOf(state), isSecure(settings) ? 'secure' : undefined);
  if (cookie === undefined) return null;
  try {
    const sealed = SealedCookie.parse(JSON.parse(cookie));
    const text = await unseal(settings.CREDENTIAL_KEYS, placeOf(state), sealed);
    const begun = Begun.parse(JSON.parse(text));
    return begun.expiresAt > new Date() ? begun : null;
  } catch {
    // A cookie that we did not make, or whose key is gone.
    return null;
  }
}

export const forgetState = (c: AppContext, state: string) =>
  deleteCookie(c, nameOf(state), optionsOf(readSettings(c.env)));
