import type { projectBranches } from '../database/schema.ts';

export type BranchRow = typeof projectBranches.$inferSelect;

const iso = (moment: Date | null) => moment?.toISOString() ?? null;

/** A branch as the create response shows it (spec 2.2 without `deleted_at` and `updated_at`). */
export const createdBranchRecord = (row: BranchRow) => ({
  id: row.id,
  project_id: row.projectId,
  parent_branch_id: row.parentBranchId,
  branch_name: row.branchName,
  database_name: row.databaseName,
  source_database: row.sourceDatabase,
  status: row.status,
  lifespan: row.lifespan,
  expires_at: iso(row.expiresAt),
  ttl_seconds: row.ttlSeconds,
  is_default: row.isDefault,
  protected: row.protected,
  created_by: row.createdBy,
  tenant_id: row.tenantId,
  created_at: row.createdAt.toISOString(),
});

/** A branch in lists, look-ups and changes: every field of spec 2.2 but `deleted_at`. */
export const branchRecord = (row: BranchRow) => ({
  ...createdBranchRecord(row),
  updated_at: row.updatedAt.toISOString(),
});
