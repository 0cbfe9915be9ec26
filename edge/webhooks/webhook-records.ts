import { and, eq, exists, isNull, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { insertKey, type KeyUse } from '../api/idempotency-key.ts';
import { type Actor, noActor } from '../audit/actor.ts';
import { type AuditName, auditEvent } from '../audit/audit-event.ts';
import { type SecretKey, seal, unseal } from '../credentials/seal.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { webhooks } from '../database/event-schema.ts';
import { auditEvents } from '../database/schema.ts';
import { makeSecret } from './signature.ts';
import type { WebhookRow } from './webhook-resource.ts';

/** Webhooks of one tenant. */
export const WEBHOOKS_MAX = 20;

/** What a sealed secret is bound to. */
const sealContext = (webhookId: string) => ['webhook', webhookId];

/** For deliveries; a client sees it through `viewSecret`. */
export const secretOf = (keys: readonly SecretKey[], { id, keyId, sealedSecret }: WebhookRow) =>
  unseal(keys, sealContext(id), { keyId, sealed: sealedSecret });

/** The webhook of this tenant. */
export const webhookOf = (db: Database, tenantId: string, id: string) =>
  db
    .select()
    .from(webhooks)
    .where(and(eq(webhooks.id, id), eq(webhooks.tenantId, tenantId)));

const eventOf = (
  name: Extract<AuditName, `webhook.${string}`>,
  actor: Parameters<typeof auditEvent>[1],
  { id, projectId, url, events }: WebhookRow,
  now: Date,
) => {
  // The path or query of the URL can contain a secret of the receiver.
  const metadata = { webhook_id: id, host: new URL(url).host, events };
  return auditEvent(name, actor, { ...(projectId && { projectId }), metadata }, now);
};

/** Creates a webhook with a new secret, unless the tenant has as many as it may. */
export async function createWebhook(
  db: Database,
  keys: readonly SecretKey[],
  { keyUse, ...wanted }: Pick<WebhookRow, 'url' | 'events' | 'projectId'> & { keyUse: KeyUse | null },
  actor: Actor,
  now: Date,
): Promise<Result<{ webhook: WebhookRow; secret: string }, Failure>> {
  const id = crypto.randomUUID();
  const secret = makeSecret();
  const { keyId, sealed } = await seal(keys, sealContext(id), secret);
  const { userId, tenantId } = actor;
  const webhook: WebhookRow = {
    id,
    tenantId,
    ...wanted,
    keyId,
    sealedSecret: sealed,
    disabledAt: null,
    createdBy: userId,
    createdAt: now,
  };
  const room = sql`(select count(*) from ${webhooks} where tenant_id = ${tenantId}) < ${WEBHOOKS_MAX}`;
  const results = await inOneBatch(db, [
    // The key stores no secret: a repeated request reads the webhook.
    ...insertKey(db, keyUse, id, room, now, { status: 201, body: { id } }),
    insertIf(db, auditEvents, eventOf('webhook.created', actor, webhook, now), room),
    insertIf(db, webhooks, webhook, room),
  ]);
  if (hasChanged(results.at(-1))) return ok({ webhook, secret });
  return fail({ code: 'WEBHOOK_LIMIT_REACHED', fields: { limit: WEBHOOKS_MAX } });
}

/** A webhook of the tenant with its secret. The view is audited. @returns null if it does not exist */
export async function viewSecret(
  db: Database,
  keys: readonly SecretKey[],
  id: string,
  actor: Actor,
  now: Date,
): Promise<{ webhook: WebhookRow; secret: string } | null> {
  const stored = webhookOf(db, actor.tenantId, id);
  const [webhook] = await stored;
  if (!webhook) return null;
  const event = eventOf('webhook.secret.viewed', actor, webhook, now);
  const viewed = await insertIf(db, auditEvents, event, exists(stored));
  return hasChanged(viewed) ? { webhook, secret: await secretOf(keys, webhook) } : null;
}

/** @returns false if it does not exist */
export async function deleteWebhook(db: Database, id: string, actor: Actor, now: Date): Promise<boolean> {
  const [webhook] = await webhookOf(db, actor.tenantId, id);
  if (!webhook) return false;
  const results = await inOneBatch(db, [
    insertIf(
      db,
      auditEvents,
      eventOf('webhook.deleted', actor, webhook, now),
      sql`exists (select 1 from ${webhooks} where id = ${id})`,
    ),
    db.delete(webhooks).where(eq(webhooks.id, id)),
  ]);
  return hasChanged(results.at(-1));
}

/** Records that the webhook gets nothing more. Repeated calls have no further effect. */
export async function disableWebhook(db: Database, webhook: WebhookRow, now: Date): Promise<void> {
  const enabled = and(eq(webhooks.id, webhook.id), isNull(webhooks.disabledAt));
  await inOneBatch(db, [
    insertIf(
      db,
      auditEvents,
      eventOf('webhook.disabled', noActor(webhook.tenantId), webhook, now),
      sql`exists (select 1 from ${webhooks} where ${enabled})`,
    ),
    db.update(webhooks).set({ disabledAt: now }).where(enabled),
  ]);
}
