import { PublicProtocol } from 'paseto';
import { SignFactory } from 'paseto/v4/public';
import { globalUserId } from './accounts.ts';
import { signingKey } from './key-ring.ts';

const v4 = new PublicProtocol(SignFactory);

/** The claims of specification 2.8, before serialization. */
export interface AccessClaims {
  email: string;
  /** The role at the provider; the gateway maps it (specification 5.7). */
  role: string;
  /** Undefined for a user without an organization. */
  tenant?: string | undefined;
  scopes: readonly string[];
  issuedAt: Date;
  expiresAt: Date;
}

/** An access token as `v4.public` PASETO, signed with the current key (specification 5.1). */
export async function accessToken(stateDir: string, claims: AccessClaims): Promise<string> {
  const { kid, secretKey } = await signingKey(stateDir);
  const footer = new TextEncoder().encode(JSON.stringify({ kid, alg: 'v4.public', typ: 'paseto' }));
  const payload = {
    gid: globalUserId(claims.email),
    email: claims.email,
    role: claims.role,
    scp: [...claims.scopes],
    iat: claims.issuedAt.toISOString(),
    nbf: claims.issuedAt.toISOString(),
    exp: claims.expiresAt.toISOString(),
    ...(claims.tenant === undefined ? {} : { ctx: { tenant_id: claims.tenant } }),
  };
  return v4.Sign(secretKey, payload, { footer });
}

export const SCOPES = ['read', 'write'] as const;

/**
 * Scopes like `branchgate:read` (specification 2.8).
 * @param serviceName the gateway's setting `SERVICE_NAME`
 */
export const scopeNames = (scopes: readonly string[], serviceName = 'branchgate') =>
  scopes.map((scope) => `${serviceName}:${scope}`);
