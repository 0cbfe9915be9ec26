import type { Queryable } from '../postgres/connect.ts';

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
 * The end of the summary that contains the creation of a clone whose files were copied. No session could use the source
 * between that record and the checkpoint after it, so what the source has changed counts from there. The recorded
 * position is before the copy, in a summary that begins as early as the checkpoint before.
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
 * Every change that can make two databases differ: those of both since their nearest common ancestor, and those of the
 * databases in between. A stretch that is too long only names more blocks.
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
