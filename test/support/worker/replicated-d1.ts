/** A statement with its values, which can be prepared on either copy. */
export interface Bound {
  query: string;
  values: readonly unknown[];
}

export const prepare = (on: Pick<D1Database, 'prepare'>, { query, values }: Bound): D1PreparedStatement =>
  on.prepare(query).bind(...values);

export const isWrite = ({ query }: Bound): boolean => !/^\s*select\b/i.test(query);

/** Bookmarks are compared as texts. */
const bookmarkAt = (version: number) => version.toString(16).padStart(8, '0');

/**
 * A copy of D1 that repeats what the primary has written, but late. The local D1 has no replicas, so this is
 * what D1's documentation says of them: a session reads any copy that is as new as its bookmark, and writes
 * go to the primary.
 */
export class Replica {
  readonly database: D1Database;
  readonly #lagMs: number;
  readonly #log: { at: number; statements: readonly Bound[] }[] = [];
  #applied = 0;
  #isCurrent: Promise<void> = Promise.resolve();

  constructor(database: D1Database, lagMs: number) {
    this.database = database;
    this.#lagMs = lagMs;
  }

  /** Records what the primary has written. */
  follow(statements: readonly Bound[]): void {
    this.#log.push({ at: Date.now(), statements });
  }

  /** Repeats what is old enough. */
  catchUp(lagMs = this.#lagMs): Promise<void> {
    this.#isCurrent = this.#isCurrent.then(async () => {
      for (let next = this.#log[this.#applied]; next; next = this.#log[this.#applied]) {
        if (Date.now() < next.at + lagMs) return;
        await this.database.batch(next.statements.map((statement) => prepare(this.database, statement)));
        this.#applied += 1;
      }
    });
    return this.#isCurrent;
  }

  get bookmark(): string {
    return bookmarkAt(this.#applied);
  }

  /** Of the primary. */
  get newest(): string {
    return bookmarkAt(this.#log.length);
  }
}

/** What one session has seen. */
export class Session {
  #constraint: string;

  constructor(constraint: string) {
    this.#constraint = constraint;
  }

  /** Whether this session may read the replica as it is now. */
  admits({ bookmark }: Replica): boolean {
    if (this.#constraint === 'first-primary') return false;
    return this.#constraint === 'first-unconstrained' || this.#constraint <= bookmark;
  }

  see(bookmark: string): void {
    if (this.getBookmark() === null || this.#constraint < bookmark) this.#constraint = bookmark;
  }

  getBookmark(): string | null {
    return this.#constraint.startsWith('first-') ? null : this.#constraint;
  }
}
