import { z } from 'zod';
import type { webhooks } from '../database/event-schema.ts';
import { EVENT_MEANINGS, EVENT_TYPES, Event } from '../events/event-types.ts';
import { DELIVERY_ERRORS } from './deliver.ts';
import { DELIVERY_STATUSES } from './delivery-store.ts';

export type WebhookRow = typeof webhooks.$inferSelect;

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
      description: 'Receives each event as a POST. https only, and no local or private address.',
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
