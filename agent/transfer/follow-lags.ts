import type { Queryable } from '../postgres/connect.ts';
import type { AgentSettings } from '../process/settings.ts';
import type { Followed, Subscription } from './following.ts';
import type { Source } from './source-address.ts';
import { openReadingSession } from './source-session.ts';
import { readSlot, type SlotState } from './source-slot.ts';

/** How old the state of the source is that each branch has. */

/** The WAL of a source was at `lsn` from and to these times, in milliseconds of a monotonic clock. */
interface Position {
  lsn: number;
  from: number;
  to: number;
}

/** Positions in memory: an hour at one a second, and some of the time before. */
const POSITIONS_MAX = 7_200;
/** Positions that are stored for the next process. */
const STORED_MAX = 256;

/** When the WAL of a source was where, as far as this host has seen it. */
export class SourcePositions {
  #known: Position[] = [];

  /** @param at when the source was there; later than that of all calls before */
  add(lsn: number, at: number): void {
    // A position that decreased is of another server, or of a restored one.
    while ((this.#known.at(-1)?.lsn ?? 0) > lsn) this.#known.pop();
    const last = this.#known.at(-1);
    if (last?.lsn === lsn) last.to = at;
    else this.#known.push({ lsn, from: at, to: at });
    if (this.#known.length > POSITIONS_MAX) this.#thin();
  }

  /** Keeps every second position of the older half. */
  #thin(): void {
    this.#known = this.#known.filter((_, at) => at >= POSITIONS_MAX / 2 || at % 2 === 0);
  }

  get last(): Position | undefined {
    return this.#known.at(-1);
  }

  get size(): number {
    return this.#known.length;
  }

  /**
   * The latest time at which the source had written no more than this. Between two known positions, it has written
   * evenly.
   * @returns null before the first position
   */
  timeOf(lsn: number): number | null {
    const before = this.#known.findLastIndex((position) => position.lsn <= lsn);
    const previous = this.#known[before];
    const next = this.#known[before + 1];
    // Older than what is known: at least so old.
    if (!previous) return next?.from ?? null;
    if (!next) return previous.to;
    return previous.to + ((next.from - previous.to) * (lsn - previous.lsn)) / (next.lsn - previous.lsn);
  }

  /** @param epoch the wall clock at the start of the monotonic one */
  stored(epoch: number): [lsn: number, from: number, to: number][] {
    const every = Math.ceil(this.#known.length / STORED_MAX);
    return this.#known
      .filter((_, at) => (this.#known.length - 1 - at) % every === 0)
      .map(({ lsn, from, to }) => [lsn, Math.round(from + epoch), Math.round(to + epoch)]);
  }

  /** Adds the positions of an earlier process. */
  restore(stored: readonly (readonly [lsn: number, from: number, to: number])[], epoch: number): void {
    const first = this.#known[0];
    const earlier = stored
      .map(([lsn, from, to]) => ({ lsn, from: from - epoch, to: to - epoch }))
      .filter(({ lsn, to }) => !first || (lsn < first.lsn && to <= first.from));
    this.#known.unshift(...earlier);
  }
}

const EPOCH = performance.timeOrigin;
/** A source that is read every second counts as level for a little longer. */
const LEVEL_FOR_MS = 2_000;
const READ_WITHIN_MS = 9_000;
/** Between attempts to reach a source that is away. */
const RETRY_AFTER_MS = 5_000;

/** The session in which the slot of a branch is read every second. */
class SlotSession {
  #opened: ReturnType<typeof openReadingSession> | null = null;

  /** @returns null if the source does not answer in time */
  async read(
    settings: Pick<AgentSettings, 'FOLLOW_CA_FILE'>,
    source: Source,
    slot: string,
  ): Promise<SlotState | null> {
    this.#opened ??= openReadingSession(settings, source);
    const opened = this.#opened;
    const { promise: late, resolve } = Promise.withResolvers<null>();
    const timer = setTimeout(resolve, READ_WITHIN_MS, null);
    const read = opened.then(({ session }) => readSlot(session, slot)).catch(() => null);
    const state = await Promise.race([read, late]);
    clearTimeout(timer);
    if (state === null && this.#opened === opened) this.end();
    return state;
  }

  end(): void {
    this.#opened?.then(
      ({ end }) => end(),
      () => {},
    );
    this.#opened = null;
  }
}

interface Track {
  positions: SourcePositions;
  session: SlotSession;
  /** Last state of the slot; null: the source does not answer. */
  slot: SlotState | null;
  /** The position up to which the slot has been confirmed, as far as that was read. */
  confirmed: number | null;
  /** The position up to which the branch has applied changes. */
  applied: number | null;
  readAt: number;
  reading: Promise<SlotState | null> | null;
  /** The record has the positions that an earlier process stored. */
  isRestored: boolean;
}

/** Lags of the branches that follow, as far as this process knows them. */
export class FollowLags {
  readonly #tracks = new Map<string, Track>();
  #stopped: ReadonlySet<string> = new Set();

  #trackOf(branchId: string): Track {
    const track = this.#tracks.get(branchId) ?? {
      positions: new SourcePositions(),
      session: new SlotSession(),
      slot: null,
      confirmed: null,
      applied: null,
      readAt: Number.NEGATIVE_INFINITY,
      reading: null,
      isRestored: false,
    };
    this.#tracks.set(branchId, track);
    return track;
  }

  /** Reads the slot of a branch, which says where the source is now. @returns null if the source cannot be read */
  readSlot(
    settings: Pick<AgentSettings, 'FOLLOW_CA_FILE'>,
    { branch_id, slot }: Pick<Followed, 'branch_id' | 'slot'>,
    { source }: Pick<Subscription, 'source'>,
  ): Promise<SlotState | null> {
    const track = this.#trackOf(branch_id);
    const at = performance.now();
    const reading = track.session.read(settings, source, slot).then((state) => {
      track.slot = state;
      track.readAt = at;
      if (state && !state.isLost) {
        track.confirmed = state.confirmed;
        if (at > (track.positions.last?.to ?? Number.NEGATIVE_INFINITY)) track.positions.add(state.lsn, at);
      }
      return state;
    });
    track.reading = reading.finally(() => {
      track.reading = null;
    });
    return reading;
  }

  /** Returns whether the watch should read the slot now. A source that is away is not asked each second. */
  isDue(branchId: string): boolean {
    const { reading, slot, readAt } = this.#trackOf(branchId);
    return reading === null && (slot !== null || performance.now() - readAt > RETRY_AFTER_MS);
  }

  slotOf = (branchId: string): SlotState | null => this.#tracks.get(branchId)?.slot ?? null;

  /** Reads how far each branch is. @param present all branches that follow */
  async read(db: Queryable, present: readonly Pick<Followed, 'branch_id' | 'problem'>[]): Promise<void> {
    const ids = new Set(present.map(({ branch_id }) => branch_id));
    for (const [branchId, { session }] of this.#tracks) {
      if (ids.has(branchId)) continue;
      session.end();
      this.#tracks.delete(branchId);
    }
    this.#stopped = new Set(present.flatMap(({ branch_id, problem }) => (problem ? [branch_id] : [])));
    await this.#restore(
      db,
      [...ids].filter((branchId) => !this.#tracks.get(branchId)?.isRestored),
    );
    const { rows } = await db.query<{ branch_id: string; applied: number }>(
      `SELECT branch_id, (remote_lsn - '0/0')::float8 AS applied
       FROM following JOIN pg_database ON datname = database JOIN pg_subscription ON subdbid = pg_database.oid
       JOIN pg_replication_origin_status ON external_id = 'pg_' || pg_subscription.oid
       WHERE since IS NOT NULL`,
    );
    for (const { branch_id, applied } of rows)
      if (ids.has(branch_id)) this.#trackOf(branch_id).applied = Number(applied);
  }

  async #restore(db: Queryable, branchIds: string[]): Promise<void> {
    if (branchIds.length === 0) return;
    const { rows } = await db.query<{ branch_id: string; positions: [number, number, number][] }>(
      'SELECT branch_id, positions FROM following WHERE branch_id = ANY ($1)',
      [branchIds],
    );
    for (const { branch_id, positions } of rows) {
      const track = this.#trackOf(branch_id);
      if (!track.isRestored) track.positions.restore(positions, EPOCH);
      track.isRestored = true;
    }
  }

  /** Stores what the next process has to know: replication can be stopped for days. */
  async store(db: Queryable, branchId: string): Promise<void> {
    const positions = this.#tracks.get(branchId)?.positions.stored(EPOCH) ?? [];
    await db.query('UPDATE following SET positions = $2 WHERE branch_id = $1', [
      branchId,
      JSON.stringify(positions),
    ]);
  }

  /** Seconds since the source was where the branch is; 0 for one that is level, null if it is not known. */
  of(branchId: string): number | null {
    const track = this.#tracks.get(branchId);
    if (!track) return null;
    const { positions, confirmed, applied, slot } = track;
    if (confirmed === null && applied === null) return null;
    const at = Math.max(confirmed ?? 0, applied ?? 0);
    const since = positions.timeOf(at);
    if (since === null || !positions.last) return null;
    const age = performance.now() - since;
    const isLevel = slot !== null && !slot.isLost && at >= positions.last.lsn && age < LEVEL_FOR_MS;
    return isLevel ? 0 : Math.max(0, age / 1000);
  }

  /** Figures of all branches, for the metrics. */
  get present() {
    const known = [...this.#tracks];
    return {
      following: known.filter(([branchId]) => !this.#stopped.has(branchId)).length,
      stopped: this.#stopped.size,
      lag_seconds: largest(known.map(([branchId]) => this.of(branchId) ?? 0)),
      slot_bytes: largest(known.flatMap(([, { slot }]) => slot?.slot_bytes ?? [])),
    };
  }

  /** Ends the sessions with the sources. */
  close(): void {
    for (const { session } of this.#tracks.values()) session.end();
    this.#tracks.clear();
  }
}

const largest = (values: readonly number[]) => (values.length === 0 ? null : Math.max(...values));
