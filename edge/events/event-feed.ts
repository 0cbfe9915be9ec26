import { and, asc, eq, inArray, isNull, lte, or } from 'drizzle-orm';
import type { Database } from '../database/database.ts';
import { eventOutbox, webhooks } from '../database/event-schema.ts';
import type { Env } from '../env.ts';
import { webhookSenderOf } from '../webhooks/webhook-sender-stub.ts';
import type { EventLog, LoggedEvent } from './event-log.ts';

/** Events that are moved or handed over in one step. */
const BATCH = 100;

type Webhook = typeof webhooks.$inferSelect;

interface EventFeedOptions {
  env: Env;
  db: Database;
  log: EventLog;
  /** Called after each addition to the log. */
  added: () => void;
}

/**
 * Moves the events of one project from the outbox in D1 to the log in its object, and from there to webhooks. Every step
 * can be repeated: an event stays where it was until the next place has stored it, and each place ignores an event that
 * it already has.
 */
export class EventFeed {
  readonly #options: EventFeedOptions;
  #running: Promise<void> = Promise.resolve();
  #next: Promise<void> | null = null;

  constructor(options: EventFeedOptions) {
    this.#options = options;
  }

  /** Moves all events of changes that precede the call. A run that has already begun may have read before them. */
  move(projectId: string): Promise<void> {
    this.#next ??= this.#running
      .catch(() => {})
      .then(() => {
        this.#running = this.#next ?? this.#running;
        this.#next = null;
        return this.#moveAll(projectId);
      });
    return this.#next;
  }

  async #moveAll(projectId: string): Promise<void> {
    const { db, log, added } = this.#options;
    const ofProject = eq(eventOutbox.projectId, projectId);
    const oldest = db.select().from(eventOutbox).where(ofProject).orderBy(asc(eventOutbox.seq)).limit(BATCH);
    let rows = await oldest;
    for (let last = rows.at(-1); last; last = rows.at(-1)) {
      log.append(rows, Date.now());
      added();
      const moved = and(ofProject, lte(eventOutbox.seq, last.seq));
      const waiting = log.waiting(BATCH);
      // The runtime holds this write back until the log is on disk.
      const [, next, receivers] = await db.batch([
        db.delete(eventOutbox).where(moved),
        oldest,
        this.#receivers(projectId, waiting),
      ]);
      rows = next;
      await this.#handOver(waiting, receivers);
    }
    // What an earlier run has left, and what was more than a batch.
    for (let waiting = log.waiting(BATCH); waiting.length > 0; waiting = log.waiting(BATCH))
      await this.#handOver(waiting, await this.#receivers(projectId, waiting));
    log.prune(Date.now());
  }

  #receivers(projectId: string, waiting: readonly LoggedEvent[]) {
    const tenants = [...new Set(waiting.map(({ tenant_id }) => tenant_id))];
    return this.#options.db
      .select()
      .from(webhooks)
      .where(
        and(
          inArray(webhooks.tenantId, tenants),
          isNull(webhooks.disabledAt),
          or(isNull(webhooks.projectId), eq(webhooks.projectId, projectId)),
        ),
      );
  }

  async #handOver(waiting: readonly LoggedEvent[], receivers: readonly Webhook[]): Promise<void> {
    const { env, log } = this.#options;
    await Promise.all(
      receivers.map(async ({ id, tenantId, events, createdAt }) => {
        const wanted = waiting
          .filter(({ tenant_id, type }) => tenant_id === tenantId && events.includes(type))
          .filter(({ at }) => at >= createdAt.getTime())
          .map(({ id: eventId, body }) => ({ id: eventId, body }));
        if (wanted.length > 0) await webhookSenderOf(env, id).enqueue(id, wanted);
      }),
    );
    const last = waiting.at(-1);
    if (last) log.handOver(last.seq);
  }
}
