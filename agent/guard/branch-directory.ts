import type { Pool } from '../postgres/connect.ts';
import { readWorkMark } from '../postgres/databases.ts';
import { DATABASE_KINDS, DATABASES, databaseKind } from '../postgres/tenant-code.ts';
import type { GuardedBranch } from './guard.ts';
import { ID_IN_NAME, type ReadName, type ReadSession } from './watch-session.ts';

/** A database of an unknown session is looked up at most this often. Milliseconds. */
const READ_EVERY = 1_000;
/** A dropped database is forgotten after this time. Milliseconds. */
const RENEW_AFTER = 60_000;

/** Databases of operations, which say in their comments whose they are. */
const OF_OPERATIONS = DATABASE_KINDS.filter((kind) => DATABASES[kind].excess === 'end')
  .map((kind) => DATABASES[kind].form.source)
  .join('|');

const READ = `
  SELECT pg_database.oid::text AS oid, database, branch_id AS id, project_id, tenant, NULL AS comment
  FROM branch JOIN pg_database ON datname = database LEFT JOIN project USING (project_id)
  UNION ALL
  SELECT oid::text, datname, ${ID_IN_NAME}, NULL, NULL, shobj_description(oid, 'pg_database')
  FROM pg_database WHERE datname ~ '${OF_OPERATIONS}'`;

interface Row extends ReadName {
  /** Null for a database of an operation. */
  project_id: string | null;
  tenant: string | null;
}

/** A process of the server: the oid of its database, and when it began. */
type InDatabase = Pick<ReadSession, 'database' | 'begun'>;

/**
 * Which tenant a database belongs to. It is read in another session than the one that watches, and never
 * waited for: both would stop the watchdogs when they are needed most.
 */
export class BranchDirectory {
  readonly #pool: Pool;
  /** When the last completed reading began. Seconds since 1970, as of PostgreSQL's processes. */
  #asOf = 0;
  #branches = new Map<string, GuardedBranch>();
  #byName = new Map<string, GuardedBranch>();
  #tenants = new Map<string, string>();
  #readAt = Number.NEGATIVE_INFINITY;
  #reading = false;

  constructor(pool: Pool) {
    this.#pool = pool;
  }

  /** @param database its oid */
  find(database: string): GuardedBranch | null {
    return this.#branches.get(database) ?? null;
  }

  /** Every database of a tenant, by its oid. */
  all(): ReadonlyMap<string, GuardedBranch> {
    return this.#branches;
  }

  /** @param database its name */
  findByName(database: string): GuardedBranch | null {
    return this.#byName.get(database) ?? null;
  }

  /**
   * The kind of a process's database is certain unless its name may have changed. A copy that is filled becomes a branch by a new name, but
   * PostgreSQL renames no database that has a process.
   */
  isCertain({ database, begun }: InDatabase): boolean {
    const found = this.#branches.get(database);
    return found !== undefined && (DATABASES[found.kind].excess !== 'end' || begun < this.#asOf);
  }

  /**
   * Begins to read it again when the database of a process is unknown or may have another name, or when it is old.
   * @param onEnd its error, or null
   */
  refresh(processes: readonly InDatabase[], onEnd: (trouble: unknown) => void): void {
    const age = performance.now() - this.#readAt;
    const isDue = age > RENEW_AFTER || (age > READ_EVERY && processes.some((one) => !this.isCertain(one)));
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
    const asOf = Date.now() / 1_000;
    const { rows } = await this.#pool.query<Row>(READ);
    this.#tenants = new Map(
      rows.flatMap(({ project_id, tenant }) => (project_id && tenant ? [[project_id, tenant]] : [])),
    );
    this.#branches = new Map();
    this.#byName = new Map();
    for (const row of rows) this.#add(row);
    this.#asOf = asOf;
  }

  /** @returns oids of the databases of processes that are unknown */
  unknown(processes: readonly Pick<InDatabase, 'database'>[]): string[] {
    const all = new Set(processes.map(({ database }) => database));
    return [...all].filter((database) => !this.#branches.has(database));
  }

  /**
   * Adds databases of operations, which may run code of a tenant before the next reading. Branches are left to it: only
   * the agent's table says whose they are.
   * @param names of databases, as they are now
   */
  learn(names: readonly ReadName[]): void {
    for (const name of names) {
      const kind = databaseKind(name.database);
      if (kind && DATABASES[kind].excess === 'end') this.#add({ ...name, project_id: null, tenant: null });
    }
  }

  #add({ oid, database, id, project_id, comment }: Row): void {
    const kind = databaseKind(database);
    const project = project_id ?? readWorkMark(comment)?.project_id;
    if (!kind || !project || id === null) return;
    const branch = {
      kind,
      branch_id: id,
      project_id: project,
      tenant: this.#tenants.get(project) ?? project,
      database,
    };
    this.#branches.set(oid, branch);
    this.#byName.set(database, branch);
  }
}
