import type { RehearsalReport } from '../../shared/protocol/rehearsal-operations.ts';
import type { Host } from '../host.ts';
import { inTransaction } from '../postgres/connect.ts';

/** Reading takes about a second for this much, so more is not attributed. */
const ATTRIBUTED_BYTES_MAX = 64 * 1024 * 1024;
const WITHIN_MS = 4_000;

/** A record that changes several blocks is listed once for each. */
const OF_DATABASE = `
  SELECT coalesce(sum(record_length), 0)::text AS bytes FROM (
    SELECT DISTINCT start_lsn, record_length
    FROM pg_get_wal_block_info($1, $2, false) WHERE reldatabase = (SELECT oid FROM pg_database WHERE datname = $3)
  ) AS record`;

/**
 * The bytes of write-ahead log that have changed the database since `from`. What all databases of the host have written,
 * if that is more than can be read, or if the module `pg_walinspect` is missing.
 */
export async function readWrittenWal(
  { postgres, sessions }: Host,
  from: string,
  database: string,
): Promise<RehearsalReport['wal']> {
  const { rows } = await postgres.query<{ now: string; bytes: string }>(
    'SELECT lsn AS now, (lsn - $1::pg_lsn)::text AS bytes FROM pg_current_wal_flush_lsn() AS lsn',
    [from],
  );
  const { now = from, bytes = '0' } = rows[0] ?? {};
  const ofHost = { bytes: Math.max(0, Number(bytes)), exact: false };
  if (ofHost.bytes > ATTRIBUTED_BYTES_MAX) return ofHost;
  if (ofHost.bytes === 0) return { bytes: 0, exact: true };
  const session = await sessions.connect();
  try {
    return await inTransaction(session, async () => {
      await session.query(`SET LOCAL statement_timeout = ${WITHIN_MS}`);
      await session.query('CREATE EXTENSION IF NOT EXISTS pg_walinspect');
      const found = await session.query<{ bytes: string }>(OF_DATABASE, [from, now, database]);
      return { bytes: Number(found.rows[0]?.bytes), exact: true };
    });
  } catch {
    return ofHost;
  } finally {
    session.release();
  }
}
