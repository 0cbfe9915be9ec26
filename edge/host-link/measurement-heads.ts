/** Measurements of a host's projects come together, so their heads are written together. */
const WRITE_AFTER_MS = 1_000;
/** Bounds a stored value, which may have 2 MB. A head has less than 1.5 million characters. */
const PART_MAX = 1_500_000;

const TABLE = 'create table if not exists measurement_heads (part integer primary key, heads text not null)';

/**
 * The heads of the measurements of a host's projects (`edge/monitoring/measurements.ts`), as text. Each row
 * that is written is charged, whatever its length, so the projects of a host share one row a minute instead of
 * one each; there are more rows if the heads are too long for one. A loss of the object before it has written
 * costs a project a minute, if its own object is idle.
 */
export class MeasurementHeads {
  readonly #storage: DurableObjectStorage;
  readonly #after: (milliseconds: number, task: () => void) => void;
  #heads: Map<string, string> | null = null;
  #isWaiting = false;

  constructor(storage: DurableObjectStorage, after: (milliseconds: number, task: () => void) => void) {
    this.#storage = storage;
    this.#after = after;
  }

  of(projectId: string): string | null {
    return this.#known().get(projectId) ?? null;
  }

  keep(projectId: string, head: string): void {
    this.#known().set(projectId, head);
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    this.#after(WRITE_AFTER_MS, () => {
      this.#isWaiting = false;
      this.#write();
    });
  }

  /** Drops those of all other projects. */
  retain(projectIds: ReadonlySet<string>): void {
    const others = [...this.#known().keys()].filter((id) => !projectIds.has(id));
    for (const id of others) this.#heads?.delete(id);
    if (others.length > 0) this.#write();
  }

  /** After the storage was deleted. */
  forget(): void {
    this.#heads = new Map();
  }

  #known(): Map<string, string> {
    if (this.#heads) return this.#heads;
    const { sql } = this.#storage;
    // A read must not leave storage of a host that is no more.
    const [table] = sql.exec("select 1 from sqlite_master where name = 'measurement_heads'").toArray();
    const parts = table ? sql.exec<{ heads: string }>('select heads from measurement_heads').toArray() : [];
    this.#heads = new Map(
      parts.flatMap(({ heads }) => Object.entries(JSON.parse(heads) as Record<string, string>)),
    );
    return this.#heads;
  }

  #write(): void {
    const parts: [string, string][][] = [];
    let length = Number.POSITIVE_INFINITY;
    for (const entry of this.#known()) {
      const added = JSON.stringify(entry).length;
      if (length + added > PART_MAX) {
        parts.push([]);
        length = 0;
      }
      parts.at(-1)?.push(entry);
      length += added;
    }
    const { sql } = this.#storage;
    this.#storage.transactionSync(() => {
      sql.exec(TABLE);
      for (const [part, entries] of parts.entries())
        sql.exec(
          'insert or replace into measurement_heads (part, heads) values (?, ?)',
          part,
          JSON.stringify(Object.fromEntries(entries)),
        );
      sql.exec('delete from measurement_heads where part >= ?', parts.length);
    });
  }
}
