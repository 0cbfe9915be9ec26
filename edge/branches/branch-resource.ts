import { z } from 'zod';
import { BRANCH_STATUSES } from '../../shared/branch/branch-status.ts';
import { Labels } from '../../shared/branch/labels.ts';
import { RECORDED_LIFESPANS } from '../../shared/branch/lifespan.ts';
import type { projectBranches } from '../database/schema.ts';
import { Blocked, blockedOf, connectionsBlockedUntil } from './branch-blocks.ts';

export type BranchRow = typeof projectBranches.$inferSelect;

const Id = z.uuid();
const Timestamp = z.iso.datetime();

/** A branch as the create response shows it (specification 2.2 without `deleted_at` and `updated_at`). */
export const CreatedBranch = z
  .strictObject({
    id: Id,
    project_id: Id,
    parent_branch_id: Id.nullable().meta({ description: 'The branch that this one was cloned from.' }),
    branch_name: z.string().meta({ example: 'checkout-redesign' }),
    database_name: z.string().meta({ example: 'db_web_shop_prod_br_checkout-redesign' }),
    source_database: z
      .string()
      .meta({ description: 'The database that was cloned.', example: 'db_web_shop_prod' }),
    status: z.enum(BRANCH_STATUSES).meta({ example: 'active' }),
    lifespan: z.enum(RECORDED_LIFESPANS).meta({ description: '`custom`: created with `ttl_seconds`.' }),
    expires_at: Timestamp.nullable().meta({ description: 'Null: the branch does not expire.' }),
    ttl_seconds: z.int().nullable().meta({
      description: 'Length of the lifespan in seconds. Null: the branch does not expire.',
      example: 604_800,
    }),
    lease_seconds: z.int().nullable().meta({
      description: 'Length of the lease in seconds. Null: the branch has no lease.',
      example: null,
    }),
    lease_ends_at: Timestamp.nullable().meta({
      description: 'The branch is deleted then, unless its lease is renewed. Null: it has no lease.',
      example: null,
    }),
    labels: Labels,
    is_default: z.boolean().meta({ description: 'True for `main` only.', example: false }),
    protected: z.boolean().meta({
      description:
        'Its deletion, a reset and changes of rows need its name as `confirm`. `main` is protected from deletion, and from a reset without `confirm`.',
      example: false,
    }),
    created_by: Id,
    tenant_id: z.string().meta({ example: 'acme' }),
    created_at: Timestamp,
  })
  .meta({ id: 'CreatedBranch' });

/** A branch in lists, lookups and changes: every field of specification 2.2 except `deleted_at`, `deletes_at`, and its blocks. */
export const Branch = CreatedBranch.extend({
  deletes_at: Timestamp.nullable().meta({
    description:
      'When this expired branch will be deleted; of a deleted branch, until when it can be restored. Null: neither.',
  }),
  updated_at: Timestamp,
  blocked: Blocked.meta({
    description:
      'The database host accepts no connections to the branch until then, because its sessions took too much of what all branches of the host share. Null: not blocked.',
  }),
  connections_blocked_until: Timestamp.nullable().meta({
    description:
      'Connections are refused until then, because of too many connection attempts. Null: they are not.',
  }),
}).meta({ id: 'Branch' });

export const toCreatedBranchResponse = (row: BranchRow): z.output<typeof CreatedBranch> => ({
  id: row.id,
  project_id: row.projectId,
  parent_branch_id: row.parentBranchId,
  branch_name: row.branchName,
  database_name: row.databaseName,
  source_database: row.sourceDatabase,
  status: row.status,
  lifespan: row.lifespan,
  expires_at: row.expiresAt?.toISOString() ?? null,
  ttl_seconds: row.ttlSeconds,
  lease_seconds: row.leaseSeconds,
  lease_ends_at: row.leaseEndsAt?.toISOString() ?? null,
  labels: row.labels,
  is_default: row.isDefault,
  protected: row.protected,
  created_by: row.createdBy,
  tenant_id: row.tenantId,
  created_at: row.createdAt.toISOString(),
});

export const toBranchResponse = (row: BranchRow): z.output<typeof Branch> => ({
  ...toCreatedBranchResponse(row),
  deletes_at: row.deletesAt?.toISOString() ?? null,
  updated_at: row.updatedAt.toISOString(),
  blocked: blockedOf(row.blocks),
  connections_blocked_until: connectionsBlockedUntil(row.blocks),
});
