import type { Queryable } from '../postgres/connect.ts';

/** The source of a clone, and a position in the WAL before it was copied. */
export interface Origin {
  name: string;
  source: string;
  source_lsn: string;
}

/**
 * Records where a new clone comes from. If the agent is killed before, comparisons of this database are only slower.
 * The same if the name belongs to another database since: a reset may have replaced the source before it was copied.
 * Forgets dropped databases without clones, from the youngest to the oldest.
 */
export const recordOrigin = (
  session: Queryable,
  clone: string,
  { name, source, source_lsn }: Origin,
  byFile: boolean,
) =>
  session.query(
    `WITH forgotten AS (
       DELETE FROM database_origin AS origin
       WHERE oid NOT IN (SELECT oid FROM pg_database) AND oid <> $2::oid
         AND NOT EXISTS (SELECT FROM database_origin AS clone WHERE clone.source = origin.oid)
     )
     INSERT INTO database_origin (oid, source, source_lsn, lsn, by_file)
     SELECT oid, $2, $3, pg_current_wal_insert_lsn(), $4 FROM pg_database
     WHERE datname = $1 AND EXISTS (SELECT FROM pg_database WHERE oid = $2 AND datname = $5)
     ON CONFLICT (oid) DO UPDATE
     SET (source, source_lsn, lsn, by_file) = (excluded.source, excluded.source_lsn, excluded.lsn, excluded.by_file)`,
    [clone, source, source_lsn, byFile, name],
  );
