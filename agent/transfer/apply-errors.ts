import { statSync } from 'node:fs';
import { LogFollower } from '../logs/follow-log.ts';
import { currentPostgresLog, postgresLogsBetween } from '../logs/postgres-log.ts';
import { endSessions } from '../postgres/sessions.ts';
import { pollUntil } from '../process/loops.ts';
import { withoutValue } from './copy-rows.ts';
import { type FollowHost, hearingSubscriber, isHeard } from './followed-session.ts';
import {
  disable,
  enable,
  type Followed,
  readFollowed,
  readSubscription,
  WORKERS as WORKERS_OF,
} from './following.ts';
import { short } from './source-address.ts';

/**
 * Errors of the workers of subscriptions. PostgreSQL counts them, and says only in its log what is wrong. Functions of the
 * source can write there as much as they like, so a worker logs nothing below `fatal`, except once for each error: then
 * it is started again, and ended after its first message.
 */

/** Kinds of processes in PostgreSQL's log. Quotes are escaped inside a JSON string, so no text can contain these marks. */
const WORKERS = ['apply', 'tablesync'].map((kind) => `"backend_type":"logical replication ${kind} worker"`);

/** The fields used of a line of PostgreSQL's `jsonlog`. */
interface WorkerLine {
  error_severity?: string;
  state_code?: string;
  message?: string;
  context?: string;
}

/** An error of a worker about a change that it was applying. */
export interface ApplyError {
  /** Oid of the subscription. */
  subscription: string;
  sqlstate: string;
  table: string | null;
  message: string;
}

/**
 * SQLSTATEs that say nothing about a change: of the connection, of a lock, of a server that stops or has no room. The
 * worker begins again by itself.
 */
const PASSING = /^(?:08|40|53|57|58|55P03|55006)/;
/** The class of a table that is not here, whose message names it. */
const OF_TABLES = '55';
/** The line of a worker without a client has no database. A name in the schema can contain the same text. */
const ORIGIN = /replication origin "pg_(\d+)/;
const TARGET = /for replication target relation "((?:[^"]|"")+)"/;
const RELATION = /target relation "((?:[^"]|"")+)"/;

/** @returns null for a line that is about no change */
export function readApplyError(line: string): ApplyError | null {
  const { error_severity, state_code, message = '', context = '' } = parse(line);
  if (error_severity !== 'ERROR' || state_code === undefined) return null;
  // Only an error of a change has the transaction that it is from.
  const [, subscription] = ORIGIN.exec(context) ?? [];
  if (PASSING.test(state_code) || subscription === undefined) return null;
  const [, table = null] = TARGET.exec(context) ?? RELATION.exec(message) ?? [];
  const reason = state_code.startsWith(OF_TABLES) ? message : withoutValue(message, state_code);
  return { subscription, sqlstate: state_code, table: table && short(table), message: short(reason) };
}

function parse(line: string): WorkerLine {
  try {
    return JSON.parse(line);
  } catch {
    return {};
  }
}

/** The worker begins immediately, and fails at the first change; a busy machine takes long. Milliseconds. */
const HEARD = { within: 15_000, every: 20 };
/** Bytes that PostgreSQL's log grows by meanwhile. */
const LOGGED_MAX = 4 * 2 ** 20;
const ENDING = { within: 5_000 };
/** A worker that has said nothing is asked again after this time. Milliseconds. */
const ASK_AGAIN_MS = 30_000;

const COUNTS = `
  SELECT subid::text AS subscription, datname AS database, (apply_error_count + sync_error_count)::float8 AS errors
  FROM pg_stat_subscription_stats
  JOIN pg_subscription ON pg_subscription.oid = subid JOIN pg_database ON pg_database.oid = subdbid`;

export class ApplyErrors {
  readonly #host: FollowHost;
  /** By subscription. */
  #counts: ReadonlyMap<string, number> | null = null;
  /** Databases with an error that nobody has asked about. */
  readonly #new = new Set<string>();
  /** The last one is heard after those before: no other worker logs errors, so none can speak for it. */
  #hearing: Promise<unknown> = Promise.resolve();
  #heard: ApplyError | null = null;
  /** By database: when a worker that said nothing may be asked again, in milliseconds of a monotonic clock. */
  readonly #askAt = new Map<string, number>();

