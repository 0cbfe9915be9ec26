import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
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

/** The token of an `Authorization` header (RFC 6750 section 2.1). @returns or UNAUTHENTICATED */
export function bearerToken(authorization: string | null): Result<string, Failure> {
  if (authorization === null) return rejected('token_missing');
  const token = /^Bearer +(\S+)$/i.exec(authorization)?.[1];
  if (token === undefined) return rejected('token_scheme_not_bearer');
  if (token.length > TOKEN_MAX) return rejected('token_too_long');
  return ok(token);
}

/** @returns or UNAUTHENTICATED */
export async function checkPlatformSecret(
  authorization: string | null,
  secret: string,
): Promise<Result<null, Failure>> {
  const isRight = await isSameText(authorization ?? '', `Bearer ${secret}`);
  return isRight ? ok(null) : rejected('platform_secret_wrong');
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
 * @returns or UNAUTHENTICATED with its `RejectionReason`, KEYS_UNAVAILABLE
 */
export async function authenticate(
  authorization: string | null,
  context: { settings: AuthenticationSettings } & RequestTiming,
): Promise<Result<Identity, Failure>> {
  const token = bearerToken(authorization);
  return token.ok ? identityOf(token.value, context) : token;
}

/**
 * The identity of the bearer of this access token. The token's prefix alone selects its issuer and how it is
 * verified; no other method is tried when that fails.
 * @returns as `authenticate`
 */
export async function identityOf(
  token: string,
  { settings, ...timing }: { settings: AuthenticationSettings } & RequestTiming,
): Promise<Result<Identity, Failure>> {
  if (!token.startsWith(PASETO_HEADER)) return ownIdentity(token, settings, timing.now);
  const { IDP_URL: issuer, BASE_IDP_KEY_ENDPOINT: endpoint } = settings;
  if (issuer === undefined || endpoint === undefined) return rejected('no_provider');
  const verified = await pasetoClaims(token, keyCacheOf(settings, endpoint), timing);
  if (!verified.ok) return verified;
  const claims = verified.value;
  return ok({
    issuer,
    gid: claims.gid,
    email: claims.email,
    role: mapRole(claims.role),
    scopes: claims.scp,
    service: settings.SERVICE_NAME,
    tenantId: claims.ctx?.tenant_id ?? null,
    issuedAt: claims.iat ?? claims.nbf ?? new Date(0),
    expiresAt: claims.exp,
  });
}

async function ownIdentity(
  token: string,
  settings: AuthenticationSettings,
  now: Date,
): Promise<Result<Identity, Failure>> {
  const verified = await verifyOwnToken(settings, 'access', token, now);
  if (!verified.ok) return verified;
  const claims = verified.value;
  return ok({
    issuer: claims.idp?.issuer ?? settings.BASE_URL,
    gid: claims.sub,
    email: claims.email,
    role: claims.role,
    scopes: claims.scp,
    service: settings.SERVICE_NAME,
    tenantId: claims.tenant_id,
    issuedAt: new Date(claims.iat * 1000),
    expiresAt: new Date(claims.exp * 1000),
    sessionId: claims.sid,
    ...(claims.idp && { providerId: claims.idp.id }),
  });
}

/** The claims of a PASETO. A token that was verified before is checked only against the clock. */
async function pasetoClaims(
  token: string,
  keyCache: PasetoKeys,
  timing: RequestTiming,
): Promise<Result<Claims, Failure>> {
  const ring = await keyCache.current(timing);
  const verified = ring?.verified.get(token);
  return verified ? checkTimes(verified, timing.now) : verifyPaseto(token, keyCache, timing);
}

async function verifyPaseto(
  token: string,
  keyCache: PasetoKeys,
  timing: RequestTiming,
): Promise<Result<Claims, Failure>> {
  const parts = splitPaseto(token);
  if (!parts.ok) return parts;
  const kid = keyIdOf(parts.value.footer);
  if (!kid.ok) return kid;
  const ring = await keyCache.ringFor(kid.value, timing);
  if (!ring.ok) return ring;
  const { keys, verified } = ring.value;
  const publicKey = keys.get(kid.value);
  if (!publicKey) return rejected('key_unknown');
  if (!(await isSignedBy(publicKey, parts.value))) return rejected('signature_wrong');
  const read = readClaims(parts.value.message);
  if (!read.ok) return read;
  const current = checkTimes(read.value, timing.now);
  if (current.ok) verified.set(token, current.value);
  return current;
}
