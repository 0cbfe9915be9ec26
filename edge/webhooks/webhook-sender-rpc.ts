import type { PageQuery } from '../pagination.ts';
import type { Delivery, QueuedEvent } from './delivery-store.ts';

/** The Durable Object that delivers the events of one webhook; named by the webhook's ID. */
export interface WebhookSenderRpc extends Rpc.DurableObjectBranded {
  /** Queues events, each once whatever is repeated. */
  enqueue(webhookId: string, events: QueuedEvent[]): Promise<void>;
  /** Sends a test event and waits for the response. @returns null if the webhook does not exist */
  test(webhookId: string): Promise<Delivery | null>;
  /** The deliveries of the last days, newest first, one more than `limit`. */
  deliveries(query: PageQuery): Promise<Delivery[]>;
  /** The webhook was deleted. */
  forget(): Promise<void>;
}
