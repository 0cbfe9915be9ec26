import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type { Cell } from '../../shared/protocol/tables.ts';
import type { Field } from '../postgres/run-statement.ts';
import { HostError } from '../servers/host-error.ts';
import { cellOfResult } from './query-values.ts';
import { CUTS, REST_BYTES, TOO_MANY_COLUMNS } from './read-page.ts';

/** The type of a column beyond its name, as `typeNames` returns it: a type's name with its schema and modifier. */
const TYPE_BYTES_MAX = 300;

/** The rows of a statement that fit into one message of the link. */
export class QueryRows {
  fields: readonly Field[] = [];
  readonly rows: Cell[][] = [];
  hasMore = false;
  #left = 0;

  /**
   * Adds a row, if it fits. The first one is cut until it does.
   * @returns whether there is room for more
   * @throws HostError STATEMENT_REFUSED when the columns alone fill the message
   */
  add(texts: readonly (string | null)[], fields: readonly Field[]): boolean {
    if (this.hasMore) return false;
    if (this.rows.length === 0) this.#begin(fields);
    for (const length of this.rows.length === 0 ? CUTS : CUTS.slice(0, 1)) {
      const row = fields.map((field, at) => cellOfResult(field, texts[at] ?? null, length));
      const bytes = Buffer.byteLength(JSON.stringify(row)) + 1;
      if (bytes > this.#left) continue;
      this.#left -= bytes;
      this.rows.push(row);
      return true;
    }
    this.hasMore = true;
    return false;
  }

  #begin(fields: readonly Field[]): void {
    this.fields = fields;
    const names = Buffer.byteLength(JSON.stringify(fields.map(({ name }) => name)));
    this.#left = BOUNDS.messageBytes - REST_BYTES - names - fields.length * TYPE_BYTES_MAX;
    if (this.#left < BOUNDS.messageBytes / 4)
      throw new HostError('STATEMENT_REFUSED', 'the result has too many columns', {
        sqlstate: TOO_MANY_COLUMNS,
      });
  }
}
