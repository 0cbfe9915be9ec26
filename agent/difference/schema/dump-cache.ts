import type { Archive } from '../../dump/archive.ts';

/** Dumps of schemas that are compared again: most comparisons follow another one, and a side that did not change has the same dump. */

/** Characters of all definitions that are kept. */
const KEPT_MAX = 32 * 2 ** 20;
/** Characters that stand for the other fields of an entry. */
const ENTRY_SIZE = 500;

const sizeOf = (archive: Archive) =>
  archive.reduce((sum, { definition }) => sum + definition.length + ENTRY_SIZE, 0);

export class DumpCache {
  /** By project and print, the one that was used last at the end. */
  readonly #kept = new Map<string, { archive: Archive; size: number }>();
  readonly #max: number;
  #size = 0;

  constructor(max = KEPT_MAX) {
    this.#max = max;
  }

  /**
   * @param print of the catalogs in the snapshot of the dump
   * @param dump is called if no dump of this print is kept
   */
  async get(projectId: string, print: string, dump: () => Promise<Archive>): Promise<Archive> {
    const key = `${projectId} ${print}`;
    const known = this.#kept.get(key);
    const archive = known?.archive ?? (await dump());
    this.#remove(key);
    const size = sizeOf(archive);
    if (size > this.#max) return archive;
    this.#kept.set(key, { archive, size });
    this.#size += size;
    for (const oldest of this.#kept.keys()) {
      if (this.#size <= this.#max) break;
      this.#remove(oldest);
    }
    return archive;
  }

  #remove(key: string): void {
    this.#size -= this.#kept.get(key)?.size ?? 0;
    this.#kept.delete(key);
  }
}
