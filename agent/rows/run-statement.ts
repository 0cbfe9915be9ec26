import pg, { type FieldDef, type QueryArrayResult } from 'pg';
import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type { Cell } from '../../shared/protocol/tables.ts';
import type { Session } from '../postgres/connect.ts';
import { HostError } from '../servers/host-error.ts';
import { AS_TEXT } from './branch-session.ts';
import { cellOfResult } from './query-values.ts';
import { CUTS, REST_BYTES, TOO_MANY_COLUMNS } from './read-page.ts';

/** The rows of a statement that fit into one message of the link. */
export interface QueryRun {
  fields: FieldDef[];
  rows: Cell[][];
  hasMore: boolean;
  /** Null for an empty statement. */
  command: string | null;
  rowCount: number | null;
}

/** The type of a column beyond its name, as `typeNames` returns it: a type's name with its schema and modifier. */
const TYPE_BYTES_MAX = 300;

/** Collects rows until the next one does not fit. The first one is cut until it does. */
class Rows {
  readonly rows: Cell[][] = [];
  hasMore = false;
  #left: number;
  readonly #fields: FieldDef[];

  /** @throws HostError STATEMENT_REFUSED when the columns alone fill the message */
  constructor(fields: FieldDef[]) {
    const names = Buffer.byteLength(JSON.stringify(fields.map(({ name }) => name)));
    this.#fields = fields;
    this.#left = BOUNDS.messageBytes - REST_BYTES - names - fields.length * TYPE_BYTES_MAX;
    if (this.#left < BOUNDS.messageBytes / 4)
      throw new HostError('STATEMENT_REFUSED', 'the result has too many columns', TOO_MANY_COLUMNS);
  }

  add(texts: readonly (string | null)[]): void {
    if (this.hasMore) return;
    for (const length of this.rows.length === 0 ? CUTS : CUTS.slice(0, 1)) {
      const row = this.#fields.map((field, at) => cellOfResult(field, texts[at] ?? null, length));
      const bytes = Buffer.byteLength(JSON.stringify(row)) + 1;
      if (bytes > this.#left) continue;
      this.#left -= bytes;
      this.rows.push(row);
      return;
    }
    this.hasMore = true;
  }
}

/**
 * Runs one statement by PostgreSQL's extended protocol, which refuses a text with several.
 * @param onFull called when no more rows fit; if it throws, that is the failure
 * @throws the error of PostgreSQL
 */
export function runStatement(
  session: Session,
  text: string,
  values: (string | null)[],
  { onFull }: { onFull: (run: QueryRun) => void },
): Promise<QueryRun> {
  return new Promise((resolve, reject) => {
    let collected: Rows | null = null;
    let fields: FieldDef[] = [];
    const collect = (row: (string | null)[], result: { fields: FieldDef[] }) => {
      fields = result.fields;
      collected ??= new Rows(fields);
      if (collected.hasMore) return;
      collected.add(row);
      if (collected.hasMore)
        onFull({ fields, rows: collected.rows, hasMore: true, command: null, rowCount: null });
    };
    const query = new pg.Query<(string | null)[]>({
      text,
      values,
      rowMode: 'array',
      queryMode: 'extended',
      types: AS_TEXT,
    } as never);
    query.on('row', (row, result) => {
      try {
        collect(row as (string | null)[], result as unknown as { fields: FieldDef[] });
      } catch (error) {
        reject(error);
      }
    });
    query.on('error', reject);
    query.on('end', (result: QueryArrayResult) => {
      const { command, rowCount } = result;
      resolve({
        fields: result.fields,
        rows: collected?.rows ?? [],
        hasMore: collected?.hasMore ?? false,
        command: command || null,
        rowCount,
      });
    });
    session.query(query);
  });
}
