import { and, eq, sql } from 'drizzle-orm';
import { base64url } from 'jose';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, type Result } from '../../shared/result.ts';
import { Cidr } from '../access/network-rule.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Actor, KEY_PERMISSIONS, ROLES } from '../database/column-types.ts';
import { isOfTenant } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { type ApiKeyRow, apiKeys } from '../database/people-schema.ts';
import { auditEvents, projects, users } from '../database/schema.ts';
import { type KeyUse, type StoredResponse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { missing } from '../missing.ts';
import { BranchPattern } from '../tenancy/branch-pattern.ts';

/**
 * `bg_<id>_<secret><checksum>`: an ID of 16 characters, 32 random bytes in base64url, and the CRC-32 of all before it
 * in hexadecimal. A scanner recognises a leaked key by its form and its checksum, without asking the gateway.
 */
const API_KEY = /^bg_([0-9a-z]{16})_([\w-]{43})([0-9a-f]{8})$/;
const PREFIX = 'bg_';
const ID_LENGTH = 16;
const ID_ALPHABET = 'abcdefghijklmnopqrstuvwxyz234567';
const SECRET_BYTES = 32;

/** The reversed polynomial of CRC-32 (ISO 3309), as in zlib. */
const POLYNOMIAL = 0xedb88320;

export interface ApiKeyParts {
  id: string;
  secret: string;
}

export const isApiKey = (token: string): boolean => token.startsWith(PREFIX);

function checksumOf(text: string): string {
  let crc = 0xffffffff;
  for (const byte of new TextEncoder().encode(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ POLYNOMIAL : crc >>> 1;
  }
  return ((crc ^ 0xffffffff) >>> 0).toString(16).padStart(8, '0');
}

const random = (bytes: number) => crypto.getRandomValues(new Uint8Array(bytes));

/** A new key: 80 random bits to name it and 256 to prove it. */
export function makeApiKey(): ApiKeyParts & { key: string } {
  const id = [...random(ID_LENGTH)].map((byte) => ID_ALPHABET[byte % ID_ALPHABET.length]).join('');
  const secret = base64url.encode(random(SECRET_BYTES));
  const text = `${PREFIX}${id}_${secret}`;
  return { id, secret, key: text + checksumOf(text) };
}

/** The parts of a key; null for a text that no gateway has made, so that a mistyped key costs no look-up. */
export function readApiKey(token: string): ApiKeyParts | null {
  const [, id, secret, checksum = ''] = API_KEY.exec(token) ?? [];
  if (id === undefined || secret === undefined) return null;
  return checksumOf(token.slice(0, -checksum.length)) === checksum ? { id, secret } : null;
}

const CIDRS_MAX = 50;
const DAYS_MAX = 365;

export const MachineRole = z.enum(ROLES).meta({
  description: 'At most the role of the caller. If the role of its creator becomes lower, that role applies.',
  example: 'operator',
});

const Scope = z
  .string()
  .regex(/^(?:[a-z][a-z0-9_-]*:)?(?:read|write)$/, 'expected <service>:read or <service>:write');

const Timestamp = z.iso.datetime();

const PERMISSIONS =
  '`data.full`: the key may use unmasked data in projects whose members get masked data only (`masked_only`).';

export const NewApiKey = z
  .strictObject({
    name: z.string().trim().min(1).max(100),
    role: MachineRole,
    scopes: z.array(Scope).min(1).max(2),
    permissions: z
      .array(z.enum(KEY_PERMISSIONS))
      .max(KEY_PERMISSIONS.length)
      .default([])
      .meta({ description: PERMISSIONS, example: [] }),
    project_id: z.uuid().toLowerCase().nullable().default(null),
    branch_pattern: BranchPattern.nullable().default(null),
    cidrs: z.array(Cidr).min(1).max(CIDRS_MAX).nullable().default(null),
    expires_in_days: z.int().min(1).max(DAYS_MAX),
  })
  .meta({
    example: {
      name: 'CI',
      role: 'operator',
      scopes: ['branchgate:write'],
      branch_pattern: 'pr-*',
      expires_in_days: 90,
    },
  });

export const ApiKey = z
  .strictObject({
    id: z.string().meta({ description: 'The readable part of the key.', example: 'k3v7q2xw5mza4d6b' }),
    name: z.string().meta({ example: 'CI' }),
    role: MachineRole,
    scopes: z.array(z.string()).meta({ example: ['branchgate:write'] }),
    permissions: z.array(z.enum(KEY_PERMISSIONS)).meta({ description: PERMISSIONS, example: [] }),
    project_id: z
      .uuid()
      .nullable()
      .meta({ description: 'The only project that the key can access. Null: those that its role reaches.' }),
    branch_pattern: BranchPattern.nullable().meta({
      description: 'The key can use only branches whose name matches. Null: every branch.',
      example: 'pr-*',
    }),
    cidrs: z
      .array(z.string())
      .nullable()
      .meta({
        description: 'Networks that the key can be used from. Null: all.',
        example: ['203.0.113.0/24'],
      }),
    expires_at: Timestamp,
    last_used_at: Timestamp.nullable().meta({ description: 'Exact to a minute. Null: never.' }),
    created_by: z.uuid().meta({ description: 'The user in whose name the key acts.' }),
    created_at: Timestamp,
  })
  .meta({ id: 'ApiKey' });

export const CreatedApiKey = ApiKey.extend({
  key: z.string().nullable().meta({
    description:
      'The bearer token. Null in a repeated response, because the key is not stored: revoke it and create another one.',
    example: 'bg_k3v7q2xw5mza4d6b_gRX2L0pQd1mUo9cV7yKzT4hJfWbNsE6iA3xD5vC8lZk1a2b3c4d',
  }),
}).meta({ id: 'CreatedApiKey' });

export const toApiKeyResponse = (row: ApiKeyRow, service: string): z.output<typeof ApiKey> => ({
  id: row.id,
  name: row.name,
  role: row.role,
  scopes: row.scopes.map((scope) => `${service}:${scope}`),
  permissions: row.permissions,
  project_id: row.projectId,
  branch_pattern: row.branchPattern,
  cidrs: row.cidrs,
  expires_at: row.expiresAt.toISOString(),
  last_used_at: row.lastUsedAt?.toISOString() ?? null,
  created_by: row.createdBy,
  created_at: row.createdAt.toISOString(),
});

const API_KEYS_MAX = 100;

const about = ({ id, name, role, permissions, projectId, branchPattern }: ApiKeyRow) => ({
  ...(projectId && { projectId }),
  metadata: {
    key_id: id,
    name,
    role,
    branch_pattern: branchPattern,
    ...(permissions.length > 0 && { permissions }),
  },
});

/**
 * Stores a key and audits it, in one batch.
 * @param response for a repeated request with the same Idempotency-Key; without the secret
 */
export async function insertApiKey(
  db: Database,
  row: ApiKeyRow,
  actor: Actor,
  keyUse: KeyUse | null,
  response: StoredResponse,
): Promise<Result<unknown, Failure>> {
  const { tenantId, projectId } = row;
  const count = sql`(select count(*) from ${apiKeys} where tenant_id = ${tenantId})`;
  const isUser = isOfTenant(users, row.createdBy, tenantId);
  const isProject = projectId ? isOfTenant(projects, projectId, tenantId) : sql`true`;
  const event = auditEvent('api_key.created', actor, about(row), row.createdAt);
  return writeUnderKey(
    db,
    { use: keyUse, subjectId: row.id, now: row.createdAt, response },
    {
      decides: [apiKeys, row],
      require: [
        [isUser, 'NOT_FOUND'],
        [isProject, missing('project')],
        [sql`${count} < ${API_KEYS_MAX}`, { code: 'API_KEY_LIMIT_REACHED', fields: { limit: API_KEYS_MAX } }],
      ],
      rest: (isWritten) => [insertIf(db, auditEvents, event, isWritten)],
    },
  );
}

/** Deletes a key and audits it, in one batch. */
export async function deleteApiKey(
  db: Database,
  id: string,
  actor: Actor,
  now: Date,
): Promise<Result<unknown, Failure>> {
  const theKey = and(eq(apiKeys.id, id), eq(apiKeys.tenantId, actor.tenantId));
  const [row] = await db.select().from(apiKeys).where(theKey);
  if (!row) return fail({ code: 'NOT_FOUND' });
  const event = auditEvent('api_key.deleted', actor, about(row), now);
  return guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere(apiKeys, theKey), 'NOT_FOUND']],
    rest: (isWritten) => [db.delete(apiKeys).where(and(theKey, isWritten))],
  });
}
