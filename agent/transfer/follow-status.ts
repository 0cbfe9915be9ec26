import type { FollowProblem, FollowStatus } from '../../shared/protocol/follow.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { SOURCE_TABLES_MAX, type SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import type { Result } from '../../shared/result.ts';
import { fitting } from '../difference/schema/compare-schemas.ts';
import type { Queryable } from '../postgres/connect.ts';
import { type FollowHost, inFollowed } from './followed-session.ts';
import { type Followed, readFollowed, readSubscription } from './following.ts';
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

/** What watches and describes branches that follow. */
export interface WatchedHost extends FollowHost {
  lags: FollowLags;
}

export const followedNow = async (db: Queryable): Promise<Followed[]> =>
  (await readFollowed(db)).filter(({ since }) => since);

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

/** How old what each branch has of its source is, as far as this process has seen it. */
export class FollowLags {
  /** By branch: when it last had a message of the source, or all of its WAL. Milliseconds of a monotonic clock. */
  readonly #heard = new Map<string, number>();
  /** By branch: what its slot said last; null: the source cannot be read. */
  readonly #slots = new Map<string, SlotState | null>();
  #stopped: ReadonlySet<string> = new Set();

  /** @param present all branches that follow */
  async read(db: Queryable, present: readonly Pick<Followed, 'branch_id' | 'problem'>[]): Promise<void> {
    const isPresent = new Set(present.map(({ branch_id }) => branch_id));
    for (const known of [this.#heard, this.#slots])
      for (const branchId of known.keys()) if (!isPresent.has(branchId)) known.delete(branchId);
    this.#stopped = new Set(present.flatMap(({ branch_id, problem }) => (problem ? [branch_id] : [])));
    const { rows } = await db.query<{ branch_id: string; seconds: number }>(
      // A worker that has just begun claims to have had a message.
      `SELECT branch_id, extract(epoch FROM clock_timestamp() - last_msg_receipt_time)::float8 AS seconds
       FROM following JOIN pg_database ON datname = database JOIN pg_subscription ON subdbid = pg_database.oid
       CROSS JOIN LATERAL pg_stat_get_subscription(pg_subscription.oid) AS worker
       WHERE since IS NOT NULL AND worker.relid IS NULL AND worker.pid IS NOT NULL AND worker.received_lsn IS NOT NULL`,
    );
    for (const { branch_id, seconds } of rows) this.#hear(branch_id, Math.max(0, seconds));
  }

  #hear(branchId: string, secondsAgo: number): void {
    const at = performance.now() - secondsAgo * 1000;
    this.#heard.set(branchId, Math.max(at, this.#heard.get(branchId) ?? at));
  }

  noteSlot(branchId: string, slot: SlotState | null): void {
    this.#slots.set(branchId, slot);
    if (slot?.lag_bytes === 0 && !slot.isLost) this.#hear(branchId, 0);
  }

  /** Seconds; null before the first message. */
  of(branchId: string): number | null {
    const heard = this.#heard.get(branchId);
    if (heard === undefined) return null;
    // An idle source sends little.
    const slot = this.#slots.get(branchId);
    if (slot?.lag_bytes === 0 && !slot.isLost && !this.#stopped.has(branchId)) return 0;
    return (performance.now() - heard) / 1000;
  }

  /** Of all branches together, for the metrics. */
  get present() {
    const slots = [...this.#slots.values()].flatMap((slot) => slot ?? []);
    return {
      following: [...this.#slots.keys()].filter((branchId) => !this.#stopped.has(branchId)).length,
      stopped: this.#stopped.size,
      lag_seconds: largest([...this.#heard.keys()].map((branchId) => this.of(branchId) ?? 0)),
      slot_bytes: largest(slots.map(({ slot_bytes }) => slot_bytes)),
    };
  }
}

const largest = (values: readonly number[]) => (values.length === 0 ? null : Math.max(...values));

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
  const known = slot?.ok ? slot.value : null;
  host.lags.noteSlot(followed.branch_id, known);
  await host.lags.read(host.postgres, await followedNow(host.postgres));
  return {
    state: followed.problem ? 'stopped' : 'following',
    tables,
    lag_bytes: known?.lag_bytes ?? null,
    lag_seconds: host.lags.of(followed.branch_id),
    slot_bytes: known?.slot_bytes ?? null,
    keep_bytes: known?.keep_bytes ?? null,
    problem: followed.problem ?? (known?.isLost ? LOST : null),
  };
}
