import type { Statistics } from './counters.ts';

interface Known {
  bytes: number;
  /** What the statistics said when it was sized. */
  of: string;
  /** Number of the measurement. */
  at: number;
}

/** What comes and goes unnoticed, a file that autovacuum cut for instance, is found within so many measurements. */
const ROUNDS = 120;

/**
 * Sizes of databases. Sizing one looks at each of its files, which takes a hundred times as long as reading its
 * statistics: so it is done again only where somebody did something, or is still at it.
 */
export class DatabaseSizes {
  #known = new Map<string, Known>();
  #round = 0;

  /**
   * @param inTransaction databases in which somebody is in a transaction: what it writes is in no statistics yet
   * @returns those of `databases` to be sized now
   */
  due(databases: readonly Statistics[], inTransaction: ReadonlySet<string>): string[] {
    this.#round += 1;
    const moved = databases.filter(({ database }) => inTransaction.has(database));
    const still: Statistics[] = [];
    for (const one of databases) {
      if (inTransaction.has(one.database)) continue;
      (this.#known.get(one.database)?.of === tracesOf(one) ? still : moved).push(one);
    }
    const age = ({ database }: Statistics) => this.#known.get(database)?.at ?? 0;
    const oldest = still.toSorted((a, b) => age(a) - age(b)).slice(0, Math.ceil(databases.length / ROUNDS));
    return [...moved, ...oldest].map(({ database }) => database);
  }

  /** Notes new sizes, and forgets databases that are gone. @param databases as given to `due` */
  record(databases: readonly Statistics[], sizes: ReadonlyMap<string, number>): void {
    this.#known = new Map(
      databases.flatMap((one) => {
        const bytes = sizes.get(one.database);
        if (bytes !== undefined) return [[one.database, { bytes, of: tracesOf(one), at: this.#round }]];
        const known = this.#known.get(one.database);
        return known ? [[one.database, known]] : [];
      }),
    );
  }

  bytesOf(database: string): number | undefined {
    return this.#known.get(database)?.bytes;
  }
}

/** Rows that changed, whoever did it, catalogs included; and time of clients, whatever they did. */
const tracesOf = ({ inserted, updated, deleted, session_ms }: Statistics) =>
  [inserted, updated, deleted, session_ms].join();
