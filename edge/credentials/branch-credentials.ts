import { z } from 'zod';
import { environmentName } from '../../shared/branch/database-name.ts';
import { BRANCH_ROLES, type BranchRole, loginName } from '../../shared/branch/login.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import type { branchCredentials, hosts } from '../database/schema.ts';
import { CaCertificate } from '../hosts/enrolment.ts';
import { makePassword, openPassword, sealPassword } from './password.ts';
import type { SecretKey } from './seal.ts';

type CredentialsRow = typeof branchCredentials.$inferSelect;

/** New sealed passwords for the three logins of a branch. */
export const newCredentials = (
  keys: readonly SecretKey[],
  branchId: string,
  now: Date,
): Promise<CredentialsRow[]> =>
  Promise.all(
    BRANCH_ROLES.map(async (role) => {
      const { keyId, sealed } = await sealPassword(keys, branchId, role, makePassword());
      return { branchId, role, keyId, sealedPassword: sealed, revision: 0, updatedAt: now };
    }),
  );

/** @throws Error if the row is missing or cannot be unsealed */
export async function passwordOf(
  keys: readonly SecretKey[],
  rows: readonly CredentialsRow[],
  role: BranchRole,
): Promise<string> {
  const row = rows.find((candidate) => candidate.role === role);
  if (!row) throw new Error(`the branch has no ${role} credentials`);
  return openPassword(keys, row.branchId, role, { keyId: row.keyId, sealed: row.sealedPassword });
}

/** The logins of the pooled and the direct URL: the specification's pair, or one login for both. */
const URL_ROLES: Record<'default' | 'read_only' | 'owner', { pooled: BranchRole; direct: BranchRole }> = {
  default: { pooled: 'read_write', direct: 'owner' },
  read_only: { pooled: 'read_only', direct: 'read_only' },
  owner: { pooled: 'owner', direct: 'owner' },
};

export type CredentialsView = keyof typeof URL_ROLES;

/** Specification 2.5. */
export const Credentials = z
  .strictObject({
    project_id: z.uuid(),
    branch_id: z.uuid(),
    branch_name: z.string().meta({ example: 'checkout-redesign' }),
    database: z.string().meta({ example: 'db_web_shop_prod_br_checkout-redesign' }),
    runtime_key: z.string().meta({
      description: 'Name of an environment variable for the pooled URL.',
      example: 'DATABASE_URL_WEB_SHOP_PROD_BR_CHECKOUT_REDESIGN',
    }),
    direct_key: z.string().meta({
      description: 'Name of an environment variable for the direct URL.',
      example: 'DIRECT_URL_WEB_SHOP_PROD_BR_CHECKOUT_REDESIGN',
    }),
    database_url: z.string().meta({
      description:
        'Through the pooler, as the read-write login; as another login on request. Settings (`SET`), temporary tables and session locks of a client reach the next client of the same login: use `SET LOCAL`, and `ON COMMIT DROP` for temporary tables.',
      example:
        'postgresql://u_3f2b8c1e6d4a4b0f9a571c2d3e4f5a6b_rw:PASSWORD@eu-1.db.example.com:6432/db_web_shop_prod_br_checkout-redesign?sslmode=require',
    }),
    direct_url: z.string().meta({
      description: 'Directly to PostgreSQL, as the owner login; as the read-only login on request.',
      example:
        'postgresql://u_3f2b8c1e6d4a4b0f9a571c2d3e4f5a6b_owner:PASSWORD@eu-1.db.example.com:5432/db_web_shop_prod_br_checkout-redesign?sslmode=require',
    }),
    ca_certificate: CaCertificate.meta({
      description:
        'The certificate of the authority to trust for these URLs, in PEM format: `sslrootcert` of libpq, `NODE_EXTRA_CA_CERTS` of Node. Null: a public authority, which clients trust already.',
    }),
    warning: z.string().optional().meta({
      description:
        'Present if no network rule lets the address of the caller connect, with the call that adds one.',
    }),
  })
  .meta({ id: 'Credentials' });

/** Contains passwords: it must go to the client only, never to a log. */
export async function toCredentialsResponse(
  keys: readonly SecretKey[],
  branch: BranchRow,
  rows: readonly CredentialsRow[],
  host: typeof hosts.$inferSelect,
  view: CredentialsView,
): Promise<z.output<typeof Credentials>> {
  const { pooled, direct } = URL_ROLES[view];
  const url = async (role: BranchRole, port: number) =>
    `postgresql://${loginName(branch.id, role)}:${await passwordOf(keys, rows, role)}@${host.dbHost}:${port}/${branch.databaseName}?sslmode=require`;
  const name = environmentName(branch.databaseName);
  return {
    project_id: branch.projectId,
    branch_id: branch.id,
    branch_name: branch.branchName,
    database: branch.databaseName,
    runtime_key: `DATABASE_URL_${name}`,
    direct_key: `DIRECT_URL_${name}`,
    database_url: await url(pooled, host.pooledPort),
    direct_url: await url(direct, host.directPort),
    ca_certificate: host.caCertificate,
  };
}
