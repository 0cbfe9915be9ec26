import type { BranchMeasurement, ProjectMeasurement } from '../../shared/measurement.ts';
import { MetricHistory, type PointsByBranch, type Range } from './metric-history.ts';
import type { BranchValues, Point } from './metrics.ts';

/** One measurement of a project, as sent on a stream. */
export interface MeasurementEvent {
  /** Unix milliseconds. */
  at: number;
  branches: BranchMeasurement[];
}

/** The last known values of a project's branches. Timestamps are Unix milliseconds. */
export interface LastMeasurement {
  /** When it was made; see `timestampOf`. */
  at: number;
  /** When it was made by the host's clock. */
  observedAt: number;
  /** When it was received by our clock. */
  receivedAt: number;
  /** By branch id. A branch missing from this measurement has the values of an earlier one. */
  branches: Record<string, BranchValues>;
  /** Ids of the recorded branches, by name. */
  ids: Record<string, string>;
  /** What the branches take of the disk together; of an earlier measurement if this one does not say it. */
  physical?: (NonNullable<ProjectMeasurement['physical']> & { receivedAt: number }) | undefined;
  /** When what the branches take of the disk was measured, by the host's clock; ISO 8601. */
  diskMeasuredAt?: string | undefined;
}

/** The files of these branches together. A measurement of an earlier release lacks them. */
export const filesOf = (last: LastMeasurement | null, branchIds: readonly string[]): number =>
  branchIds.reduce((sum, id) => sum + (last?.branches[id]?.file_count ?? 0), 0);

const LAST = 'last_measurement';

/** The last measurement with the end of the history. */
interface Head extends LastMeasurement {
  recent?: PointsByBranch;
  /** Whose link keeps what comes after it. None: it was stored with each measurement. */
  keptBy?: string | undefined;
}

/** After this many intervals without a measurement, two are missing. */
const MISSED_AFTER_INTERVALS = 2.5;
/** Measurements arrive immediately, so an older timestamp means that the host's clock is slow. */
const LATE_MS = 60_000;

/** The timestamp of a measurement: the host's, limited to the last minute by our clock. */
const timestampOf = (observedAt: number, now: number): number =>
  Math.min(Math.max(observedAt, now - LATE_MS), now);

/**
 * The measurements of one project: the last one with those of the last minutes, which is the head, and their
 * history. Each row that is written is charged, so the object stores its head (key `last_measurement`) only
 * with the rows of the history, about every ten minutes. In between it is in memory, and the link of the host
 * keeps it together with those of the host's other projects. The newest of the three counts.
 */
export class MeasurementStore {
  readonly #storage: DurableObjectStorage;
  readonly #history: MetricHistory;
  readonly #missedAfterMs: number;
  readonly #readKept: (hostId: string) => Promise<string | null>;
  #head: Head | null = null;
  #isLoaded = false;

  /** @param readKept asks the link of the host for the head of this project */
  constructor(
    storage: DurableObjectStorage,
    intervalSeconds: number,
    readKept: (hostId: string) => Promise<string | null>,
  ) {
    this.#storage = storage;
    this.#history = new MetricHistory(storage.sql);
    this.#missedAfterMs = intervalSeconds * 1000 * MISSED_AFTER_INTERVALS;
    this.#readKept = readKept;
  }