  constructor(host: FollowHost) {
    this.#host = host;
  }

  /** Reads the log until `signal` aborts. Never throws. */
  follow(signal: AbortSignal, onPoll: (trouble: unknown) => void): Promise<void> {
    const { settings } = this.#host;
    const log = new LogFollower({
      locate: () => currentPostgresLog(settings),
      between: postgresLogsBetween,
      marks: WORKERS,
      onLines: (lines) => {
        for (const line of lines) {
          this.#heard = readApplyError(line) ?? this.#heard;
        }
      },
    });
    return log.follow(signal, onPoll);
  }

  async count(): Promise<void> {
    if (this.#counts === null) await this.#endHearing();
    const { rows } = await this.#host.postgres.query<{
      subscription: string;
      database: string;
      errors: number;
    }>(COUNTS);
    for (const { subscription, database, errors } of rows)
      if (this.#counts && errors > (this.#counts.get(subscription) ?? 0)) this.#new.add(database);
    this.#counts = new Map(rows.map(({ subscription, errors }) => [subscription, errors]));
  }

  /** Removes the leftovers of a killed agent. */
  async #endHearing(): Promise<void> {
    const { postgres } = this.#host;
    for (const { project_id, database } of await readFollowed(postgres)) {
      const role = { project_id };
      if (!(await isHeard(postgres, role))) continue;
      await postgres.query(hearingSubscriber(role, false));
      // A worker has the settings of its start, and PostgreSQL starts it again.
      await endSessions(postgres, WORKERS_OF, [database], ENDING);
    }
  }

  /** Returns whether a worker has failed since it was last asked. */
  areNew(database: string): boolean {
    return this.#new.has(database) && performance.now() >= (this.#askAt.get(database) ?? 0);
  }

  /**
   * Lets the worker fail again, and hears why. The subscription is disabled afterwards. The caller has the lock of the
   * branch.
   * @returns null if it does not fail at a change; `too much` if it fills the log instead
   */
  hear(followed: Followed): Promise<ApplyError | 'too much' | null> {
    const heard = this.#hearing.then(() => this.#hear(followed));
    this.#hearing = heard.catch(() => {});
    return heard;
  }

  async #hear(followed: Followed): Promise<ApplyError | 'too much' | null> {
    const { database } = followed;
    const { postgres } = this.#host;
    await disable(this.#host, followed);
    this.#new.delete(database);
    const subscription = await readSubscription(postgres, followed);
    this.#heard = null;
    const logged = this.#loggedSince();
    const isOver = async () => {
      // An error of the worker before may be read only now.
      if (this.#heard?.subscription === subscription?.oid) return this.#heard;
      return logged() > LOGGED_MAX ? ('too much' as const) : null;
    };
    await postgres.query(hearingSubscriber(followed, true));
    try {
      await enable(this.#host, followed);
      const heard = (await pollUntil<ApplyError | 'too much'>(isOver, HEARD)) ?? null;
      // The worker would retry until nobody waits for it.
      if (heard === 'too much') await endSessions(postgres, WORKERS_OF, [database], ENDING);
      if (heard === null) this.#askAt.set(database, performance.now() + ASK_AGAIN_MS);
      else this.#askAt.delete(database);
      return heard;
    } finally {
      await postgres.query(hearingSubscriber(followed, false));
      await disable(this.#host, followed);
      await this.count();
      this.#new.delete(database);
    }
  }

  /** @returns a function that returns the bytes of PostgreSQL's log since now */
  #loggedSince(): () => number {
    const { settings } = this.#host;
    const read = () => {
      const path = currentPostgresLog(settings);
      return { path, bytes: path === null ? 0 : (statSync(path, { throwIfNoEntry: false })?.size ?? 0) };
    };
    const before = read();
    return () => {
      const now = read();
      return now.path === before.path ? now.bytes - before.bytes : now.bytes;
    };
  }
}
