import { and, eq, ne } from 'drizzle-orm';
import { type AppContext, actorOf, databaseOf } from '../app-env.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { BoundedMap } from '../bounded-map.ts';
import type { Database } from '../database/database.ts';
import { auditEvents, jobs, projects } from '../database/schema.ts';

/** One event an hour for each user and project, so that asking on and on fills nobody's log. */
const QUIET_MS = 3_600_000;
const REMEMBERED = 10_000;
const lastTimes = new BoundedMap<string, number>(REMEMBERED);

/** Whether this did not happen within the last hour; from now on it did. */
function isNew(happening: string, now: Date): boolean {
  if (now.getTime() - (lastTimes.get(happening) ?? 0) < QUIET_MS) return false;
  lastTimes.set(happening, now.getTime());
  return true;
}

/** The project a thing belongs to, when that is another tenant's. */
const FOREIGN = {
  project: (db: Database, id: string, tenantId: string) =>
    db
      .select({ projectId: projects.id, tenantId: projects.tenantId })
      .from(projects)
      .where(and(eq(projects.id, id), ne(projects.tenantId, tenantId))),
  job: (db: Database, id: string, tenantId: string) =>
    db
      .select({ projectId: jobs.projectId, tenantId: jobs.tenantId })
      .from(jobs)
      .where(and(eq(jobs.id, id), ne(jobs.tenantId, tenantId))),
};

/**
 * When what was asked for belongs to another tenant, tells that tenant who asked: in its own audit log, not in
 * the asker's, where it would say that the thing exists. After the answer, whose time would say it too.
 */
export function recordDeniedAccess(c: AppContext, kind: keyof typeof FOREIGN, id: string): void {
  const { tenantId, userId } = c.var.principal;
  const now = new Date();
  if (!isNew(`${userId} asked for ${id}`, now)) return;
  const db = databaseOf(c);
  const note = async () => {
    const [foreign] = await FOREIGN[kind](db, id, tenantId);
    if (!foreign || !isNew(`${userId} was denied ${foreign.projectId}`, now)) return;
    // The asker's e-mail is theirs: the other tenant learns id and address.
    const actor = { ...actorOf(c), email: null, tenantId: foreign.tenantId };
    const about = { projectId: foreign.projectId, metadata: { method: c.req.method } };
    await db.insert(auditEvents).values(auditEvent('access.denied', actor, about, now));
  };
  c.executionCtx.waitUntil(note());
}
