import { setTimeout as sleep } from 'node:timers/promises';
import type { Queryable } from '../postgres/connect.ts';
import { BLOCKS_MAX, type BlockRanges, joined } from './block-ranges.ts';
import type { Stretch } from './lineage.ts';

/** The summarizer is woken by a checkpoint; on a busy machine it takes its time. */
const SUMMARIZED_WITHIN_MS = 5_000;
const LOOK_EVERY_MS = 20;

/** Above this number of written blocks, several are treated as one: the agent holds their ranges in memory. */
const RANGES_MAX = 100_000;

/** By relfilenode of each relation that was asked for, the blocks that were written. */
export type WrittenBlocks = ReadonlyMap<string, BlockRanges>;

/**
 * Reads which blocks were written in any of these stretches.
 * @param relations relfilenodes
 * @param end the end of stretches that last until now
 * @returns null if summaries are missing for a part of the stretches
 */
export async function readWrittenBlocks(
  db: Queryable,
  stretches: readonly Stretch[],
  relations: readonly string[],
  end: string,
  rangesMax = RANGES_MAX,
): Promise<WrittenBlocks | null> {
  const parameters = [
    stretches.map(({ database }) => database),
    stretches.map(({ from }) => from),
    stretches.map(({ to }) => to ?? end),
  ];
  const { rows: gaps } = await db.query(
    `${FILES}
     SELECT FROM stretch WHERE NOT coalesce(
       (SELECT range_agg(span) FROM file) @> int8range((from_lsn - '0/0')::int8, (to_lsn - '0/0')::int8), false)`,
    parameters,
  );
  if (gaps.length > 0) return null;
  const { rows } = await db.query<{ relation: string; blocks: string | null; cut_at: string | null }>(
    `${FILES}, written AS MATERIALIZED (
       SELECT DISTINCT relfilenode, relblocknumber, is_limit_block
       FROM file CROSS JOIN LATERAL pg_wal_summary_contents(tli, start_lsn, end_lsn)
       WHERE relforknumber = 0 AND (relfilenode = 0 OR relfilenode = ANY ($4::oid[]))
         AND EXISTS (SELECT FROM stretch WHERE reldatabase = database AND start_lsn < to_lsn AND end_lsn > from_lsn)
     ), size AS (
       SELECT CASE WHEN sum(blocks) <= $5::int8 THEN 1 ELSE div(sum(last), $5::int8)::int8 + 1 END AS unit
       FROM (SELECT count(*) AS blocks, max(relblocknumber) + 1 AS last FROM written
             WHERE NOT is_limit_block GROUP BY relfilenode) AS relation
     )
     SELECT relfilenode::text AS relation,
       range_agg(int8range(relblocknumber / unit * unit, least((relblocknumber / unit + 1) * unit, ${BLOCKS_MAX})))
         FILTER (WHERE NOT is_limit_block)::text AS blocks,
       min(relblocknumber) FILTER (WHERE is_limit_block) AS cut_at
     FROM written CROSS JOIN size
     GROUP BY relfilenode`,
    [...parameters, relations, rangesMax],
  );
  // A database that was copied through the WAL within a stretch: every block of it is new.
  if (rows.some(({ relation }) => relation === '0')) return null;
  const written = new Map(
    rows.map(({ relation, blocks, cut_at }) => [
      relation,
      // A table was cut off at this block, and may have grown again. A new file is cut off at its beginning.
      joined([...rangesOf(blocks), ...(cut_at === null ? [] : [[Number(cut_at), BLOCKS_MAX] as const])]),
    ]),
  );
  return new Map(relations.map((relation) => [relation, written.get(relation) ?? []]));
}

/** The summaries that overlap with a stretch. */
const FILES = `
  WITH stretch AS (
    SELECT * FROM unnest($1::oid[], $2::pg_lsn[], $3::pg_lsn[]) AS stretch (database, from_lsn, to_lsn)
  ), file AS MATERIALIZED (
    SELECT tli, start_lsn, end_lsn, int8range((start_lsn - '0/0')::int8, (end_lsn - '0/0')::int8) AS span
    FROM pg_available_wal_summaries()
    WHERE tli = (SELECT timeline_id FROM pg_control_checkpoint())
      AND EXISTS (SELECT FROM stretch WHERE start_lsn < to_lsn AND end_lsn > from_lsn)
  )`;

/**
 * Makes a checkpoint and waits for the summary that ends at it.
 * @returns its position, or null without summaries. Everything that was committed before this call comes before it
 */
export async function summarizedCheckpoint(db: Queryable): Promise<string | null> {
  const { rows: settings } = await db.query<{ on: string }>("SELECT current_setting('summarize_wal') AS on");
  if (settings[0]?.on !== 'on') return null;
  await db.query('CHECKPOINT');
  const { rows } = await db.query<{ redo: string }>(
    'SELECT redo_lsn::text AS redo FROM pg_control_checkpoint()',
  );
  const redo = rows[0]?.redo ?? '';
  const until = performance.now() + SUMMARIZED_WITHIN_MS;
  while (performance.now() < until) {
    const { rows: found } = await db.query<{ done: boolean }>(
      'SELECT summarized_lsn >= $1::pg_lsn AS done FROM pg_get_wal_summarizer_state()',
      [redo],
    );
    if (found[0]?.done) return redo;
    await sleep(LOOK_EVERY_MS);
  }
  return null;
}

/** `{[3,5),[7,8)}` as numbers. */
const rangesOf = (multirange: string | null): BlockRanges =>
  [...(multirange ?? '').matchAll(/\[(\d+),(\d+)\)/g)].map(([, from, to]) => [Number(from), Number(to)]);
