import { and, asc, eq, inArray, isNull, lte, or } from 'drizzle-orm';
import { sharedNextFlight } from '../../shared/single-flight.ts';
import type { EventType } from '../database/column-types.ts';
import type { Database } from '../database/database.ts';
import { eventOutbox, webhooks } from '../database/event-schema.ts';
import { toEvent } from './event-types.ts';

type OutboxRow = typeof eventOutbox.$inferSelect;

/** How long an event can be replayed. */
const KEPT_MS = 3_600_000;

const TABLE = `create table if not exists events (
  seq integer primary key autoincrement,
  id text not null unique,
  type text not null,
  tenant_id text not null,
  branch_names text not null,
  machine_id text,
  body text not null,
  at integer not null,
  stored_at integer not null
)`;

/** Key of the number up to which webhooks have the events. */
const HANDED_OVER = 'events_handed_over';

export interface LoggedEvent extends EventScope, Record<string, SqlStorageValue> {
  /** Its place in the log, and its id on a stream. */
  seq: number;
  id: string;
  type: EventType;
  /** JSON that streams and webhooks send. */
  body: string;
  /** Time of the change, in Unix milliseconds. */
  at: number;
}

/**
 * The events of a project in the SQLite database of its object: table `events`, in the order of the changes,
 * for an hour. The last one stays longer, so that a client that missed nothing in a quiet hour can continue.
 */
export class EventLog {
  readonly #storage: DurableObjectStorage;

  constructor(storage: DurableObjectStorage) {
    this.#storage = storage;
  }

  /**
   * Adds the events in their order. An event that is already in the log is ignored, and takes no position:
   * `on conflict do nothing` would use one up, and clients could not tell a gap from a lost event.
   */
  append(rows: readonly OutboxRow[], now: number): void {
    this.#storage.transactionSync(() => {
      const sql = this.#sql;
      for (const row of rows) {
        sql.exec(
          `insert into events (id, type, tenant_id, branch_names, machine_id, body, at, stored_at)
            select ?, ?, ?, ?, ?, ?, ?, ? where not exists (select 1 from events where id = ?)`,
          row.id,
          row.type,
          row.tenantId,
          JSON.stringify(row.branchNames),
          row.machineId,
          JSON.stringify(toEvent(row)),
          row.createdAt.getTime(),
          now,
          row.id,
        );
      }
    });
  }

  /** The events after this one, oldest first. */
  after(seq: number, limit: number): LoggedEvent[] {
    return this.#sql
      .exec<LoggedEvent>(
        'select seq, id, type, tenant_id, branch_names, machine_id, body, at from events where seq > ? order by seq limit ?',
        seq,
        limit,
      )
      .toArray();
  }

  /** The last event; 0 if there was none. */
  newest(): number {
    return this.#sql.exec<{ seq: number }>('select coalesce(max(seq), 0) as seq from events').one().seq;
  }

  /** Whether every event after this one is still here. */
  continuesFrom(seq: number): boolean {
    const { oldest } = this.#sql
      .exec<{ oldest: number }>('select coalesce(min(seq), 1) as oldest from events')
      .one();
    return oldest - 1 <= seq && seq <= this.newest();
  }

  /** Events that webhooks do not have yet, oldest first. */
  waiting(limit: number): LoggedEvent[] {
    return this.after(this.#handedOver, limit);
  }

  /** Webhooks have the events up to this one. */
  handOver(seq: number): void {
    this.#storage.kv.put(HANDED_OVER, seq);
  }

  /** Deletes what was stored more than an hour ago and is handed over. @param now Unix milliseconds */
  prune(now: number): void {
    this.#sql.exec(
      'delete from events where stored_at < ? and seq <= ? and seq < (select max(seq) from events)',
      now - KEPT_MS,
      this.#handedOver,
    );
  }

  get #handedOver(): number {
    return this.#storage.kv.get<number>(HANDED_OVER) ?? 0;
  }

  /** The table is created by the first use, because `deleteAll` removes it. */
  get #sql(): SqlStorage {
    const { sql } = this.#storage;
    sql.exec(TABLE);
    return sql;
  }
}

/** Events that are moved or handed over in one step. */
const BATCH = 100;

type Webhook = typeof webhooks.$inferSelect;

/** Hands events to a webhook, each once whatever is repeated. */
export type Deliver = (webhookId: string, events: { id: string; body: string }[]) => Promise<void>;

interface EventFeedOptions {
  db: Database;
  log: EventLog;
  /** Called after each addition to the log. */
  added: () => void;
  deliver: Deliver;
}

/**
 * Moves the events of one project from the outbox in D1 to the log in its object, and from there to webhooks.
 * Every step can be repeated: an event stays where it was until the next place has stored it, and each place
 * ignores an event that it already has.
 */
export class EventFeed {
  readonly #options: EventFeedOptions;

  constructor(options: EventFeedOptions) {
    this.#options = options;
  }

  /**
   * Moves all events of changes that precede the call. A run that has already begun may have read before
   * them.
   */
  readonly move = sharedNextFlight((projectId: string) => this.#moveAll(projectId));

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
    const { deliver, log } = this.#options;
    await Promise.all(
      receivers.map(async ({ id, tenantId, events, createdAt }) => {
        const wanted = waiting
          .filter(({ tenant_id, type }) => tenant_id === tenantId && events.includes(type))
          .filter(({ at }) => at >= createdAt.getTime())
          .map(({ id: eventId, body }) => ({ id: eventId, body }));
        if (wanted.length > 0) await deliver(id, wanted);
      }),
    );
    const last = waiting.at(-1);
    if (last) log.handOver(last.seq);
  }
}

/** Whom an event is for, as the log stores it. */
export type EventScope = {
  /** Tenant of the project at the time of the change. */
  tenant_id: string;
  /** JSON: the names of the branches that the event is about, without `main`. */
  branch_names: string;
  /** The machine that started the job that the event is about. */
  machine_id: string | null;
};
