import { and, eq, ne } from 'drizzle-orm';
import type { Actor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { BoundedMap } from '../bounded-map.ts';
import type { Database } from '../database/database.ts';
import { auditEvents, jobs, projects } from '../database/schema.ts';

/** One event an hour for each user and project, so that repeated requests cannot fill an audit log. */
const QUIET_MS = 3_600_000;
const REMEMBERED = 10_000;
const lastTimes = new BoundedMap<string, number>(REMEMBERED);

/** Whether this event did not occur within the last hour. Remembers it. */
function isNew(event: string, now: Date): boolean {
  if (now.getTime() - (lastTimes.get(event) ?? 0) < QUIET_MS) return false;
  lastTimes.set(event, now.getTime());
  return true;
}

/** Finds the project that an ID belongs to, if it is another tenant's. */
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
 * Audits a denied access to another tenant's project or job, in that tenant's log: in the actor's own log it would
 * reveal that the ID exists. Callers do not wait for it, because the response time would reveal it as well.
 * @param method of the HTTP request
 */
export async function recordDeniedAccess(
  db: Database,
  actor: Actor,
  method: string,
  { kind, id }: { kind: keyof typeof FOREIGN; id: string },
): Promise<void> {
  const { tenantId, userId } = actor;
  const now = new Date();
  if (!isNew(`${userId} requested ${id}`, now)) return;
  const [foreign] = await FOREIGN[kind](db, id, tenantId);
  if (!foreign || !isNew(`${userId} was denied ${foreign.projectId}`, now)) return;
  // The other tenant gets the actor's ID and address, not the e-mail address.
  const deniedActor = { ...actor, email: null, tenantId: foreign.tenantId };
  const about = { projectId: foreign.projectId, metadata: { method } };
  await db.insert(auditEvents).values(auditEvent('access.denied', deniedActor, about, now));
}
