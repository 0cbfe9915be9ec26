import { z } from 'zod';
import { Cidr } from '../access/cidr-field.ts';
import { ROLES } from '../authentication/role.ts';
import { BranchPattern } from '../branches/branch-pattern.ts';
import type { apiKeys } from '../database/machine-schema.ts';

export type ApiKeyRow = typeof apiKeys.$inferSelect;

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

export const NewApiKey = z
  .strictObject({
    name: z.string().trim().min(1).max(100),
    role: MachineRole,
    scopes: z.array(Scope).min(1).max(2),
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
  project_id: row.projectId,
  branch_pattern: row.branchPattern,
  cidrs: row.cidrs,
  expires_at: row.expiresAt.toISOString(),
  last_used_at: row.lastUsedAt?.toISOString() ?? null,
  created_by: row.createdBy,
  created_at: row.createdAt.toISOString(),
});
