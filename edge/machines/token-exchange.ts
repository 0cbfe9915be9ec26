import { and, asc, eq, sql } from 'drizzle-orm';
import { decodeJwt, decodeProtectedHeader, errors, type JWK, type JWTPayload, jwtVerify } from 'jose';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { refusedKey } from '../../shared/foreign-json.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent, type ClientDetails } from '../audit/audit-event.ts';
import { signOwnToken } from '../authentication/own-tokens.ts';
import {
  fetchDocument,
  KEY_FETCH_MS,
  KeyCache,
  type RequestTiming,
} from '../authentication/provider-keys.ts';
import { BoundedMap } from '../bounded-map.ts';
import { openDatabase } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { trusts } from '../database/people-schema.ts';
import { auditEvents, projects } from '../database/schema.ts';
import { isLocalGateway } from '../destination.ts';
import { type Limiters, SingleUse } from '../rate-limits/limiter-client.ts';
import type { Settings } from '../settings.ts';
import { type MachineRecord, machineRecord } from './authenticate-machine.ts';
import { issuerAddressProblem } from './trusts.ts';

const CACHED_ISSUERS = 1_000;
const CONFIGURATION = '/.well-known/openid-configuration';
/** 2048 bits in base64url; jose refuses shorter RSA keys too. */
const MODULUS_MIN = 342;

const Configuration = z.object({ issuer: z.string(), jwks_uri: z.string() });
const KeySet = z.object({ keys: z.array(z.unknown()).max(100) });

const ofSignatures = { kid: z.string().min(1), use: z.literal('sig').optional() };
const keyOf = <K extends z.ZodRawShape, A extends string>(alg: A, members: K) =>
  z
    .object({ ...ofSignatures, ...members, alg: z.literal(alg).optional() })
    .transform((key) => ({ ...key, alg }));

/** The members of a public key only. A symmetric key is none of these. */
const PublicJwk = z.union([
  keyOf('RS256', { kty: z.literal('RSA'), n: z.string().min(MODULUS_MIN), e: z.string() }),
  keyOf('ES256', { kty: z.literal('EC'), crv: z.literal('P-256'), x: z.string(), y: z.string() }),
  keyOf('EdDSA', { kty: z.literal('OKP'), crv: z.literal('Ed25519'), x: z.string() }),
]);

/** The key of an issuer, with the only algorithm it may be used with. */
export type IssuerKey = JWK & z.output<typeof PublicJwk>;
type IssuerKeys = ReadonlyMap<string, IssuerKey>;

/** Both documents of an issuer (OpenID Connect Discovery 1.0), within the time of one. @throws Error */
async function fetchIssuerKeys(issuer: string, isLocal: boolean): Promise<IssuerKeys> {
  const signal = AbortSignal.timeout(KEY_FETCH_MS);
  const documentAt = (address: string) => {
    const problem = issuerAddressProblem(address, isLocal);
    if (problem) throw new Error(`the address ${problem}`);
    return fetchDocument(new URL(address), signal);
  };
  const configuration = Configuration.parse(await documentAt(issuer.replace(/\/$/, '') + CONFIGURATION));
  if (configuration.issuer !== issuer) throw new Error('the configuration is of another issuer');
  const { keys } = KeySet.parse(await documentAt(configuration.jwks_uri));
  const usable = keys.flatMap((key) => PublicJwk.safeParse(key).data ?? []);
  return new Map(usable.map((key) => [key.kid, key as IssuerKey]));
}

const areSame = (one: IssuerKeys, other: IssuerKeys) =>
  JSON.stringify([...one]) === JSON.stringify([...other]);

const caches = new BoundedMap<string, KeyCache<IssuerKey>>(CACHED_ISSUERS);

/** The keys of an issuer, cached as those of the identity provider. */
function issuerKeys(issuer: string, isLocal: boolean): KeyCache<IssuerKey> {
  const cache =
    caches.get(issuer) ?? new KeyCache({ fetch: () => fetchIssuerKeys(issuer, isLocal), areSame });
  caches.set(issuer, cache);
  return cache;
}

