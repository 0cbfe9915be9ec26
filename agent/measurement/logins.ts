import { LogFollower } from '../logs/follow-log.ts';
import { currentPostgresLog } from '../logs/postgres-log.ts';
import type { PooledClient } from '../pooler/console.ts';
import type { AgentSettings } from '../settings.ts';

/**
 * `<time> [<pid>] LOG C-0x<…>: <database>/<user>@<address>:<port> closing because: client close request (age=…)`.
 * Database and user are a stranger's text until they match. Who closed with another reason may never have been let
 * in; and who came over the unix socket, with `unix` for an address, is of this host.
 */
const POOLER_LINE =
  /^[\d-]+ [\d:.]+ \S+ \[\d+\] LOG C-(0x[0-9a-f]+): (db_[a-z0-9_-]+)\/u_[0-9a-f]{32}_(?:owner|rw|ro)@\[?([0-9a-f.:]+?)\]?:(\d+) closing because: client close request \(age=/;
const POOLER_MARK = ' closing because: client close request ';

/** Inside of a JSON string these quotes would be escaped, so no text of a statement can bear the mark. */
const POSTGRES_MARK = '"message":"connection authorized: ';

/** How often a client that is gone from the pooler's list is looked up in its log; its line may be late. */
const GONE_ROUNDS = 3;

/** Tells a pooled client from every other one. */
const clientKey = ({ pointer, address, port }: Pick<PooledClient, 'pointer' | 'address' | 'port'>) =>
  `${pointer} ${address} ${port}`;

/**
 * Counts the connections that PostgreSQL's statistics don't tell of, or tell of as if they were clients'.
 * Clients of the pooler: those it lists when it is asked, and those its log says came and went in between.
 * Sessions over PostgreSQL's own socket, which are the pooler's and the agent's.
 */
export class Logins {
  readonly #followers: LogFollower[];
  /** By database name. */
  #closed = new Map<string, number>();
  readonly #local = new Map<string, number>();
  /** Pooled clients that have been counted, and for how many rounds they have been gone. */
  readonly #counted: Map<string, number>;

  /** @param counted keys of the pooled clients that were there, and counted, when the agent stopped */
  constructor(settings: AgentSettings, counted: readonly string[]) {
    this.#counted = new Map(counted.map((key) => [key, 0]));
    this.#followers = [
      new LogFollower({
        locate: () => settings.POOLER_LOG,
        marks: [POOLER_MARK],
        onLines: (lines) => {
          for (const line of lines) this.#noteClosed(line);
        },
      }),
      new LogFollower({
        locate: () => currentPostgresLog(settings),
        marks: [POSTGRES_MARK],
        onLines: (lines) => {
          for (const line of lines) this.#noteLocal(line);
        },
      }),
    ];
  }

  /** Reads what is new in both logs. */
  async poll(): Promise<void> {
    await Promise.all(this.#followers.map((follower) => follower.poll()));
  }

  async close(): Promise<void> {
    await Promise.all(this.#followers.map((follower) => follower.close()));
  }

  /** Keys of the clients that are not to be counted again. */
  get counted(): string[] {
    return [...this.#counted.keys()];
  }

  /**
   * Pooled clients that have come since the last call, by database name.
   * @param clients who is connected now
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

  /** How many of `sessions` new ones in a database came over the network. A log line may come before its session. */
  direct(database: string, sessions: number): number {
    const local = Math.min(this.#local.get(database) ?? 0, sessions);
    if (local > 0) this.#local.set(database, (this.#local.get(database) ?? 0) - local);
    return sessions - local;
  }

  /**
   * Forgets the sessions of all other databases: of one that is gone, and of one whose statistics have just been
   * taken for zero, with all its sessions so far.
   */
  forgetLocalExcept(databases: ReadonlySet<string>): void {
    for (const name of this.#local.keys()) if (!databases.has(name)) this.#local.delete(name);
  }

  #noteClosed(line: string) {
    const [, pointer, database, address, port] = POOLER_LINE.exec(line) ?? [];
    if (!pointer || !database || !address) return;
    if (!this.#counted.delete(clientKey({ pointer, address, port: Number(port) }))) {
      increase(this.#closed, database);
    }
  }

  #noteLocal(line: string) {
    const { dbname, remote_host } = parse(line);
    if (dbname && remote_host === '[local]') increase(this.#local, dbname);
  }
}

function increase(counts: Map<string, number>, name: string) {
  counts.set(name, (counts.get(name) ?? 0) + 1);
}

function parse(line: string): { dbname?: string; remote_host?: string } {
  try {
    return JSON.parse(line);
  } catch {
    return {};
  }
}
