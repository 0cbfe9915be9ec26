import { globSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { inject } from 'vitest';
import { accessToken, SCOPES, scopeNames } from '../../dev/identity-provider/access-token.ts';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { Api } from './api.ts';

/** Test files share one stack, so the names of tenants differ per run and file. */
const RUN = Date.now().toString(36);
export const tenantNamed = (name: string) => `${name}-${RUN}`;

export interface TokenOptions {
  tenant: string | null;
  role?: string;
  email?: string;
  scope?: (typeof SCOPES)[number];
  /** Seconds; negative for a token that has expired. */
  expiresIn?: number;
}

/**
 * Signs a token as the local identity provider.
 * @param devDir folder of the stack; default: the shared one
 */
export function tokenOf(
  { tenant, role = 'owner', email, scope, expiresIn = 3600 }: TokenOptions,
  devDir = inject('stack').devDir,
): Promise<string> {
  const issuedAt = new Date();
  return accessToken(devFolder(devDir).identityProvider, {
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

/** Opens the API as an owner of that tenant. */
export const ownerOf = (tenant: string): Promise<Api> => apiOf({ tenant });

/** Runs a query on the file of the gateway's D1. */
export const readD1 = <R>(sql: string, ...values: string[]): R[] =>
  inD1(inject('stack').devDir, (database) => database.prepare(sql).all(...values) as R[]);

/**
 * Reads every row of every table of the gateway's D1, without what the local D1 itself keeps: it counts its
 * bookmarks, also those of reads.
 */
export const contentOfD1 = (devDir = inject('stack').devDir): Record<string, Record<string, unknown>[]> =>
  inD1(devDir, (database) => {
    const tables = database
      .prepare("select name from sqlite_master where type = 'table' and name not glob '_cf_*'")
      .all();
    return Object.fromEntries(
      tables.map(({ name }) => [name, database.prepare(`select * from "${name}"`).all()]),
    );
  });

/** By the folder of the stack: the search for it takes longer than a query. */
const D1_FILES = new Map<string, string>();

function inD1<T>(devDir: string, work: (database: DatabaseSync) => T): T {
  const known = D1_FILES.get(devDir);
  const [file = ''] = known ? [known] : globSync(join(devFolder(devDir).gatewayState, '**/d1/**/*.sqlite'));
  if (file) D1_FILES.set(devDir, file);
  const database = new DatabaseSync(file, { readOnly: true, timeout: 30_000 });
  try {
    return work(database);
  } finally {
    database.close();
  }
}
