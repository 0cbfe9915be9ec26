import { and, eq, type SQL, sql } from 'drizzle-orm';
import type { Database } from '../database/database.ts';
import { projects } from '../database/schema.ts';

/** A change of the access comes with a new revision, so that the host can tell old from new. */
export const nextAccessRevision = (db: Database, projectId: string, condition: SQL) =>
  db
    .update(projects)
    .set({ accessRevision: sql`access_revision + 1` })
    .where(and(eq(projects.id, projectId), condition));

/** Notes that both ports obey this revision. */
export const confirmAccess = (db: Database, projectId: string, revision: number) =>
  db
    .update(projects)
    .set({ accessApplied: sql`max(access_applied, ${revision})` })
    .where(eq(projects.id, projectId));
