import { decodeJwt, decodeProtectedHeader, errors, type JWTPayload, jwtVerify } from 'jose';
import type { RequestTiming } from '../authentication/key-cache.ts';
import { issuerKeys } from './issuer-keys.ts';

/** Longer tokens are refused before they are read. */
export const ID_TOKEN_MAX = 8192;
const ALGORITHMS = ['RS256', 'ES256', 'EdDSA'];
/** Tolerated lead of an issuer's clock. It applies to `nbf` and `iat` only. */
const SKEW_SECONDS = 30;

/** An ID token as it describes itself. Nothing of it is proven. */
export interface ClaimedToken {
  kid: string;
  alg: string;
  issuer: string;
  payload: JWTPayload;
}

/** @returns null for a text that cannot become a valid token */
export function readIdToken(token: string): ClaimedToken | null {
  try {
    const { kid, alg } = decodeProtectedHeader(token);
    const payload = decodeJwt(token);
    if (!kid || !alg || !ALGORITHMS.includes(alg) || typeof payload.iss !== 'string') return null;
    return { kid, alg, issuer: payload.iss, payload };
  } catch {
    return null;
  }
}

/**
 * Verifies signature, issuer, audience and times.
 * @returns why the token is not valid; null if it is
 * @throws ApiError KEYS_UNAVAILABLE
 */
export async function idTokenProblem(
  token: string,
  { kid, alg, issuer }: ClaimedToken,
  audience: string,
  { isLocal, ...timing }: RequestTiming & { isLocal: boolean },
): Promise<string | null> {
  const key = (await issuerKeys(issuer, isLocal).ringFor(kid, timing)).keys.get(kid);
  if (!key) return 'key_unknown';
  // The header must not choose the algorithm of a key (RFC 8725 section 3.1).
  if (key.alg !== alg) return 'algorithm_wrong';
  try {
    const { payload } = await jwtVerify(token, key, {
      algorithms: [key.alg],
      issuer,
      audience,
      requiredClaims: ['exp', 'iat'],
      clockTolerance: SKEW_SECONDS,
      currentDate: timing.now,
    });
    const now = timing.now.getTime() / 1000;
    if (Number(payload.exp) <= now) return 'token_expired';
    if (!(Number(payload.iat) <= now + SKEW_SECONDS)) return 'token_not_yet_valid';
    return null;
  } catch (error) {
    if (error instanceof errors.JOSEError || error instanceof TypeError) return error.message;
    throw error;
  }
}

/** Whether the token has each claim of a trust: exactly, or with a trailing `*` as the beginning of it. */
export const hasClaims = (payload: JWTPayload, claims: Record<string, string>): boolean =>
  Object.entries(claims).every(([name, wanted]) => {
    const value = Object.hasOwn(payload, name) ? payload[name] : undefined;
    if (typeof value !== 'string') return false;
    return wanted.endsWith('*') ? value.startsWith(wanted.slice(0, -1)) : value === wanted;
  });