  /**
   * To be awaited before everything else. An object that has lost its memory asks the link of the host; if that
   * fails, what it has stored counts until the next call.
   * @param kept the head that the link has sent: null for none, left out to ask for it
   */
  async load(kept?: string | null): Promise<void> {
    if (this.#isLoaded) return;
    this.#adopt(this.#storage.kv.get<Head>(LAST) ?? null);
    const keptBy = this.#head?.keptBy;
    if (kept === undefined && keptBy !== undefined) {
      const asked = await this.#readKept(keptBy).catch(() => undefined);
      if (asked === undefined) return;
      kept = asked;
    }
    this.#adopt(kept == null ? null : (JSON.parse(kept) as Head));
    this.#isLoaded = true;
  }

  #adopt(head: Head | null): void {
    if (head && head.at > (this.#head?.at ?? -1)) this.#head = head;
  }

  /** What the link of the host is to keep. */
  head(): string | null {
    return this.#head && JSON.stringify(this.#head);
  }

  /** Stores what no link keeps. */
  storeHead(): void {
    if (this.#head) this.#storage.kv.put(LAST, this.#head);
  }

  forget(): void {
    this.#head = null;
    this.#isLoaded = false;
  }

  last(): LastMeasurement | null {
    if (!this.#head) return null;
    const { recent, keptBy, ...last } = this.#head;
    return last;
  }

  /** Whether at least two measurements in a row are missing. @param now Unix milliseconds */
  isOverdue(now: number): boolean {
    const last = this.last();
    return last === null || now - last.receivedAt > this.#missedAfterMs;
  }

  /**
   * Stores a measurement. A repeated measurement, or one older than the last by the host's clock, is ignored.
   * Once measurements are overdue, an older timestamp is accepted, because the host's clock was set back.
   * @param branches the recorded ones; values of other branches are dropped
   * @param keptBy the host whose link keeps the head; none: it is stored with each measurement
   * @returns the timestamp and the values of those branches; null if it was ignored
   */
  record(
    measurement: ProjectMeasurement,
    branches: readonly { id: string; branchName: string }[],
    now: number,
    keptBy?: string,
  ): MeasurementEvent | null {
    const observedAt = Date.parse(measurement.observed_at);
    const last = this.#head;
    const at = timestampOf(observedAt, now);
    if (last && (observedAt <= last.observedAt || at <= last.at) && !this.isOverdue(now)) return null;
    const onRecord = new Set(branches.map(({ id }) => id));
    const known = measurement.branches.filter(({ branch_id }) => onRecord.has(branch_id));
    const measured = new Map(known.map(({ branch_id, ...values }) => [branch_id, values]));
    // Points are written in ascending order, even if a clock was set back.
    const timestamp = Math.max(at, (last?.at ?? 0) + 1);
    this.#head = this.#storage.transactionSync(() => {
      const { recent, isWritten } = this.#history.add(timestamp, measured, { head: last, onRecord });
      const before = Object.entries(last?.branches ?? {}).filter(([branchId]) => onRecord.has(branchId));
      const after = [...measured].map(([branchId, values]) => {
        const cache_hit_ratio = values.cache_hit_ratio ?? last?.branches[branchId]?.cache_hit_ratio ?? null;
        return [branchId, { ...values, cache_hit_ratio }] as const;
      });
      const head: Head = {
        at: timestamp,
        observedAt,
        receivedAt: now,
        branches: Object.fromEntries([...before, ...after]),
        ids: Object.fromEntries(branches.map(({ id, branchName }) => [branchName, id])),
        physical: measurement.physical ? { ...measurement.physical, receivedAt: now } : last?.physical,
        diskMeasuredAt: measurement.disk_measured_at ?? last?.diskMeasuredAt,
        recent,
        keptBy,
      };
      if (isWritten || keptBy === undefined || keptBy !== last?.keptBy) this.#storage.kv.put(LAST, head);
      return head;
    });
    return { at: timestamp, branches: known };
  }

  /** Points of one branch, oldest first. @param range its step is at least `finestStep` of its start */
  read(branchId: string, range: Range): Point[] {
    return this.#history.read(branchId, range, this.#head);
  }

  /** The same of several branches, by ID. */
  readEach(branchIds: readonly string[], range: Range): Map<string, Point[]> {
    return new Map(branchIds.map((branchId) => [branchId, this.read(branchId, range)]));
  }

  /**
   * The measurements after `since` (Unix milliseconds), one per minute, at most `limit`; oldest first.
   * Branches that have been deleted since are left out.
   */
  after(since: number, limit: number): ReturnType<MetricHistory['after']> {
    const onRecord = new Set(Object.values(this.#head?.ids ?? {}));
    return this.#history
      .after(since, this.#head, limit)
      .map(({ at, branches }) => ({ at, branches: branches.filter(([id]) => onRecord.has(id)) }));
  }
}

/** The last measurement of a project. */
export interface Recorded {
  last: LastMeasurement | null;
  /** The newest known size of each branch, in bytes by ID. */
  sizes: Record<string, number>;
  /** What a new branch counts against the quota, whatever its source; null: as much as its source. */
  cloneBytes: number | null;
  /** The next measurement is late. */
  overdue: boolean;
}
