import type { Pool } from '../postgres/connect.ts';
import type { GuardedBranch } from './guard.ts';

/** A database of an unknown session is looked up at most this often. Milliseconds. */
const READ_EVERY = 1_000;
/** A dropped database is forgotten after this time. Milliseconds. */
const RENEW_AFTER = 60_000;

/**
 * Which branch a database belongs to. It is read in another session than the one that watches, and never
 * waited for: both would stop the watchdogs when they are needed most.
 */
export class BranchDirectory {
  readonly #pool: Pool;
  #branches = new Map<string, GuardedBranch>();
  #byName = new Map<string, GuardedBranch>();
  #readAt = Number.NEGATIVE_INFINITY;
  #reading = false;

  constructor(pool: Pool) {
    this.#pool = pool;
  }

  /** @param database its oid */
  find(database: string): GuardedBranch | null {
    return this.#branches.get(database) ?? null;
  }

  /** Every branch, by the oid of its database. */
  all(): ReadonlyMap<string, GuardedBranch> {
    return this.#branches;
  }

  /** @param database its name */
  findByName(database: string): GuardedBranch | null {
    return this.#byName.get(database) ?? null;
  }

  /**
   * Begins to read it again when one of these databases is unknown, or when it is old.
   * @param onEnd its error, or null
   */
  refresh(databases: readonly string[], onEnd: (trouble: unknown) => void): void {
    const age = performance.now() - this.#readAt;
    const isDue =
      age > RENEW_AFTER || (age > READ_EVERY && databases.some((oid) => !this.#branches.has(oid)));
    if (!isDue || this.#reading) return;
    this.#reading = true;
    this.#readAt = performance.now();
    this.#read()
      .then(() => onEnd(null), onEnd)
      .finally(() => {
        this.#reading = false;
      });
  }

  async #read(): Promise<void> {
    const { rows } = await this.#pool.query<GuardedBranch & { oid: string }>(
      `SELECT pg_database.oid::text AS oid, branch_id, project_id, database,
              coalesce(tenant, project_id::text) AS tenant
       FROM branch JOIN pg_database ON datname = database LEFT JOIN project USING (project_id)`,
    );
    this.#branches = new Map(rows.map(({ oid, ...branch }) => [oid, branch]));
    this.#byName = new Map([...this.#branches.values()].map((branch) => [branch.database, branch]));
  }
}
