import { deleteCookie, getCookie, setCookie } from 'hono/cookie';
import type { CookieOptions } from 'hono/utils/cookie';
import { ApiError } from '../errors.ts';
import type { AppContext } from '../pipeline/context.ts';
import { readSettings } from '../settings.ts';
import type { LoginResponse, ResponseForm } from '../sign-in/first-factor.ts';
import { PAGE_COOKIE, pageCookie } from '../sign-in/session-cookie.ts';
import type { Tokens } from '../sign-in/sign-in-context.ts';

const ATTRIBUTES = { path: '/', httpOnly: true, secure: true, sameSite: 'Strict' } satisfies CookieOptions;

/**
 * Refuses requests that a page of another origin has made (CSRF): browsers name the page in headers that scripts cannot
 * set. It also keeps such a page from signing a visitor in to an account of its own.
 * @throws ApiError CROSS_ORIGIN_REQUEST
 */
export function requireOwnPage(c: AppContext): void {
  const site = c.req.header('sec-fetch-site') ?? 'same-origin';
  const isOwn = c.req.header('origin') === readSettings(c.env).BASE_URL && site === 'same-origin';
  if (!isOwn) throw new ApiError('CROSS_ORIGIN_REQUEST');
}

export const pageCookieOf = (c: AppContext): string | undefined => getCookie(c, PAGE_COOKIE);

/** Stores the refresh token in the browser, for as long as an unused one of the gateway is valid. */
export async function storePageSession(c: AppContext, tokens: Pick<Tokens, 'refreshToken'>): Promise<void> {
  const settings = readSettings(c.env);
  const maxAge = settings.JWT_REFRESH_TTL_SECONDS;
  setCookie(c, PAGE_COOKIE, await pageCookie(settings, tokens), { ...ATTRIBUTES, maxAge });
}

export function clearPageSession(c: AppContext): void {
  if (pageCookieOf(c) !== undefined) deleteCookie(c, PAGE_COOKIE, ATTRIBUTES);
}

/**
 * Runs one step of a sign-in and delivers its tokens in the form that the client requested.
 * @throws ApiError CROSS_ORIGIN_REQUEST before the step runs
 */
export async function deliverLogin<L extends LoginResponse>(
  c: AppContext,
  form: ResponseForm,
  step: () => Promise<L>,
): Promise<L> {
  if (form === 'json') return step();
  requireOwnPage(c);
  const login = await step();
  if (login.access_token === null) return login;
  await storePageSession(c, { refreshToken: login.refresh_token });
  return { ...login, refresh_token: null };
}
