import { globSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { inject } from 'vitest';
import { accessToken, SCOPES, scopeNames } from '../../dev/identity-provider/access-token.ts';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { Api } from './api.ts';

/** Tenants of different runs and files never meet, though the files share one stack. */
const RUN = Date.now().toString(36);
export const tenantNamed = (name: string) => `${name}-${RUN}`;

interface TokenOptions {
  tenant: string | null;
  role?: string;
  email?: string;
  scope?: (typeof SCOPES)[number];
  /** Seconds; negative for a token that has expired. */
  expiresIn?: number;
}

/** A token that the local identity provider signed. */
function tokenOf({ tenant, role = 'owner', email, scope, expiresIn = 3600 }: TokenOptions): Promise<string> {
  const issuedAt = new Date();
  return accessToken(devFolder(inject('stack').devDir).identityProvider, {
    email: email ?? `${role}@${tenant ?? 'nowhere'}.example`,
    tenant: tenant === null ? undefined : tenantNamed(tenant),
    role,
    scopes: scopeNames(scope ? [scope] : SCOPES),
    issuedAt,
    expiresAt: new Date(issuedAt.getTime() + expiresIn * 1000),
  });
}

export const apiOf = async (options: TokenOptions): Promise<Api> =>
  new Api(inject('stack').url, await tokenOf(options));

/** The API as an owner of that tenant. */
export const ownerOf = (tenant: string): Promise<Api> => apiOf({ tenant });

/** Rows of a query on the gateway's own D1, read from its file. */
export function readD1<R>(sql: string, ...values: string[]): R[] {
  const [file = ''] = globSync(join(devFolder(inject('stack').devDir).gatewayState, '**/d1/**/*.sqlite'));
  const database = new DatabaseSync(file, { readOnly: true });
  try {
    return database.prepare(sql).all(...values) as R[];
  } finally {
    database.close();
  }
}
