import type { Statistics } from './counters.ts';

interface Known {
  bytes: number;
  /** The statistics' change key when it was sized. */
  key: string;
  /** Number of the round that sized it. */
  round: number;
}

/** Rounds within which an unnoticed change is found, for instance a file that autovacuum truncated. */
const ROUNDS = 120;

/**
 * Sizes of databases. Sizing one reads the metadata of each of its files, which takes a hundred times as long as
 * reading its statistics. A database is therefore sized again only after activity, or during an open transaction.
 */
export class KnownSizes {
  #known = new Map<string, Known>();
  #round = 0;

  /**
   * @param inTransaction databases with an open transaction, whose writes are in no statistics yet
   * @returns the databases to size now
   */
  due(databases: readonly Statistics[], inTransaction: ReadonlySet<string>): string[] {
    this.#round += 1;
    const changed = databases.filter(({ database }) => inTransaction.has(database));
    const unchanged: Statistics[] = [];
    for (const one of databases) {
      if (inTransaction.has(one.database)) continue;
      (this.#known.get(one.database)?.key === changeKey(one) ? unchanged : changed).push(one);
    }
    const sizedIn = ({ database }: Statistics) => this.#known.get(database)?.round ?? 0;
    const oldest = unchanged
      .toSorted((a, b) => sizedIn(a) - sizedIn(b))
      .slice(0, Math.ceil(databases.length / ROUNDS));
    return [...changed, ...oldest].map(({ database }) => database);
  }

  /** Records new sizes, and forgets databases that are gone. @param databases as given to `due` */
  record(databases: readonly Statistics[], sizes: ReadonlyMap<string, number>): void {
    this.#known = new Map(
      databases.flatMap((one) => {
        const bytes = sizes.get(one.database);
        if (bytes !== undefined) return [[one.database, { bytes, key: changeKey(one), round: this.#round }]];
        const known = this.#known.get(one.database);
        return known ? [[one.database, known]] : [];
      }),
    );
  }

  bytesOf(database: string): number | undefined {
    return this.#known.get(database)?.bytes;
  }
}

/** Differs after any change of rows, catalogs included, and after any session of a client. */
const changeKey = ({ inserted, updated, deleted, session_ms }: Statistics) =>
  [inserted, updated, deleted, session_ms].join();
