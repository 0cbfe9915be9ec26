import { PROGRESS_TABLES_MAX, type TableProgress } from '../../shared/project/job.ts';
import type { OnProgress } from '../process/progress.ts';
import type { CopiedTable } from './copy-rows.ts';
import { short } from './source-address.ts';

/** How far each table is. */
export class CopyProgress {
  readonly tables: readonly CopiedTable[];
  readonly #onProgress: OnProgress | undefined;
  readonly #total: number;
  readonly #sent = new Map<CopiedTable, number>();
  readonly #rows = new Map<CopiedTable, number>();
  #bytes = 0;

  constructor(tables: readonly CopiedTable[], onProgress: OnProgress | undefined) {
    this.tables = tables;
    this.#onProgress = onProgress;
    this.#total = tables.reduce((sum, { bytes }) => sum + bytes, 1);
  }

  begin(table: CopiedTable): void {
    this.#sent.set(table, 0);
    this.add(table, 0);
  }

  /** A table is about as large as its rows are when they are sent. */
  add(table: CopiedTable, bytes: number): void {
    this.#sent.set(table, (this.#sent.get(table) ?? 0) + bytes);
    this.#bytes += bytes;
    this.#onProgress?.(this.#bytes / this.#total, () => ({ tables: this.list() }));
  }

  end(table: CopiedTable, rows: number): void {
    this.#rows.set(table, rows);
    this.add(table, 0);
  }

  rowsOf(table: CopiedTable): number {
    return this.#rows.get(table) ?? 0;
  }

  /** Lists the tables that are being copied first, then the largest. */
  list(): TableProgress[] {
    const isCopying = (table: CopiedTable) => this.#sent.has(table) && !this.#rows.has(table);
    const sorted = [...this.tables.filter(isCopying), ...this.tables.filter((table) => !isCopying(table))];
    return sorted.slice(0, PROGRESS_TABLES_MAX).map((table) => this.#stateOf(table));
  }

  #stateOf(table: CopiedTable): TableProgress {
    const name = { schema: short(table.schema), table: short(table.name) };
    const copied = this.#rows.get(table);
    if (copied !== undefined) return { ...name, state: 'copied', rows: copied, percent: 100 };
    const rows = Math.round(table.rows);
    const sent = this.#sent.get(table);
    if (sent === undefined) return { ...name, state: 'waiting', rows, percent: 0 };
    const percent = Math.min(99, Math.floor((100 * sent) / Math.max(1, table.bytes)));
    return { ...name, state: 'copying', rows, percent };
  }
}

/** The phases of a copy, in their order. */
export type CopyPhase =
  | 'check'
  | 'clone'
  | 'schema'
  | 'rows'
  | 'indexes'
  | 'comparison'
  | 'statistics'
  | 'close';

/** The phases of a recovery before it copies. */
type RecoveryPhase = 'archive' | 'copy' | 'replay' | 'open';

/** How long each phase of a copy took, for the log and the benchmark. */
export class CopyPhases {
  readonly #ms: Record<string, number> = {};
  #since = performance.now();

  /** Ends a phase, which began with the end of the one before. */
  end(phase: CopyPhase | RecoveryPhase): void {
    const now = performance.now();
    this.#ms[phase] = Math.round(now - this.#since);
    this.#since = now;
  }

  /** Milliseconds by phase. */
  get ms(): Readonly<Record<string, number>> {
    return this.#ms;
  }
}
