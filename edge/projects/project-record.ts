import { maxSlugLength } from '../../shared/branch/database-name.ts';
import type { projects } from '../database/schema.ts';

export type ProjectRow = typeof projects.$inferSelect;

/** A project with its host's name and the number of its branches that count against the cap. */
export type ProjectView = ProjectRow & { hostName: string; branchCount: number };

export const projectRecord = (row: ProjectView) => ({
  id: row.id,
  name: row.name,
  app_key: row.appKey,
  env: row.env,
  status: row.status,
  branch_count: row.branchCount,
  branch_limit: row.branchLimit,
  max_slug_length: maxSlugLength(row.appKey, row.env),
  host: row.hostName,
  created_by: row.createdBy,
  tenant_id: row.tenantId,
  created_at: row.createdAt.toISOString(),
  updated_at: row.updatedAt.toISOString(),
});
