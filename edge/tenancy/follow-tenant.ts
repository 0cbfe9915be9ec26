import { and, eq, inArray, or, sql } from 'drizzle-orm';
import { union } from 'drizzle-orm/sqlite-core';
import type { Database, Statement } from '../database/database.ts';
import { projectMembers } from '../database/people-schema.ts';
import {
  auditEvents,
  jobs,
  networkRules,
  organizationMembers,
  organizations,
  projectBranches,
  projects,
} from '../database/schema.ts';
import { snapshots } from '../database/snapshot-schema.ts';
import { settledUserId, type TenantIdentity } from './upsert-user.ts';

/**
 * Moves the user's projects, everything that belongs to them, and the user's audit events from the former tenant to
 * the tenant of this token (specification 5.9). The user's audit events in projects of others are not moved. What is
 * shared with the user, and whom the user's projects are shared with, ends.
 * Runs in the batch that changes the user's tenant, after that change, and has no effect if that had none.
 */
export function followTenant(db: Database, token: TenantIdentity, formerTenantId: string): Statement[] {
  const { tenantId } = token;
  const user = settledUserId(db, token);
  const projectsOfUser = () =>
    db.select({ id: projects.id }).from(projects).where(inArray(projects.createdBy, user));
  // Jobs and audit events outlive their project; its `project.created` event identifies the former creator.
  const projectsEverOfUser = union(
    projectsOfUser(),
    db
      .select({ id: sql<string>`${auditEvents.projectId}` })
      .from(auditEvents)
      .where(and(eq(auditEvents.name, 'project.created'), inArray(auditEvents.actorId, user))),
  );
  const formerOrganization = db
    .select({ id: organizations.id })
    .from(organizations)
    .where(eq(organizations.idpTenantId, formerTenantId));
  return [
    db
      .delete(organizationMembers)
      .where(
        and(
          inArray(organizationMembers.organizationId, formerOrganization),
          inArray(organizationMembers.userId, user),
        ),
      ),
    db
      .delete(projectMembers)
      .where(or(inArray(projectMembers.userId, user), inArray(projectMembers.projectId, projectsOfUser()))),
    db.update(projects).set({ tenantId }).where(inArray(projects.createdBy, user)),
    db.update(projectBranches).set({ tenantId }).where(inArray(projectBranches.projectId, projectsOfUser())),
    db.update(networkRules).set({ tenantId }).where(inArray(networkRules.projectId, projectsOfUser())),
    db.update(snapshots).set({ tenantId }).where(inArray(snapshots.projectId, projectsOfUser())),
    db
      .update(jobs)
      .set({ tenantId, input: sql`json_set(${jobs.input}, '$.actor.tenantId', ${tenantId})` })
      .where(inArray(jobs.projectId, projectsEverOfUser)),
    db
      .update(auditEvents)
      .set({ tenantId })
      .where(
        or(
          inArray(auditEvents.projectId, projectsEverOfUser),
          // The unary plus stops SQLite from using the project index, which would scan all events without a project.
          and(inArray(auditEvents.actorId, user), sql`+${auditEvents.projectId} is null`),
        ),
      ),
  ];
}
