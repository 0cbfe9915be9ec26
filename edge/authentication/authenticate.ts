import { isSameText } from '../crypto/encoding.ts';
import { type OwnTokenSettings, verifyOwnToken } from './own-tokens.ts';
import {
  type Claims,
  checkTimes,
  isSignedBy,
  keyIdOf,
  PASETO_HEADER,
  readClaims,
  splitPaseto,
} from './paseto.ts';
import { type Identity, mapRole } from './principal.ts';
import { fetchKeys, KeyCache, type RequestTiming, sameKeys } from './provider-keys.ts';
import { rejected } from './rejection.ts';

/**
 * Longest accepted token, in characters. Most have a few hundred; a pre-auth token can contain two others.
 */
const TOKEN_MAX = 8192;

/** The token of an `Authorization` header (RFC 6750 section 2.1). @throws ApiError UNAUTHENTICATED */
export function bearerToken(authorization: string | null): string {
  if (authorization === null) throw rejected('token_missing');
  const token = /^Bearer +(\S+)$/i.exec(authorization)?.[1];
  if (token === undefined) throw rejected('token_scheme_not_bearer');
  if (token.length > TOKEN_MAX) throw rejected('token_too_long');
  return token;
}

/** @throws ApiError UNAUTHENTICATED */
export async function checkPlatformSecret(authorization: string | null, secret: string): Promise<void> {
  if (!(await isSameText(authorization ?? '', `Bearer ${secret}`))) throw rejected('platform_secret_wrong');
}

/** The settings used here. Callers pass the same object each time, because the keys are cached per object. */
export interface AuthenticationSettings extends OwnTokenSettings {
  /** Undefined: there is no provider, so every PASETO is refused. */
  IDP_URL?: string | undefined;
  BASE_IDP_KEY_ENDPOINT?: string | undefined;
}

type PasetoKeys = KeyCache<Uint8Array>;

const keyCaches = new WeakMap<AuthenticationSettings, PasetoKeys>();

export const pasetoKeysAt = (endpoint: string): PasetoKeys =>
  new KeyCache({ fetch: () => fetchKeys(endpoint), areSame: sameKeys });

function keyCacheOf(settings: AuthenticationSettings, endpoint: string): PasetoKeys {
  const cache = keyCaches.get(settings) ?? pasetoKeysAt(endpoint);
  keyCaches.set(settings, cache);
  return cache;
}

/**
 * The identity of the bearer of this `Authorization` header.
 * @throws ApiError UNAUTHENTICATED, its message the `RejectionReason`; KEYS_UNAVAILABLE
 */
export async function authenticate(
  authorization: string | null,
  context: { settings: AuthenticationSettings } & RequestTiming,
): Promise<Identity> {
  return identityOf(bearerToken(authorization), context);
}

/**
 * The identity of the bearer of this access token. The token's prefix alone selects its issuer and how it is
 * verified; no other method is tried when that fails.
 * @throws as `authenticate`
 */
export async function identityOf(
  token: string,
  { settings, ...timing }: { settings: AuthenticationSettings } & RequestTiming,
): Promise<Identity> {
  if (!token.startsWith(PASETO_HEADER)) return ownIdentity(token, settings, timing.now);
  const { IDP_URL: issuer, BASE_IDP_KEY_ENDPOINT: endpoint } = settings;
  if (issuer === undefined || endpoint === undefined) throw rejected('no_provider');
  const claims = await pasetoClaims(token, keyCacheOf(settings, endpoint), timing);
  return {
    issuer,
    gid: claims.gid,
    email: claims.email,
    role: mapRole(claims.role),
    scopes: claims.scp,
    service: settings.SERVICE_NAME,
    tenantId: claims.ctx?.tenant_id ?? null,
    issuedAt: claims.iat ?? claims.nbf ?? new Date(0),
    expiresAt: claims.exp,
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
    expiresAt: new Date(claims.exp * 1000),
    sessionId: claims.sid,
  };
}

/** The claims of a PASETO. A token that was verified before is checked only against the clock. */
async function pasetoClaims(token: string, keyCache: PasetoKeys, timing: RequestTiming): Promise<Claims> {
  const ring = await keyCache.current(timing);
  const verified = ring?.verified.get(token);
  if (!verified) return verifyPaseto(token, keyCache, timing);
  checkTimes(verified, timing.now);
  return verified;
}

async function verifyPaseto(token: string, keyCache: PasetoKeys, timing: RequestTiming): Promise<Claims> {
  const parts = splitPaseto(token);
  const kid = keyIdOf(parts.footer);
  const { keys, verified } = await keyCache.ringFor(kid, timing);
  const publicKey = keys.get(kid);
  if (!publicKey) throw rejected('key_unknown');
  if (!(await isSignedBy(publicKey, parts))) throw rejected('signature_wrong');
  const claims = readClaims(parts.message);
  checkTimes(claims, timing.now);
  verified.set(token, claims);
  return claims;
}
