import { and, asc, eq, inArray, lte, sql } from 'drizzle-orm';
import { noActor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, networkRules } from '../database/schema.ts';
import { nextAccessRevision } from './access-revision.ts';

/** Rules that end in one batch, each with an audit event. The next alarm ends the others. */
const AT_MOST = 50;

/** Removes rules of the project whose end has come, with their audit events, in one batch that also changes the access. */
export async function expireRules(db: Database, projectId: string, now: Date): Promise<void> {
  const rules = await db
    .select()
    .from(networkRules)
    .where(and(eq(networkRules.projectId, projectId), lte(networkRules.expiresAt, now)))
    .orderBy(asc(networkRules.expiresAt))
    .limit(AT_MOST);
  if (rules.length === 0) return;
  const ids = rules.map(({ id }) => id);
  // One that was extended meanwhile stays.
  const due = and(inArray(networkRules.id, ids), lte(networkRules.expiresAt, now));
  await inOneBatch(db, [
    ...rules.map(({ id, branchId, tenantId, cidr, expiresAt }) => {
      const metadata = { rule_id: id, cidr, expires_at: expiresAt?.toISOString() };
      const about = { projectId, ...(branchId && { branchId }), metadata };
      const event = auditEvent('network_rule.expired', noActor(tenantId), about, now);
      const isDue = sql`exists (select 1 from ${networkRules} where ${and(due, eq(networkRules.id, id))})`;
      return insertIf(db, auditEvents, event, isDue);
    }),
    nextAccessRevision(db, projectId, sql`exists (select 1 from ${networkRules} where ${due})`),
    db.delete(networkRules).where(due),
  ]);
}

/** When the next rule of the project ends, in Unix milliseconds; infinite if none will. */
export async function nextRuleEnd(db: Database, projectId: string): Promise<number> {
  const [found] = await db
    .select({ end: sql<number | null>`min(${networkRules.expiresAt})` })
    .from(networkRules)
    .where(eq(networkRules.projectId, projectId));
  return found?.end ?? Number.POSITIVE_INFINITY;
}
