import { and, eq, exists, isNull, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { type AuditName, auditEvent, noActor } from '../audit/audit-event.ts';
import { type SecretKey, seal, unseal } from '../crypto/seal.ts';
import { type Actor, EVENT_TYPES } from '../database/column-types.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { type WebhookRow, webhooks } from '../database/event-schema.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents } from '../database/schema.ts';
import { EVENT_MEANINGS, Event } from '../events/event-types.ts';
import { type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import type { PageQuery } from '../pagination.ts';
import { DELIVERY_ERRORS, makeSecret } from './delivery.ts';
import { DELIVERY_STATUSES, type Delivery, type QueuedEvent } from './delivery-store.ts';

const Id = z.uuid();
const Timestamp = z.iso.datetime();

export const Webhook = z
  .strictObject({
    id: Id,
    url: z.string().meta({ example: 'https://ci.example/hooks/branchgate' }),
    events: z.array(z.enum(EVENT_TYPES)),
    project_id: Id.nullable().meta({ description: 'Null: every project of the tenant.' }),
    disabled_at: Timestamp.nullable().meta({
      description: 'Set after three days in which every delivery failed. Create the webhook again to resume.',
    }),
    created_by: Id,
    created_at: Timestamp,
  })
  .meta({ id: 'Webhook' });

export const CreatedWebhook = Webhook.extend({
  secret: z.string().meta({
    description:
      'The signing secret (Standard Webhooks). Shown only here, and again to a repeated request with the same `Idempotency-Key`.',
    example: 'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD8kH0Z2c0Xq4=',
  }),
}).meta({ id: 'CreatedWebhook' });

/** What the test call sends. */
const TestEvent = z.strictObject({
  id: Id,
  type: z.literal('webhook.test'),
  timestamp: Timestamp,
  project_id: Id.nullable(),
  data: z.strictObject({ webhook_id: Id }),
});

export const WebhookDelivery = z
  .strictObject({
    id: Id.meta({ description: 'The `webhook-id` of every attempt, and the id of the event.' }),
    status: z.enum(DELIVERY_STATUSES).meta({
      description:
        '`failed`: no attempt within three days succeeded, the webhook is disabled, or too many deliveries were waiting.',
    }),
    attempts: z.int().min(0),
    last_attempt_at: Timestamp.nullable(),
    next_attempt_at: Timestamp.nullable().meta({ description: 'Null unless the delivery is pending.' }),
    response_status: z
      .int()
      .nullable()
      .meta({ description: 'HTTP status of the last attempt; null if there was no response.' }),
    error: z
      .enum(DELIVERY_ERRORS)
      .nullable()
      .meta({ description: 'Why the last attempt failed.', example: null }),
    event: z.union([Event, TestEvent]),
    created_at: Timestamp,
  })
  .meta({ id: 'WebhookDelivery' });

export type DeliveredEvent = z.output<typeof WebhookDelivery>['event'];

export const NewWebhook = z
  .strictObject({
    url: z.string().meta({
      description:
        'Receives each event as a POST. https only, on port 443 unless the operator allows more, and no local or private address.',
      example: 'https://ci.example/hooks/branchgate',
    }),
    events: z
      .array(z.enum(EVENT_TYPES))
      .min(1)
      .transform((types) => [...new Set(types)])
      .meta({ description: EVENT_MEANINGS }),
    project_id: Id.toLowerCase()
      .nullable()
      .default(null)
      .meta({ description: 'Only events of this project; null for every project of the tenant.' }),
  })
  .meta({ example: { url: 'https://ci.example/hooks/branchgate', events: ['branch.changed'] } });

export const toWebhookResponse = (row: WebhookRow): z.output<typeof Webhook> => ({
  id: row.id,
  url: row.url,
  events: row.events,
  project_id: row.projectId,
  disabled_at: row.disabledAt?.toISOString() ?? null,
  created_by: row.createdBy,
  created_at: row.createdAt.toISOString(),
});

/** Webhooks of one tenant. */
export const WEBHOOKS_MAX = 20;

/** What a sealed secret is bound to. */
const sealContext = (webhookId: string) => ['webhook', webhookId];

/** For deliveries; a client sees it through `viewSecret`. */
export const secretOf = (keys: readonly SecretKey[], { id, keyId, sealedSecret }: WebhookRow) =>
  unseal(keys, sealContext(id), { keyId, sealed: sealedSecret });

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
  const written = await writeUnderKey(
    db,
    // The key stores no secret: a repeated request reads the webhook.
    { use: keyUse, subjectId: id, now, response: { status: 201, body: { id } } },
    {
      decides: [webhooks, webhook],
      require: [[room, { code: 'WEBHOOK_LIMIT_REACHED', fields: { limit: WEBHOOKS_MAX } }]],
      rest: (isWritten) => [
        insertIf(db, auditEvents, eventOf('webhook.created', actor, webhook, now), isWritten),
      ],
    },
  );
  return written.ok ? ok({ webhook, secret }) : written;
}

