import { and, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import { environmentName } from '../../shared/branch/database-name.ts';
import { BRANCH_ROLES, type BranchRole, loginName } from '../../shared/branch/login.ts';
import type { Failure } from '../../shared/failures.ts';
import type { Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { makePassword, openPassword, scramVerifier, sealPassword } from '../crypto/scram.ts';
import type { SecretKey } from '../crypto/seal.ts';
import type { Actor } from '../database/column-types.ts';
import { isOfTenant, onActiveBranch } from '../database/conditions.ts';
import { type Database, insertIf, isOneOf, type Statement } from '../database/database.ts';
import {
  auditEvents,
  type BranchRow,
  branchCredentials,
  type hosts,
  projectBranches,
  projects,
} from '../database/schema.ts';
import { CaCertificate } from '../hosts/enrolment.ts';
import { type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { nextAccessRevision } from './send-access.ts';

type CredentialsRow = typeof branchCredentials.$inferSelect;

/** A login with its new password. */
type SealedPassword = Pick<CredentialsRow, 'branchId' | 'role' | 'keyId' | 'sealedPassword'>;

/** New sealed passwords for these logins of each branch. */
export const newPasswords = (
  keys: readonly SecretKey[],
  branchIds: readonly string[],
  roles: readonly BranchRole[] = BRANCH_ROLES,
): Promise<SealedPassword[]> =>
  Promise.all(
    branchIds.flatMap((branchId) =>
      roles.map(async (role) => {
        const { keyId, sealed } = await sealPassword(keys, branchId, role, makePassword());
        return { branchId, role, keyId, sealedPassword: sealed };
      }),
    ),
  );

/** The rows of a new branch's three logins. */
export const newCredentials = async (
  keys: readonly SecretKey[],
  branchId: string,
  now: Date,
): Promise<CredentialsRow[]> =>
  (await newPasswords(keys, [branchId])).map((password) => ({ ...password, revision: 0, updatedAt: now }));

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

/** The verifiers of the three logins of a branch. @throws Error if a row is missing or cannot be unsealed */
export async function verifiersOf(keys: readonly SecretKey[], rows: readonly CredentialsRow[]) {
  const verifier = async (role: BranchRole) => scramVerifier(await passwordOf(keys, rows, role));
  const [owner, read_write, read_only] = await Promise.all([
    verifier('owner'),
    verifier('read_write'),
    verifier('read_only'),
  ]);
  return { owner, read_write, read_only };
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
        'Present if no network rule lets an address of the caller connect, with the call that adds one.',
    }),
    missing_networks: z
      .array(z.string())
      .optional()
      .meta({
        description: 'The addresses that the warning is about, as networks.',
        example: ['203.0.113.7/32'],
      }),
  })
  .meta({ id: 'Credentials' });

/** Contains passwords: it must go to the client only, never to a log. @param host with the address for the URLs */
export async function toCredentialsResponse(
  keys: readonly SecretKey[],
  branch: BranchRow,
  rows: readonly CredentialsRow[],
  host: Pick<typeof hosts.$inferSelect, 'dbHost' | 'pooledPort' | 'directPort' | 'caCertificate'>,
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

/**
 * Records that the branch's credentials are shown. Changes nothing if the branch has moved to another tenant
 * since it was read: its events moved as well (specification 5.9), and the former tenant must not see the
 * credentials.
 */
export function auditedView(
  db: Database,
  { id: branchId, projectId }: BranchRow,
  role: CredentialsView,
  actor: Actor,
  now: Date,
): Statement {
  const event = auditEvent(
    'branch.credentials.viewed',
    actor,
    { projectId, branchId, metadata: { role } },
    now,
  );
  return insertIf(db, auditEvents, event, isOfTenant(projectBranches, branchId, actor.tenantId));
}

/**
 * Replaces passwords under a new access revision. Applying the access puts them into effect and ends the
 * sessions of the old ones.
 */
export function rotationStatements(
  db: Database,
  projectId: string,
  passwords: readonly SealedPassword[],
  condition: SQL,
  now: Date,
): Statement[] {
  // One parameter for all of them, because a statement on D1 has at most 100.
  const byLogin = JSON.stringify(
    Object.fromEntries(
      passwords.map(({ branchId, role, keyId, sealedPassword }) => [
        `${branchId} ${role}`,
        [keyId, sealedPassword],
      ]),
    ),
  );
  const { branchId, role } = branchCredentials;
  const replaced = (n: number) =>
    sql<string>`json_extract(${byLogin}, '$."' || ${branchId} || ' ' || ${role} || ${`"[${n}]`})`;
  return [
    nextAccessRevision(db, projectId, condition),
    db
      .update(branchCredentials)
      .set({
        keyId: replaced(0),
        sealedPassword: replaced(1),
        revision: sql`(select access_revision from ${projects} where id = ${projectId})`,
        updatedAt: now,
      })
      .where(
        and(
          isOneOf(
            branchId,
            passwords.map((password) => password.branchId),
          ),
          sql`${replaced(0)} is not null`,
          condition,
        ),
      ),
  ];
}

/** Stores new passwords of one branch, in one batch. */
export async function storeRotation(
  db: Database,
  keys: readonly SecretKey[],
  { projectId, branchId, roles, actor, keyUse }: Rotation,
  now: Date,
): Promise<Result<unknown, Failure>> {
  const about = { projectId, branchId, metadata: { roles } };
  const event = auditEvent('branch.credentials.rotated', actor, about, now);
  const passwords = await newPasswords(keys, [branchId], roles);
  return writeUnderKey(
    db,
    // The key stores no passwords: a repeated request reads the current ones.
    { use: keyUse, subjectId: event.id, now, response: { status: 200, body: {} } },
    {
      decides: [auditEvents, event],
      require: onActiveBranch({ id: branchId, projectId }, actor.tenantId),
      rest: (isWritten) => rotationStatements(db, projectId, passwords, isWritten, now),
    },
  );
}

export interface Rotation {
  projectId: string;
  branchId: string;
  /** The logins that get new passwords. */
  roles: readonly BranchRole[];
  hostId: string;
  actor: Actor;
  keyUse: KeyUse | null;
}
