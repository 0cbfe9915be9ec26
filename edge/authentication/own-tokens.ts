import { decodeJwt, decodeProtectedHeader, errors, jwtVerify, SignJWT } from 'jose';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import { decodeBase64url } from '../crypto/encoding.ts';
import type { SecretKey } from '../crypto/seal.ts';
import { rejected } from './rejection.ts';

/** The settings used here. */
export interface OwnTokenSettings {
  SERVICE_NAME: string;
  BASE_URL: string;
  JWT_KEYS: readonly SecretKey[];
}

const Text = z.string().min(1);

/** The identity provider of a tenant by which a person signed in. */
const SignedInAt = z.object({ id: z.uuid(), issuer: Text });

/** Valid on every route of the API, for `JWT_ACCESS_TTL_SECONDS`. */
const AccessClaims = z.object({
  /** Id of the account, or of the person of an identity provider. */
  sub: Text,
  email: Text,
  role: Text,
  scp: z.array(z.string()),
  tenant_id: Text,
  /** The session that it was issued in. */
  sid: z.uuid(),
  idp: SignedInAt.optional(),
  iat: z.number(),
  exp: z.number(),
});

/** Valid for one refresh, for `JWT_REFRESH_TTL_SECONDS`. */
const RefreshClaims = z.object({
  sub: Text,
  sid: z.uuid(),
  idp: SignedInAt.optional(),
  jti: z.uuid(),
});

/** Valid for the second step of one sign-in (specification 5). */
const PreAuthClaims = z.object({
  /** The user, identified by issuer and `gid`. */
  user: z.object({ issuer: Text, gid: Text, email: Text }),
  /** `verify`: a code of the enrolled factor is required; `setup`: a factor has to be enrolled. */
  step: z.enum(['verify', 'setup']),
  first_factor: z.enum(['password', 'email']),
  /**
   * The identity provider's tokens, sealed until the second factor has passed; null for a gateway account.
   */
  sealed: z.object({ keyId: z.string(), sealed: z.string() }).nullable(),
  /** The `version` of the gateway account; null for a user of the provider. */
  version: z.int().nullable(),
  jti: z.uuid(),
});

/** Valid for 15 minutes on every route that the trust of a workload admits. */
const WorkloadClaims = z.object({
  /** Id of the trust. */
  sub: z.uuid(),
  exp: z.number(),
});

/** Valid for 15 minutes at `/mcp` only. */
const McpClaims = z.object({
  /** Id of the grant. */
  sub: z.uuid(),
  /** What the client asked for, which may be less than the grant has. */
  scp: z.array(z.string()),
  exp: z.number(),
});

/** Valid for one refresh of the access token of a client of `/mcp`. */
const McpRefreshClaims = z.object({
  /** Id of the grant. */
  sub: z.uuid(),
  jti: z.uuid(),
});

/** Each kind has its own audience, so that no token is accepted as another kind (RFC 8725 section 3.9). */
const KINDS = {
  access: AccessClaims,
  refresh: RefreshClaims,
  pre_auth: PreAuthClaims,
  workload: WorkloadClaims,
  mcp: McpClaims,
  mcp_refresh: McpRefreshClaims,
};

type Kind = keyof typeof KINDS;
export type OwnClaims<K extends Kind> = z.output<(typeof KINDS)[K]>;
export type PreAuth = OwnClaims<'pre_auth'>;

const ALGORITHM = 'HS256';

/** The path of the Model Context Protocol. */
export const MCP_PATH = '/mcp';

/** The resource that clients of the Model Context Protocol get tokens for (RFC 8707). */
export const mcpResource = ({ BASE_URL }: Pick<OwnTokenSettings, 'BASE_URL'>): string => BASE_URL + MCP_PATH;

const audienceOf = (kind: Kind, settings: OwnTokenSettings) =>
  kind === 'mcp' ? mcpResource(settings) : `${settings.SERVICE_NAME}:${kind}`;

const seconds = (timestamp: Date) => Math.floor(timestamp.getTime() / 1000);

/** Signs a JWT of the gateway (RFC 7519) with the first key. @param expiresAt whole seconds */
export async function signOwnToken<K extends Kind>(
  settings: OwnTokenSettings,
  kind: K,
  claims: Omit<OwnClaims<K>, 'iat' | 'exp'>,
  { issuedAt, expiresAt }: { issuedAt: Date; expiresAt: Date },
): Promise<string> {
  const [key] = settings.JWT_KEYS;
  if (!key) throw new Error('no key to sign with');
  return new SignJWT({ ...claims })
    .setProtectedHeader({ alg: ALGORITHM, kid: key.id, typ: 'JWT' })
    .setIssuer(settings.BASE_URL)
    .setAudience(audienceOf(kind, settings))
    .setIssuedAt(seconds(issuedAt))
    .setExpirationTime(seconds(expiresAt))
    .sign(key.bytes);
}

const OF_MACHINES = ['workload', 'mcp'] as const;

/**
 * The kind of machine that the token claims to be of; null for other tokens. It selects how the token is verified, and proves
 * nothing.
 */
export function claimedMachineKind(
  settings: OwnTokenSettings,
  token: string,
): (typeof OF_MACHINES)[number] | null {
  if (!token.startsWith('ey')) return null;
  try {
    const { aud } = decodeJwt(token);
    return OF_MACHINES.find((kind) => aud === audienceOf(kind, settings)) ?? null;
  } catch {
    return null;
  }
}

const COMPACT_FORM = /^[\w-]+\.[\w-]+\.[\w-]+$/;

/** Whether the text has three parts in canonical base64url, so that a signed token has only one encoding. */
const isCanonicalJwt = (token: string): boolean =>
  COMPACT_FORM.test(token) && token.split('.').every((part) => decodeBase64url(part) !== null);

/**
 * The claims of a token of this kind. The algorithm is fixed and the token's header only selects one of our
 * keys, which rules out `none` and a public key used as a secret (RFC 8725 section 3.1).
 * @returns or UNAUTHENTICATED
 */
export async function verifyOwnToken<K extends Kind>(
  settings: OwnTokenSettings,
  kind: K,
  token: string,
  now: Date,
): Promise<Result<OwnClaims<K>, Failure>> {
  if (!isCanonicalJwt(token)) return rejected('token_kind_unknown');
  try {
    const { kid } = decodeProtectedHeader(token);
    const key = settings.JWT_KEYS.find(({ id }) => id === kid);
    if (!key) return rejected('key_unknown');
    const { payload } = await jwtVerify(token, key.bytes, {
      algorithms: [ALGORITHM],
      issuer: settings.BASE_URL,
      audience: audienceOf(kind, settings),
      requiredClaims: ['exp', 'iat'],
      currentDate: now,
    });
    return ok(KINDS[kind].parse(payload) as OwnClaims<K>);
  } catch (error) {
    if (error instanceof errors.JWTExpired) return rejected('token_expired');
    if (error instanceof errors.JWSSignatureVerificationFailed) return rejected('signature_wrong');
    if (error instanceof errors.JOSEError || error instanceof TypeError) return rejected('own_token_wrong');
    if (error instanceof z.ZodError) return rejected('claims_wrong');
    throw error;
  }
}