/** A webhook of the tenant with its secret. The view is audited. @returns or NOT_FOUND */
export async function viewSecret(
  db: Database,
  keys: readonly SecretKey[],
  id: string,
  actor: Actor,
  now: Date,
): Promise<Result<{ webhook: WebhookRow; secret: string }, Failure>> {
  const stored = webhookOf(db, actor.tenantId, id);
  const [webhook] = await stored;
  if (!webhook) return fail({ code: 'NOT_FOUND' });
  const viewed = await guardedWrite(db, {
    decides: [auditEvents, eventOf('webhook.secret.viewed', actor, webhook, now)],
    require: [[exists(stored), 'NOT_FOUND']],
  });
  return viewed.ok ? ok({ webhook, secret: await secretOf(keys, webhook) }) : viewed;
}

/** @returns or NOT_FOUND */
export async function deleteWebhook(
  db: Database,
  id: string,
  actor: Actor,
  now: Date,
): Promise<Result<unknown, Failure>> {
  const [webhook] = await webhookOf(db, actor.tenantId, id);
  if (!webhook) return fail({ code: 'NOT_FOUND' });
  return guardedWrite(db, {
    decides: [auditEvents, eventOf('webhook.deleted', actor, webhook, now)],
    require: [[isThere(webhooks, eq(webhooks.id, id)), 'NOT_FOUND']],
    rest: (isWritten) => [db.delete(webhooks).where(and(eq(webhooks.id, id), isWritten))],
  });
}

/** Records that the webhook gets nothing more. Repeated calls have no further effect. */
export async function disableWebhook(db: Database, webhook: WebhookRow, now: Date): Promise<void> {
  const isIt = eq(webhooks.id, webhook.id);
  await guardedWrite(db, {
    decides: [auditEvents, eventOf('webhook.disabled', noActor(webhook.tenantId), webhook, now)],
    require: [[isThere(webhooks, and(isIt, isNull(webhooks.disabledAt))), 'NOT_FOUND']],
    rest: (isWritten) => [db.update(webhooks).set({ disabledAt: now }).where(and(isIt, isWritten))],
  });
}

/** The Durable Object that delivers the events of one webhook; named by the webhook's ID. */
export interface WebhookSenderRpc extends Rpc.DurableObjectBranded {
  /** Queues events, each once whatever is repeated. */
  enqueue(events: QueuedEvent[]): Promise<void>;
  /** Sends a test event and waits for the response. @returns null if the webhook does not exist */
  test(): Promise<Delivery | null>;
  /** The deliveries of the last days, newest first, one more than `limit`. */
  deliveries(query: PageQuery): Promise<Delivery[]>;
  /** The webhook was deleted. */
  forget(): Promise<void>;
}

/** The senders, by webhook ID. */
export interface WebhookSenders {
  WEBHOOK_SENDER: DurableObjectNamespace<WebhookSenderRpc>;
}

/** The object that delivers to this webhook. */
export const webhookSenderOf = ({ WEBHOOK_SENDER }: WebhookSenders, webhookId: string) =>
  WEBHOOK_SENDER.get(WEBHOOK_SENDER.idFromName(webhookId));
