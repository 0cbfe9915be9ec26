import { bearerToken } from './bearer.ts';
import { type Claims, checkTimes, readClaims } from './claims.ts';
import { keyIdOf } from './footer.ts';
import { KeyCache, type RequestMoment } from './key-cache.ts';
import { type OwnTokenSettings, verifyOwnToken } from './own-tokens.ts';
import { PASETO_HEADER, splitPaseto } from './paseto-form.ts';
import type { Identity } from './principal.ts';
import { rejected } from './rejection.ts';
import { mapRole } from './role.ts';
import { isSignedBy } from './signature.ts';

/** What of `settings.ts` matters here. The same object each time: the keys are remembered with it. */
export interface AuthenticationSettings extends OwnTokenSettings {
  IDP_URL: string;
  BASE_IDP_KEY_ENDPOINT: string;
}

const keyCaches = new WeakMap<AuthenticationSettings, KeyCache>();

function keyCacheOf(settings: AuthenticationSettings): KeyCache {
  const cache = keyCaches.get(settings) ?? new KeyCache(settings.BASE_IDP_KEY_ENDPOINT);
  keyCaches.set(settings, cache);
  return cache;
}

/**
 * Who the bearer of this `Authorization` header is.
 * @throws ApiError UNAUTHENTICATED, its message the `RejectionReason`; KEYS_UNAVAILABLE
 */
export async function authenticate(
  authorization: string | null,
  context: { settings: AuthenticationSettings } & RequestMoment,
): Promise<Identity> {
  return identityOf(bearerToken(authorization), context);
}

/**
 * Who the bearer of this access token is. The start of the token alone says who issued it and how it is checked; no
 * second way is ever tried.
 * @throws as `authenticate`
 */
export async function identityOf(
  token: string,
  { settings, ...moment }: { settings: AuthenticationSettings } & RequestMoment,
): Promise<Identity> {
  if (!token.startsWith(PASETO_HEADER)) return ownIdentity(token, settings, moment.now);
  const claims = await pasetoClaims(token, keyCacheOf(settings), moment);
  return {
    issuer: settings.IDP_URL,
    gid: claims.gid,
    email: claims.email,
    role: mapRole(claims.role),
    scopes: claims.scp,
    service: settings.SERVICE_NAME,
    tenantId: claims.ctx?.tenant_id ?? null,
    issuedAt: claims.iat ?? claims.nbf ?? new Date(0),
  };
}

async function ownIdentity(token: string, settings: AuthenticationSettings, now: Date): Promise<Identity> {
  const claims = await verifyOwnToken(settings, 'access', token, now);
  return {
    issuer: settings.BASE_URL,
    gid: claims.sub,
    email: claims.email,
    role: claims.role,
    scopes: claims.scp,
    service: settings.SERVICE_NAME,
    tenantId: claims.tenant_id,
    issuedAt: new Date(claims.iat * 1000),
    sessionId: claims.sid,
  };
}

/** The claims of a PASETO; of one that was verified before, after a look at the clock alone. */
async function pasetoClaims(token: string, keyCache: KeyCache, moment: RequestMoment): Promise<Claims> {
  const ring = await keyCache.current(moment);
  const remembered = ring?.verified.get(token);
  if (!remembered) return verifyPaseto(token, keyCache, moment);
  checkTimes(remembered, moment.now);
  return remembered;
}

async function verifyPaseto(token: string, keyCache: KeyCache, moment: RequestMoment): Promise<Claims> {
  const parts = splitPaseto(token);
  const kid = keyIdOf(parts.footer);
  const { keys, verified } = await keyCache.ringFor(kid, moment);
  const publicKey = keys.get(kid);
  if (!publicKey) throw rejected('key_unknown');
  if (!(await isSignedBy(publicKey, parts))) throw rejected('signature_wrong');
  const claims = readClaims(parts.message);
  checkTimes(claims, moment.now);
  verified.set(token, claims);
  return claims;
}