/** Longer tokens are refused before they are read. */
const ID_TOKEN_MAX = 8192;
const ALGORITHMS = ['RS256', 'ES256', 'EdDSA'];
/** Tolerated lead of an issuer's clock. It applies to `nbf` and `iat` only. */
const SKEW_SECONDS = 30;
/**
 * Longest life of a token, whatever its issuer says, and so its age at most. A used token is remembered for
 * longer (`SingleUse`).
 */
const LIFE_SECONDS_MAX = 3600;

/** An ID token as it describes itself. Nothing of it is proven. */
export interface ClaimedToken {
  kid: string;
  alg: string;
  issuer: string;
  payload: JWTPayload;
}

/** @returns null for a text that cannot become a valid token */
function readIdToken(token: string): ClaimedToken | null {
  try {
    const { kid, alg } = decodeProtectedHeader(token);
    const payload = decodeJwt(token);
    if (!kid || !alg || !ALGORITHMS.includes(alg) || typeof payload.iss !== 'string') return null;
    if (refusedKey(payload) !== null) return null;
    return { kid, alg, issuer: payload.iss, payload };
  } catch {
    return null;
  }
}

/**
 * Verifies signature, issuer, audience and times.
 * @returns why the token is not valid, null if it is; or KEYS_UNAVAILABLE
 */
async function idTokenProblem(
  token: string,
  { kid, alg, issuer }: ClaimedToken,
  audience: string,
  { isLocal, ...timing }: RequestTiming & { isLocal: boolean },
): Promise<Result<string | null, Failure>> {
  const ring = await issuerKeys(issuer, isLocal).ringFor(kid, timing);
  if (!ring.ok) return ring;
  const key = ring.value.keys.get(kid);
  if (!key) return ok('key_unknown');
  // The header must not choose the algorithm of a key (RFC 8725 section 3.1).
  if (key.alg !== alg) return ok('algorithm_wrong');
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
    const issuedAt = Number(payload.iat);
    const expiresAt = Number(payload.exp);
    if (expiresAt <= now) return ok('token_expired');
    if (!(issuedAt <= now + SKEW_SECONDS)) return ok('token_not_yet_valid');
    if (expiresAt - issuedAt > LIFE_SECONDS_MAX) return ok('token_lives_too_long');
    return ok(null);
  } catch (error) {
    if (error instanceof errors.JOSEError || error instanceof TypeError) return ok(error.message);
    throw error;
  }
}

/**
 * What identifies a token among all of its issuer: its `jti`, or what is signed. Not the signature, because
 * another one can be made of a valid ECDSA signature without the key.
 */
const identityOf = (token: string, { issuer, payload: { jti } }: ClaimedToken): string =>
  JSON.stringify(jti ? [issuer, 'jti', jti] : [issuer, 'signed', token.slice(0, token.lastIndexOf('.'))]);

/** Whether the token has each claim of a trust: exactly, or with a trailing `*` as the beginning of it. */
const hasClaims = (payload: JWTPayload, claims: Record<string, string>): boolean =>
  Object.entries(claims).every(([name, wanted]) => {
    const value = Object.hasOwn(payload, name) ? payload[name] : undefined;
    if (typeof value !== 'string') return false;
    return wanted.endsWith('*') ? value.startsWith(wanted.slice(0, -1)) : value === wanted;
  });

export const GRANT_TYPE = 'urn:ietf:params:oauth:grant-type:token-exchange';
export const ID_TOKEN = 'urn:ietf:params:oauth:token-type:id_token';
export const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token';
const TOKEN_SECONDS = 900;
const PROJECT_PATH = '/api/v1/projects/';

interface Request {
  grant_type: string;
  subject_token_type: string;
  subject_token: string;
  resource: string;
}

interface Context extends RequestTiming {
  limiters: Limiters;
  settings: Settings;
  database: D1Database;
  client: ClientDetails;
}

interface IssuedToken {
  token: string;
  expiresInSeconds: number;
  scopes: string[];
}

/** Every refusal looks the same, so that nobody learns which projects and trusts exist. */
const refusal = (reason: string) => ({ code: 'invalid_request', reason }) as const;
const refused = (reason: string) => fail(refusal(reason));

