import { and, eq, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { insertKey, type KeyUse, type StoredResponse } from '../api/idempotency-key.ts';
import type { Actor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { apiKeys } from '../database/machine-schema.ts';
import { auditEvents, projects, users } from '../database/schema.ts';
import { isOfTenant } from '../tenancy/is-of-tenant.ts';
import type { ApiKeyRow } from './api-key-resource.ts';

const API_KEYS_MAX = 100;

const about = ({ id, name, role, projectId, branchPattern }: ApiKeyRow) => ({
  ...(projectId && { projectId }),
  metadata: { key_id: id, name, role, branch_pattern: branchPattern },
});

/**
 * Stores a key and audits it, in one batch.
 * @param response for a repeated request with the same Idempotency-Key; without the secret
 */
export async function insertApiKey(
  db: Database,
  row: ApiKeyRow,
  actor: Actor,
  keyUse: KeyUse | null,
  response: StoredResponse,
): Promise<Result<null, Failure>> {
  const { tenantId, projectId } = row;
  const count = sql`(select count(*) from ${apiKeys} where tenant_id = ${tenantId})`;
  const isUser = isOfTenant(users, row.createdBy, tenantId);
  const isProject = projectId ? isOfTenant(projects, projectId, tenantId) : sql`true`;
  const allowed = sql`${isUser} and ${isProject} and ${count} < ${API_KEYS_MAX}`;
  const recorded = sql`exists (select 1 from ${apiKeys} where id = ${row.id})`;
  const event = auditEvent('api_key.created', actor, about(row), row.createdAt);
  const results = await inOneBatch(db, [
    ...insertKey(db, keyUse, row.id, allowed, row.createdAt, response),
    insertIf(db, apiKeys, row, allowed),
    insertIf(db, auditEvents, event, recorded),
    db.select({ count: sql<number>`${count}` }).from(sql`(select 1)`),
  ]);
  const [insert, , counts] = results.slice(-3);
  if (hasChanged(insert)) return ok(null);
  const [found] = counts as { count: number }[];
  if ((found?.count ?? 0) < API_KEYS_MAX) return fail({ code: 'NOT_FOUND' });
  return fail({ code: 'API_KEY_LIMIT_REACHED', fields: { limit: API_KEYS_MAX } });
}

/** Deletes a key and audits it, in one batch. */
export async function deleteApiKey(
  db: Database,
  id: string,
  actor: Actor,
  now: Date,
): Promise<Result<null, Failure>> {
  const theKey = and(eq(apiKeys.id, id), eq(apiKeys.tenantId, actor.tenantId));
  const [row] = await db.select().from(apiKeys).where(theKey);
  if (!row) return fail({ code: 'NOT_FOUND' });
  const event = auditEvent('api_key.deleted', actor, about(row), now);
  const results = await inOneBatch(db, [
    insertIf(db, auditEvents, event, sql`exists (select 1 from ${apiKeys} where ${theKey})`),
    db.delete(apiKeys).where(theKey),
  ]);
  return hasChanged(results.at(-1)) ? ok(null) : fail({ code: 'NOT_FOUND' });
}
