import { backendPid } from '../postgres/connect.ts';
import { temporaryBytes } from '../postgres/file-bytes.ts';
import type { OnProgress } from '../process/progress.ts';
import type { Comparison } from './comparison.ts';
import type { BlockRanges } from './extents.ts';
import type { FoundTable, TablePair } from './tables.ts';

const LOOK_EVERY_MS = 1_000;
/** What PostgreSQL stores of a row that it sorts: its place, its digest, and a short key. */
const SORTED_ROW_BYTES = 80;

/**
 * How much of a comparison is done, by the rows of all tables that are to be read. PostgreSQL does not report
 * how far it has sorted a table, so that half of the work is estimated by the size of its temporary files.
 */
export class ComparisonProgress {
  readonly #comparison: Comparison;
  readonly #onProgress: OnProgress;
  readonly #rows: ReadonlyMap<TablePair, number>;
  readonly #total: number;
  /** Rows of the tables that are done. */
  #done = 0;
  /** Rows of the table that is being read. */
  #current = { rows: 0, sorted: 0, fetched: 0 };

  constructor(comparison: Comparison, onProgress: OnProgress) {
    this.#comparison = comparison;
    this.#onProgress = onProgress;
    this.#rows = new Map(comparison.pairs.map((pair) => [pair, rowsOf(pair, comparison.blocksOf(pair))]));
    this.#total = [...this.#rows.values()].reduce((sum, rows) => sum + rows, 0);
  }

  begin(pair: TablePair): void {
    this.#done += this.#current.rows;
    this.#current = { rows: this.#rows.get(pair) ?? 0, sorted: 0, fetched: 0 };
  }

  fetched(rows: number): void {
    this.#current.fetched += rows;
    this.#report();
  }

  /** Runs `work`, and meanwhile looks what it has sorted. @param dataDir of PostgreSQL */
  async during<T>(dataDir: string, work: () => Promise<T>, lookEveryMs = LOOK_EVERY_MS): Promise<T> {
    const { before, after } = this.#comparison;
    const pids = [before, after].map(backendPid);
    let isOver = false;
    const timer = setInterval(async () => {
      const temporary = await temporaryBytes(dataDir);
      if (isOver) return;
      const bytes = pids.reduce((sum, pid) => sum + (temporary.get(pid) ?? 0), 0);
      this.#current.sorted = Math.max(this.#current.sorted, bytes / SORTED_ROW_BYTES);
      this.#report();
    }, lookEveryMs);
    try {
      return await work();
    } finally {
      isOver = true;
      clearInterval(timer);
    }
  }

  #report(): void {
    const { rows, sorted, fetched } = this.#current;
    const read = sorted > 0 ? (Math.min(sorted, rows) + fetched) / 2 : fetched;
    this.#onProgress(this.#total === 0 ? 0 : (this.#done + Math.min(read, rows)) / this.#total);
  }
}

/** The rows that are read of a table, by PostgreSQL's statistics. */
function rowsOf({ before, after }: TablePair, blocks: BlockRanges | null): number {
  const share = ({ pages }: FoundTable) => {
    if (blocks === null || pages === 0) return 1;
    const read = blocks.reduce((sum, [from, to]) => sum + Math.max(0, Math.min(to, pages) - from), 0);
    return Math.min(1, read / pages);
  };
  // The statistics are the tenant's, who can set any number.
  const rows = (table: FoundTable | null) =>
    table && Number.isFinite(table.rows) ? Math.max(0, table.rows) * share(table) : 0;
  return rows(before) + rows(after);
}
