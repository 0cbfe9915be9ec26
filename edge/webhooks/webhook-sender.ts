import { DurableObject } from 'cloudflare:workers';
import { eq } from 'drizzle-orm';
import { type DatabaseBinding, openDatabase, withoutValues } from '../database/database.ts';
import { type WebhookRow, webhooks } from '../database/event-schema.ts';
import { logEvent } from '../log.ts';
import { objectName } from '../object-name.ts';
import type { PageQuery } from '../pagination.ts';
import { readSettings } from '../settings.ts';
import {
  type Attempt,
  afterFailure,
  allowedUrls,
  DELIVER_FOR_MS,
  DELIVERY_TIMEOUT_MS,
  deliver,
  type EndpointHealth,
  HEALTHY,
  isHopeless,
  isProbed,
  retryAfter,
} from './delivery.ts';
import { type Delivery, DeliveryStore, type QueuedEvent } from './delivery-store.ts';
import { type DeliveredEvent, disableWebhook, secretOf, type WebhookSenderRpc } from './webhook.ts';

const HEALTH = 'health';
/** Attempts in parallel. */
const PARALLEL = 10;
/**
 * When an attempt without a result is retried; later than the timeout, so that two attempts do not overlap.
 */
const INTERRUPTED_AFTER_MS = DELIVERY_TIMEOUT_MS + 2_000;
/** How often the log is pruned and a deleted webhook is noticed. */
const PRUNE_EVERY_MS = 24 * 3_600_000;

/**
 * One object per webhook (`idFromName(webhook ID)`): the outbox and the delivery log. Its alarm makes every
 * attempt, and is set before the attempt begins, so that an interrupted one is repeated with the same
 * `webhook-id`.
 */
export class WebhookSender extends DurableObject<DatabaseBinding> implements WebhookSenderRpc {
  readonly #webhookId = objectName(this.ctx, 'webhook_id');
  readonly #store = new DeliveryStore(this.ctx.storage.sql);

  async enqueue(events: QueuedEvent[]): Promise<void> {
    this.#store.add(events, Date.now());
    this.#setAlarm();
  }

  async test(): Promise<Delivery | null> {
    const webhook = await this.#webhook();
    if (!webhook) return null;
    const id = crypto.randomUUID();
    const now = new Date();
    const about = { id, timestamp: now.toISOString(), project_id: webhook.projectId };
    const event: DeliveredEvent = { ...about, type: 'webhook.test', data: { webhook_id: webhook.id } };
    this.#store.add([{ id, body: JSON.stringify(event) }], now.getTime());
    this.#store.begin(id, now.getTime(), null);
    this.#setAlarm();
    const delivery = this.#store.find(id);
    if (delivery) this.#store.end(id, await this.#attempt(webhook, delivery), null);
    return this.#store.find(id);
  }

  async deliveries(query: PageQuery): Promise<Delivery[]> {
    return this.#store.page(query);
  }

  async forget(): Promise<void> {
    await this.ctx.storage.deleteAll();
  }

  /**
   * Does not throw: the runtime retries a failed alarm a few times only, and D1 can be unavailable for
   * longer.
   */
  override async alarm(): Promise<void> {
    try {
      await this.#sendDue();
    } catch (error) {
      const reason = error instanceof Error ? withoutValues(error).message : 'unknown error';
      logEvent('webhook.not_sent', { webhook_id: this.#webhookId, reason });
      void this.ctx.storage.setAlarm(Date.now() + INTERRUPTED_AFTER_MS);
    }
  }

  async #sendDue(): Promise<void> {
    const webhook = await this.#webhook();
    if (!webhook) return this.forget();
    if (webhook.disabledAt) this.#store.failAll();
    const health = this.#health();
    const now = Date.now();
    const due = now < health.pausedUntil ? [] : this.#store.due(now, isProbed(health) ? 1 : PARALLEL);
    for (const { id } of due) this.#store.begin(id, now, now + INTERRUPTED_AFTER_MS);
    if (!this.#store.prune(now)) return;
    this.#setAlarm();
    const results = await Promise.all(
      due.map(async (delivery) => this.#record(delivery, await this.#attempt(webhook, delivery))),
    );
    if (results.length > 0) this.#rate(health, results.includes(true));
    if (!webhook.disabledAt && isHopeless(this.#health(), Date.now())) {
      await disableWebhook(openDatabase(this.env.DB), webhook, new Date());
      this.#store.failAll();
      logEvent('webhook.disabled', { webhook_id: webhook.id });
    }
    this.#setAlarm();
  }

  async #attempt(webhook: WebhookRow, { id, body }: Delivery): Promise<Attempt> {
    const settings = readSettings(this.env);
    const secret = await secretOf(settings.CREDENTIAL_KEYS, webhook);
    return deliver({
      url: webhook.url,
      secret,
      id,
      body,
      allowed: allowedUrls(settings),
    });
  }

  /** @returns whether the attempt succeeded */
  #record({ id, attempts, createdAt }: Delivery, attempt: Attempt): boolean {
    const nextAttemptAt = Date.now() + retryAfter(attempts + 1, Math.random());
    const isOver = nextAttemptAt - createdAt.getTime() > DELIVER_FOR_MS;
    this.#store.end(id, attempt, isOver ? null : nextAttemptAt);
    return attempt.error === null;
  }

  /** Rates the endpoint by a round of attempts, so that a round counts as one failure. */
  #rate(before: EndpointHealth, hasSucceeded: boolean): void {
    const now = Date.now();
    // What waited for the endpoint need not wait for its own backoff.
    if (hasSucceeded && isProbed(before)) this.#store.hurry(now);
    const after = hasSucceeded ? HEALTHY : afterFailure(before, now, Math.random());
    if (after.failures !== before.failures) this.ctx.storage.kv.put(HEALTH, after);
  }

  /** For the next attempt, or to prune the log. */
  #setAlarm(): void {
    const next = this.#store.nextAttemptAt();
    const at = next === null ? Date.now() + PRUNE_EVERY_MS : Math.max(next, this.#health().pausedUntil);
    void this.ctx.storage.setAlarm(at);
  }

  #health(): EndpointHealth {
    return this.ctx.storage.kv.get<EndpointHealth>(HEALTH) ?? HEALTHY;
  }

  async #webhook(): Promise<WebhookRow | null> {
    const thisOne = eq(webhooks.id, this.#webhookId);
    const [webhook] = await openDatabase(this.env.DB).select().from(webhooks).where(thisOne);
    return webhook ?? null;
  }
}
