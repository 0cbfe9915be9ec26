import type { eventOutbox } from '../database/event-schema.ts';
import type { EventScope } from './event-reach.ts';
import { type EventType, toEvent } from './event-types.ts';

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
  /** As streams and webhooks send it: JSON. */
  body: string;
  /** Of the change. Unix milliseconds. */
  at: number;
}

/**
 * The events of a project in the SQLite database of its object: table `events`, in the order of the changes, for an
 * hour. The last one stays longer, so that a client that missed nothing in a quiet hour can continue.
 */
export class EventLog {
  readonly #storage: DurableObjectStorage;

  constructor(storage: DurableObjectStorage) {
    this.#storage = storage;
  }

  /**
   * Adds the events in their order. An event that is already in the log is ignored, and takes no position: `on conflict do
   * nothing` would use one up, and clients could not tell a gap from a lost event.
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
