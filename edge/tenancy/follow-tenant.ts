import { and, eq, inArray, isNull, notInArray, or, sql } from 'drizzle-orm';
import { union } from 'drizzle-orm/sqlite-core';
import type { Database, Statement } from '../database/database.ts';
import {
  auditEvents,
  jobs,
  networkRules,
  organizationMembers,
  organizations,
  projectBranches,
  projects,
} from '../database/schema.ts';
import { settledUserId, type TenantIdentity } from './upsert-user.ts';

/**
 * Takes what is the user's to the tenant of this token (spec 5.9): projects, with all that belongs to them
 * whoever made it, and audit events. What the user did in projects of others stays with those projects.
 * Runs in the batch that changes the user's tenant, after that change, and does nothing when that did nothing.
 */
export function followTenant(db: Database, token: TenantIdentity): Statement[] {
  const { tenantId } = token;
  const settled = settledUserId(db, token);
  const ownProjects = db
    .select({ id: projects.id })
    .from(projects)
    .where(inArray(projects.createdBy, settled));
  // Jobs and audit events outlive their project; then its `project.created` still says whose it was.
  const everOwnProjects = union(
    ownProjects,
    db
      .select({ id: sql<string>`${auditEvents.projectId}` })
      .from(auditEvents)
      .where(and(eq(auditEvents.name, 'project.created'), inArray(auditEvents.actorId, settled))),
  );
  return [
    db
      .delete(organizationMembers)
      .where(
        and(
          inArray(organizationMembers.userId, settled),
          notInArray(
            organizationMembers.organizationId,
            db
              .select({ id: organizations.id })
              .from(organizations)
              .where(eq(organizations.idpTenantId, tenantId)),
          ),
        ),
      ),
    db.update(projectBranches).set({ tenantId }).where(inArray(projectBranches.projectId, ownProjects)),
    db.update(networkRules).set({ tenantId }).where(inArray(networkRules.projectId, ownProjects)),
    db
      .update(jobs)
      .set({ tenantId, input: sql`json_set(${jobs.input}, '$.actor.tenantId', ${tenantId})` })
      .where(inArray(jobs.projectId, everOwnProjects)),
    db
      .update(auditEvents)
      .set({ tenantId })
      .where(
        or(
          inArray(auditEvents.projectId, everOwnProjects),
          and(isNull(auditEvents.projectId), inArray(auditEvents.actorId, settled)),
        ),
      ),
    db.update(projects).set({ tenantId }).where(inArray(projects.createdBy, settled)),
  ];
}