/**
 * Exchanges the ID token of a workload for an access token (RFC 8693), if a trust of the project in
 * `resource` (RFC 8707) accepts it; of several trusts, the oldest. A token is exchanged once. A refusal writes
 * nothing.
 * @returns or KEYS_UNAVAILABLE while the issuer's keys cannot be fetched
 */
export async function exchangeToken(
  request: Request,
  context: Context,
): Promise<Result<IssuedToken, Failure>> {
  const { settings, database, now } = context;
  if (request.grant_type !== GRANT_TYPE) return fail({ code: 'unsupported_grant_type' });
  if (request.subject_token_type !== ID_TOKEN) return refused('token_type_unknown');
  const projectId = projectIn(request.resource, settings);
  if (projectId === null) return fail({ code: 'invalid_target' });
  const token = request.subject_token;
  const claimed = token.length > ID_TOKEN_MAX ? null : readIdToken(token);
  if (!claimed) return refused('token_form_wrong');
  const candidates = await openDatabase(database)
    .select()
    .from(trusts)
    .where(and(eq(trusts.projectId, projectId), eq(trusts.issuer, claimed.issuer)))
    .orderBy(asc(trusts.createdAt), asc(trusts.id));
  // The claims are compared first, so that only a token that would be accepted makes the gateway fetch keys.
  const trust = candidates.find(
    ({ audience, claims }) =>
      [claimed.payload.aud].flat().includes(audience) && hasClaims(claimed.payload, claims),
  );
  if (!trust) return refused('no_trust');
  const timing = { now, waitUntil: context.waitUntil, isLocal: isLocalGateway(settings) };
  const problem = await idTokenProblem(token, claimed, trust.audience, timing);
  if (!problem.ok) return problem;
  if (problem.value) return refused(problem.value);
  const record = await machineRecord(database, { type: 'workload', id: trust.id }, now);
  if (!record) return refused('trust_gone');
  const isFirst = await new SingleUse(context.limiters, 'id_token', identityOf(token, claimed)).consume();
  if (!isFirst.ok) return isFirst;
  if (!isFirst.value) return refused('token_used');
  const recorded = await recordIssue(record, claimed.payload.sub, context);
  if (!recorded.ok) return recorded;
  const issuedAt = now;
  const expiresAt = new Date(now.getTime() + TOKEN_SECONDS * 1000);
  return ok({
    token: await signOwnToken(settings, 'workload', { sub: trust.id }, { issuedAt, expiresAt }),
    expiresInSeconds: TOKEN_SECONDS,
    scopes: record.scopes.map((scope) => `${settings.SERVICE_NAME}:${scope}`),
  });
}

/** The project whose URL this is; null for any other text. */
function projectIn(resource: string, { BASE_URL }: Settings): string | null {
  const prefix = BASE_URL + PROJECT_PATH;
  if (!resource.startsWith(prefix)) return null;
  return z.uuid().toLowerCase().safeParse(resource.slice(prefix.length)).data ?? null;
}

/**
 * Audits the token with the subject that got it.
 * @returns or invalid_request if the trust was deleted, or its project has moved to another tenant
 */
export async function recordIssue(
  record: MachineRecord,
  subject: string | undefined,
  { database, client, now }: Pick<Context, 'database' | 'client' | 'now'>,
): Promise<Result<unknown, Failure>> {
  const db = openDatabase(database);
  const { type, id, creator, tenantId } = record;
  const actor = { userId: creator.id, email: creator.email, tenantId, machine: { type, id }, ...client };
  const about = { projectId: record.projectId ?? '', metadata: { subject: subject?.slice(0, 256) ?? null } };
  const event = auditEvent('trust.token_issued', actor, about, now);
  const isThere = sql`exists (select 1 from ${trusts} join ${projects} on ${projects.id} = ${trusts.projectId}
    where ${trusts.id} = ${id} and ${projects.tenantId} = ${tenantId})`;
  return guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere, refusal('trust_gone')]],
    rest: (isWritten) => [
      db
        .update(trusts)
        .set({ lastUsedAt: now })
        .where(and(eq(trusts.id, id), isWritten)),
    ],
  });
}
