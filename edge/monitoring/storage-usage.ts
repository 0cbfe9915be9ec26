import { and, eq, inArray, sql } from 'drizzle-orm';
import { ACCESS_OF_STATE, quotaBytes, type StorageState } from '../../shared/project/storage-quota.ts';
import { nextAccessRevision } from '../access/access-revision.ts';
import { noActor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projectBranches, projects } from '../database/schema.ts';
import type { ProjectRow } from '../projects/project-resource.ts';

/** A project with its branches that have a database. */
export interface StorageSubject {
  project: ProjectRow;
  branches: { id: string; branchName: string; status: 'creating' | 'active' | 'expired' }[];
}

const ON_RECORD = ['creating', 'active', 'expired'] as const;

/** Reads the project; null if it is not active. */
export async function readSubject(db: Database, projectId: string): Promise<StorageSubject | null> {
  const [[project], branches] = await db.batch([
    db
      .select()
      .from(projects)
      .where(and(eq(projects.id, projectId), eq(projects.status, 'active'))),
    db
      .select({
        id: projectBranches.id,
        branchName: projectBranches.branchName,
        status: projectBranches.status,
      })
      .from(projectBranches)
      .where(and(eq(projectBranches.projectId, projectId), inArray(projectBranches.status, ON_RECORD))),
  ]);
  return project ? { project, branches: branches as StorageSubject['branches'] } : null;
}

/** Smaller changes of the usage are not written to D1: one write a minute and project would be too many. */
const NOTABLE_BYTES = 1024 * 1024;

/**
 * Writes usage and state if they have changed notably. A change of the state is audited, and a change of what the
 * logins may do gets a new access revision, all in one batch.
 * @param project as it was read: the result is written only if the project has not changed since
 * @returns false if the project has changed
 */
export async function storeStorageUsage(
  db: Database,
  project: ProjectRow,
  { used, state }: { used: number; state: StorageState },
  now: Date,
): Promise<boolean> {
  const { id, tenantId, storageState: from, storageUsedBytes, storageQuotaGib } = project;
  const isFirst = project.storageMeasuredAt === null;
  if (state === from && !isFirst && Math.abs(used - storageUsedBytes) < NOTABLE_BYTES) return true;
  const asRead = and(
    eq(projects.id, id),
    eq(projects.status, 'active'),
    eq(projects.tenantId, tenantId),
    eq(projects.storageState, from),
    eq(projects.storageQuotaGib, storageQuotaGib),
  );
  const isUnchanged = sql`exists (select 1 from ${projects} where ${asRead})`;
  const metadata = { from, to: state, used_bytes: used, limit_bytes: quotaBytes(storageQuotaGib) };
  const about = { projectId: id, metadata };
  const event = auditEvent('project.storage_state.changed', noActor(tenantId), about, now);
  const changesAccess = ACCESS_OF_STATE[state] !== ACCESS_OF_STATE[from];
  const results = await inOneBatch(db, [
    ...(state === from ? [] : [insertIf(db, auditEvents, event, isUnchanged)]),
    ...(changesAccess ? [nextAccessRevision(db, id, isUnchanged)] : []),
    db
      .update(projects)
      .set({ storageUsedBytes: used, storageState: state, storageMeasuredAt: now })
      .where(asRead),
  ]);
  return hasChanged(results.at(-1));
}
