import { and, eq, type SQL, sql } from 'drizzle-orm';
import type { Database } from '../database/database.ts';
import { projects } from '../database/schema.ts';

/** Gives a change of the access a new revision, so that the host can distinguish old from new. */
export const nextAccessRevision = (db: Database, projectId: string, condition: SQL) =>
  db
    .update(projects)
    .set({ accessRevision: sql`access_revision + 1` })
    .where(and(eq(projects.id, projectId), condition));

/**
 * For a branch that is removed: if a revision with the branch's rules is still on its way to the host, a newer revision
 * without them follows it. A confirmed revision needs none, because sending it again changes no rules.
 */
export const withdrawAccess = (db: Database, projectId: string, condition: SQL) =>
  nextAccessRevision(db, projectId, sql`access_applied < access_revision and ${condition}`);

/** Whether the logins of the project's branches are closed because of its storage. */
export const isClosedProject = (projectId: string): SQL =>
  sql`exists (select 1 from ${projects} where id = ${projectId} and storage_state = 'closed')`;

/** For a branch that becomes active: in a closed project, a new revision closes it as well. */
export const closeWithProject = (db: Database, projectId: string, condition: SQL) =>
  nextAccessRevision(db, projectId, sql`${isClosedProject(projectId)} and ${condition}`);

/** Records that this revision is in effect on both ports. */
export const confirmAccess = (db: Database, projectId: string, revision: number) =>
  db
    .update(projects)
    .set({ accessApplied: sql`max(access_applied, ${revision})` })
    .where(eq(projects.id, projectId));
