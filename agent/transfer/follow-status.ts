import type { FollowProblem, FollowStatus } from '../../shared/protocol/follow.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { SOURCE_TABLES_MAX, type SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import type { Result } from '../../shared/result.ts';
import { fitting } from '../difference/schema/compare-schemas.ts';
import type { Queryable } from '../postgres/connect.ts';
import { type Followed, type FollowHost, inFollowed, readFollowed, readSubscription } from './following.ts';
import { short } from './source-address.ts';
import { inSource } from './source-session.ts';
import { readSlot, type SlotState } from './source-slot.ts';

const ABSENT: FollowStatus = {
  ...{ state: 'absent', tables: [], lag_bytes: null, lag_seconds: null },
  ...{ slot_bytes: null, keep_bytes: null, problem: null },
};

/** Bytes of the list of tables in a message of the link. */
const TABLES_ROOM = 393_216;
const SLOT_WITHIN_MS = 9_000;

/** The slot at the source. @returns why it cannot be read; null without a subscription */
export async function readFollowedSlot(
  host: FollowHost,
  followed: Followed,
): Promise<Result<SlotState, SourceFinding> | null> {
  const subscription = await readSubscription(host.postgres, followed);
  if (!subscription) return null;
  const { source, tls } = subscription;
  return inSource(host.settings, source, SLOT_WITHIN_MS, ({ session }) => readSlot(session, followed.slot), {
    tls,
  });
}

/** Age of the last message of the source, in seconds; null while the worker has none, or has ended. */
export async function readLagSeconds(db: Queryable, followed: Followed): Promise<number | null> {
  const { rows } = await db.query<{ seconds: number | null }>(
    `SELECT extract(epoch FROM clock_timestamp() - last_msg_receipt_time)::float8 AS seconds
     FROM pg_subscription JOIN pg_database ON pg_database.oid = subdbid
     CROSS JOIN LATERAL pg_stat_get_subscription(pg_subscription.oid) AS worker
     WHERE datname = $1 AND worker.relid IS NULL AND worker.pid IS NOT NULL`,
    [followed.database],
  );
  const seconds = rows[0]?.seconds ?? null;
  return seconds === null ? null : Math.max(0, seconds);
}

const TABLES = `
  SELECT n.nspname AS schema, c.relname AS "table", srsubstate AS state, greatest(c.reltuples, 0)::float8 AS rows
  FROM pg_catalog.pg_subscription_rel
  JOIN pg_catalog.pg_class AS c ON c.oid = srrelid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
  ORDER BY srsubstate = 'r', c.reltuples DESC, 1, 2 LIMIT ${SOURCE_TABLES_MAX}`;

const readTables = (host: FollowHost, followed: Followed): Promise<FollowStatus['tables']> =>
  inFollowed(host, followed, 'read', async (session) => {
    const { rows } = await session.query<{ schema: string; table: string; state: string; rows: string }>(
      TABLES,
    );
    const tables = rows.map(({ schema, table, state, rows: count }) => ({
      ...{ schema: short(schema), table: short(table), rows: Math.round(Number(count)) },
      ...(state === 'r' ? { state: 'following' as const, percent: 100 } : { percent: 0 }),
      ...(state !== 'r' && { state: state === 'i' ? ('waiting' as const) : ('copying' as const) }),
    }));
    return fitting(tables as FollowStatus['tables'], TABLES_ROOM);
  });

export const LOST: FollowProblem = {
  code: 'slot',
  message:
    'The source has dropped the slot, or the WAL that it kept: max_slot_wal_keep_size was reached. Stop following, and follow again from the beginning.',
  ...{ table: null, statement: null },
};

/** @throws HostError POSTGRES_UNAVAILABLE */
export async function followStatus(
  host: FollowHost,
  { branch_id }: Params<'follow.status'>,
): Promise<MethodResult<'follow.status'>> {
  const [followed] = await readFollowed(host.postgres, { branch_id });
  if (!followed?.since) return ABSENT;
  const [tables, slot, seconds] = await Promise.all([
    // A clone ends the session, and lasts for moments.
    readTables(host, followed).catch(() => readTables(host, followed)),
    readFollowedSlot(host, followed),
    readLagSeconds(host.postgres, followed),
  ]);
  const known = slot?.ok ? slot.value : null;
  return {
    state: followed.problem ? 'stopped' : 'following',
    tables,
    lag_bytes: known?.lag_bytes ?? null,
    // An idle source sends little.
    lag_seconds: known?.lag_bytes === 0 && !followed.problem ? 0 : seconds,
    slot_bytes: known?.slot_bytes ?? null,
    keep_bytes: known?.keep_bytes ?? null,
    problem: followed.problem ?? (known?.isLost ? LOST : null),
  };
}
