import { and, eq, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { insertKey, type KeyUse } from '../api/idempotency-key.ts';
import type { Actor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { trusts } from '../database/machine-schema.ts';
import { auditEvents, projects } from '../database/schema.ts';
import { isOfTenant } from '../tenancy/is-of-tenant.ts';
import { type TrustRow, toTrustResponse } from './trust-resource.ts';

const TRUSTS_MAX = 20;

const about = ({ id, projectId, issuer, audience, claims, role, branchPattern }: TrustRow) => ({
  projectId,
  metadata: { trust_id: id, issuer, audience, claims, role, branch_pattern: branchPattern },
});

/** Stores a trust and audits it, in one batch, with the response for a repeated request with the same key. */
export async function insertTrust(
  db: Database,
  row: TrustRow,
  actor: Actor,
  keyUse: KeyUse | null,
): Promise<Result<null, Failure>> {
  const { id, projectId } = row;
  const count = sql`(select count(*) from ${trusts} where project_id = ${projectId})`;
  const allowed = sql`${isOfTenant(projects, projectId, actor.tenantId)} and ${count} < ${TRUSTS_MAX}`;
  const event = auditEvent('trust.created', actor, about(row), row.createdAt);
  const response = { status: 201, body: toTrustResponse(row) };
  const results = await inOneBatch(db, [
    ...insertKey(db, keyUse, id, allowed, row.createdAt, response),
    insertIf(db, trusts, row, allowed),
    insertIf(db, auditEvents, event, sql`exists (select 1 from ${trusts} where id = ${id})`),
    db.select({ count: sql<number>`${count}` }).from(sql`(select 1)`),
  ]);
  const [insert, , counts] = results.slice(-3);
  if (hasChanged(insert)) return ok(null);
  const [found] = counts as { count: number }[];
  if ((found?.count ?? 0) < TRUSTS_MAX) return fail({ code: 'NOT_FOUND' });
  return fail({ code: 'TRUST_LIMIT_REACHED', fields: { limit: TRUSTS_MAX } });
}

/** Deletes a trust and audits it, in one batch. */
export async function deleteTrust(
  db: Database,
  projectId: string,
  trustId: string,
  actor: Actor,
  now: Date,
): Promise<Result<null, Failure>> {
  const theTrust = and(
    eq(trusts.id, trustId),
    eq(trusts.projectId, projectId),
    isOfTenant(projects, projectId, actor.tenantId),
  );
  const [row] = await db.select().from(trusts).where(theTrust);
  if (!row) return fail({ code: 'NOT_FOUND' });
  const event = auditEvent('trust.deleted', actor, about(row), now);
  const results = await inOneBatch(db, [
    insertIf(db, auditEvents, event, sql`exists (select 1 from ${trusts} where ${theTrust})`),
    db.delete(trusts).where(theTrust),
  ]);
  return hasChanged(results.at(-1)) ? ok(null) : fail({ code: 'NOT_FOUND' });
}
