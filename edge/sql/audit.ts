import { sql } from 'drizzle-orm';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import { sha256 } from '../crypto/encoding.ts';
import type { AuditActor } from '../database/column-types.ts';
import type { Database } from '../database/database.ts';
import { auditEvents } from '../database/schema.ts';

/** Whose statements an event counts, with those of the same minute. */
interface Executed {
  tenantId: string;
  projectId: string;
  branchId: string;
  role: string;
  /** Null: a client with the password of the login. */
  actor: AuditActor | null;
}

interface Counts {
  requests: number;
  statements: number;
  refused: number;
}

/** Counts of this isolate are written together after this time, within which the runtime keeps it at work. */
const WRITTEN_AFTER_MS = 5_000;
const MINUTE_MS = 60_000;

/** Counts that are not written yet, by event. */
const waiting = new Map<string, Counts>();

/** A UUID of a text, so that every isolate writes the same event. */
async function idOf(text: string): Promise<string> {
  const digits = await sha256(text);
  return `${digits.slice(0, 8)}-${digits.slice(8, 12)}-8${digits.slice(13, 16)}-8${digits.slice(17, 20)}-${digits.slice(20, 32)}`;
}

const plus = (name: keyof Counts, more: number) =>
  sql`'$.${sql.raw(name)}', json_extract(${auditEvents.metadata}, '$.${sql.raw(name)}') + ${more}`;

/**
 * Counts a request in the audit event of its branch, login and minute. The first request of an isolate is written
 * immediately after its response, those of the next seconds together.
 * @param waitUntil keeps the isolate at work after the response
 */
export function auditExecuted(
  db: Database,
  { tenantId, projectId, branchId, role, actor }: Executed,
  more: Counts,
  now: Date,
  waitUntil: (work: Promise<unknown>) => void,
): void {
  const by = actor ? (actor.machine?.id ?? actor.userId) : null;
  const minute = Math.floor(now.getTime() / MINUTE_MS);
  const key = JSON.stringify(['sql.executed', tenantId, branchId, role, by, minute]);
  const counts = waiting.get(key);
  if (counts) {
    for (const name of ['requests', 'statements', 'refused'] as const) counts[name] += more[name];
    return;
  }
  const write = async ({ requests, statements, refused }: Counts) => {
    const metadata = { role, by: by === null ? 'password' : 'token', requests, statements, refused };
    const author = actor && { ...actor, ip: null, userAgent: null, requestId: null };
    const about = { id: await idOf(key), projectId, branchId, metadata };
    const event = auditEvent('sql.executed', author ?? noActor(tenantId), about, now);
    const sum = sql`json_set(${auditEvents.metadata}, ${plus('requests', requests)}, ${plus('statements', statements)}, ${plus('refused', refused)})`;
    await db
      .insert(auditEvents)
      .values(event)
      .onConflictDoUpdate({ target: auditEvents.id, set: { metadata: sum } });
  };
  waiting.set(key, { requests: 0, statements: 0, refused: 0 });
  const later = async () => {
    await new Promise((resolve) => setTimeout(resolve, WRITTEN_AFTER_MS));
    const rest = waiting.get(key);
    waiting.delete(key);
    if (rest && rest.requests > 0) await write(rest);
  };
  waitUntil(Promise.all([write(more), later()]));
}
