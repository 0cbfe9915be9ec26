import type { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { ok, type Result } from '../../shared/result.ts';
import { identifier, literal, type Queryable, type Session } from '../postgres/connect.ts';
import { pollUntil } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { tableName } from './copy-rows.ts';
import { numberOf, type Source } from './source-address.ts';
import { inSource } from './source-session.ts';

/**
 * Following needs a slot and publications at the source. A table without a key is in a publication of its own:
 * PostgreSQL would refuse each UPDATE and DELETE of it at the source if they were published.
 */

export interface SlotNames {
  slot: string;
  /** Publication that the owner of the source has made; null: ours. */
  publication: string | null;
}

export interface PublishedTable {
  schema: string;
  name: string;
  /** Changes that name their row in the WAL: all, or only new rows. */
  follows: 'all' | 'inserts';
}

const insertsOf = (slot: string) => `${slot}_inserts`;

/** The publications that a subscription to the source has. */
export const publicationsOf = ({ slot, publication }: SlotNames): string[] =>
  publication === null ? [slot, insertsOf(slot)] : [publication];

const publicationOf = (slot: string, { follows }: PublishedTable) =>
  follows === 'all' ? slot : insertsOf(slot);

/** A child of an inheritance is a table of its own. */
const listOf = (tables: readonly PublishedTable[]) =>
  tables.map((table) => `ONLY ${tableName(table)}`).join(', ');

/** Makes our publications. Each has its tables by name, which needs no superuser. */
export async function makePublications(
  session: Session,
  slot: string,
  tables: readonly PublishedTable[],
): Promise<void> {
  for (const [name, follows, changes] of [
    [slot, 'all', 'insert, update, delete, truncate'],
    [insertsOf(slot), 'inserts', 'insert, truncate'],
  ] as const) {
    const own = tables.filter((table) => table.follows === follows);
    await session.query(
      `CREATE PUBLICATION ${identifier(name)} ${own.length === 0 ? '' : `FOR TABLE ${listOf(own)}`}
       WITH (publish = ${literal(changes)})`,
    );
  }
}

/** Adds a table that is new at the source, unless it is published already. */
export async function publishTable(session: Session, slot: string, table: PublishedTable): Promise<void> {
  const { rows } = await session.query(
    'SELECT FROM pg_publication_tables WHERE pubname = $1 AND schemaname = $2 AND tablename = $3',
    [publicationOf(slot, table), table.schema, table.name],
  );
  if (rows.length > 0) return;
  await session.query(
    `ALTER PUBLICATION ${identifier(publicationOf(slot, table))} ADD TABLE ${listOf([table])}`,
  );
}

/** Makes the slot. @returns the name of its snapshot, which lasts until the session's next command */
export async function makeSlot(session: Session, slot: string): Promise<string> {
  const { rows } = await session.query<{ snapshot_name: string }>(
    `CREATE_REPLICATION_SLOT ${identifier(slot)} LOGICAL pgoutput (SNAPSHOT 'export')`,
  );
  return rows[0]?.snapshot_name ?? '';
}

export interface SlotState {
  /** Where the source writes, and up to where all is confirmed here. Bytes of WAL since the first. */
  lsn: number;
  confirmed: number;
  /** The slot is gone, or the source has removed WAL that it needs. */
  isLost: boolean;
  /** WAL that is not confirmed here. */
  lag_bytes: number;
  /** WAL that the slot keeps, and its bound. */
  slot_bytes: number;
  keep_bytes: number | null;
}

/** The position that has been written. A standby writes what it replays. */
const WRITTEN = 'CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END';

export async function readSlot(session: Session, slot: string): Promise<SlotState> {
  const { rows } = await session.query<{
    is_lost: boolean;
    written: string;
    confirmed: string | null;
    kept: string | null;
    keep: string | null;
  }>(
    `SELECT wal_status IS NOT DISTINCT FROM 'lost' OR restart_lsn IS NULL AS is_lost,
            ${WRITTEN} - '0/0' AS written, confirmed_flush_lsn - '0/0' AS confirmed, ${WRITTEN} - restart_lsn AS kept,
            (SELECT CASE WHEN setting = '-1' THEN NULL ELSE setting::float8 * 1048576 END
             FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep
     FROM pg_replication_slots WHERE slot_name = $1 AND database = current_database()`,
    [slot],
  );
  const [found] = rows;
  if (!found) return { isLost: true, lsn: 0, confirmed: 0, lag_bytes: 0, slot_bytes: 0, keep_bytes: null };
  const lsn = numberOf(found.written);
  const confirmed = numberOf(found.confirmed);
  return {
    isLost: found.is_lost,
    lsn,
    confirmed,
    lag_bytes: Math.max(0, lsn - confirmed),
    slot_bytes: numberOf(found.kept),
    keep_bytes: found.keep === null ? null : numberOf(found.keep),
  };
}

/** The position that the source writes at now. */
export async function writtenLsn(session: Session): Promise<string | undefined> {
  const { rows } = await session.query<{ lsn: string }>(
    'SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text AS lsn',
  );
  return rows[0]?.lsn;
}

/**
 * Writes what the source has written so far to its disk, where alone the slot reads it: a transaction that waits for a lock
 * has written, and flushes nothing. Any login may set a default of its own, which is a commit.
 * @param session has a transaction without a snapshot, and has another one afterwards
 * @returns the position up to which that is certain
 */
export async function flushWal(session: Session, database: string): Promise<string | undefined> {
  const results: unknown = await session.query(
    `COMMIT; BEGIN READ WRITE; SET LOCAL synchronous_commit = local; SELECT pg_current_wal_insert_lsn()::text AS lsn;
     ALTER ROLE CURRENT_USER IN DATABASE ${identifier(database)} SET application_name = 'branchgate'; COMMIT; BEGIN`,
  );
  return (results as { rows: { lsn: string }[] }[]).find(({ rows }) => rows.length > 0)?.rows[0]?.lsn;
}

/**
 * Returns whether every change before the position is visible here: what the source sends once it has nothing more is read after
 * them. It is on the disk with the next commit of this server that waits for that.
 */
export async function hasApplied(
  db: Queryable,
  subscriptionOid: string,
  lsn: string | undefined,
): Promise<boolean> {
  const { rows } = await db.query<{ is_applied: boolean }>(
    "SELECT latest_end_lsn >= $2::pg_lsn AS is_applied FROM pg_stat_subscription WHERE subid = $1 AND worker_type = 'apply'",
    [subscriptionOid, lsn],
  );
  return rows[0]?.is_applied === true;
}

const DROP_WITHIN = { within: 8_000, every: 100 };

/**
 * Drops the slot and our publications, as far as they exist.
 * @throws what the source says
 */
export async function dropSlot(session: Session, { slot, publication }: SlotNames): Promise<void> {
  // The worker here may have ended just now, and a source far away may not have noticed it yet.
  const isGone = async () => {
    const { rows } = await session.query<{ is_active: boolean }>(
      `SELECT CASE WHEN active THEN pg_terminate_backend(active_pid) IS NULL ELSE pg_drop_replication_slot(slot_name) IS NULL END
         AS is_active
       FROM pg_replication_slots WHERE slot_name = $1 AND database = current_database()`,
      [slot],
    );
    return rows.length === 0;
  };
  if (!(await pollUntil(isGone, DROP_WITHIN))) throw new Error('the slot is in use');
  if (publication === null)
    await session.query(
      `DROP PUBLICATION IF EXISTS ${publicationsOf({ slot, publication }).map(identifier).join(', ')}`,
    );
}

/** Statements with which the owner of the source removes what is left there. */
export const removalOf = (names: SlotNames): string =>
  [
    `SELECT pg_drop_replication_slot(${literal(names.slot)})`,
    ...(names.publication === null
      ? [`DROP PUBLICATION IF EXISTS ${publicationsOf(names).map(identifier).join(', ')}`]
      : []),
  ].join('; ');

const AT_SOURCE_WITHIN_MS = 15_000;

/** `dropSlot` in a session of its own. @returns why it could not be done */
export async function dropAtSource(
  settings: Pick<AgentSettings, 'FOLLOW_CA_FILE'>,
  source: Source,
  names: SlotNames,
): Promise<Result<null, SourceFinding>> {
  const bounds = { within: AT_SOURCE_WITHIN_MS, mode: 'change' } as const;
  const dropped = await inSource(settings, source, bounds, ({ session }) => dropSlot(session, names));
  return dropped.ok ? ok(null) : dropped;
}
