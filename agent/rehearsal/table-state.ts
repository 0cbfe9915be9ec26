/** A table as it is at one time. */
export interface WatchedTable {
  oid: string;
  schema: string;
  name: string;
  /** `pg_class.relkind` */
  kind: string;
  /** Its file, which changes when it is rewritten. Null: a partitioned table has none. */
  file: string | null;
  bytes: number;
  /** The partitioned table that its rows are counted with; itself for any other table. */
  root: string;
  is_countable: boolean;
  /** By the last ANALYZE; null: unknown. */
  estimate: number | null;
  /** By the statistics, since the database was made. */
  inserted: number;
  deleted: number;
  /** Exact; null: not counted. */
  rows: number | null;
}

export interface WatchedTables {
  tables: WatchedTable[];
  unwatched: number;
}
