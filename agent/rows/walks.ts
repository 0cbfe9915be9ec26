/** On this host together. Of a branch there is one at a time. */
const WALKS_MAX = 2;
/** How many times as long as its walk took a table is left alone: one that is always written to is never done. */
const REST = 9;

interface Walk {
  table: string;
  ended: Promise<void>;
}

/** The walks through tables' indexes that are under way in the background. */
export class Walks {
  /** By branch. */
  readonly #walks = new Map<string, Walk>();
  readonly #resting = new Set<string>();
  readonly #closing = new AbortController();

  isWalking(branchId: string, table: string): boolean {
    return this.#walks.get(branchId)?.table === table;
  }

  /**
   * Starts a walk, unless there are enough of them. Nobody is told how it ends: it is only ever a help.
   * @param table what the marks know it by
   * @param walk ends soon after its signal
   */
  start(branchId: string, table: string, walk: (signal: AbortSignal) => Promise<unknown>): void {
    const { signal } = this.#closing;
    if (signal.aborted || this.#walks.has(branchId) || this.#walks.size >= WALKS_MAX) return;
    if (this.#resting.has(table)) return;
    const started = performance.now();
    const end = () => {
      this.#walks.delete(branchId);
      this.#resting.add(table);
      setTimeout(() => this.#resting.delete(table), REST * (performance.now() - started)).unref();
    };
    this.#walks.set(branchId, { table, ended: walk(signal).then(end, end) });
  }

  /** Ends all of them, and starts no other. */
  async close(): Promise<void> {
    this.#closing.abort();
    await Promise.all([...this.#walks.values()].map(({ ended }) => ended));
  }
}
