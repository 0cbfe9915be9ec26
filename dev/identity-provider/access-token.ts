import { PublicProtocol } from 'paseto';
import { SignFactory } from 'paseto/v4/public';
import { globalUserId } from './accounts.ts';
import { signingKey } from './key-ring.ts';

const v4 = new PublicProtocol(SignFactory);

/** Claims of spec 2.8, before they have their wire form. */
export interface AccessClaims {
  email: string;
  /** As the provider says it; the gateway normalizes it (spec 5.7). */
  role: string;
  /** Left out, the token belongs to no organization. */
  tenant?: string | undefined;
  scopes: readonly string[];
  issuedAt: Date;
  expiresAt: Date;
}

/** An access token as `v4.public` PASETO, signed with the current key (spec 5.1). */
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

/** `branchgate:read` and the like (spec 2.8); `serviceName` as the gateway's setting `SERVICE_NAME`. */
export const scopeNames = (scopes: readonly string[], serviceName = 'branchgate') =>
  scopes.map((scope) => `${serviceName}:${scope}`);
