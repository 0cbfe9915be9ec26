import type { FollowProblem, FollowStatus } from '../../shared/protocol/follow.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { SOURCE_TABLES_MAX } from '../../shared/protocol/transfer-operations.ts';
import type { RuleSync } from '../access/sync-rules.ts';
import { fitting } from '../difference/schema/compare-schemas.ts';
import type { Queryable } from '../postgres/connect.ts';
import type { Excesses } from '../process/excesses.ts';
import type { FollowLags } from './follow-lags.ts';
import { type FollowHost, inFollowed } from './followed-session.ts';
import { type Followed, readFollowed, readSubscription } from './following.ts';
import { short } from './source-address.ts';
import type { SlotState } from './source-slot.ts';

const ABSENT: FollowStatus = {
  state: 'absent',
  tables: [],
  lag_bytes: null,
  lag_seconds: null,
  slot_bytes: null,
  keep_bytes: null,
  problem: null,
};

/** Bytes of the list of tables in a message of the link. */
const TABLES_ROOM = 393_216;

/** Dependencies of the watch and the description of branches that follow. */
export interface WatchedHost extends FollowHost {
  lags: FollowLags;
  rules: RuleSync;
  excesses: Excesses;
}

export const followedNow = async (db: Queryable): Promise<Followed[]> =>
  (await readFollowed(db)).filter(({ since }) => since);

/** Reads the slot at the source. @returns null if the source cannot be read, or without a subscription */
export async function readFollowedSlot(host: WatchedHost, followed: Followed): Promise<SlotState | null> {
  const subscription = await readSubscription(host.postgres, followed);
  return subscription && host.lags.readSlot(host.settings, followed, subscription);
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
      schema: short(schema),
      table: short(table),
      rows: Math.round(Number(count)),
      ...(state === 'r' ? { state: 'following' as const, percent: 100 } : { percent: 0 }),
      ...(state !== 'r' && { state: state === 'i' ? ('waiting' as const) : ('copying' as const) }),
    }));
    return fitting(tables as FollowStatus['tables'], TABLES_ROOM);
  });

export const LOST: FollowProblem = {
  code: 'slot',
  message:
    'The source has dropped the slot, or the WAL that it kept: max_slot_wal_keep_size was reached. Stop following, and follow again from the beginning.',
  table: null,
  statement: null,
};

/** Changes that the source has had confirmed may be missing, so nothing continues what was followed. */
export const PROMOTED: FollowProblem = {
  code: 'slot',
  message:
    'The host of this database was replaced by its standby, and changes that the source had sent before may be missing here. Stop following, and follow again from the beginning.',
  table: null,
  statement: null,
};

/** @throws HostError POSTGRES_UNAVAILABLE */
export async function followStatus(
  host: WatchedHost,
  { branch_id }: Params<'follow.status'>,
): Promise<MethodResult<'follow.status'>> {
  const [followed] = await readFollowed(host.postgres, { branch_id });
  if (!followed?.since) return ABSENT;
  const [tables, slot] = await Promise.all([
    // A clone ends the session, and lasts for moments.
    readTables(host, followed).catch(() => readTables(host, followed)),
    readFollowedSlot(host, followed),
  ]);
  await host.lags.read(host.postgres, await followedNow(host.postgres));
  return {
    state: followed.problem ? 'stopped' : 'following',
    tables,
    lag_bytes: slot?.lag_bytes ?? null,
    lag_seconds: host.lags.of(followed.branch_id),
    slot_bytes: slot?.slot_bytes ?? null,
    keep_bytes: slot?.keep_bytes ?? null,
    problem: followed.problem ?? (slot?.isLost ? LOST : null),
  };
}
