import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import { sha256 } from '../crypto/encoding.ts';
import { sealForClient, unsealFromClient } from '../crypto/seal.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforce } from '../rate-limits/limiter-client.ts';
import type { Settings } from '../settings.ts';
import { CONCURRENT_USE_MS, isOwnRefreshToken, refresh } from './sessions.ts';
import type { SignInContext, Tokens } from './sign-in-context.ts';

/**
 * The prefix has browsers accept it only from this host, over TLS or from the loopback (RFC 6265bis section
 * 4.1.3).
 */
export const PAGE_COOKIE = '__Host-session';

/** Browsers ignore larger cookies (RFC 6265 section 6.1). */
const COOKIE_BYTES_MAX = 4096;

const SEAL_CONTEXT = ['page_session'];

/**
 * The value of the cookie of a page's session. The refresh token is sealed, so that a reader of the cookie
 * cannot submit it to `/api/v1/auth/refresh`, which accepts it from any origin.
 */
export async function pageCookie(
  { CREDENTIAL_KEYS }: Settings,
  { refreshToken }: Pick<Tokens, 'refreshToken'>,
): Promise<string> {
  if (refreshToken === null)
    throw new Error('the provider issued no refresh token for the session of a page');
  const value = await sealForClient(CREDENTIAL_KEYS, SEAL_CONTEXT, refreshToken);
  if (PAGE_COOKIE.length + encodeURIComponent(value).length > COOKIE_BYTES_MAX) {
    throw new Error("the provider's refresh token does not fit into a cookie");
  }
  return value;
}

const unsealPageCookie = ({ CREDENTIAL_KEYS }: Settings, cookie: string) =>
  unsealFromClient(CREDENTIAL_KEYS, SEAL_CONTEXT, cookie);

/** The refresh token in the cookie; undefined without one. */
export const refreshTokenOf = async (
  settings: Settings,
  cookie: string | undefined,
): Promise<string | undefined> =>
  cookie === undefined ? undefined : ((await unsealPageCookie(settings, cookie)) ?? undefined);

/**
 * Exchanges the cookie of a page for tokens. Tabs that send the same cookie within 10 seconds each get their
 * own from the gateway. A provider may end a sign-in whose refresh token is used twice, so it sees one of
 * them, and the others get 429 until the browser has stored the next cookie.
 * @returns null when the session has ended; or RATE_LIMITED, LIMITER_UNAVAILABLE, IDP_UNAVAILABLE,
 *   KEYS_UNAVAILABLE
 */
export async function renewPageSession(
  context: SignInContext,
  cookie: string,
): Promise<Result<Tokens | null, Failure>> {
  const { settings, env } = context;
  const refreshToken = await unsealPageCookie(settings, cookie);
  if (refreshToken === null) return ok(null);
  if (!isOwnRefreshToken(settings, refreshToken)) {
    const counted = await enforce(env, bucketOf.pageRenewal(await sha256(cookie)));
    if (!counted.ok) return counted;
  }
  const renewed = await refresh(context, refreshToken, { reusableForMs: CONCURRENT_USE_MS });
  return !renewed.ok && renewed.failure.code === 'REFRESH_TOKEN_WRONG' ? ok(null) : renewed;
}
