import { type SQL, sql } from 'drizzle-orm';
import type { projectBranches, projects, users } from './schema.ts';

/** Condition of a write: the project, branch or user may have moved to another tenant since it was read. */
export const isOfTenant = (
  table: typeof projects | typeof projectBranches | typeof users,
  id: string,
  tenantId: string,
): SQL => sql`exists (select 1 from ${table} where id = ${id} and tenant_id = ${tenantId})`;
