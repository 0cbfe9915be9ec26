import { setTimeout as sleep } from 'node:timers/promises';
import type { Queryable } from '../postgres/connect.ts';
import { BLOCKS_MAX, type BlockRanges, joined } from './extents.ts';

/** Changes of one database in a part of the WAL. `to` null: until now. */
export interface Stretch {
  database: string;
  from: string;
  to: string | null;
}

interface Link {
  oid: string;
  source: string;
  source_lsn: string;
  lsn: string;
}

/** A chain of clones longer than this is not followed. */
const DEPTH_MAX = 500;

/**
 * The end of the summary that contains the creation of a clone whose files were copied. No session could use
 * the source between that record and the checkpoint after it, so what the source has changed counts from
 * there. The recorded position is before the copy, in a summary that begins as early as the checkpoint
 * before.
 */
const COPIED = `
  SELECT min(end_lsn) FROM pg_available_wal_summaries() AS file
  CROSS JOIN LATERAL pg_wal_summary_contents(file.tli, file.start_lsn, file.end_lsn) AS written
  WHERE by_file AND end_lsn > source_lsn AND end_lsn <= lsn AND reldatabase = oid AND relfilenode = 0`;

/** The database and those that it is a clone of, each with its record; the last one may have none. */
async function ancestryOf(db: Queryable, oid: string): Promise<Link[]> {
  const { rows } = await db.query<Link>(
    `WITH RECURSIVE ancestry AS (
       SELECT 1 AS depth, * FROM database_origin WHERE oid = $1
       UNION ALL
       SELECT depth + 1, origin.* FROM ancestry JOIN database_origin AS origin ON origin.oid = ancestry.source
       WHERE depth < ${DEPTH_MAX}
     )
     SELECT oid::text, source::text, coalesce((${COPIED}), source_lsn)::text AS source_lsn, lsn::text
     FROM ancestry ORDER BY depth`,
    [oid],
  );
  return rows;
}

/** A position in the WAL as a number; its text does not sort. */
const position = (lsn: string) => {
  const [high = '', low = ''] = lsn.split('/');
  return (BigInt(`0x${high}`) << 32n) + BigInt(`0x${low}`);
};
const earliest = (lsns: readonly string[]) => lsns.reduce((a, b) => (position(a) <= position(b) ? a : b));
const latest = (lsns: readonly string[]) => lsns.reduce((a, b) => (position(a) >= position(b) ? a : b));

/**
 * Every change that can make two databases differ: those of both since their nearest common ancestor, and
 * those of the databases in between. A stretch that is too long only names more blocks.
 * @returns null if no common ancestor is known
 */
export async function stretchesBetween(
  db: Queryable,
  first: string,
  second: string,
): Promise<Stretch[] | null> {
  const chains = [await ancestryOf(db, first), await ancestryOf(db, second)];
  return stretchesOf(first, second, chains[0] ?? [], chains[1] ?? []);
}

/** @param chains of both databases, beginning with their own records */
export function stretchesOf(
  first: string,
  second: string,
  firstChain: readonly Link[],
  secondChain: readonly Link[],
): Stretch[] | null {
  const others = new Set([second, ...secondChain.map(({ source }) => source)]);
  const common = [first, ...firstChain.map(({ source }) => source)].find((oid) => others.has(oid));
  if (common === undefined) return null;
  const paths = [
    { own: first, chain: firstChain },
    { own: second, chain: secondChain },
  ].map(({ own, chain }) =>
    own === common ? [] : chain.slice(0, chain.findIndex(({ source }) => source === common) + 1),
  );
  const below = paths.flatMap((path) =>
    path.map(({ oid, lsn }, at): Stretch => ({ database: oid, from: lsn, to: path[at - 1]?.lsn ?? null })),
  );
  const departures = paths.flatMap((path) => path.slice(-1));
  if (departures.length === 0) return [];
  const from = earliest(departures.map(({ source_lsn }) => source_lsn));
  const to = departures.length === 2 ? latest(departures.map(({ lsn }) => lsn)) : null;
  return [...below, { database: common, from, to }];
}

/** The summarizer is woken by a checkpoint; on a busy machine it takes its time. */
const SUMMARIZED_WITHIN_MS = 5_000;
const LOOK_EVERY_MS = 20;

/**
 * Above this number of written blocks, several are treated as one: the agent holds their ranges in memory.
 */
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
 * @returns its position, or null without summaries. Everything that was committed before this call comes
 *   before it
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
