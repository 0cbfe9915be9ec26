import { LogFollower } from '../logs/follow-log.ts';
import { currentPostgresLog, postgresLogsBetween } from '../logs/postgres-log.ts';
import type { PooledClient } from '../pooler/admin-console.ts';
import type { AgentSettings } from '../process/settings.ts';

/**
 * `<time> [<pid>] LOG C-0x<…>: <database>/<user>@<address>:<port> closing because: client close request (age=…)`.
 * Database and user are unchecked client input until they match. A client closed for another reason may never have
 * logged in. Clients over the unix socket, with the address `unix`, belong to this host.
 */
const POOLER_LINE =
  /^[\d-]+ [\d:.]+ \S+ \[\d+\] LOG C-(0x[0-9a-f]+): (db_[a-z0-9_-]+)\/u_[0-9a-f]{32}_(?:owner|rw|ro)@\[?([0-9a-f.:]+?)\]?:(\d+) closing because: client close request \(age=/;
const POOLER_MARK = ' closing because: client close request ';

/** Quotes are escaped inside a JSON string, so the text of a statement cannot contain this mark. */
const POSTGRES_MARK = '"message":"connection authorized: ';

/** End of the message about a session of the table browser. */
const TABLE_BROWSER = / application_name=branchgate-rows$/;

/** Rounds for which a client that left the pooler's list is remembered, because its log line may be late. */
const GONE_ROUNDS = 3;

/** Unique among pooled clients. */
const clientKey = ({ pointer, address, port }: Pick<PooledClient, 'pointer' | 'address' | 'port'>) =>
  `${pointer} ${address} ${port}`;

/**
 * Counts the connections that PostgreSQL's statistics omit, and those that they wrongly count as clients'.
 * Omitted are clients of the pooler: those in its list, and those in its log that connected and left in
 * between. Wrongly counted are sessions over PostgreSQL's own unix socket, which are the pooler's and the
 * agent's.
 */
export class Logins {
  readonly #followers: LogFollower[];
  /** By database name. */
  #closed = new Map<string, number>();
  readonly #local = new Map<string, number>();
  /** Databases that the table browser has logged in to since the last call of `takeBrowsed`. */
  #browsed = new Set<string>();
  /** Pooled clients that were counted → rounds since they left the list. */
  readonly #counted: Map<string, number>;

  /** @param counted keys of the pooled clients that were connected and counted when the agent stopped */
  constructor(settings: AgentSettings, counted: readonly string[]) {
    this.#counted = new Map(counted.map((key) => [key, 0]));
    this.#followers = [
      new LogFollower({
        locate: () => settings.POOLER_LOG,
        marks: [POOLER_MARK],
        onLines: (lines) => {
          for (const line of lines) this.#recordClosed(line);
        },
      }),
      new LogFollower({
        locate: () => currentPostgresLog(settings),
        between: postgresLogsBetween,
        marks: [POSTGRES_MARK],
        onLines: (lines) => {
          for (const line of lines) this.#recordLocal(line);
        },
      }),
    ];
  }

  /** Reads new lines of both logs. */
  async poll(): Promise<void> {
    await Promise.all(this.#followers.map((follower) => follower.poll()));
  }

  async close(): Promise<void> {
    await Promise.all(this.#followers.map((follower) => follower.close()));
  }

  /** Keys of the clients that must not be counted again. */
  get counted(): string[] {
    return [...this.#counted.keys()];
  }

  /**
   * Pooled clients that connected since the last call, by database name.
   * @param clients those connected now
   */
  newPooled(clients: readonly PooledClient[]): Map<string, number> {
    const arrived = this.#closed;
    this.#closed = new Map();
    for (const [key, rounds] of this.#counted) {
      if (rounds === GONE_ROUNDS) this.#counted.delete(key);
      else this.#counted.set(key, rounds + 1);
    }
    for (const client of clients) {
      if (!this.#counted.has(clientKey(client))) increase(arrived, client.database);
      this.#counted.set(clientKey(client), 0);
    }
    return arrived;
  }

  /**
   * How many of a database's new `sessions` came over the network. A log line may precede its session's
   * statistics.
   */
  direct(database: string, sessions: number): number {
    const local = Math.min(this.#local.get(database) ?? 0, sessions);
    if (local > 0) this.#local.set(database, (this.#local.get(database) ?? 0) - local);
    return sessions - local;
  }

  /**
   * Forgets the local sessions of all other databases: of dropped ones, and of those whose baseline was just
   * set, which includes their sessions so far.
   */
  forgetLocalExcept(databases: ReadonlySet<string>): void {
    for (const name of this.#local.keys()) if (!databases.has(name)) this.#local.delete(name);
  }

  /** Databases that the table browser has logged in to since the last call. Its sessions work for clients. */
  takeBrowsed(): ReadonlySet<string> {
    const browsed = this.#browsed;
    this.#browsed = new Set();
    return browsed;
  }

  #recordClosed(line: string) {
    const [, pointer, database, address, port] = POOLER_LINE.exec(line) ?? [];
    if (!pointer || !database || !address) return;
    if (!this.#counted.delete(clientKey({ pointer, address, port: Number(port) }))) {
      increase(this.#closed, database);
    }
  }

  #recordLocal(line: string) {
    const { dbname, remote_host, message = '' } = parse(line);
    if (!dbname || remote_host !== '[local]') return;
    increase(this.#local, dbname);
    if (TABLE_BROWSER.test(message)) this.#browsed.add(dbname);
  }
}

function increase(counts: Map<string, number>, name: string) {
  counts.set(name, (counts.get(name) ?? 0) + 1);
}

function parse(line: string): { dbname?: string; remote_host?: string; message?: string } {
  try {
    return JSON.parse(line);
  } catch {
    return {};
  }
}

/**
 * Statistics of a session are reported at the latest ten seconds after its work, which can be after the
 * measurement that saw its client.
 */
const REPORTED_WITHIN_MS = 15_000;

/**
 * When clients last used each database, by its oid. PostgreSQL's statistics do not distinguish a client's
 * work from that of autovacuum, of the agent's own sessions and of a session that the pooler keeps open. What
 * happened while no client was there is therefore nobody's usage.
 */
export class ClientActivity {
  #usedAt = new Map<string, number>();

  /** @param at milliseconds of a monotonic clock */
  record(database: string, at: number): void {
    this.#usedAt.set(database, at);
  }

  /** Whether a client can have caused what the statistics report since the previous measurement. */
  isUsedSince(database: string, measuredAt: number): boolean {
    return (this.#usedAt.get(database) ?? Number.NEGATIVE_INFINITY) >= measuredAt - REPORTED_WITHIN_MS;
  }

  forgetExcept(databases: ReadonlySet<string>): void {
    for (const database of this.#usedAt.keys()) if (!databases.has(database)) this.#usedAt.delete(database);
  }
}
