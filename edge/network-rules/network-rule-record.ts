import type { networkRules } from '../database/schema.ts';

export type NetworkRuleRow = typeof networkRules.$inferSelect;

/** @param applied both ports are known to obey it */
export const networkRuleRecord = (row: NetworkRuleRow, applied: boolean) => ({
  id: row.id,
  project_id: row.projectId,
  branch_id: row.branchId,
  cidr: row.cidr,
  description: row.description,
  source: row.source,
  status: applied ? 'applied' : 'pending',
  created_by: row.createdBy,
  created_at: row.createdAt.toISOString(),
});
