import { and, eq, type SQL, sql } from 'drizzle-orm';
import type { Database } from '../database/database.ts';
import { projects } from '../database/schema.ts';

/** A change of the access comes with a new revision, so that the host can tell old from new. */
export const nextAccessRevision = (db: Database, projectId: string, condition: SQL) =>
  db
    .update(projects)
    .set({ accessRevision: sql`access_revision + 1` })
    .where(and(eq(projects.id, projectId), condition));

/**
 * For a branch that goes: whatever is on its way to the host with the branch's rules in it gets a newer revision behind
 * it, without them. One that was confirmed needs none: what comes with it again changes no rules.
 */
export const withdrawAccess = (db: Database, projectId: string, condition: SQL) =>
  nextAccessRevision(db, projectId, sql`access_applied < access_revision and ${condition}`);

/** Notes that both ports obey this revision. */
export const confirmAccess = (db: Database, projectId: string, revision: number) =>
  db
    .update(projects)
    .set({ accessApplied: sql`max(access_applied, ${revision})` })
    .where(eq(projects.id, projectId));
