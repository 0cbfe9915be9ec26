import { CELL_BYTES_MAX } from '../../shared/limits.ts';
import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type { Cell } from '../../shared/protocol/tables.ts';
import type { Session } from '../postgres/connect.ts';
import { HostError } from '../servers/host-error.ts';
import { cellOf } from './cells.ts';
import { type TableColumn, wireColumn } from './describe-table.ts';

/** Lengths to which cells are cut, in characters. A base64 text cut to one of them can still be decoded. */
export const CUTS = [CELL_BYTES_MAX, 16_384, 4_096, 1_024, 256, 64, 16];
/** Bytes around a cell in JSON at most: `{"cut":},` */
const AROUND_CELL = 12;
/** Bytes of the message for everything but cells and columns. */
export const REST_BYTES = 8_192;
/** SQLSTATE `too_many_columns`. */
export const TOO_MANY_COLUMNS = '54011';

const START = 'pg_catalog.left(cell, cut)';
const SIZE = `coalesce(pg_catalog.octet_length(pg_catalog.to_json(${START})::pg_catalog.text), 4) + ${AROUND_CELL}`;

/**
 * SQL that reads rows of `n bigint, cells text[]` and returns those of the first `limit` that fit into `bytes` of
 * JSON, as one `line` each. All cells are cut to the longest length with which the whole page fits. The server does
 * it, so that a page of huge cells is never transferred. It is one statement, because a view could return other rows
 * when it is read again.
 */
const fitting = (source: string, limit: number, bytes: number) => `
  WITH page (n, cells) AS MATERIALIZED (${source}),
  fitting (cut) AS MATERIALIZED (
    SELECT coalesce((
      SELECT cut FROM pg_catalog.unnest('{${CUTS.join(',')}}'::int[]) AS cut
      WHERE (SELECT pg_catalog.sum(${SIZE}) FROM page, pg_catalog.unnest(cells) AS cell
             WHERE n <= ${limit}) <= ${bytes}
      LIMIT 1), ${CUTS.at(-1)})
  ),
  lines (n, line) AS (
    SELECT n, (
      SELECT pg_catalog.json_agg(
        CASE WHEN pg_catalog.length(cell) > cut THEN pg_catalog.json_build_object('cut', ${START})
             ELSE pg_catalog.to_json(cell) END ORDER BY position)::pg_catalog.text
      FROM pg_catalog.unnest(cells) WITH ORDINALITY AS cell (cell, position))
    FROM page, fitting WHERE n <= ${limit}
  ),
  measured (n, line, size) AS (
    SELECT n, line, pg_catalog.sum(pg_catalog.octet_length(line)) OVER (ORDER BY n) FROM lines
  )
  SELECT line, (SELECT pg_catalog.count(*) FROM page) AS found FROM measured
  WHERE size <= ${bytes} OR n = 1 ORDER BY n`;

/** Bytes of a message for the cells of these columns. @throws HostError STATEMENT_REFUSED */
function budgetFor(columns: readonly TableColumn[]): number {
  const described = Buffer.byteLength(JSON.stringify(columns.map(wireColumn)));
  const budget = BOUNDS.messageBytes - REST_BYTES - described;
  if (budget < BOUNDS.messageBytes / 4)
    throw new HostError('STATEMENT_REFUSED', 'the names of the columns are too long', {
      sqlstate: TOO_MANY_COLUMNS,
    });
  return budget;
}

/**
 * Runs `source`, which returns rows of `n bigint, cells text[]`, and reads as many of the first `limit` as fit into
 * one message of the link.
 * @param budget bytes of JSON for the rows
 * @throws HostError STATEMENT_REFUSED
 */
export async function readPage(
  session: Session,
  columns: readonly TableColumn[],
  source: string,
  values: readonly (string | null)[],
  limit: number,
  budget = budgetFor(columns),
): Promise<{ rows: Cell[][]; hasMore: boolean }> {
  const { rows } = await session.query<{ line: string; found: string }>(fitting(source, limit, budget), [
    ...values,
  ]);
  return {
    rows: rows.map(({ line }) => {
      const cells = JSON.parse(line) as Parameters<typeof cellOf>[1][];
      return columns.map((column, index) => cellOf(column, cells[index] ?? null));
    }),
    hasMore: Number(rows[0]?.found ?? 0) > rows.length,
  };
}
