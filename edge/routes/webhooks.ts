import { and, eq } from 'drizzle-orm';
import type { z } from 'zod';
import { webhooks } from '../database/event-schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import {
  IdempotencyHeader,
  KEY_FAILURES,
  keyUseOf,
  recordedResponse,
  recordedUses,
} from '../idempotency/idempotency-key.ts';
import { repeatIfLost } from '../lost-object.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { actorOf } from '../pipeline/context.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import { allowedUrls, refusalOfUrl } from '../webhooks/delivery.ts';
import type { Delivery } from '../webhooks/delivery-store.ts';
import {
  CreatedWebhook,
  createWebhook,
  type DeliveredEvent,
  deleteWebhook,
  NewWebhook,
  toWebhookResponse,
  viewSecret,
  Webhook,
  WebhookDelivery,
  webhookOf,
  webhookSenderOf,
} from '../webhooks/webhook.ts';
import { inProject, WebhookParams } from './in-project.ts';

const tags = ['Webhooks'];

const toDeliveryResponse = (delivery: Delivery): z.output<typeof WebhookDelivery> => ({
  id: delivery.id,
  status: delivery.status,
  attempts: delivery.attempts,
  last_attempt_at: delivery.lastAttemptAt?.toISOString() ?? null,
  next_attempt_at: delivery.nextAttemptAt?.toISOString() ?? null,
  response_status: delivery.responseStatus,
  error: delivery.error,
  event: JSON.parse(delivery.body) as DeliveredEvent,
  created_at: delivery.createdAt.toISOString(),
});

const router = operations();

router.openapi(
  operation({
    access: 'webhooks.change',
    machines: 'none',
    operationId: 'createWebhook',
    method: 'post',
    path: '/api/v1/webhooks',
    summary: 'Create a webhook',
    description:
      'Sends each event of these types as a POST to the URL, signed as Standard Webhooks 1.0 describes. A delivery without a 2xx response is repeated with growing delays for three days. A repeated request with the same `Idempotency-Key` shows the secret again, which the audit log records as a view.',
    tags,
    request: { headers: IdempotencyHeader, body: jsonBody(NewWebhook) },
    responses: {
      201: response(
        'The new webhook. The secret is shown only here.',
        CreatedWebhook,
        'Idempotency-Replayed',
      ),
    },
    failures: [...KEY_FAILURES, 'NOT_FOUND', 'WEBHOOK_LIMIT_REACHED'],
  }),
  async (c) => {
    const body = c.req.valid('json');
    const { url, events, project_id: projectId } = body;
    const settings = readSettings(c.env);
    const message = refusalOfUrl(url, allowedUrls(settings));
    if (message !== null) throw new ApiError('VALIDATION_FAILED', { details: [{ path: 'url', message }] });
    const { principal } = c.var;
    const { CREDENTIAL_KEYS: keys } = settings;
    const keyUse = await keyUseOf(principal, c.req.path, c.req.valid('header')['idempotency-key'], body);
    const db = databaseOf(c);
    const used = () => recordedUses(db, keyUse, new Date());
    const [, uses] =
      projectId === null ? [null, await used()] : await inProject(c, projectId, () => [used()]);
    const recorded = unwrap(recordedResponse(uses, keyUse));
    if (recorded) {
      const viewed = await viewSecret(db, keys, String(recorded.body.id), actorOf(c), new Date());
      const { webhook, secret } = unwrap(viewed);
      c.header('Idempotency-Replayed', 'true');
      return c.json({ ...toWebhookResponse(webhook), secret }, 201);
    }
    const wanted = { url, events, projectId, keyUse };
    const created = await createWebhook(db, keys, wanted, actorOf(c), new Date());
    const { webhook, secret } = unwrap(created);
    return c.json({ ...toWebhookResponse(webhook), secret }, 201);
  },
);

router.openapi(
  operation({
    access: 'webhooks.read',
    machines: 'none',
    operationId: 'listWebhooks',
    method: 'get',
    path: '/api/v1/webhooks',
    summary: "List the tenant's webhooks, oldest first",
    tags,
    request: { query: PageQuery },
    responses: { 200: response('A page of webhooks.', pageOf('webhooks', Webhook)) },
  }),
  async (c) => {
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(webhooks, 'oldest_first', query);
    const rows = await databaseOf(c)
      .select()
      .from(webhooks)
      .where(and(eq(webhooks.tenantId, c.var.principal.tenantId), beyond))
      .orderBy(...orderBy)
      .limit(query.limit + 1);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ webhooks: page.map(toWebhookResponse), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'webhooks.change',
    machines: 'none',
    operationId: 'deleteWebhook',
    method: 'delete',
    path: '/api/v1/webhooks/{webhook_id}',
    summary: 'Delete a webhook',
    description: 'Deliveries that are still waiting are discarded.',
    tags,
    request: { params: WebhookParams },
    responses: { 204: emptyResponse('The webhook is deleted.') },
  }),
  async (c) => {
    const { webhook_id: id } = c.req.valid('param');
    unwrap(await deleteWebhook(databaseOf(c), id, actorOf(c), new Date()));
    await repeatIfLost(() => webhookSenderOf(c.env, id).forget());
    return c.body(null, 204);
  },
);

router.openapi(
  operation({
    access: 'webhooks.read',
    machines: 'none',
    operationId: 'listWebhookDeliveries',
    method: 'get',
    path: '/api/v1/webhooks/{webhook_id}/deliveries',
    summary: 'List the deliveries of a webhook, newest first',
    description: 'Deliveries stay in the log for six days.',
    tags,
    request: { params: WebhookParams, query: PageQuery },
    responses: {
      200: response('A page of deliveries.', pageOf('webhook_deliveries', WebhookDelivery)),
    },
  }),
  async (c) => {
    const { webhook_id: id } = c.req.valid('param');
    const query = c.req.valid('query');
    // Concurrently; nothing of the deliveries is sent unless the webhook is the tenant's.
    const [webhook, deliveries] = await Promise.all([
      webhookOf(databaseOf(c), c.var.principal.tenantId, id),
      repeatIfLost(() => webhookSenderOf(c.env, id).deliveries(query)),
    ]);
    found(webhook);
    const { page, next_cursor } = cutPage(deliveries, query);
    return c.json({ webhook_deliveries: page.map(toDeliveryResponse), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'webhooks.change',
    machines: 'none',
    operationId: 'testWebhook',
    method: 'post',
    path: '/api/v1/webhooks/{webhook_id}/test',
    summary: 'Send a test event to a webhook',
    description:
      'Sends one `webhook.test` event and waits for the response, for up to 10 seconds. It is not repeated.',
    tags,
    request: { params: WebhookParams },
    responses: { 200: response('The delivery, with its result.', WebhookDelivery) },
  }),
  async (c) => {
    const { webhook_id: id } = c.req.valid('param');
    found(await webhookOf(databaseOf(c), c.var.principal.tenantId, id));
    const delivery = await webhookSenderOf(c.env, id).test();
    return c.json(toDeliveryResponse(found(delivery ? [delivery] : [])), 200);
  },
);

export const webhookRoutes = router;
