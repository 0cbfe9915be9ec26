import type { PageQuery } from '../pagination.ts';
import { type Attempt, DELIVER_FOR_MS } from './delivery.ts';

export const DELIVERY_STATUSES = ['pending', 'delivered', 'failed'] as const;
type DeliveryStatus = (typeof DELIVERY_STATUSES)[number];

/** Deliveries that can wait for an endpoint that is away; the oldest then fail. */
const WAITING_MAX = 10_000;
/** Finished deliveries in the log. */
const FINISHED_MAX = 10_000;

const TABLES = `create table if not exists deliveries (
  id text primary key,
  body text not null,
  status text not null,
  attempts integer not null default 0,
  last_attempt_at integer,
  next_attempt_at integer,
  response_status integer,
  error text,
  created_at integer not null
);
create index if not exists deliveries_due on deliveries (next_attempt_at) where next_attempt_at is not null;
create index if not exists deliveries_by_time on deliveries (created_at, id)`;

/** An event that is to be delivered. */
export interface QueuedEvent {
  /** ID of the event, and the `webhook-id` of every attempt. */
  id: string;
  /** JSON, the body of every attempt. */
  body: string;
}

export interface Delivery extends QueuedEvent {
  status: DeliveryStatus;
  attempts: number;
  lastAttemptAt: Date | null;
  nextAttemptAt: Date | null;
  responseStatus: number | null;
  error: Attempt['error'];
  createdAt: Date;
}

interface Row extends Record<string, SqlStorageValue> {
  id: string;
  body: string;
  status: DeliveryStatus;
  attempts: number;
  last_attempt_at: number | null;
  next_attempt_at: number | null;
  response_status: number | null;
  error: Attempt['error'];
  created_at: number;
}

const toDate = (at: number | null) => (at === null ? null : new Date(at));

const toDelivery = (row: Row): Delivery => ({
  id: row.id,
  body: row.body,
  status: row.status,
  attempts: row.attempts,
  lastAttemptAt: toDate(row.last_attempt_at),
  nextAttemptAt: toDate(row.next_attempt_at),
  responseStatus: row.response_status,
  error: row.error,
  createdAt: new Date(row.created_at),
});

/**
 * The deliveries of one webhook, in the SQLite database of its object: table `deliveries`. Times are Unix
 * milliseconds.
 */
export class DeliveryStore {
  readonly #sql: SqlStorage;

  constructor(sql: SqlStorage) {
    this.#sql = sql;
  }

  /** Adds events that are due immediately. An event that is already here is ignored. */
  add(events: readonly QueuedEvent[], now: number): void {
    this.#sql.exec(TABLES);
    for (const { id, body } of events) {
      this.#sql.exec(
        "insert into deliveries (id, body, status, next_attempt_at, created_at) values (?, ?, 'pending', ?, ?) on conflict do nothing",
        id,
        body,
        now,
        now,
      );
    }
    this.#sql.exec(
      `update deliveries set status = 'failed', next_attempt_at = null where id in
        (select id from deliveries where status = 'pending' order by created_at desc, rowid desc limit -1 offset ?)`,
      WAITING_MAX,
    );
  }

  /** The deliveries whose next attempt is due, oldest first. */
  due(now: number, limit: number): Delivery[] {
    return this.#read('where next_attempt_at <= ? order by created_at, rowid limit ?', now, limit);
  }

  /**
   * An attempt begins. If it is interrupted, the next one is at this time; null: then the delivery has
   * failed.
   */
  begin(id: string, now: number, nextAttemptAt: number | null): void {
    this.#sql.exec(
      `update deliveries set attempts = attempts + 1, last_attempt_at = ?, next_attempt_at = ?,
        status = ? where id = ?`,
      now,
      nextAttemptAt,
      nextAttemptAt === null ? 'failed' : 'pending',
      id,
    );
  }

  /** An attempt has ended. @param nextAttemptAt null: it was the last one */
  end(id: string, { status, error }: Attempt, nextAttemptAt: number | null): void {
    const state = error === null ? 'delivered' : nextAttemptAt === null ? 'failed' : 'pending';
    this.#sql.exec(
      'update deliveries set status = ?, response_status = ?, error = ?, next_attempt_at = ? where id = ?',
      state,
      status,
      error,
      state === 'pending' ? nextAttemptAt : null,
      id,
    );
  }

  /** Makes all waiting deliveries due. */
  hurry(now: number): void {
    this.#sql.exec("update deliveries set next_attempt_at = ? where status = 'pending'", now);
  }

  /** Nothing more is attempted. */
  failAll(): void {
    this.#sql.exec(
      "update deliveries set status = 'failed', next_attempt_at = null where status = 'pending'",
    );
  }

  find(id: string): Delivery | null {
    const [delivery] = this.#read('where id = ?', id);
    return delivery ?? null;
  }

  /** When the next attempt is due; null if nothing waits. */
  nextAttemptAt(): number | null {
    if (!this.#exists()) return null;
    return this.#sql.exec<{ at: number | null }>('select min(next_attempt_at) as at from deliveries').one()
      .at;
  }

  /** Deletes what finished long ago. @returns whether anything is left */
  prune(now: number): boolean {
    if (!this.#exists()) return false;
    this.#sql.exec(
      `delete from deliveries where status <> 'pending' and (created_at < ? or id in
        (select id from deliveries where status <> 'pending' order by created_at desc, id desc limit -1 offset ?))`,
      now - 2 * DELIVER_FOR_MS,
      FINISHED_MAX,
    );
    return this.#sql.exec<{ n: number }>('select exists (select 1 from deliveries) as n').one().n === 1;
  }

  /** Newest first. */
  page({ cursor, limit }: PageQuery): Delivery[] {
    const newest = 'order by created_at desc, id desc limit ?';
    if (!cursor) return this.#read(newest, limit + 1);
    return this.#read(
      `where (created_at, id) < (?, ?) ${newest}`,
      cursor.createdAt.getTime(),
      cursor.id,
      limit + 1,
    );
  }

  #read(clause: string, ...values: SqlStorageValue[]): Delivery[] {
    if (!this.#exists()) return [];
    return this.#sql
      .exec<Row>(`select * from deliveries ${clause}`, ...values)
      .toArray()
      .map(toDelivery);
  }

  /** A made-up ID leaves no storage. */
  #exists(): boolean {
    const found = "select exists (select 1 from sqlite_master where name = 'deliveries') as n";
    return this.#sql.exec<{ n: number }>(found).one().n === 1;
  }
}
