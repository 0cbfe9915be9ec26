import type { Queryable } from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';

/** undefined_file */
const SEGMENT_REMOVED = '58P01';

/** A position in the write-ahead log, in bytes. A host writes fewer than 2^53 in its life. */
type Position = number;

/**
 * Records that change no content: hints, pruning, visibility, vacuum and freezing, and what concerns transactions and the
 * whole server. The commit of a change comes after the record of the change. Any other record is a change.
 */
const HARMLESS: Record<string, readonly string[]> = {
  XLOG: [
    ...['FPI_FOR_HINT', 'NOOP', 'NEXTOID', 'SWITCH', 'BACKUP_END', 'PARAMETER_CHANGE', 'RESTORE_POINT'],
    ...['FPW_CHANGE', 'END_OF_RECOVERY', 'OVERWRITE_CONTRECORD', 'CHECKPOINT_SHUTDOWN', 'CHECKPOINT_ONLINE'],
    'CHECKPOINT_REDO',
  ],
  Transaction: ['COMMIT', 'ABORT', 'ASSIGNMENT', 'INVALIDATION'],
  CLOG: ['ZEROPAGE', 'TRUNCATE'],
  CommitTs: ['ZEROPAGE', 'TRUNCATE'],
  MultiXact: ['ZERO_OFF_PAGE', 'ZERO_MEM_PAGE', 'CREATE_ID', 'TRUNCATE_ID'],
  Standby: ['LOCK', 'RUNNING_XACTS', 'INVALIDATIONS'],
  LogicalMessage: ['MESSAGE'],
  ReplicationOrigin: ['SET', 'DROP'],
  // Statistics of VACUUM, and the age of frozen rows.
  Heap: ['INPLACE'],
  // NEW_CID goes with the record of a change of a catalog, for logical decoding.
  Heap2: ['PRUNE_ON_ACCESS', 'PRUNE_VACUUM_SCAN', 'PRUNE_VACUUM_CLEANUP', 'VISIBLE', 'NEW_CID'],
  Btree: [
    'VACUUM',
    'DELETE',
    'MARK_PAGE_HALFDEAD',
    'UNLINK_PAGE',
    'UNLINK_PAGE_META',
    'REUSE_PAGE',
    'META_CLEANUP',
  ],
  Hash: ['VACUUM_ONE_PAGE', 'DELETE'],
  Gin: ['VACUUM_PAGE', 'VACUUM_DATA_LEAF_PAGE', 'DELETE_PAGE'],
  Gist: ['DELETE', 'PAGE_DELETE', 'PAGE_REUSE'],
  SPGist: ['VACUUM_LEAF', 'VACUUM_ROOT', 'VACUUM_REDIRECT'],
  // These are of other databases: nobody drops or replaces one under its clone.
  Database: ['CREATE_FILE_COPY', 'CREATE_WAL_LOG', 'DROP'],
};

/** A record concerns one database at most. One that names none counts for all of them (''). */
const CHANGES = `
  SELECT coalesce(substring(block_ref FROM 'rel \\d+/(\\d+)/'), substring(description FROM 'base/(\\d+)/'),
           substring(description FROM '^database (\\d+) '), '') AS oid,
         (max(end_lsn) - '0/0')::float8 AS at
  FROM pg_get_wal_records_info('0/0'::pg_lsn + $1::numeric, '0/0'::pg_lsn + $2::numeric)
  WHERE resource_manager || '/' || record_type <> ALL ($3)
  GROUP BY 1`;

const HARMLESS_NAMES = Object.entries(HARMLESS).flatMap(([manager, types]) =>
  types.map((type) => `${manager}/${type}`),
);

/** Reads the write-ahead log of the host in one direction, and keeps the last change of each database. */
export class WalCursor {
  readonly #changed = new Map<string, Position>();
  #at: Position | null = null;
  #begun: Position = 0;
  /** One read after another. */
  #reading: Promise<unknown> = Promise.resolve();

  /** The end of the part that was read; null: none was. */
  get at(): Position | null {
    return this.#at;
  }

  /** Begins at the present end of the log. Changes before it are unknown. @throws if the module `pg_walinspect` is missing */
  async begin(db: Queryable): Promise<void> {
    await db.query('CREATE EXTENSION IF NOT EXISTS pg_walinspect');
    this.#changed.clear();
    this.#begun = this.#at = await presentEnd(db);
  }

  end(): void {
    this.#at = null;
    this.#changed.clear();
  }

  /**
   * Reads up to the flushed end of a record.
   * @param max bytes
   * @returns false if that is further than `max`, the cursor has not begun, or PostgreSQL has removed the part between;
   *   then nothing was read
   */
  read(db: Queryable, to: Position, max: number): Promise<boolean> {
    const read = this.#reading.then(async () => {
      const from = this.#at;
      if (from === null || to - from > max) return false;
      if (to <= from) return true;
      const changes = await readChanges(db, from, to);
      if (changes === null) return false;
      for (const { oid, at } of changes) this.#changed.set(oid, at);
      if (this.#at === from) this.#at = to;
      return this.#at === to;
    });
    this.#reading = read.catch(() => {});
    return read;
  }

  /** @returns whether the database has no change between `since` and the end of the last read */
  isUnchanged(oid: string, since: Position): boolean {
    const last = Math.max(this.#changed.get(oid) ?? 0, this.#changed.get('') ?? 0);
    return this.#at !== null && since >= this.#begun && last <= since;
  }
}

/** @returns null if PostgreSQL has removed a segment of this part of the log, which it does after checkpoints */
async function readChanges(db: Queryable, from: Position, to: Position) {
  try {
    const { rows } = await db.query<{ oid: string; at: Position }>(CHANGES, [from, to, HARMLESS_NAMES]);
    return rows;
  } catch (error) {
    if (sqlState(error) === SEGMENT_REMOVED) return null;
    throw error;
  }
}

/**
 * The end of the last record that is written now, after it was flushed: a commit may be acknowledged before.
 * The end of what is flushed would not do, because it may be inside a record, which then neither of two reads has.
 */
export async function presentEnd(db: Queryable): Promise<Position> {
  const { rows } = await db.query<{ at: Position }>(
    "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8 AS at",
  );
  await db.query("SELECT pg_logical_emit_message(false, 'branchgate', '', true)");
  return rows[0]?.at ?? 0;
}
