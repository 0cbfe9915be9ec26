import { eq, sql } from 'drizzle-orm';
import { type Database, isOneOf, type Statement } from '../database/database.ts';
import { auditEvents, projects } from '../database/schema.ts';

/**
 * Gives events of a job the tenant of their project (specification 5.9): the user may have moved to another tenant since
 * the job was created. It follows their insertion in the same batch.
 */
export const inTenantOfProject = (db: Database, projectId: string, eventIds: readonly string[]): Statement =>
  db
    .update(auditEvents)
    .set({
      tenantId: sql`${db.select({ tenantId: projects.tenantId }).from(projects).where(eq(projects.id, projectId))}`,
    })
    .where(isOneOf(auditEvents.id, eventIds));
